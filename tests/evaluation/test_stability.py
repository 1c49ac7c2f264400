"""Overlap of circuits over seeds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise.evaluation import overlap, stability
from gatewise.methods import discover
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs

GRAPH = Graph.transformer(2, 2, 8)
edge_sets = st.sets(st.integers(0, GRAPH.n_edges - 1))


@given(st.lists(edge_sets, min_size=2, max_size=5))
def test_pairs_of_circuits(sets: list[set[int]]) -> None:
    found = overlap([Circuit.from_indices(GRAPH, edges) for edges in sets])
    pairs = [(a, b) for i, a in enumerate(sets) for b in sets[i + 1 :]]
    assert found.hamming.tolist() == [len(a ^ b) for a, b in pairs]
    assert found.jaccard.tolist() == pytest.approx([len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs])
    assert set(found.consensus(1.0).indices) == set.intersection(*sets)
    assert set(found.consensus(1 / len(sets)).indices) == set.union(*sets)
    assert found.frequency.tolist() == pytest.approx(
        [sum(i in s for s in sets) / len(sets) for i in range(GRAPH.n_edges)]
    )


def test_consensus_needs_at_least_the_share() -> None:
    circuits = [Circuit.from_indices(GRAPH, edges) for edges in ([0, 1], [0, 2], [0, 1])]
    found = overlap(circuits)
    assert found.consensus(2 / 3).indices == [0, 1]
    assert found.consensus(0.7).indices == [0]
    assert found.consensus().scores is not None
    assert "3 circuits" in repr(found)


def test_data_and_method_are_told_apart() -> None:
    calls = []

    def find(data: int, method: int) -> Circuit:
        calls.append((data, method))
        return Circuit.from_indices(GRAPH, [0, 10 + data])  # depends on the data alone

    found = stability(find, [7, 8, 9])
    assert calls == [(7, 7), (8, 7), (9, 7), (7, 8), (7, 9), (8, 8), (9, 9)]
    assert found.data.mean_hamming == found.both.mean_hamming == 2
    assert found.method.mean_hamming == 0
    assert found.data.mean_jaccard == pytest.approx(1 / 3)
    assert "data 2.0, method 0.0, both 2.0" in repr(found)


def test_acdc_picks_another_or_edge_under_another_seed_and_eap_does_not() -> None:
    model, pairs = synthetic_model("or"), synthetic_pairs()

    def find(method: str, direction: str) -> float:
        def search(_: int, seed: int) -> Circuit:
            return discover(model, pairs, method, direction, threshold=0.01, seed=seed)  # type: ignore[call-overload,no-any-return]

        return stability(search, range(8)).method.mean_hamming

    assert find("acdc", "ns") > 0
    assert find("acdc", "ns+dn") == find("eap", "ns") == 0


def test_refusals() -> None:
    with pytest.raises(GatewiseError, match="at least two circuits"):
        overlap([GRAPH.empty()])
    with pytest.raises(GatewiseError, match="one graph"):
        overlap([GRAPH.empty(), Graph.transformer(1, 2, 8).empty()])
    with pytest.raises(GatewiseError, match="two different seeds"):
        stability(lambda data, method: GRAPH.empty(), [1, 1])
    with pytest.raises(GatewiseError, match="share above 0"):
        overlap([GRAPH.empty(), GRAPH.empty()]).consensus(0)


def test_empty_circuits_are_alike() -> None:
    assert torch.equal(overlap([GRAPH.empty()] * 2).jaccard, torch.ones(1, dtype=torch.float64))
