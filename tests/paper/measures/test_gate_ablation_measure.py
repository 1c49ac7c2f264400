"""Removing one and two edges of gates: known values on synthetic gates, single runs on others."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.compute import Compute
from gatewise.engine import run_circuit
from gatewise.errors import GatewiseError
from gatewise.gate_types import GateType
from gatewise.gates import label_gates
from gatewise.gates.labels import Gates
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise_paper.measures.gate_ablation import ablate_gates


def kl_of_logit_diffs(reference: float, other: float) -> float:
    log_p, log_q = (torch.tensor([m, 0.0], dtype=torch.float64).log_softmax(0) for m in (reference, other))
    return float((log_p.exp() * (log_p - log_q)).sum())


def single_gate(kind: str) -> Gates:
    graph = synthetic_model(kind).graph
    edges, rest = graph.circuit(["A1->B", "A2->B"]), graph.circuit(["B->logits"])
    return label_gates(rest if kind == "or" else edges | rest, rest if kind == "and" else edges | rest)


@pytest.mark.parametrize(
    ("kind", "logit_diffs"),  # with none removed, A1, A2, both
    [("and", (1.0, 0.0, 0.0, 0.0)), ("or", (1.0, 1.0, 1.0, 0.0)), ("adder", (2.5, 1.5, 1.0, 0.0))],
)
def test_single_gates(kind: str, logit_diffs: tuple[float, ...]) -> None:
    found = ablate_gates(synthetic_model(kind), synthetic_pairs(), single_gate(kind))[kind.upper()]  # type: ignore[index]
    none, first, second, both = (kl_of_logit_diffs(logit_diffs[0], logit_diff) for logit_diff in logit_diffs)
    assert none == 0
    assert len(found.gates) == 1
    assert found.first.shape == found.both.shape == (1, 30)
    assert sorted(set(found.first.flatten().tolist())) == pytest.approx(sorted({first, second}), abs=1e-6)
    assert found.both.flatten().tolist() == pytest.approx([both] * 30, abs=1e-6)
    assert found.quartiles[1] == pytest.approx([both] * 5, abs=1e-6)
    kept = found.kept_effects
    assert kept["both"] == pytest.approx(both, abs=1e-6)
    assert kept["first"] + kept["second"] == pytest.approx(2 * both - first - second, abs=1e-6)
    assert kept["neither"] == 0


def test_the_paper_s_pattern_on_the_combined_toy() -> None:
    model, pairs = synthetic_model("combined"), synthetic_pairs()
    adders = ["B1->C", "B2->C", "C->logits"]
    ns, dn = (model.graph.circuit([*edges, *adders]) for edges in (("A1->B1", "A2->B1"), ("A3->B2", "A4->B2")))
    found = ablate_gates(model, pairs, label_gates(ns, dn), repeats=4)
    torch.testing.assert_close(found["AND"].first, found["AND"].both)
    assert found["OR"].first.abs().max() < 1e-6 < found["OR"].both.min()
    assert bool((found["ADDER"].both > found["ADDER"].first + 1e-3).all())
    assert (len(found["ADDER"].gates), found["ADDER"].single) == (1, 1)


def test_changes_are_those_of_single_runs() -> None:
    model, pairs = small_model("llama", dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    ns, dn = (model.graph.random_circuit(60, seed=seed) for seed in (1, 2))
    gates = label_gates(ns, dn)
    found = ablate_gates(model, pairs, gates, repeats=3, compute=Compute(memory=150_000))
    full = run_circuit(model, pairs, model.graph.full()).log_softmax(-1)

    def distance(*without: str) -> float:
        logits = run_circuit(model, pairs, model.graph.full() - model.graph.circuit(without))
        return float((full.exp() * (full - logits.log_softmax(-1))).sum(-1).mean())

    kinds: tuple[GateType, ...] = ("AND", "OR", "ADDER")
    for kind in kinds:
        gate = next(gate for gate in gates if gate.type == kind and len(gate.edges) >= 2)
        ones = [distance(edge) - distance() for edge in gate.edges]
        twos = [distance(i, j) - distance() for i in gate.edges for j in gate.edges if i < j]
        for values, possible in ((found[kind].first[0], ones), (found[kind].both[0], twos)):
            assert all(min(abs(value - one) for one in possible) < 1e-9 for value in values.tolist())
    other = ablate_gates(model, pairs, gates, repeats=3)
    torch.testing.assert_close(other["AND"].both, found["AND"].both)


def test_refusals_and_types_without_gates() -> None:
    model, pairs = synthetic_model("and"), synthetic_pairs()
    gates = single_gate("and")
    with pytest.raises(GatewiseError, match="at least 1"):
        ablate_gates(model, pairs, gates, repeats=0)
    found = ablate_gates(model, pairs, gates, repeats=2)
    assert found["OR"].first.shape == (0, 2)
    assert found["OR"].to_json()["kept"] is None
