"""Specificity: known parts of synthetic tasks, and the matrix of a real model against `evaluate`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError
from gatewise.models.model import Model
from gatewise.models.synthetic.shared_trunk import shared_trunk
from gatewise.tasks import Task
from gatewise.validity import matched_circuit, specificity, text_pairs
from gatewise.validity.figure import draw_matrix


@pytest.fixture(scope="module")
def tiny() -> Model:
    return gw.load_model("tiny")


def agreement(named: Circuit, truth: Circuit) -> tuple[int, int, int]:
    return len(named & truth), len(named), len(truth)


def test_shared_and_own_edges_of_synthetic_tasks_are_named_and_confirmed_by_ablation() -> None:
    counts = torch.zeros(2, 3)
    for seed in range(20):
        case = shared_trunk(seed)
        tasks = {name: Task(name, pairs[:8], pairs[8:], seed, bos=False) for name, pairs in case.pairs.items()}
        # A fifth of the logit difference: the size is not told.
        circuits = {
            name: gw.discover(case.model, task, "eap", threshold=0.6, compute=None) for name, task in tasks.items()
        }
        matrix = specificity(case.model, tasks, circuits)
        parts = {part.name: part for part in matrix.parts}
        assert all(part.confirmed for part in matrix.parts)
        for name in case.own:
            own = parts[f"own {name}"]
            assert own.destroyed[name] > 0.5
            assert all(own.destroyed[other] < 0.2 for other in case.own if other != name)
            assert parts["shared"].destroyed[name] > 0.5
            counts[1] += torch.tensor(agreement(own.circuit, case.own[name]))
        counts[0] += torch.tensor(agreement(parts["shared"].circuit, case.shared))
    for both, named, true in counts.tolist():
        assert both / named >= 0.95
        assert both / true >= 0.95


def test_the_matrix_has_the_numbers_of_evaluate_and_comes_back_from_the_store(tiny: Model, tmp_path: Path) -> None:
    tasks = [gw.task(name, tiny, examples=4, test_examples=4) for name in ("ioi", "sa")]
    compute = gw.Compute(store=tmp_path)
    matrix = specificity(tiny, tasks, edges=60, random_circuits=1, compute=compute)
    circuit = gw.discover(tiny, tasks[0], edges=60)
    assert matrix.circuits["ioi"] == circuit
    for task in tasks:
        expected = gw.evaluate(tiny, task, circuit, random_circuits=0)
        cell = matrix.cells["ioi"][task.name]
        assert cell.recovered.value == pytest.approx(expected.recovered)
        assert cell.destroyed.value == pytest.approx(expected.destroyed)
    assert set(matrix.cells) == {f"{kind}{task}" for task in ("ioi", "sa") for kind in ("", "random ", "layers ")}
    again = specificity(tiny, tasks, edges=60, random_circuits=1, compute=compute)
    assert again.to_json() == matrix.to_json()
    assert len(matrix.to_frame()) == 6 * len(matrix.columns)
    draw_matrix(matrix, tmp_path / "matrix.svg")
    assert (tmp_path / "matrix.svg").read_text().startswith("<?xml")


def test_matched_circuits_have_as_many_edges_between_every_two_layers(tiny: Model) -> None:
    circuit = gw.discover(tiny, gw.task("ioi", tiny, examples=4), edges=100)
    random = matched_circuit(circuit, 1)
    assert len(random) == 100
    assert random != circuit
    senders = {node: layer for layer, part in enumerate(tiny.graph.sublayers) for node in part.nodes}

    def layers(chosen: Circuit) -> list[tuple[int, str]]:
        pairs = (edge.split("->") for edge in chosen.edges)
        return sorted((senders[sender], port.split(".")[0].split("<")[0]) for sender, port in pairs)

    assert layers(random) == layers(circuit)
    assert not matched_circuit(circuit, 1, others=True) & circuit


def test_ordinary_text_has_sides_of_equal_length_and_needs_known_words(smollm2: Model) -> None:
    pairs = text_pairs(smollm2)
    assert pairs is not None
    assert len(pairs) >= 32
    assert bool((pairs.clean != pairs.corrupted).any(dim=1).all())
    assert text_pairs(shared_trunk().model) is None


def test_circuits_that_do_not_match_the_tasks_are_refused(tiny: Model) -> None:
    task = gw.task("ioi", tiny, examples=4)
    with pytest.raises(GatewiseError, match="one circuit for each task"):
        specificity(tiny, {"a": task, "b": task}, [tiny.graph.full()])
    with pytest.raises(GatewiseError, match="at least two"):
        specificity(tiny, [task], edges=10, text=False)
