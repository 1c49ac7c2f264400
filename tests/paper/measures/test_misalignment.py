"""Misalignment: against one run per circuit, on synthetic truth, and where it has no value."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine import run_circuit
from gatewise.errors import GatewiseError
from gatewise.gates import Gates, label_gates
from gatewise.models.model import Model
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise.models.synthetic.random_circuits import SyntheticModel, random_logic_model
from gatewise.tasks.pairs import Pairs
from gatewise_paper.measures.misalignment import (
    Context,
    MisalignedType,
    Sampling,
    Score,
    _draw,
    misalignment,
)


def by_single_runs(
    model: Model, pairs: Pairs, gates: Gates, kind: MisalignedType, context: Context, sampling: Sampling
) -> list[float]:
    """The formulas of the appendix, one run per circuit."""
    whole = gates.by_type[kind] if context == "alone" else gates.sound

    def run(circuit: Circuit, *without: int) -> torch.Tensor:
        return run_circuit(model, pairs, circuit - model.graph.circuit(without)).log_softmax(-1)

    def distance(p: torch.Tensor, q: torch.Tensor) -> float:
        return float((p.exp() * (p - q)).sum(-1).mean())

    scores = []
    for sample in _draw(gates, kind, sampling):
        left, values = whole - sample.removed, []
        for (i, j), (a, b) in zip(sample.pairs, sample.pairs_left, strict=True):
            one, two, one_left, two_left = run(whole, i), run(whole, i, j), run(left, a), run(left, a, b)
            if kind == "AND":
                values.append(distance(one, two) - distance(one_left, two_left))
            else:
                values.append(distance(one, one_left) - distance(two, two_left) + 1.5)
        scores.append(sum(values) / len(values))
    return scores


@pytest.mark.parametrize("context", ["alone", "sound"])
@pytest.mark.parametrize("by", ["port", "node"])
def test_scores_are_the_appendix_formulas(context: Context, by: str) -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    ns, dn = (model.graph.random_circuit(70, seed=seed) for seed in (1, 2))
    gates, sampling = label_gates(ns, dn, by=by), Sampling(samples=3, draws=2, seed=5)  # type: ignore[arg-type]
    found = misalignment(model, pairs, gates, context=context, sampling=sampling, compute=Compute(memory=150_000))
    for kind in ("AND", "OR"):
        expected = torch.tensor(by_single_runs(model, pairs, gates, kind, context, sampling), dtype=torch.float64)
        score = found[kind]
        assert score.mean == pytest.approx(float(expected.mean()), abs=1e-9)
        assert score.std == pytest.approx(float(expected.std()), abs=1e-9)
        assert (score.samples, score.skipped, score.edges) == (3, 0, len(gates.by_type[kind]))


def test_draws_are_two_edges_into_one_port_and_k_is_a_share() -> None:
    graph = small_model("gpt2").graph
    gates = label_gates(graph.random_circuit(70, seed=1), graph.random_circuit(70, seed=2))
    circuit = gates.by_type["AND"]
    samples = _draw(gates, "AND", Sampling(share=0.3, samples=5, draws=7))
    assert len(samples) == 5
    for sample in samples:
        assert len(sample.removed) == round(0.3 * len(circuit))
        for pairs, edges in ((sample.pairs, circuit), (sample.pairs_left, circuit - sample.removed)):
            assert len(pairs) == 7
            for i, j in pairs:
                assert i != j
                assert {i, j} <= set(edges.indices)
                assert graph.edge_port[i] == graph.edge_port[j]
    other = _draw(gates, "AND", Sampling(share=0.3, samples=5, draws=7, seed=1))
    assert [s.removed for s in samples] != [s.removed for s in other]


def synthetic_gates(synthetic: SyntheticModel, *, adder_as: MisalignedType | None = None) -> Gates:
    """The truth as a split; or one where the ADDER edges were found in one direction only."""
    names = {kind: [e for e, k in synthetic.truth.items() if k == kind] for kind in ("AND", "OR", "ADDER")}
    circuit = synthetic.model.graph.circuit
    readout = [edge for edge in synthetic.circuit if edge.endswith(("->out", "->logits"))]
    adders = [edge for edge in names["ADDER"] if edge not in readout]
    ns = names["AND"] + readout + (adders if adder_as != "OR" else [])
    dn = names["OR"] + readout + (adders if adder_as != "AND" else [])
    return label_gates(circuit(ns), circuit(dn))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["AND", "OR"])
def test_terms_of_true_gates_are_zero_and_those_of_adders_are_not(seed: int, kind: MisalignedType) -> None:
    """But the score, their difference, does not rise: what the paper's reading of it would want."""
    synthetic = random_logic_model(seed, fan_in=(4, 5), examples=1)
    sampling = Sampling(share=0.1)  # one edge, so that no OR of four is ever removed wholly

    def score(gates: Gates) -> Score:
        return misalignment(synthetic.model, synthetic.pairs, gates, context="sound", sampling=sampling)[kind]

    true, wrong = score(synthetic_gates(synthetic)), score(synthetic_gates(synthetic, adder_as=kind))
    assert true.terms == pytest.approx((0, 0), abs=1e-6)
    assert min(wrong.terms) > 1e-4
    assert wrong.mean < true.mean + 1e-4


def test_alone_without_a_path_to_the_logits_is_zero_and_m() -> None:
    synthetic = random_logic_model(0, fan_in=(4, 5), examples=1)
    found = misalignment(synthetic.model, synthetic.pairs, synthetic_gates(synthetic))
    assert [found[kind].mean for kind in ("AND", "OR")] == [0.0, 1.5]
    assert [found[kind].connected for kind in ("AND", "OR")] == [0, 0]


def test_no_pair_is_nan_with_a_reason() -> None:
    model, pairs = synthetic_model("combined"), synthetic_pairs()
    ns = model.graph.circuit(["A1->B1", "A2->B1", "B1->C", "C->logits"])
    found = misalignment(model, pairs, label_gates(ns, model.graph.circuit(["A3->B2", "B1->C", "C->logits"])))
    assert math.isnan(found["AND"].mean)
    assert found["AND"].reason == "no receiver has two AND edges left without K"
    assert found["AND"].skipped == 20
    assert found["OR"].reason == "no receiver has two OR edges"


def test_refusals() -> None:
    model, pairs = synthetic_model("combined"), synthetic_pairs()
    gates = label_gates(model.graph.circuit(["A1->B1"]), model.graph.circuit(["A3->B2"]))
    with pytest.raises(GatewiseError, match="'alone'"):
        misalignment(model, pairs, gates, context="outside")  # type: ignore[arg-type]
    with pytest.raises(GatewiseError, match="0 < share < 1"):
        Sampling(share=1.0)
