"""Finding gates: what is tested is what `test_gate` gives on the held-out pairs, and refusals."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.errors import GatewiseError
from gatewise.gates.labels import label_gates
from gatewise.gates.testing.gate_test import test_gate
from gatewise.gates.testing.search import test_gates, test_receivers
from gatewise.models.synthetic.gate_kinds import synthetic_receiver

PAIRS = random_pairs(lengths=(6, 4) * 8)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("architecture", ["gpt2", "gemma3"])
def test_tests_are_those_of_test_gate_on_held_out_pairs(architecture: str, within: bool) -> None:
    model = small_model(architecture, dtype=torch.float64)
    circuit = model.graph.random_circuit(70, seed=1) if within else None
    found = test_gates(model, PAIRS, circuit, most=3)
    assert 0 < len(found.tested) <= 6
    for one in found.tested[:3]:
        options = {"rest": one.rest, "circuit": circuit, "confirm": one.confirmed is not None}
        expected = test_gate(model, PAIRS[8:], one.receiver, one.groups, **options)  # type: ignore[arg-type]
        torch.testing.assert_close(one.table, expected.table, atol=1e-9, rtol=0)
        assert one.label == expected.label
        if one.confirmed is not None and expected.confirmed is not None:
            here, there = (one.confirmed.end_to_end["clean"].value, expected.confirmed.end_to_end["clean"].value)
            assert here == pytest.approx(there, abs=1e-9)
    sizes = [one.interaction_size for one in found.tested]
    assert sizes == sorted(sizes, reverse=True)
    assert all(one.p_value <= 0.05 for one in found)
    assert len(found.to_json()["tested"]) == len(found.tested)


def test_groups_are_made_of_the_edges_asked_for() -> None:
    kind = synthetic_receiver("and-of-groups", examples=32)
    of = kind.model.graph.circuit(["A1->B", "A2->B", "A6->B"])
    (found,) = test_gates(kind.model, kind.pairs, of=of)
    assert {frozenset(edges) for edges in found.groups.values()} == {
        frozenset({"A1->B", "A2->B"}),
        frozenset({"A6->B"}),
    }
    assert found.label == "AND"


def test_receivers_are_tested_by_their_ports_or_by_what_each_direction_found() -> None:
    model = small_model("gpt2", dtype=torch.float64)
    ns, dn = (model.graph.random_circuit(60, seed=seed) for seed in (1, 2))
    found = test_receivers(model, PAIRS, label_gates(ns, dn), ["a1.h2", "m1"], confirm=1)
    by_receiver = {one.receiver: one for one in found.tested}
    head, mlp = by_receiver["a1.h2"], by_receiver["m1"]
    expected = test_gate(model, PAIRS, "a1.h2", {"Q": "<q>", "K": "<k>", "V": "<v>"}, confirm=False)
    torch.testing.assert_close(head.table, expected.table, atol=1e-9, rtol=0)
    into = [edge for edge in model.graph.edges if edge.endswith("->m1")]
    assert set(mlp.groups["Ns only"]) == {edge for edge in into if edge in ns and edge not in dn}
    assert set(mlp.groups["Dn only"]) == {edge for edge in into if edge in dn and edge not in ns}
    assert sum(one.confirmed is not None for one in found.tested) <= 1


def test_refusals() -> None:
    model = small_model("gpt2")
    with pytest.raises(GatewiseError, match="at least 8"):
        test_gates(model, PAIRS[:10])
    with pytest.raises(GatewiseError, match="ports, partners; got roles"):
        test_gates(model, PAIRS, groupings=["roles"])  # type: ignore[list-item]
