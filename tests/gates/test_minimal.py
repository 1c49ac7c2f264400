"""Minimal circuits: the paper's combined-toy figure, synthetic truth, and the choice of the edge that stays."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.errors import GatewiseError
from gatewise.evaluation import evaluate
from gatewise.gates import Gates, label_gates, labels_by_test, test_edge_pairs, test_gate
from gatewise.gates.minimal import check_minimal, minimal_circuit
from gatewise.methods import discover
from gatewise.models.synthetic.gate_kinds import synthetic_receiver
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise.models.synthetic.random_circuits import random_logic_model

AND, OR = {"A1->B1", "A2->B1"}, {"A3->B2", "A4->B2"}


@pytest.mark.parametrize(("method", "threshold"), [("eap", 0.01), ("acdc", 0.01), ("edge-pruning", 0.5)])
def test_tested_labels_give_the_papers_figure(method: str, threshold: float) -> None:
    """Most faithful: one OR edge dropped. Most complete: one AND edge dropped. Neither loses anything."""
    model, pairs = synthetic_model("combined"), synthetic_pairs()
    ns, dn = (discover(model, pairs, method, d, threshold=threshold) for d in ("ns", "dn"))
    gates = label_gates(ns, dn)
    labels = labels_by_test(test_edge_pairs(model, pairs, gates.sound))
    everything = {*AND, *OR, "B1->C", "B2->C", "C->logits"}
    assert set(gates.sound.edges) == everything
    faithful, complete = check_minimal(model, pairs, gates, labels)
    for check, dropped_from in ((faithful, OR), (complete, AND)):
        dropped = everything - set(check.circuit.edges)
        assert len(dropped) == check.edges_saved == 1
        assert dropped < dropped_from
        assert check.kl_lost == pytest.approx(0, abs=1e-6)
    assert gates.minimal_faithful(labels) == faithful.circuit
    assert gates.minimal_complete(labels) == complete.circuit
    assert faithful.minimal.faithfulness == pytest.approx(0, abs=1e-6)
    assert faithful.gate_losses == pytest.approx([0], abs=1e-6)
    assert complete.gate_losses == pytest.approx([0], abs=1e-6)
    assert complete.minimal.faithfulness > complete.sound.faithfulness + 0.01
    assert "1 saved" in str(faithful)


@pytest.mark.parametrize("seed", range(6))
def test_synthetic_truth_loses_nothing(seed: int) -> None:
    synthetic = random_logic_model(seed, examples=2)
    edges = {kind: [e for e, k in synthetic.truth.items() if k != kind] for kind in ("AND", "OR")}
    ns, dn = (synthetic.model.graph.circuit([*edges[kind], "out->logits"]) for kind in ("OR", "AND"))
    gates = label_gates(ns, dn)
    assert gates.sound == synthetic.circuit
    for check, kind in zip(check_minimal(synthetic.model, synthetic.pairs, gates), ("OR", "AND"), strict=True):
        ports = {gate.node: len(gate.senders) for gate in synthetic.gates if gate.type == kind}
        assert check.edges_saved == sum(ports.values()) - len(ports)
        assert check.kl_lost == pytest.approx(0, abs=1e-6)
        assert check.gate_losses == pytest.approx([0] * len(ports), abs=1e-6)


def test_wrong_labels_are_shown_by_what_they_lose() -> None:
    """The circuit as a whole looks complete (it has the edge into the logits); its gates alone do not."""
    model, pairs = synthetic_model("combined"), synthetic_pairs()
    adders = ["B1->C", "B2->C", "C->logits"]
    gates = label_gates(model.graph.circuit([*AND, *adders]), model.graph.circuit([*OR, *adders]))
    swapped = {**dict.fromkeys(AND, "OR"), **dict.fromkeys(OR, "AND")}
    faithful, complete = check_minimal(model, pairs, gates, swapped)
    assert faithful.kl_lost == pytest.approx(faithful.gate_losses[0])
    assert faithful.kl_lost > 0.01
    assert complete.kl_lost == pytest.approx(0, abs=1e-6)
    assert complete.gate_losses[0] > 0.01


def with_scores(gates: Gates, ns: torch.Tensor, dn: torch.Tensor) -> Gates:
    circuits = (Circuit(c.graph, c.mask, scores) for c, scores in ((gates.ns, ns), (gates.dn, dn)))
    return label_gates(*circuits)


def test_which_edge_stays() -> None:
    graph = synthetic_model("combined").graph
    adders = ["B1->C", "B2->C", "C->logits"]
    gates = label_gates(graph.circuit([*AND, *adders]), graph.circuit([*OR, *adders]))
    assert set(gates.minimal_faithful().edges) == {*AND, *adders, "A3->B2"}
    assert set(gates.minimal_complete().edges) == {*OR, *adders, "A1->B1"}
    strong, none = torch.zeros(graph.n_edges), torch.zeros(graph.n_edges)
    strong[[graph.index("A2->B1"), graph.index("A4->B2")]] = -1.0
    scored = with_scores(gates, none, strong)
    assert "A4->B2" in scored.minimal_faithful()
    assert "A1->B1" in scored.minimal_complete()  # OR is scored by dn, AND by ns
    assert "A2->B1" in with_scores(gates, strong, none).minimal_complete()


def test_edges_without_a_label_of_the_three_stay() -> None:
    graph = synthetic_model("combined").graph
    gates = label_gates(graph.full(), graph.full())
    labels = {"A3->B2": "OR", "A4->B2": "XOR-like", "A1->B2": "none"}
    assert gates.minimal_faithful(labels) == gates.sound
    assert gates.minimal_faithful({**labels, "A4->B2": "OR"}) == gates.sound - graph.circuit(["A4->B2"])


def test_by_node_a_gate_spans_the_ports() -> None:
    graph = small_model("gpt2").graph
    edges = ["input->a0.h1<q>", "input->a0.h1<v>"]
    for by, saved in (("port", 0), ("node", 1)):
        gates = label_gates(graph.empty(), graph.circuit(edges), by=by)  # type: ignore[arg-type]
        assert len(gates.sound) - len(gates.minimal_faithful()) == saved


def test_the_measures_are_those_of_evaluate() -> None:
    model, pairs = small_model("llama", dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    gates = label_gates(*(model.graph.random_circuit(60, seed=seed) for seed in (1, 2)))
    for check in check_minimal(model, pairs, gates, compute=Compute(memory=150_000)):
        for circuit, quality in ((gates.sound, check.sound), (check.circuit, check.minimal)):
            expected = evaluate(model, pairs, circuit, random_circuits=0)
            assert quality.edges == len(circuit)
            assert quality.faithfulness == pytest.approx(float(expected.faithfulness), abs=1e-9)
            assert quality.completeness == pytest.approx(float(expected.completeness), abs=1e-9)


def test_refusals() -> None:
    graph = synthetic_model("combined").graph
    gates = label_gates(graph.circuit(AND), graph.circuit(OR))
    with pytest.raises(GatewiseError, match="not in the sound circuit"):
        gates.minimal_faithful({"B1->C": "ADDER"})
    with pytest.raises(GatewiseError, match="'faithful' or 'complete'"):
        minimal_circuit(gates, "small")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "faithful", "complete"),  # edges that can go
    [("and-of-groups", 0, 5), ("or-of-groups", 5, 0), ("two-of-three", 1, 1), ("five-of-ten", 4, 4), ("k-and-v", 0, 1)],
)
def test_of_tested_gates_whole_groups_go_and_nothing_is_lost(name: str, faithful: int, complete: int) -> None:
    kind = synthetic_receiver(name)
    found = test_gate(kind.model, kind.pairs, kind.receiver, kind.groups, confirm=False)
    full = kind.model.graph.full()
    gates = label_gates(full, full).with_tested([found])
    for check, saved in zip(check_minimal(kind.model, kind.pairs, gates, "tested"), (faithful, complete), strict=True):
        assert check.edges_saved == saved
        assert check.kl_lost == pytest.approx(0, abs=1e-4)  # a head that looks away still sees something
        assert check.gate_losses == pytest.approx([0] * (saved > 0), abs=1e-4)
    assert gates.minimal_faithful("tested") == check_minimal(kind.model, kind.pairs, gates, "tested")[0].circuit


def test_tested_gates_have_to_be_there() -> None:
    graph = synthetic_model("combined").graph
    with pytest.raises(GatewiseError, match="0 tested gates"):
        label_gates(graph.full(), graph.full()).minimal_faithful("tested")
