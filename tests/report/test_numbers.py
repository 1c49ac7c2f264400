"""Every number of the page that names an edge, a node or a gate, computed again by public functions, with its sign."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import gatewise as gw
from gatewise.gates import labels_by_test, test_edge_pairs
from gatewise.report import Report, make_report
from gatewise.report.trust import strongest_gates
from gatewise.tasks import Task

SHORT = 6e-4  # the page has four digits


@pytest.fixture(scope="module")
def model() -> gw.Model:
    return gw.load_model("tiny")


@pytest.fixture(scope="module")
def task(model: gw.Model) -> Task:
    return gw.task("ioi", model, examples=16)


@pytest.fixture(scope="module")
def report(model: gw.Model, task: Task) -> Report:
    return make_report(model, task, edges=64, random_circuits=0, examples=2)


@pytest.fixture(scope="module")
def names(report: Report) -> list[str]:
    """The page's edges, in its order."""
    columns, graph = report.page_data["edges"], report.graph
    ends = zip(columns["sender"], columns["port"], strict=True)
    return [f"{graph.senders[sender]}->{graph.ports[port]}" for sender, port in ends]


def close(shown: Any, computed: float) -> bool:
    if shown is None or not math.isfinite(computed):
        return shown is None and not math.isfinite(computed)
    return float(shown) == pytest.approx(computed, rel=SHORT, abs=1e-6)


def test_scores_of_edges(model: gw.Model, task: Task, report: Report, names: list[str]) -> None:
    for direction, column in report.page_data["edges"]["score"].items():
        scores = gw.score_edges(model, task.train, "eap", direction)
        for name, score in zip(names, column, strict=True):
            assert close(score, scores[name]), (direction, name)


def test_exact_effects_of_edges(model: gw.Model, task: Task, report: Report, names: list[str]) -> None:
    pairs = task.test[: report.page_data["effect_pairs"]]
    for direction, effects in report.page_data["edges"]["exact"].items():
        exact = gw.exact_effects(model, pairs, [names[edge] for edge in effects], direction)
        assert len(effects) == 60
        for shown, computed in zip(effects.values(), exact.logit_diff.tolist(), strict=True):
            assert close(shown, computed)


def test_tables_of_two_edges(model: gw.Model, task: Task, report: Report, names: list[str]) -> None:
    pairs = task.test[: report.page_data["effect_pairs"]]
    tests = test_edge_pairs(model, pairs, None, of=strongest_gates(report.gates, 12, 8))
    computed = {(tuple(edge for (edge,) in test.groups.values()), test.rest): test for test in tests}
    assert report.page_data["tables"]
    for table in report.page_data["tables"]:
        test = computed[tuple(names[edge] for edge in table["edges"]), table["rest"]]
        assert (table["receiver"], table["label"]) == (test.receiver, test.label)
        assert all(map(close, table["values"], test.effects.values()))
        beyond = test.strongest_interaction[1]
        assert all(map(close, table["beyond"], (beyond.value, beyond.low, beyond.high)))
    labels, shown = labels_by_test(tests), report.page_data["edges"]["tested"]
    listed = report.page_data["tested_labels"]
    assert {names[i]: listed[label] for i, label in enumerate(shown) if label >= 0} == labels


def test_gates_of_groups(model: gw.Model, task: Task, report: Report) -> None:
    """Each by `gw.test_gate` alone, from the names of its edges."""
    assert report.gate_tests is not None
    for gate, tested in list(zip(report.page_data["gates"]["tested"], report.gate_tests.tested, strict=True))[:8]:
        groups = {name: list(group) for name, group in tested.groups.items() if group}
        alone = gw.test_gate(model, task.test[: gate["pairs"]], gate["receiver"], groups, confirm=False)
        assert gate["label"] == alone.label
        for row in gate["table"]:
            assert close(row["value"][0], alone.effects[frozenset(row["set"])])
            assert close(row["interaction"][0], alone.interactions[frozenset(row["set"])])
        for name, group in gate["groups"].items():
            if name in alone.operands:
                assert close(group["ns"][0], alone.ns[name])
                assert close(group["dn"][0], alone.dn[name])
                assert close(group["gamma"][0], alone.gamma[name])


def test_effects_of_nodes(model: gw.Model, task: Task, report: Report) -> None:
    """A node's effect to first order is that of all edges out of it, the mean of both directions."""
    shown = report.page_data["nodes"]["effect"]
    pairs = task.test[:2]
    clean, corrupted = (gw.run_circuit(model, pairs, part) for part in (model.graph.full(), model.graph.empty()))
    change = clean - corrupted
    total = float((change.gather(1, pairs.correct) - change.gather(1, pairs.incorrect)).mean())
    scores = sum(gw.score_edges(model, pairs, "eap", direction).values.double() for direction in ("ns", "dn"))
    assert isinstance(scores, torch.Tensor)
    senders = model.graph.edge_sender
    assert min(shown.values()) < 0 < max(shown.values())
    for name, effect in shown.items():
        computed = float(scores[senders == model.graph.find_sender(name)].sum()) / 2 / total
        assert effect == pytest.approx(computed, rel=2e-3, abs=2e-5), name


def test_what_nodes_write_and_where_heads_look(model: gw.Model, task: Task, report: Report) -> None:
    shown, pairs = report.page_data["nodes"]["of"], task.test[:2]
    written = gw.direct_contributions(model, pairs, list(shown))
    for node, behaviours in enumerate(shown.values()):
        for pair, behaviour in enumerate(behaviours):
            for side in ("clean", "corrupted"):
                direct = behaviour["direct"][side]
                difference = float(getattr(written, side)[node, pair])
                assert direct["correct"] - direct["incorrect"] == pytest.approx(difference, rel=2e-3, abs=2e-3)
    heads = [name for name, behaviours in shown.items() if behaviours[0]["attention"]][:6]
    assert heads
    for head in heads:
        patterns = gw.attention(model, pairs, head)
        for pair, behaviour in enumerate(shown[head]):
            for row in behaviour["attention"]:
                for side in ("clean", "corrupted"):
                    weights = getattr(patterns, side)[pair].weights[row["position"]]
                    for position, weight in row["weights"][side]:
                        assert weight == pytest.approx(float(weights[position]), rel=SHORT, abs=1e-5)


def test_what_the_drawn_edges_keep(model: gw.Model, task: Task, report: Report, names: list[str]) -> None:
    drawn = report.page_data["drawn"]
    circuit = model.graph.circuit([names[edge] for edge in drawn["edges"]])
    kept = gw.evaluate(model, task.test, circuit, random_circuits=0).logit_diff_interval
    assert all(map(close, drawn["kept"], (kept.value, kept.low, kept.high)))
