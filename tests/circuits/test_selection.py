"""Connected circuits: exactly as many edges as asked, all on a path; the strongest edges otherwise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.circuits.selection import _Connected, select_each, select_edges
from gatewise.errors import GatewiseError

GRAPHS = [
    Graph.transformer(2, 2, 4),
    Graph.transformer(1, 1, 4, qkv="merged"),
    Graph.transformer(3, 2, 4, parallel=True),
    Graph.layered(["A1", "A2"], [["B1", "B2"], ["C1"]], 4),
]


@given(st.sampled_from(GRAPHS), st.integers(0, 10_000), st.data())
@settings(max_examples=120, deadline=None)
def test_exactly_so_many_edges_and_all_on_a_path(graph: Graph, seed: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1 if "input" in graph.senders else 3, graph.n_edges))
    strength = torch.rand(graph.n_edges, generator=torch.Generator().manual_seed(seed))
    found = Circuit(graph, select_edges(graph, strength, size, "connected"))
    assert len(found) == size
    assert found.connected() == found


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_top_is_the_strongest_and_of_equal_ones_the_first(graph: Graph) -> None:
    strength = torch.rand(graph.n_edges, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    found = select_edges(graph, strength, 7)
    expected = sorted(range(graph.n_edges), key=lambda edge: (-float(strength[edge]), edge))[:7]
    assert found.nonzero().flatten().tolist() == sorted(expected)


def test_a_strong_edge_brings_the_strongest_way_that_closes_it() -> None:
    graph = Graph.transformer(2, 1, 4)
    strength = torch.full((graph.n_edges,), 0.01)
    for edge, value in {"a0.h0->m1": 9.0, "input->a0.h0<v>": 0.5, "m1->logits": 0.4, "input->m1": 0.3}.items():
        strength[graph.index(edge)] = value
    found = Circuit(graph, select_edges(graph, strength, 3, "connected"))
    assert found.edges == ["input->a0.h0<v>", "a0.h0->m1", "m1->logits"]
    one_more = Circuit(graph, select_edges(graph, strength, 4, "connected"))
    assert (one_more - found).edges == ["input->m1"]


def test_top_circuits_that_are_connected_stay_as_they_are() -> None:
    """If the strongest edges all lie on paths, both selections agree."""
    graph = Graph.transformer(2, 2, 4)
    strength = torch.rand(graph.n_edges, generator=torch.Generator().manual_seed(0))
    connected = [
        size
        for size in range(1, graph.n_edges)
        if (top := Circuit(graph, select_edges(graph, strength, size))).connected() == top
    ]
    assert connected
    for size in connected:
        assert torch.equal(select_edges(graph, strength, size, "connected"), select_edges(graph, strength, size))


class _Slow(_Connected):
    """The twin: one size at a time, ways node by node and edge by edge."""

    def alone(self, size: int) -> set[int]:
        return set(self._filled(size, 0).tolist())

    def _ways(self) -> tuple[list[int], list[int]]:
        nodes, rank = range(self.output + 1), self.rank.tolist()
        best: dict[tuple[int, int], int] = {}
        for edge in self.order:
            best.setdefault((self.receiver[edge], self.sender[edge]), edge)
        into, onward = [-1 for _ in nodes], [-1 for _ in nodes]
        weakest = [(-1, 0) for _ in nodes]  # rank of the weakest edge of the way, and its length
        for node in nodes:
            if node not in self.sources and node not in self.included:
                ways = [
                    (max(weakest[sender][0], rank[edge]), weakest[sender][1] + 1, edge)
                    for (receiver, sender), edge in best.items()
                    if receiver == node
                ]
                worst, length, into[node] = min(ways)
                weakest[node] = worst, length
        weakest = [(-1, 0) for _ in nodes]
        for node in reversed(nodes):
            if node != self.output and node not in self.included:
                found = [
                    (max(weakest[receiver][0], rank[edge]), weakest[receiver][1] + 1, -receiver, edge)
                    for (receiver, sender), edge in best.items()
                    if sender == node
                ]
                worst, length, _, onward[node] = min(found)
                weakest[node] = worst, length
        return into, onward


@given(st.sampled_from(GRAPHS), st.integers(0, 10_000), st.booleans(), st.data())
@settings(max_examples=60, deadline=None)
def test_several_sizes_at_once_are_what_the_slow_twin_finds_one_by_one(
    graph: Graph, seed: int, ties: bool, data: st.DataObject
) -> None:
    least = 1 if "input" in graph.senders else 3
    sizes = data.draw(st.lists(st.integers(least, graph.n_edges), min_size=1, max_size=4))
    strength = torch.rand(graph.n_edges, generator=torch.Generator().manual_seed(seed)) ** 4
    if ties:
        strength = strength.round(decimals=1)
    order = torch.argsort(strength, descending=True, stable=True)
    for size, mask in zip(sizes, select_each(graph, strength, sizes, "connected"), strict=True):
        assert set(mask.nonzero().flatten().tolist()) == _Slow(graph, order).alone(size)


def test_another_word_is_refused() -> None:
    with pytest.raises(GatewiseError, match="'top' .* or 'connected'"):
        select_edges(GRAPHS[0], torch.rand(GRAPHS[0].n_edges), 3, "best")  # type: ignore[arg-type]
