"""Pairs of edges: on synthetic gates, and as what they are, tests of gates of single edges."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.compute import Compute
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.gates.testing.gate_test import test_gate
from gatewise.gates.testing.pair_tables import labels_by_test, test_edge_pairs
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise.models.synthetic.random_circuits import random_logic_model

PAIRS = random_pairs(lengths=(6, 4, 6, 5, 6, 4, 5, 6))


@pytest.mark.parametrize(
    ("kind", "worth"), [("and", (0.0, 0.0, 1.0)), ("or", (1.0, 1.0, 1.0)), ("adder", (0.4, 0.6, 1.0))]
)
def test_single_gates(kind: str, worth: tuple[float, ...]) -> None:
    model = synthetic_model(kind)
    found = test_edge_pairs(model, synthetic_pairs(), model.graph.full(), of=model.graph.circuit(["A1->B", "A2->B"]))
    assert [table.rest for table in found] == ["clean", "corrupted"]
    for table in found:
        assert list(table.effects.values()) == pytest.approx(worth)
        assert table.label == kind.upper()


def test_combined_labels_are_the_truth() -> None:
    model = synthetic_model("combined")
    truth = {"A1->B1": "AND", "A2->B1": "AND", "A3->B2": "OR", "A4->B2": "OR", "B1->C": "ADDER", "B2->C": "ADDER"}
    found = labels_by_test(test_edge_pairs(model, synthetic_pairs(), model.graph.circuit([*truth, "C->logits"])))
    assert found == truth


@pytest.mark.parametrize("seed", range(12))
def test_random_synthetic_gates_of_fan_in_two_to_five(seed: int) -> None:
    synthetic = random_logic_model(seed)
    found = labels_by_test(test_edge_pairs(synthetic.model, synthetic.pairs, synthetic.circuit))
    assert {edge: found.get(edge) for edge in synthetic.truth} == synthetic.truth


@pytest.mark.parametrize("architecture", ["gpt2", "gemma3"])
def test_tables_are_tests_of_single_edges(architecture: str) -> None:
    model = small_model(architecture, dtype=torch.float64)
    circuit = model.graph.random_circuit(80, seed=1)
    tables = test_edge_pairs(model, PAIRS, circuit, compute=Compute(memory=150_000))
    ports = {edge.partition("->")[2] for edge in circuit}
    pairs = [len([edge for edge in circuit if edge.endswith(f"->{port}")]) for port in ports]
    assert len(tables) == sum(n * (n - 1) for n in pairs)  # n (n - 1) / 2 pairs of each port, twice
    for table in tables[:: len(tables) // 8]:
        rest = {"rest": table.rest, "circuit": circuit, "confirm": False}
        one = test_gate(model, PAIRS, table.receiver, table.groups, **rest)  # type: ignore[arg-type]
        assert list(table.effects.values()) == pytest.approx(list(one.effects.values()), abs=1e-9)


def test_a_circuit_that_does_nothing_has_no_tables() -> None:
    model = synthetic_model("combined")
    assert test_edge_pairs(model, synthetic_pairs(), model.graph.circuit(["A1->B1", "A2->B1"])) == []


def test_other_ablations_have_no_second_run() -> None:
    model = small_model("gpt2")
    with pytest.raises(GatewiseError, match="between two runs"):
        test_edge_pairs(model, Setting(model, PAIRS, ablation="zero"), model.graph.full())
