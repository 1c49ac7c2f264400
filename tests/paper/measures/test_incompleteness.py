"""Incompleteness over subsets of a circuit."""

from __future__ import annotations

import random

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.compute import Compute
from gatewise.engine import run_circuit
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise.statistics import kl_divergence, log_probabilities
from gatewise_paper.measures.incompleteness import incompleteness, sample_subset, sampled_columns, subset_divergence

COMBINED, PAIRS = synthetic_model("combined"), synthetic_pairs()
TRUE = COMBINED.graph.circuit(["A1->B1", "A2->B1", "A3->B2", "A4->B2", "B1->C", "B2->C", "C->logits"])


def test_values_are_those_of_single_runs() -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    circuit, full = model.graph.random_circuit(60, seed=1), model.graph.full()
    found = incompleteness(model, pairs, circuit, samples=4, seed=2, compute=Compute(memory=150_000))
    rng = random.Random("incompleteness/2")
    for value in found.tolist():
        subset = sample_subset(circuit, rng)
        p, q = (log_probabilities(run_circuit(model, pairs, c - subset)) for c in (circuit, full))
        assert value == pytest.approx(float(kl_divergence(p, q).mean()), abs=1e-9)


def test_a_subset_is_nodes_with_their_edges_in_the_circuit() -> None:
    rng = random.Random(0)
    for _ in range(20):
        subset = sample_subset(TRUE, rng)
        outside = {node for edge in TRUE - subset for node in edge.split("->")}
        inside = {node for edge in subset for node in edge.split("->")} - outside - {"logits"}
        assert 1 <= len(inside) <= 7  # the drawn nodes, and those that only they reach
        assert subset.edges == [edge for edge in TRUE if set(edge.split("->")) & inside]


def test_the_true_circuit_is_complete_and_a_partial_one_is_not() -> None:
    assert incompleteness(COMBINED, PAIRS, TRUE).max() < 1e-9
    partial = TRUE - COMBINED.graph.circuit(["A4->B2"])  # faithful, but not complete: the OR has a second sender
    assert subset_divergence(Setting(COMBINED, PAIRS), partial, [COMBINED.graph.empty()]).max() < 1e-9
    without_a3 = subset_divergence(Setting(COMBINED, PAIRS), partial, [COMBINED.graph.circuit(["A3->B2"])])
    assert without_a3 > 0.01


def test_seeds_redraw_the_subsets() -> None:
    partial = TRUE - COMBINED.graph.circuit(["A4->B2"])
    one, same, other = (incompleteness(COMBINED, PAIRS, partial, samples=6, seed=s).tolist() for s in (0, 0, 1))
    assert one == same != other


def test_table_says_what_deviations_are_over() -> None:
    partial = [TRUE - COMBINED.graph.circuit([edge]) for edge in ("A3->B2", "A4->B2")]
    values = [incompleteness(COMBINED, PAIRS, circuit, samples=80, seed=i) for i, circuit in enumerate(partial)]
    drawn = torch.stack([found.reshape(4, 20) for found in values])
    columns = sampled_columns(drawn, samples=(5, 20))
    assert [column.samples for column in columns] == [5, 20]
    assert all(column.over_subsets > column.over_draws > 0 for column in columns)
    assert columns[1].over_draws < columns[0].over_draws
    alone = sampled_columns(drawn[:1], samples=(5,))[0]
    assert alone.over_circuits != alone.over_circuits  # NaN


def test_refusals() -> None:
    with pytest.raises(GatewiseError, match="at least 2 nodes"):
        incompleteness(COMBINED, PAIRS, COMBINED.graph.circuit(["C->logits"]))
    with pytest.raises(GatewiseError, match="samples >= 1"):
        incompleteness(COMBINED, PAIRS, TRUE, samples=0)
