"""Truth tables: on planted gates, and against one run per row."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.engine import run_circuit
from gatewise.logic.truth import labels_by_test, truth_tables
from gatewise.models.planted import planted_model, planted_pairs
from gatewise.models.planted_random import random_planted


@pytest.mark.parametrize(
    ("kind", "effects"), [("and", (0.0, 0.0, 1.0)), ("or", (1.0, 1.0, 1.0)), ("adder", (0.4, 0.6, 1.0))]
)
def test_single_gates(kind: str, effects: tuple[float, ...]) -> None:
    model = planted_model(kind)
    for table in truth_tables(model, planted_pairs(), model.graph.full(), of=model.graph.circuit(["A1->B", "A2->B"])):
        assert table.effects[0, :, 0].tolist() == pytest.approx(effects)
        assert table.label == table.margin_label == kind.upper()
        assert table.confident


def test_combined_labels_are_the_truth() -> None:
    model = planted_model("combined")
    truth = {"A1->B1": "AND", "A2->B1": "AND", "A3->B2": "OR", "A4->B2": "OR", "B1->C": "ADDER", "B2->C": "ADDER"}
    found = labels_by_test(truth_tables(model, planted_pairs(), model.graph.circuit([*truth, "C->logits"])))
    assert found == truth


@pytest.mark.parametrize("seed", range(12))
def test_random_planted_gates_of_fan_in_two_to_five(seed: int) -> None:
    planted = random_planted(seed)
    found = labels_by_test(truth_tables(planted.model, planted.pairs, planted.circuit))
    assert {edge: found.get(edge) for edge in planted.truth} == planted.truth


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_effects_are_those_of_single_runs(architecture: str) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    graph = model.graph
    circuit = graph.random_circuit(80, seed=1)
    tables = truth_tables(model, pairs, circuit, memory=150_000)
    assert tables
    for table in tables[:: max(1, len(tables) // 12)]:
        i, j = table.edges
        others = [edge for edge in circuit.edges if edge.endswith("->" + table.receiver) and edge not in table.edges]
        gone = graph.circuit([] if table.context == "kept" else others)

        def margin(*kept: str, gone: object = gone, pair: tuple[str, str] = (i, j)) -> torch.Tensor:
            removed = graph.circuit([edge for edge in pair if edge not in kept]) | gone  # type: ignore[operator]
            return pairs.margin(run_circuit(model, pairs, circuit - removed))

        expected = torch.stack([margin(i), margin(j), margin(i, j)]) - margin()
        torch.testing.assert_close(table.effects[1], expected, atol=1e-9, rtol=0)
