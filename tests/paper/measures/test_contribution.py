"""Contribution of gates: known values on synthetic gates, and its statistics."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.engine import run_circuit
from gatewise.gates import label_gates
from gatewise.gates.labels import Gate
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise_paper.measures.contribution import TypeContribution, gate_contributions


def test_gates_of_the_combined_toy() -> None:
    """Logit difference 2 in full, 1 without the AND or the OR gate, 0 without the ADDER."""
    model, pairs = synthetic_model("combined"), synthetic_pairs()
    adders = ["B1->C", "B2->C", "C->logits"]
    ns, dn = (model.graph.circuit([*edges, *adders]) for edges in (("A1->B1", "A2->B1"), ("A3->B2", "A4->B2")))
    found = gate_contributions(model, pairs, label_gates(ns, dn))
    full, half, none = (torch.tensor([m, 0.0], dtype=torch.float64).log_softmax(0) for m in (2.0, 1.0, 0.0))
    one, both = (float((full.exp() * (full - other)).sum()) for other in (half, none))
    for kind in ("AND", "OR"):
        assert found[kind].gate_mean == pytest.approx(one, abs=1e-6)
        assert found[kind].edge_mean == pytest.approx(one / 2, abs=1e-6)
        assert math.isnan(found[kind].gate_error)
    assert found["ADDER"].effects.tolist() == pytest.approx([both, both], abs=1e-6)
    assert found["ADDER"].exact_effects.tolist() == pytest.approx([both / 2, both], abs=1e-6)
    assert found["ADDER"].edge_mean == pytest.approx(2 * both / 3, abs=1e-6)
    larger = gate_contributions(model, pairs, label_gates(ns, dn), smallest=2)
    assert len(larger["ADDER"].gates) == 1
    assert "gate effect" in str(larger)


def test_effects_are_those_of_single_runs_by_port_and_by_node() -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    ns, dn = (model.graph.random_circuit(60, seed=seed) for seed in (1, 2))
    full = run_circuit(model, pairs, model.graph.full()).log_softmax(-1)
    for by in ("port", "node"):
        gates = label_gates(ns, dn, by=by)  # type: ignore[arg-type]
        found = gate_contributions(model, pairs, gates, circuit=gates.sound)["OR"]

        def distance(*without: str) -> float:
            logits = run_circuit(model, pairs, (ns | dn) - model.graph.circuit(without))
            return float((full.exp() * (full - logits.log_softmax(-1))).sum(-1).mean())

        expected = [distance(*gate.edges) - distance() for gate in found.gates]
        assert found.effects.tolist() == pytest.approx(expected, abs=1e-9)


def test_errors_are_those_of_means_over_gates() -> None:
    gates = tuple(Gate("B", "AND", tuple(f"A{i}->B" for i in range(2))) for _ in range(4))
    effects = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64)
    found = TypeContribution("AND", gates, effects)
    assert found.gate_error == pytest.approx(float(effects.std()) / 2)
    assert found.edge_error == pytest.approx(found.gate_error / 2)  # gates of one size: the same, shared by two
    assert found.edges == 8
