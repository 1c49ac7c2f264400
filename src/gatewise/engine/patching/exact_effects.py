"""`exact_effects`, for users: what ablating one edge really does, in the full graph or in a circuit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.compute import Compute
from gatewise.display import SHOWN, card, frame, strongest
from gatewise.engine.patching.edge_ablation import NOTHING, EdgeAblation, ResidualMeasure, measure_removals
from gatewise.engine.runs.activations import Ablation, Direction
from gatewise.engine.setting import AnyMetric, Data, Setting
from gatewise.models.model import Model


@dataclass(frozen=True, eq=False)
class ExactEffects:
    """Changes that removing single edges causes, as means over examples.

    Attributes:
        graph: The graph of the model.
        edges: Indices of the edges in `graph.edges`.
        kl: Change of KL(reference || circuit). [edge]
        logit_diff: What the edge's clean content adds to the logit difference, or to the metric in its place: what is
            lost by removing it (ns), or gained by giving it (dn). Positive: the edge helps. [edge]
        by_example: The same for every example, if that was asked for; `logit_diff` is its mean. [edge, example]
    """

    graph: Graph
    edges: tuple[int, ...]
    kl: Tensor
    logit_diff: Tensor
    by_example: Tensor | None = None

    def _rows(self, count: int) -> list[tuple[str, float, float]]:
        """Name and effects of the edges with the strongest effects on KL."""
        order = strongest(self.kl, count=count)
        return [(self.graph.edges[self.edges[i]], float(self.kl[i]), float(self.logit_diff[i])) for i in order]

    def to_frame(self) -> Any:
        """List all effects, the strongest on KL first.

        Returns:
            A pandas frame with the columns edge, kl and logit_diff.
        """
        columns = ("edge", "kl", "logit_diff")
        return frame([dict(zip(columns, row, strict=True)) for row in self._rows(len(self.edges))])

    def __repr__(self) -> str:
        shown = ", ".join(f"{edge} {value:+.4g} logit difference (KL {kl:.2g})" for edge, kl, value in self._rows(3))
        return f"<Effects of {len(self.edges):,} edges; strongest by KL {shown}>"

    def _repr_html_(self) -> str:
        rows = [(edge, f"{kl:+.4g}", f"{change:+.4g}") for edge, kl, change in self._rows(SHOWN)]
        summary = f"of removing {len(self.edges):,} edges, one at a time"
        return card("ExactEffects", summary, ("edge", "KL", "adds to the logit difference"), rows)


def exact_effects(
    model: Model,
    data: Data,
    edges: Iterable[str] | Iterable[int] | None = None,
    direction: Direction = "ns",
    *,
    circuit: Circuit | None = None,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    per_example: bool = False,
    compute: Compute | None = None,
) -> ExactEffects:
    """Measure what removing each edge alone changes: no approximation, one partial run for each edge.

    Args:
        model: The model.
        data: Pairs, a task, of which the held-out pairs are used, or a prepared setting.
        edges: Names or indices; a name without a port means all ports. None for all edges of the circuit.
        direction: `ns` (noising) or `dn` (denoising).
        circuit: What edges are removed from; None for the full graph.
        ablation: What removed edges carry, as for `discover`; None for patching.
        metric: What stands in the place of the logit difference.
        per_example: Whether to keep the effects on the logit difference of every example, not only their mean.
        compute: Where to run.

    Returns:
        The change of KL, and what the edge adds to the logit difference, for each edge, as means over examples.

    Raises:
        GatewiseError: An edge does not exist or is not in the circuit, or the direction has no meaning.
    """
    setting = Setting.of(model, data, "test", ablation=ablation, metric=metric, compute=compute)
    graph = setting.graph
    start = graph.full() if circuit is None else circuit
    chosen = start.indices if edges is None else _chosen(graph, edges)
    removals = [NOTHING, *(frozenset([edge]) for edge in chosen)]
    values = measure_removals(setting, start, removals, _kl_and_logit_diff, direction, task="exact effects")
    kl, change = values[:, 1:] - values[:, :1]
    # Denoising removes an edge by giving it clean content, noising by taking that away.
    added = change if direction == "dn" else -change
    by_example = added if per_example else None
    return ExactEffects(graph, tuple(chosen), kl.mean(dim=-1), added.mean(dim=-1), by_example)


def _chosen(graph: Graph, edges: Iterable[str] | Iterable[int]) -> list[int]:
    chosen: list[int] = []
    for edge in edges:
        chosen += [edge] if isinstance(edge, int) else graph.indices(edge)
    return chosen


def _kl_and_logit_diff(ablation: EdgeAblation) -> list[ResidualMeasure]:
    return [ablation.distance.exact, ablation.logit_diff]
