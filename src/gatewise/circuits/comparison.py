"""Two circuits side by side: how far they overlap, and where they differ, by node, layer and gate type.

A circuit may come from gatewise or from another tool's file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit, Labelled
from gatewise.circuits.formats import PARTLY_SCORED
from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_TYPES
from gatewise.statistics import rank_correlation


@dataclass(frozen=True)
class Counts:
    """Edges of one part of the graph."""

    only_a: int
    shared: int
    only_b: int

    @property
    def different(self) -> int:
        return self.only_a + self.only_b


@dataclass(frozen=True)
class Comparison:
    """How two circuits of one graph overlap."""

    edges_a: int
    edges_b: int
    graph_edges: int
    total: Counts
    jaccard: float  # shared / union; 1 for two empty circuits
    chance: float  # what two random circuits of these sizes have on average, about
    hamming: int  # edges in exactly one of the two
    rank_correlation: float | None  # Spearman's, of |score| over all edges; None without scores on both sides
    nodes: Mapping[str, Counts]  # edges into or out of each node that either circuit has
    layers: Mapping[str, Counts]  # by the receiver's layer; the output as `logits`
    only_a: tuple[str, ...]  # edges that only A has, its strongest first
    only_b: tuple[str, ...]
    types: Mapping[str, Mapping[str, int]]  # type in A -> type in B -> edges; `edge` for a circuit without gates

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data.

        Returns:
            All fields, and the Hamming distance as a share of the graph's edges.
        """
        return {**asdict(self), "hamming_share": self.hamming / self.graph_edges}

    def __repr__(self) -> str:
        return (
            f"<Comparison: {self.total.shared:,} shared edges of {self.edges_a:,} and {self.edges_b:,}, "
            f"Jaccard {self.jaccard:.3f} (by chance {self.chance:.3f}), Hamming {self.hamming:,}>"
        )


def compare(a: Circuit | Labelled, b: Circuit | Labelled) -> Comparison:
    """Compare two circuits of one graph.

    Args:
        a: A circuit, or `gates.labelled` for its gate types too.
        b: Another one.

    Returns:
        How they overlap, and where they differ.

    Raises:
        GatewiseError: If they are of different graphs.
    """
    first, second = _plain(a), _plain(b)
    if first.graph != second.graph:
        raise GatewiseError(f"circuits of different graphs cannot be compared: {first.graph!r} and {second.graph!r}.")
    graph = first.graph
    in_a, in_b = first.mask, second.mask
    total = _count(in_a, in_b)
    layers = torch.tensor(graph.port_layer)[graph.edge_port]
    senders, receivers = graph.edge_sender, torch.tensor(graph.port_sender)[graph.edge_port]
    by_node = {}
    for index, node in enumerate(graph.nodes):
        here = receivers == -1 if node == "logits" else (senders == index) | (receivers == index)
        counts = _count(in_a & here, in_b & here)
        if counts.different or counts.shared:
            by_node[node] = counts
    names = {layer: "logits" if layer == graph.n_layers else str(layer) for layer in sorted(set(graph.port_layer))}
    by_layer = {names[layer]: _count(in_a & (layers == layer), in_b & (layers == layer)) for layer in names}
    union = total.shared + total.different
    correlation = None
    if all(one.scores is not None and PARTLY_SCORED not in one.provenance for one in (first, second)):
        correlation = rank_correlation(
            *(one.scores.double().abs() for one in (first, second) if one.scores is not None)
        )
    expected = len(first) * len(second) / graph.n_edges
    return Comparison(
        edges_a=len(first),
        edges_b=len(second),
        graph_edges=graph.n_edges,
        total=total,
        jaccard=total.shared / union if union else 1.0,
        chance=expected / (len(first) + len(second) - expected) if union else 1.0,
        hamming=total.different,
        rank_correlation=correlation,
        nodes=dict(sorted(by_node.items(), key=lambda entry: -entry[1].different)),
        layers={layer: counts for layer, counts in by_layer.items() if counts.different or counts.shared},
        only_a=tuple((first - second).top(len(first - second))),
        only_b=tuple((second - first).top(len(second - first))),
        types=_types(a, b),
    )


def _count(in_a: Tensor, in_b: Tensor) -> Counts:
    return Counts(int((in_a & ~in_b).sum()), int((in_a & in_b).sum()), int((in_b & ~in_a).sum()))


def _plain(what: Circuit | Labelled) -> Circuit:
    return what.circuit if isinstance(what, Labelled) else what


def _types(a: Circuit | Labelled, b: Circuit | Labelled) -> dict[str, dict[str, int]]:
    labels_a, labels_b = _labels(a), _labels(b)
    counts = Counter((labels_a.get(i, "-"), labels_b.get(i, "-")) for i in labels_a.keys() | labels_b.keys())
    order = [*GATE_TYPES, "no label", "edge", "-"]
    table: dict[str, dict[str, int]] = {}
    for of_a, of_b in sorted(counts, key=lambda pair: (order.index(pair[0]), order.index(pair[1]))):
        table.setdefault(of_a, {})[of_b] = counts[of_a, of_b]
    return table


def _labels(what: Circuit | Labelled) -> dict[int, str]:
    """The word for each edge of the circuit."""
    if isinstance(what, Circuit):
        return dict.fromkeys(what.indices, "edge")
    return {**dict.fromkeys(what.circuit.indices, "no label"), **what.kinds}
