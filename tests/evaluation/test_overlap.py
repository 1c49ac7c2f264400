"""Overlap of circuits, as over seeds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise.evaluation import overlap
from gatewise.methods import discover
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs

GRAPH = Graph.transformer(2, 2, 8)
edge_sets = st.sets(st.integers(0, GRAPH.n_edges - 1))


@given(st.lists(edge_sets, min_size=2, max_size=5))
def test_pairs_of_circuits(sets: list[set[int]]) -> None:
    measured = overlap([Circuit.from_indices(GRAPH, edges) for edges in sets])
    pairs = [(a, b) for i, a in enumerate(sets) for b in sets[i + 1 :]]
    assert measured.hamming.tolist() == [len(a ^ b) for a, b in pairs]
    assert measured.jaccard.tolist() == pytest.approx([len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs])
    assert measured.mean_jaccard == pytest.approx(float(measured.jaccard.mean()))
    assert f"Overlap of {len(sets)} circuits" in repr(measured)


def test_acdc_picks_another_or_edge_under_another_seed_and_eap_does_not() -> None:
    model, pairs = synthetic_model("or"), synthetic_pairs()

    def distance(method: str, direction: str) -> float:
        circuits = [
            discover(model, pairs, method, direction, threshold=0.01, seed=seed)  # type: ignore[arg-type]
            for seed in range(8)
        ]
        return float(overlap(circuits).hamming.mean())

    assert distance("acdc", "ns") > 0
    assert distance("acdc", "ns+dn") == distance("eap", "ns") == 0


def test_refusals() -> None:
    with pytest.raises(GatewiseError, match="at least two circuits"):
        overlap([GRAPH.empty()])
    with pytest.raises(GatewiseError, match="one graph"):
        overlap([GRAPH.empty(), Graph.transformer(1, 2, 8).empty()])


def test_empty_circuits_are_alike() -> None:
    assert torch.equal(overlap([GRAPH.empty()] * 2).jaccard, torch.ones(1, dtype=torch.float64))
