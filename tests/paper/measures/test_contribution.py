"""Contribution of whole gates: known values on synthetic gates, single runs on others."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.engine import run_circuit
from gatewise.gates import label_gates
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise_paper.measures.gate_ablation import gate_effects


def test_gates_of_the_combined_toy() -> None:
    """Logit difference 2 in full, 1 without the AND or the OR gate, 0 without the ADDER."""
    model, pairs = synthetic_model("combined"), synthetic_pairs()
    adders = ["B1->C", "B2->C", "C->logits"]
    ns, dn = (model.graph.circuit([*edges, *adders]) for edges in (("A1->B1", "A2->B1"), ("A3->B2", "A4->B2")))
    gates = label_gates(ns, dn)
    full, half, none = (torch.tensor([m, 0.0], dtype=torch.float64).log_softmax(0) for m in (2.0, 1.0, 0.0))
    one, both = (float((full.exp() * (full - other)).sum()) for other in (half, none))
    expected = {"AND": one, "OR": one, "ADDER": both}
    assert gate_effects(model, pairs, gates) == pytest.approx([expected[gate.type] for gate in gates], abs=1e-6)


@pytest.mark.parametrize("by", ["port", "node"])
def test_effects_are_those_of_single_runs(by: str) -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    ns, dn = (model.graph.random_circuit(60, seed=seed) for seed in (1, 2))
    gates = list(label_gates(ns, dn, by=by))[:12]  # type: ignore[arg-type]
    full = run_circuit(model, pairs, model.graph.full()).log_softmax(-1)

    def distance(*without: str) -> float:
        logits = run_circuit(model, pairs, model.graph.full() - model.graph.circuit(without))
        return float((full.exp() * (full - logits.log_softmax(-1))).sum(-1).mean())

    assert gate_effects(model, pairs, gates) == pytest.approx([distance(*gate.edges) for gate in gates], abs=1e-9)
