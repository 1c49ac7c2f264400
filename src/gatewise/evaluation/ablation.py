"""What a model still does without some of its nodes or edges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.compute import Compute
from gatewise.engine.runs.activations import Ablation
from gatewise.engine.setting import Data, Setting
from gatewise.errors import GatewiseError
from gatewise.evaluation.evaluations import Behaviour, evaluate, normalise
from gatewise.models.model import Model

_NAMED = 4  # targets in a repr


@dataclass(frozen=True, repr=False)
class AblationResult:
    """What is left of a model without some of its edges, beside the whole model and the empty circuit.

    Attributes:
        names: Nodes and edges as they were given.
        edges: The edges that were removed.
        left: What the model does without them.
        full: What the whole model does.
        empty: What the empty circuit does.
    """

    names: tuple[str, ...]
    edges: Circuit
    left: Behaviour
    full: Behaviour
    empty: Behaviour

    @property
    def logit_diff_left(self) -> float:
        """Normalised logit difference: 0 is the empty circuit, 1 the whole model."""
        return normalise(self.left.logit_diff, self.empty.logit_diff, self.full.logit_diff)

    @property
    def name(self) -> str:
        """What was removed, as it was given; of many targets the first few."""
        further = f" and {len(self.names) - _NAMED} more" if len(self.names) > _NAMED else ""
        return f"{', '.join(self.names[:_NAMED])}{further}"

    def row(self) -> dict[str, float]:
        """Put all numbers side by side, as one row of a table.

        Returns:
            Means by name, such as `left_logit_diff`.
        """
        parts = {"left": self.left, "full": self.full, "empty": self.empty}
        return {f"{part}_{name}": m["mean"] for part, all_ in parts.items() for name, m in asdict(all_).items()}

    def __repr__(self) -> str:
        return (
            f"<Without {self.name} ({len(self.edges):,} edges): {self.logit_diff_left:.0%} is left, logit difference "
            f"{self.left.logit_diff.mean:.2f} of {self.full.logit_diff.mean:.2f} (empty circuit "
            f"{self.empty.logit_diff.mean:.2f}), pairwise accuracy {self.left.accuracy.mean:.0%} of "
            f"{self.full.accuracy.mean:.0%}, KL to the model {self.left.kl_from_full}>"
        )


def ablate(
    model: Model,
    data: Data,
    targets: Circuit | str | Iterable[str],
    *,
    ablation: Ablation | None = None,
    compute: Compute | None = None,
) -> AblationResult:
    """Remove nodes, edges or a circuit from a model and measure what it still does.

    Args:
        model: The model to ablate.
        data: Pairs, a task (its held-out pairs are taken) or a setting.
        targets: Nodes ("a5.h9", "m3"), which go with all edges that they send, edges ("a5.h9->m8", or
            "a5.h9->a9.h6" for all of its ports), or a circuit.
        ablation: What removed edges carry: "patching" by default, or "zero", "mean", "noise".
        compute: Where to run, by default the innermost `with gw.Compute(...)`.

    Returns:
        What is left without the targets, beside the whole model and the empty circuit.

    Raises:
        GatewiseError: If the model has no such node or edge.
    """
    setting = Setting.of(model, data, "test", ablation=ablation, compute=compute)
    names: tuple[str, ...] = ("a circuit",)
    if isinstance(targets, Circuit):
        removed = targets
    else:
        names = (targets,) if isinstance(targets, str) else tuple(targets)
        removed = setting.graph.circuit([edge for name in names for edge in _edges_of(setting.graph, name)])
    evaluation = evaluate(model, setting, removed, random_circuits=0)
    return AblationResult(names, removed, evaluation.complement, evaluation.full, evaluation.empty)


def _edges_of(graph: Graph, name: str) -> list[int]:
    """Indices of the edges that a name means: an edge itself, or all that a node sends."""
    if "->" in name:
        return graph.indices(name)
    sender = graph.find_sender(name)
    if sender is None:
        raise GatewiseError(
            f"there is no node {name!r} that sends anything in {graph!r}; write nodes as {graph.senders[1]!r} and "
            f"edges as {graph.edges[0]!r}."
        )
    return (graph.edge_sender == sender).nonzero().flatten().tolist()
