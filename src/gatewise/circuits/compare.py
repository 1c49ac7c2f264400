"""Two circuits side by side: how far they overlap, and where they differ, by node, layer and gate type.

A circuit may come from gatewise, from another tool's file, or from the literature: the published circuits of GPT-2
small are known by their nodes only, so a circuit is compared with them by which of those nodes it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.files import circuit_from_json, load_circuit
from gatewise.circuits.graph import Graph
from gatewise.circuits.published import PUBLISHED_GT, PUBLISHED_IOI
from gatewise.errors import GatewiseError
from gatewise.files import read_json
from gatewise.logic.gates import GATE_TYPES, Gates
from gatewise.statistics import rank_correlation

PUBLISHED = ("ioi-published", "gt-published")
_GPT2_SMALL = (12, 12)  # layers, heads


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
    types: Mapping[str, Mapping[str, int]]  # type in A -> type in B -> edges; `edge` for a circuit without gates

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "hamming_share": self.hamming / self.graph_edges}

    def __repr__(self) -> str:
        return (
            f"<Comparison: {self.total.shared:,} shared edges of {self.edges_a:,} and {self.edges_b:,}, "
            f"Jaccard {self.jaccard:.3f} (by chance {self.chance:.3f}), Hamming {self.hamming:,}>"
        )


def compare(a: Circuit | Gates, b: Circuit | Gates) -> Comparison:
    """Compare two circuits, or the sound circuits of gates."""
    if a.graph != b.graph:
        raise GatewiseError(f"circuits of different graphs cannot be compared: {a.graph!r} and {b.graph!r}.")
    graph, first, second = a.graph, _circuit(a), _circuit(b)
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
    expected = len(first) * len(second) / graph.n_edges
    return Comparison(
        edges_a=len(first),
        edges_b=len(second),
        graph_edges=graph.n_edges,
        total=total,
        jaccard=total.shared / union if union else 1.0,
        chance=expected / (len(first) + len(second) - expected) if union else 1.0,
        hamming=total.different,
        rank_correlation=_rank_correlation(_scores(a), _scores(b)),
        nodes=dict(sorted(by_node.items(), key=lambda item: -item[1].different)),
        layers={layer: counts for layer, counts in by_layer.items() if counts.different or counts.shared},
        types=_types(a, b),
    )


@dataclass(frozen=True)
class Recall:
    """Which nodes of a published circuit a circuit has."""

    found: Mapping[str, tuple[str, ...]]  # role -> nodes that the circuit has
    missing: Mapping[str, tuple[str, ...]]
    recall: float  # share of the published nodes that the circuit has
    precision: float | None  # share of the circuit's nodes of the same kinds that are published; None if it has none
    chance: float  # recall of as many nodes drawn at random

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __repr__(self) -> str:
        count = sum(map(len, self.found.values()))
        of = count + sum(map(len, self.missing.values()))
        return f"<Recall: {count} of {of} published nodes ({self.recall:.0%}; by chance {self.chance:.0%})>"


def compare_with_published(what: Circuit | Gates, name: str = "ioi-published") -> Recall:
    """Recall of the circuit of GPT-2 small for IOI (Wang et al. 2022) or greater-than (Hanna et al. 2023)."""
    roles = _published(name)
    graph = what.graph
    if (graph.n_layers, graph.n_heads) != _GPT2_SMALL or "input" not in graph.senders:
        raise GatewiseError(
            f"the published circuit {name} is of GPT-2 small, 12 layers x 12 heads; the circuit given is of {graph!r}."
        )
    nodes = set(_circuit(what).nodes)
    with_mlps = any(node.startswith("m") for node in roles)
    alike = [node for node in graph.senders if node.startswith("a") or (with_mlps and node.startswith("m"))]
    mine = nodes & set(alike)
    found, missing = (
        {role: tuple(n for n in roles if roles[n] == role and (n in nodes) == wanted) for role in roles.values()}
        for wanted in (True, False)
    )
    hits = len(mine & roles.keys())
    return Recall(found, missing, hits / len(roles), hits / len(mine) if mine else None, len(mine) / len(alike))


def load_comparable(path: str | Path, graph: Graph | None = None) -> Circuit | Gates:
    """Read a gates file, or a circuit file of any tool. `graph`: for Edge-Pruning's list, which names none."""
    path = Path(path)
    content = read_json(path, "a circuit or gates file")
    if isinstance(content, dict):
        return Gates.load(path) if "gatewise_gates" in content else circuit_from_json(content, path, graph)
    return load_circuit(path, graph)


def load_two(first: str | Path, second: str | Path) -> tuple[Circuit | Gates, Circuit | Gates]:
    """Read both; a bare list of edges takes the graph of the other file."""
    if isinstance(read_json(Path(first), "a circuit or gates file"), list):
        b = load_comparable(second)
        return load_comparable(first, b.graph), b
    a = load_comparable(first)
    return a, load_comparable(second, a.graph)


def _circuit(what: Circuit | Gates) -> Circuit:
    return what.sound if isinstance(what, Gates) else what


def _count(in_a: Tensor, in_b: Tensor) -> Counts:
    return Counts(int((in_a & ~in_b).sum()), int((in_a & in_b).sum()), int((in_b & ~in_a).sum()))


def _scores(what: Circuit | Gates) -> Tensor | None:
    """|score| of every edge; of gates the larger one of both directions."""
    if isinstance(what, Circuit):
        return None if what.scores is None else what.scores.double().abs()
    ns, dn = what.ns.scores, what.dn.scores
    return None if ns is None or dn is None else torch.maximum(ns.double().abs(), dn.double().abs())


def _rank_correlation(a: Tensor | None, b: Tensor | None) -> float | None:
    return None if a is None or b is None else rank_correlation(a, b)


def _types(a: Circuit | Gates, b: Circuit | Gates) -> dict[str, dict[str, int]]:
    labels_a, labels_b = _labels(a), _labels(b)
    found = Counter((labels_a.get(i, "-"), labels_b.get(i, "-")) for i in labels_a.keys() | labels_b.keys())
    order = [*GATE_TYPES, "no label", "edge", "-"]
    table: dict[str, dict[str, int]] = {}
    for of_a, of_b in sorted(found, key=lambda pair: (order.index(pair[0]), order.index(pair[1]))):
        table.setdefault(of_a, {})[of_b] = found[of_a, of_b]
    return table


def _labels(what: Circuit | Gates) -> dict[int, str]:
    if isinstance(what, Circuit):
        return dict.fromkeys(what.indices, "edge")
    found: dict[int, str] = dict.fromkeys(what.sound.indices, "no label")
    for kind in GATE_TYPES:
        found.update(dict.fromkeys(what.by_type[kind].indices, kind))
    return found


def _published(name: str) -> Mapping[str, str]:
    """Node -> role."""
    if name == "ioi-published":
        return PUBLISHED_IOI
    if name == "gt-published":
        return dict.fromkeys(PUBLISHED_GT, "greater-than")
    raise GatewiseError(f"there is no published circuit {name!r}; there are {', '.join(PUBLISHED)}.")
