"""Backups: a synthetic one, a series that is none, logit differences against plain runs, and circuits made
complete."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.engine import run_circuit
from gatewise.errors import GatewiseError
from gatewise.gates.backups import add_backups, find_backups
from gatewise.models.loader import load_model
from gatewise.models.model import Model
from gatewise.models.synthetic.logic_model import LogicGate, logic_model, synthetic_model, synthetic_pairs
from gatewise.models.synthetic.random_circuits import random_logic_model
from gatewise.tasks import task
from gatewise_paper.truth.labels import UNION, trial


def with_backup() -> Model:
    """B2 says what A2 says, but only if B1 is silent; out = B1 + B2."""
    layers = [
        [LogicGate("B1", "ADDER", ("A1",))],
        [LogicGate("B2", "AND", ("A2",))],
        [LogicGate("out", "ADDER", ("B1", "B2"))],
    ]
    emitted = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    stray = [torch.zeros(1, 5) for _ in layers]
    stray[1][0, 2] = -1.0
    return logic_model("synthetic:backup", ["A1", "A2"], layers, "out", emitted=emitted, stray=stray)


def test_a_backup_is_found() -> None:
    found = {one.backup: one for one in find_backups(with_backup(), synthetic_pairs(8), ["B1"])}
    one = found["B2"]
    assert (one.loss, one.backup_loss, one.joint_loss) == pytest.approx((0, 0, 1))
    assert one.self_repair.value == one.frozen_self_repair.value == pytest.approx(1)
    assert one.significant


def test_nodes_in_series_do_not_back_up_each_other() -> None:
    assert not any(one.significant for one in find_backups(synthetic_model("and"), synthetic_pairs(8), ["B", "A1"]))


def test_losses_are_those_of_plain_runs() -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs(lengths=(6, 4) * 4)
    graph = model.graph

    def logit_diff(*gone: str) -> torch.Tensor:
        kept = graph.circuit([edge for edge in graph.edges if edge.partition("->")[0] not in gone])
        return pairs.logit_diff(run_circuit(model, pairs, kept)).mean()

    total = logit_diff() - pairs.logit_diff(run_circuit(model, pairs, graph.empty())).mean()
    found = find_backups(model, pairs, ["a0.h1"], most=2)
    assert len(found) == 2
    for one in found:
        sets = (("a0.h1",), (one.backup,), ("a0.h1", one.backup))
        expected = [float((logit_diff() - logit_diff(*gone)) / total) for gone in sets]
        assert (one.loss, one.backup_loss, one.joint_loss) == pytest.approx(expected, abs=1e-9)
        assert one.self_repair.value == pytest.approx(one.joint_loss - one.loss - one.backup_loss, abs=1e-9)
        assert one.frozen_self_repair.value != pytest.approx(one.self_repair.value, abs=1e-6)


def test_added_backups_are_what_neither_direction_sees() -> None:
    """Random nested models: EAP misses gates behind gates of the other type."""
    true = found = hits = before = 0
    for seed in range(8):
        synthetic = random_logic_model(seed, nested=True, dtype=torch.float64)
        circuit = trial(synthetic, "eap", 0.01, seed).circuits[UNION]
        completed = add_backups(synthetic.model, synthetic.pairs, circuit)
        assert circuit <= completed
        before += len(circuit & synthetic.circuit)
        true, found, hits = (
            true + len(synthetic.circuit),
            found + len(completed),
            hits + len(completed & synthetic.circuit),
        )
    assert before < 0.97 * true
    assert hits >= 0.95 * true
    assert hits >= 0.95 * found


def test_add_backups_adds_the_strongest_first_and_no_more_than_asked() -> None:
    synthetic = random_logic_model(0, nested=True, dtype=torch.float64)
    start = synthetic.model.graph.circuit(["out->logits"])
    assert len(add_backups(synthetic.model, synthetic.pairs, start, most=1)) <= 2


def test_refusals() -> None:
    model = synthetic_model("and")
    with pytest.raises(GatewiseError, match="no node 'Z'"):
        find_backups(model, synthetic_pairs(8), ["Z"])
    with pytest.raises(GatewiseError, match="between 0 and 1"):
        add_backups(model, synthetic_pairs(8), model.graph.full(), share=2)


def test_a_chosen_partner_is_judged_and_the_answer_is_a_verdict() -> None:
    model = load_model("tiny")
    pairs = task("ioi", model, examples=8).test
    (found,) = find_backups(model, pairs, "a5.h0", "a4.h0")
    assert (found.node, found.backup) == ("a5.h0", "a4.h0")
    assert found.verdict in repr(found)
    assert found.significant == (found.verdict == "backs it up")
    everything = {(one.node, one.backup): one for one in find_backups(model, pairs, ["a5.h0"], most=50)}
    if ("a5.h0", "a4.h0") in everything:
        assert everything["a5.h0", "a4.h0"].joint_loss == pytest.approx(found.joint_loss)
    assert find_backups(model, pairs, "a5.h0", ["a5.h0"]) == []
