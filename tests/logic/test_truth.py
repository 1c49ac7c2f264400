"""Truth tables: on planted gates, and against one run of the reference engine per row."""

from __future__ import annotations

import pytest
import torch
from reference import _Net, reference_others
from small_models import random_pairs, small_model

from gatewise.circuits.circuit import Circuit
from gatewise.engine.runs import Ablation
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.logic.truth import MEASURES, TruthTable, labels_by_test, truth_tables
from gatewise.models.model import Model
from gatewise.models.planted import planted_model, planted_pairs
from gatewise.models.planted_random import random_planted
from gatewise.tasks.pairs import Pairs


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


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma3"])
@pytest.mark.parametrize("seed", [1, 2])
def test_effects_are_those_of_the_slow_twin(architecture: str, seed: int) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    circuit = model.graph.random_circuit(80, seed=seed)
    tables = truth_tables(model, pairs, circuit, memory=150_000)
    assert {table.context for table in tables} == {"kept", "removed"}
    for table in tables[:: max(1, len(tables) // 8)]:
        expected = _slow_effects(model, pairs, circuit, table, reference_others(model, pairs))
        torch.testing.assert_close(table.effects, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("ablation", ["zero", "mean", "noise"])
@pytest.mark.parametrize("architecture", ["gpt2", "gemma3"])
def test_effects_under_other_ablations_are_those_of_the_slow_twin(architecture: str, ablation: Ablation) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    circuit = model.graph.random_circuit(80, seed=1)
    setting = Setting(model, pairs, ablation=ablation, seed=5)
    tables = truth_tables(setting, None, circuit)
    drawn = setting.runs(setting.batches()[0]).corrupted.outputs
    for table in tables[:: max(1, len(tables) // 4)]:
        expected = _slow_effects(model, pairs, circuit, table, reference_others(model, pairs, ablation, drawn))
        torch.testing.assert_close(table.effects, expected, atol=1e-9, rtol=0)


def _slow_effects(
    model: Model, pairs: Pairs, circuit: Circuit, table: TruthTable, others: list[dict[str, torch.Tensor]]
) -> torch.Tensor:
    """The effects by one run of the reference engine for each row and example. [measure, which, example]"""
    into = {edge for edge in circuit.edges if edge.endswith("->" + table.receiver)}
    always = set(circuit.edges) - into
    if table.context == "kept":
        always |= into - set(table.edges)
    i, j = table.edges
    rows = [always | kept for kept in (set(), {i}, {j}, {i, j})]
    values = torch.stack([_slow_row(model, pairs, set(circuit.edges), kept, table, others) for kept in rows], dim=1)
    values[2] *= -1
    return values[:, 1:] - values[:, :1]


def _slow_row(
    model: Model,
    pairs: Pairs,
    circuit: set[str],
    kept: set[str],
    table: TruthTable,
    others: list[dict[str, torch.Tensor]],
) -> torch.Tensor:
    """At the receiver, margin and KL. [measure, example]"""
    net, everything, node = _Net(model), set(model.graph.edges), table.receiver.partition("<")[0]
    found = []
    for row, length in enumerate(pairs.lengths.tolist()):
        clean, reference = net.run(pairs.clean[row, -length:], everything, None)
        other = others[row]
        now, logits = net.run(pairs.clean[row, -length:], kept, other)
        margin = pairs[row : row + 1].margin(logits[None])[0]
        p, q = reference.log_softmax(dim=-1), logits.log_softmax(dim=-1)
        at_receiver = margin
        if node != "logits":
            first = 0 if _read_everywhere(circuit, node) else -1
            target, change = ((x[node] - other[node])[first:] for x in (clean, now))
            at_receiver = (target * change).sum() / target.square().sum()
        found.append(torch.stack([at_receiver, margin, (p.exp() * (p - q)).sum()]))
    return torch.stack(found, dim=1)


def _read_everywhere(circuit: set[str], node: str) -> bool:
    """Whether some way from the node to the logits goes through keys or values, and so matters at all positions."""
    ways = [("", node)]
    for kinds, last in ways:
        ways += [
            (kinds + edge[-2:], edge.partition("->")[2].partition("<")[0]) for edge in circuit if _from(edge, last)
        ]
    return any(last == "logits" and ("k>" in kinds or "v>" in kinds) for kinds, last in ways)


def _from(edge: str, node: str) -> bool:
    return edge.partition("->")[0] == node


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_measures_are_the_same_measures(count: int) -> None:
    model, pairs = small_model("llama"), random_pairs(lengths=(6, 4, 6))
    circuit = model.graph.random_circuit(80, seed=3)
    whole, fewer = (truth_tables(model, pairs, circuit, measures=MEASURES[:n]) for n in (3, count))
    assert labels_by_test(whole) == labels_by_test(fewer)
    for one, other in zip(whole, fewer, strict=True):
        assert (one.edges, one.context, one.label, one.interval) == (
            other.edges,
            other.context,
            other.label,
            other.interval,
        )
        assert torch.equal(one.effects[:count], other.effects)
        assert other.margin_label == (one.margin_label if count > 1 else None)


def test_measures_in_another_order_are_refused() -> None:
    model = planted_model("and")
    with pytest.raises(GatewiseError, match="measures are the first"):
        truth_tables(model, planted_pairs(), model.graph.full(), measures=["margin"])
