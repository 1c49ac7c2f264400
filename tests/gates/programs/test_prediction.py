"""Predicting unseen interventions: what is so by construction is predicted by what can; runs are what they say."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import pytest
import torch
from small_models import random_pairs, small_model

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.patching.node_patching import LOGITS, PatchedBatches
from gatewise.engine.running import dense_mask
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.gates.programs.prediction import Prediction, predict
from gatewise.gates.programs.program import compose
from gatewise.gates.testing.candidates import candidate_of_masks, read_candidate
from gatewise.models.synthetic.logic_model import LogicGate, logic_model, synthetic_pairs

SIZES = {"subsets": 60, "fit_subsets": 30}
SOURCES = dict.fromkeys([f"A{i}" for i in range(1, 10)], 1.0)


def each_alone(gates: list[LogicGate]) -> dict[str, dict[str, str]]:
    """Every edge of these gates as a group."""
    return {gate.node: {sender: f"{sender}->{gate.node}" for sender in gate.senders} for gate in gates}


def synthetic(*layers: list[LogicGate], groups: list[LogicGate]) -> Prediction:
    model = logic_model("synthetic", SOURCES, layers, layers[-1][0].node)
    return predict(model, synthetic_pairs(16), each_alone(groups), **SIZES)  # type: ignore[arg-type]


@cache
def nested() -> Prediction:
    """(A1 and A2 and A3) and A4, beside A5 or A6 or A7, beside A8 + A9."""
    first = [LogicGate("B", "AND", ("A1", "A2", "A3")), LogicGate("C", "OR", ("A5", "A6", "A7"))]
    second = [LogicGate("D", "AND", ("B", "A4")), LogicGate("E", "ADDER", ("A8", "A9"), (0.3, 0.7))]
    last = [LogicGate("F", "ADDER", ("D", "C", "E"), (1.0, 1.5, 0.5))]
    return synthetic(first, second, last, groups=[*first, second[0], second[1]])


def test_composed_gates_predict_what_is_made_of_gates_and_sums_do_not() -> None:
    found = nested()
    assert found["gates, composed"].r2.value > 0.99
    assert found["gates, composed"].mae < 1e-5
    assert found["gates, by reader"].r2.value > 0.99
    assert found["gates, added up"].r2.value < 0.95  # B is read by D
    for name in ("sum, Ns", "sum, Dn", "sum, mean", "sum, fitted", "sum, composed"):
        assert max(found[name].r2.value, found[name].calibrated_r2.value) < 0.9, name
    assert found["gates, composed"].parameters < found["pairs, Ns"].parameters
    assert found["pairs, Ns"].r2.value < 0.9  # an AND of four has more than pairs


def test_sums_predict_a_sum() -> None:
    senders = tuple(f"A{i}" for i in range(1, 9))
    gate = [LogicGate("B", "ADDER", senders[:4]), LogicGate("C", "ADDER", senders[4:], (1.0, 2.0, 3.0, 4.0))]
    found = synthetic(gate, [LogicGate("D", "ADDER", ("B", "C"))], groups=gate)
    for one in found.scores:
        assert one.r2.value > 0.99, one.name
        assert one.calibrated_mae < 1e-5, one.name


def test_the_program_can_be_read() -> None:
    text = str(nested().program)
    assert "B = +0.167 A1 A2 A3" in text  # half of D's third: the mean of the gradients of both runs
    assert "B of D reads" in text


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_logit_diffs_are_those_of_one_plain_run_each(architecture: str) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 4) * 8)
    found = predict(model, pairs, receivers=2, subsets=12, fit_subsets=8)
    held_out, graph = Setting(model, pairs[8:]), model.graph
    engine = DenseEngine(model, held_out.intervention(held_out.batches()[0]))

    def logit_diffs(circuit: Circuit) -> torch.Tensor:
        return held_out.pairs.logit_diff(engine.logits(dense_mask(model, circuit)))

    corrupted = logit_diffs(graph.empty())
    total = logit_diffs(graph.full()) - corrupted
    for kept, share in zip(found.subsets, found.measured, strict=True):
        off = [name.split() for name, stays in zip(found.groups, kept.tolist(), strict=True) if not stays]
        ports = {f"{head}<{port.lower()}>" for head, port in off}
        gone = graph.circuit([edge for edge in graph.edges if edge.partition("->")[2] in ports])
        expected = (logit_diffs(graph.full() - gone) - corrupted).mean() / total.mean()
        assert abs(float(share - expected)) < 1e-9


@pytest.mark.parametrize("architecture", ["gpt2", "neox", "gemma3"])
def test_a_program_of_one_receiver_is_exact_by_reader(architecture: str) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 4) * 4)
    graph, setting = model.graph, Setting(model, pairs)
    ports = {kind: f"<{kind}>" for kind in "qkv"}
    gates = [read_candidate(graph, "a0.h1", ports, "group"), candidate_of_masks(graph, LOGITS, {})]
    program = compose(PatchedBatches(setting), gates, floor=0.0).by_reader
    on = torch.tensor(list(itertools.product((False, True), repeat=3)))
    engine = DenseEngine(model, setting.intervention(setting.batches()[0]))
    gone = [[f"a0.h1<{kind}>" for kind, stays in zip("qkv", row, strict=True) if not stays] for row in on.tolist()]
    circuits = [graph.circuit([e for e in graph.edges if e.partition("->")[2] not in ports]) for ports in gone]
    runs = [pairs.logit_diff(engine.logits(dense_mask(model, one))).mean() for one in (graph.empty(), *circuits)]
    expected = (torch.stack(runs[1:]) - runs[0]) / (runs[-1] - runs[0])
    torch.testing.assert_close(program(on), expected)
    assert program.parameters <= 7


def test_batches_change_nothing() -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs(lengths=(6, 4) * 8)
    one, many = (
        predict(model, pairs, receivers=2, subsets=8, fit_subsets=8, compute=Compute(memory=m)) for m in (None, "200kB")
    )
    assert len(Setting(model, pairs[:8], memory="200kB").batches(gradient=True)) > 1
    torch.testing.assert_close(one.measured, many.measured)
    for name, values in one.predicted.items():
        torch.testing.assert_close(values, many.predicted[name], msg=name)


def test_found_gates_are_groups_too(tmp_path: Path) -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs(lengths=(6, 4) * 8)
    gates = [
        gw.test_gate(
            model, pairs, "a1.h2", {"Q": "<q>", "early": ["input->a1.h2<v>", "a0.h1->a1.h2<v>"]}, confirm=False
        ),
        gw.test_gate(model, pairs, "a1.h2", {"Q": "<q>", "K": "<k>"}, confirm=False),
        gw.test_gate(model, pairs, "logits", {"m0": "m0->logits", "m1": "m1->logits"}, confirm=False),
        gw.test_gate(model, pairs, "m1", {"m0": "m0->m1", "a": "a1.h2->m1"}, confirm=False),
    ]
    found = predict(model, pairs, gates, test=pairs, subsets=10, fit_subsets=8)
    assert found.groups == ("a1.h2 Q", "a1.h2 early", "m1 m0", "m1 a", "logits m0", "logits m1")
    assert found["gates, by reader"].r2.value > 0.5
    assert found.to_json()["predictors"][0]["name"] == "sum, Ns"
    assert "calibrated" in str(found)
    assert found.draw(tmp_path / "figure.svg").stat().st_size > 1_000


def test_bad_input_is_one_clear_line() -> None:
    model, pairs = small_model("gpt2"), random_pairs(lengths=(6, 4) * 8)
    synthetic = logic_model("synthetic", SOURCES, [[LogicGate("B", "AND", ("A1", "A2"))]], "B")
    for call, said in [
        (lambda: predict(model, pairs, receivers=0), "asked for"),
        (lambda: predict(synthetic, synthetic_pairs(16)), "0 nodes have several ports"),
        (lambda: predict(model, pairs, receivers=2), "ask for fewer"),
        (lambda: predict(model, pairs, receivers=3, subsets=10, fit_subsets=9), "more than there are groups"),
        (lambda: predict(model, pairs, {"a0.h1": {"K": "<k>"}, "a0.1": {"V": "<v>"}}), "given twice"),
        (lambda: predict(model, pairs, ["a0.h1"]), "got 'a0.h1'"),  # type: ignore[list-item]
        (lambda: predict(model, pairs[:10]), "at least 8"),
    ]:
        with pytest.raises(GatewiseError, match=said) as caught:
            call()  # type: ignore[no-untyped-call]
        assert "\n" not in str(caught.value)
