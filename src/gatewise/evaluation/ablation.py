"""What a model still does without some of its nodes or edges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.compute import Compute
from gatewise.engine.runs.activations import Ablation
from gatewise.engine.setting import Data, Setting
from gatewise.errors import GatewiseError
from gatewise.evaluation.evaluations import Behaviour, evaluate, share_between
from gatewise.models.model import Model


@dataclass(frozen=True, repr=False)
class AblationResult:
    """What is left of a model without some of its edges, beside the whole model and the empty circuit."""

    names: tuple[str, ...]  # nodes and edges as they were given
    edges: Circuit  # what was removed
    left: Behaviour
    full: Behaviour
    empty: Behaviour

    @property
    def logit_diff_left(self) -> float:
        """Share of the way from the empty circuit (0) to the whole model (1), by logit difference."""
        return share_between(self.empty.logit_diff, self.left.logit_diff, self.full.logit_diff)

    def __repr__(self) -> str:
        without = ", ".join(self.names[:4]) + (f" and {len(self.names) - 4} more" if len(self.names) > 4 else "")
        return (
            f"<Without {without} ({len(self.edges):,} edges): logit difference {self.left.logit_diff.mean:.2f} of "
            f"{self.full.logit_diff.mean:.2f} (empty circuit {self.empty.logit_diff.mean:.2f}), pairwise accuracy "
            f"{self.left.accuracy.mean:.0%} of {self.full.accuracy.mean:.0%}, KL to the model {self.left.kl_from_full}>"
        )


def ablate(
    model: Model,
    data: Data,
    what: Circuit | str | Iterable[str] = (),
    *,
    ablation: Ablation | None = None,
    compute: Compute | None = None,
) -> AblationResult:
    """Remove nodes ("a5.h9", "m3") or edges ("a5.h9->m8"), or a circuit, and say what the model still does.

    A node is removed with all edges that it sends. Of a task, the held-out pairs are taken. `ablation` is what removed
    edges carry, as for `discover`.
    """
    setting = Setting.of(model, data, "test", ablation=ablation, compute=compute)
    names: tuple[str, ...] = ("a circuit",)
    if isinstance(what, Circuit):
        removed = what
    else:
        names = (what,) if isinstance(what, str) else tuple(what)
        removed = setting.graph.circuit([edge for name in names for edge in _sent(setting.graph, name)])
    found = evaluate(model, setting, removed, random_circuits=0)
    return AblationResult(names, removed, found.complement, found.full, found.empty)


def _sent(graph: Graph, name: str) -> list[int]:
    """The edges that a name means: itself, or all that a node sends."""
    if "->" in name:
        return [graph.index(name)]
    sender = graph.find_sender(name)
    if sender is None:
        raise GatewiseError(
            f"there is no node {name!r} that sends anything in {graph!r}; write nodes as {graph.senders[1]!r} and "
            f"edges as {graph.edges[0]!r}."
        )
    return (graph.edge_sender == sender).nonzero().flatten().tolist()
