"""Exact effects: what removing one edge really does, from the full graph or from a circuit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.compute import Compute
from gatewise.display import card, frame, strongest
from gatewise.engine.patching.edge_ablation import NOTHING, measure_removals
from gatewise.engine.runs.activations import Ablation, Direction
from gatewise.engine.setting import AnyMetric, Data, Setting
from gatewise.models.model import Model


@dataclass(frozen=True, eq=False)
class ExactEffects:
    """Changes that removing single edges causes, as means over examples."""

    graph: Graph
    edges: tuple[int, ...]  # indices in graph.edges
    kl: Tensor  # [edge], change of KL(reference || circuit)
    logit_diff: Tensor  # [edge], change of the logit difference

    def to_frame(self) -> Any:
        """All effects as a pandas frame, the strongest on KL first."""
        order = strongest(self.kl, count=len(self.edges))
        return frame(
            [
                {
                    "edge": self.graph.edges[self.edges[i]],
                    "kl": float(self.kl[i]),
                    "logit_diff": float(self.logit_diff[i]),
                }
                for i in order
            ]
        )

    def __repr__(self) -> str:
        order = self.kl.abs().argsort(descending=True)[:3].tolist()
        shown = ", ".join(f"{self.graph.edges[self.edges[i]]} {float(self.kl[i]):+.4g}" for i in order)
        return f"<Effects of {len(self.edges):,} edges on KL; strongest {shown}>"

    def _repr_html_(self) -> str:
        best = strongest(self.kl)
        rows = [(self.graph.edges[self.edges[i]], f"{self.kl[i]:+.4g}", f"{self.logit_diff[i]:+.4g}") for i in best]
        return card(
            "ExactEffects", f"of removing {len(self.edges):,} edges, one at a time", ("edge", "KL", "logit_diff"), rows
        )


def exact_effects(
    model: Model,
    data: Data,
    edges: Iterable[str] | Iterable[int] | None = None,
    direction: Direction = "ns",
    *,
    circuit: Circuit | None = None,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> ExactEffects:
    """The true change of KL and logit difference for removing each edge alone. Default: all edges of the circuit or
    graph.

    `ablation`: what removed edges carry, as for `discover`. `metric`: what stands in the place of the logit difference.
    """
    setting = Setting.of(model, data, ablation=ablation, metric=metric, compute=compute)
    graph = setting.graph
    start = graph.full() if circuit is None else circuit
    chosen = start.indices if edges is None else [e if isinstance(e, int) else graph.index(e) for e in edges]
    removals = [NOTHING, *(frozenset([edge]) for edge in chosen)]
    found = measure_removals(
        setting,
        start,
        removals,
        lambda bench: [bench.distance.exact, bench.logit_diff],
        direction,
        task="exact effects",
    )
    kl, logit_diff = (found[:, 1:] - found[:, :1]).mean(dim=-1)
    return ExactEffects(graph, tuple(chosen), kl, logit_diff)
