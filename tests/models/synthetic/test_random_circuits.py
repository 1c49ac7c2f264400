"""Random synthetic models: their truth by brute force, their values by an evaluator that shares no code with them."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch

from gatewise.circuits.circuit import Circuit
from gatewise.engine import run_circuit, run_circuits
from gatewise.errors import GatewiseError
from gatewise.models.synthetic.random_circuits import FULL_LOGIT_DIFF, LogicGate, SyntheticModel, random_logic_model  # type: ignore[attr-defined]

EXACT: dict[str, Any] = {"dtype": torch.float64, "examples": 1}


def gate_of(synthetic: SyntheticModel, gate: LogicGate) -> dict[tuple[str, ...], float]:
    """Logit difference for each set of the gate's edges that is kept, everything else intact."""
    graph = synthetic.model.graph
    subsets = [s for size in range(len(gate.senders) + 1) for s in itertools.combinations(gate.senders, size)]
    removed = [[f"{sender}->{gate.node}" for sender in gate.senders if sender not in s] for s in subsets]
    circuits = [graph.full() - graph.circuit(edges) for edges in removed]
    logit_diffs = synthetic.pairs.logit_diff(run_circuits(synthetic.model, synthetic.pairs, circuits))[:, 0].tolist()
    return dict(zip(subsets, logit_diffs, strict=True))


def label(effects: dict[tuple[str, ...], float]) -> str:
    """What the gate is, from its effects alone."""
    base = effects[()]
    change = {subset: value - base for subset, value in effects.items()}
    everything = max(change, key=len)
    some = [subset for subset in change if 0 < len(subset) < len(everything)]
    if all(abs(change[s]) < 1e-9 for s in some):
        return "AND"
    if all(abs(change[s] - change[everything]) < 1e-9 for s in some):
        return "OR"
    assert all(abs(change[s] - sum(change[(sender,)] for sender in s)) < 1e-9 for s in some)
    return "ADDER"


@pytest.mark.parametrize("seed", range(12))
def test_truth_by_brute_force(seed: int) -> None:
    synthetic = random_logic_model(seed, **EXACT)
    for gate in synthetic.gates:
        found = label(gate_of(synthetic, gate))
        assert {synthetic.truth[f"{sender}->{gate.node}"] for sender in gate.senders} == {found}


def evaluate_by_hand(synthetic: SyntheticModel, circuit: Circuit) -> float:
    """The readout, from the gates' definitions, when only the circuit's edges carry the clean side."""
    kept = set(circuit.edges)
    values: dict[str, float] = dict.fromkeys(synthetic.model.graph.sublayers[0].nodes, 1.0)
    for gate in synthetic.gates:
        inputs = [values[sender] if f"{sender}->{gate.node}" in kept else 0.0 for sender in gate.senders]
        if gate.type == "ADDER":
            value = sum(w * x for w, x in zip(gate.weights, inputs, strict=True))
        elif gate.type == "AND":
            value = max(0.0, sum(inputs) - (len(inputs) - 1))
        else:
            value = min(1.0, sum(inputs))
        values[gate.node] = value
    return values["out"] if "out->logits" in kept else 0.0


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_circuit_has_the_value_of_its_gates(seed: int, nested: bool) -> None:
    synthetic = random_logic_model(seed, nested=nested, layers=3, **EXACT)
    graph = synthetic.model.graph
    subsets = [synthetic.circuit - graph.random_circuit(int(graph.n_edges * 0.1 * i), seed=i) for i in range(8)]
    circuits = [graph.full(), graph.empty(), *subsets, *(c | ~synthetic.circuit for c in subsets)]
    logit_diffs = synthetic.pairs.logit_diff(run_circuits(synthetic.model, synthetic.pairs, circuits))[:, 0]
    expected = torch.tensor([evaluate_by_hand(synthetic, circuit) for circuit in circuits], dtype=torch.float64)
    torch.testing.assert_close(logit_diffs, expected, atol=1e-12, rtol=0)
    assert float(logit_diffs[0]) == pytest.approx(FULL_LOGIT_DIFF)


def test_the_true_circuit_is_all_that_matters() -> None:
    synthetic = random_logic_model(3, nested=True, **EXACT)
    model, graph = synthetic.model, synthetic.model.graph
    assert torch.equal(
        run_circuit(model, synthetic.pairs, synthetic.circuit), run_circuit(model, synthetic.pairs, graph.full())
    )
    assert set(synthetic.circuit.edges) == {*synthetic.truth, "out->logits"}
    assert synthetic.circuit.connected() == synthetic.circuit


def test_nested_gates_read_gates() -> None:
    gates = {gate.node: gate for gate in random_logic_model(0, nested=True, layers=3).gates}
    assert all(any(s.startswith("G") for s in gates[f"G{level}.1"].senders) for level in (2, 3))
    plain = random_logic_model(0, layers=3).gates[:-1]
    assert all(sender.startswith("A") for gate in plain for sender in gate.senders)


def test_all_types_and_fan_ins_appear() -> None:
    gates = [gate for seed in range(30) for gate in random_logic_model(seed).gates[:-1]]
    assert set(Counter((gate.type, len(gate.senders)) for gate in gates)) == set(
        itertools.product(("AND", "OR", "ADDER"), range(2, 6))
    )


def test_every_model_has_all_types() -> None:
    for seed in range(10):
        assert {gate.type for gate in random_logic_model(seed).gates[:-1]} == {"AND", "OR", "ADDER"}


def test_types_can_be_chosen() -> None:
    synthetic = random_logic_model(3, types=("ADDER",))
    assert set(synthetic.truth.values()) == {"ADDER"}
    assert (
        random_logic_model(3, types=("AND", "OR", "ADDER")).model.fingerprint == random_logic_model(3).model.fingerprint
    )


def test_a_seed_decides_everything() -> None:
    one, same, other = (random_logic_model(seed, noise=0.05) for seed in (1, 1, 2))
    assert (one.truth, one.circuit, one.model.fingerprint) == (same.truth, same.circuit, same.model.fingerprint)
    assert one.model.fingerprint != other.model.fingerprint
    assert one.model.fingerprint != random_logic_model(1, noise=0.06).model.fingerprint


def test_noise_is_small_and_differs_between_examples() -> None:
    synthetic = random_logic_model(5, noise=0.02, examples=16)
    logits = run_circuit(synthetic.model, synthetic.pairs, synthetic.model.graph.full())
    logit_diffs = synthetic.pairs.logit_diff(logits)
    assert logits.shape == (16, 17)
    assert float(logit_diffs.std()) > 0
    assert float((logit_diffs - FULL_LOGIT_DIFF).abs().max()) < 0.5
    empty = run_circuit(synthetic.model, synthetic.pairs, synthetic.model.graph.empty())
    zeroed = run_circuit(synthetic.model, synthetic.pairs, synthetic.model.graph.empty(), ablation="zero")
    assert torch.equal(empty, zeroed)
    assert not bool(empty.any())


def test_number_types() -> None:
    assert random_logic_model(0).model.dtype == torch.float32
    synthetic = random_logic_model(0, dtype=torch.float64, noise=0.1)
    assert run_circuit(synthetic.model, synthetic.pairs, synthetic.circuit).dtype == torch.float64


@pytest.mark.parametrize(
    "wrong", [{"fan_in": (1, 2)}, {"sources": 3}, {"layers": 0}, {"noise": -1.0}, {"examples": 0}, {"types": ()}]
)
def test_bad_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(GatewiseError, match="got"):
        random_logic_model(0, **wrong)
