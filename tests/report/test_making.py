"""A report holds what its parts give when called alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import random_pairs, small_model

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.gates.discovery import label_agreement
from gatewise.gates.testing.pair_tables import labels_by_test
from gatewise.report import Report, make_report
from gatewise.report.data import TABLES_PER_PORT
from gatewise.report.headline import doubts, facts, headline, next_steps, trust
from gatewise.report.trust import drawn_edges, edge_strength, strongest_gates
from gatewise.store import Store
from gatewise.tasks import Task


def test_circuits_and_gates_are_those_of_find_gates(found: Report) -> None:
    model = gw.load_model("tiny")
    pairs = gw.task("ioi", model, examples=8).train
    assert found.gates == gw.find_gates(model, pairs, edges=64)
    assert found.sizes == (16, 32, 64)
    for place, size in enumerate(found.sizes):
        assert found.searches["dn"][place] == gw.discover(model, pairs, "eap", "dn", edges=size)
    assert found.circuits()["ns|dn"] == found.gates.sound


def test_measures_are_those_of_evaluate(found: Report) -> None:
    model = gw.load_model("tiny")
    pairs = gw.task("ioi", model, examples=8).test
    alone = gw.evaluate(model, pairs, [found.searches["ns"][0], found.gates.sound], random_circuits=1)
    for mine, theirs in ((found.curves["ns"][0], alone[0]), (found.curves["ns|dn"][-1], alone[1])):
        assert mine.edges == theirs.edges
        assert mine.circuit == theirs.circuit
        assert mine.complement == theirs.complement
    assert found.curves["ns|dn"][-1].random_circuit == alone[1].random_circuit
    assert found.curves["ns"][0].random_circuit is None


def test_edges_that_cannot_be_changed_singly_are_not_tested() -> None:
    """OLMo 2: the rest of the report is there, and says what is not."""
    model, pairs = small_model("olmo2"), random_pairs()
    found = make_report(model, Task("random", pairs, pairs, seed=0, bos=False), edges=40)
    assert (found.tables, found.agreement.edges, found.calibration) == ((), 0, None)
    said = {remark.title: remark.text for remark in trust(found)}
    assert "Truth tables and exact effects are left out" in said["Labels not tested"]
    assert found.page_data["facts"]


def test_tables_of_the_strongest_gates(found: Report) -> None:
    assert found.agreement.to_json() == label_agreement(found.gates, labels_by_test(found.tables)).to_json()
    chosen = strongest_gates(found.gates, 2, 3)
    ports = {edge.partition("->")[2] for edge in chosen}
    assert len(ports) == 2
    strength = edge_strength(found.gates)
    strongest = max(found.gates.sound.indices, key=lambda edge: float(strength[edge]))
    assert found.graph.edges[strongest] in chosen
    for port in ports:
        mine = [edge for edge in chosen if edge.endswith(f"->{port}")]
        others = [edge for edge in found.gates.sound - chosen if edge.endswith(f"->{port}")]
        weakest = min(float(strength[found.graph.index(edge)]) for edge in mine)
        assert all(float(strength[found.graph.index(edge)]) <= weakest for edge in others)


def test_exact_effects_are_of_the_drawn_edges_on_held_out_pairs(found: Report) -> None:
    assert found.calibration is not None
    model = gw.load_model("tiny")
    pairs = gw.task("ioi", model, examples=8).test[: found.tested_pairs]
    for direction in ("ns", "dn"):
        one = found.calibration[direction]
        effects = gw.exact_effects(model, pairs, list(one.exact), direction)
        torch.testing.assert_close(torch.tensor(list(one.exact.values())).double(), effects.logit_diff.double())
        assert list(one.exact) == drawn_edges(found.gates)


def test_examples_are_what_the_model_says(found: Report) -> None:
    model = gw.load_model("tiny")
    pairs = gw.task("ioi", model, examples=8).test[:1]
    first = found.examples[0]
    probabilities = gw.run_circuit(model, pairs, model.graph.full()).double().softmax(-1)[0]
    assert first.clean == pairs.clean_text[0]
    assert first.answers["clean"].correct == pytest.approx(float(probabilities[int(pairs.correct[0, 0])]), abs=1e-5)
    circuit = gw.run_circuit(model, pairs, found.gates.dn).double().softmax(-1)[0]
    assert first.answers["dn"].incorrect == pytest.approx(float(circuit[int(pairs.incorrect[0, 0])]), abs=1e-5)


def test_data_hold_every_circuit_of_every_size(found: Report) -> None:
    data = found.page_data
    edges, senders, ports = data["edges"], found.graph.senders, found.graph.ports
    names = [f"{senders[s]}->{ports[p]}" for s, p in zip(edges["sender"], edges["port"], strict=True)]
    for name, circuits in found.searches.items():
        for place, circuit in enumerate(circuits):
            held = {n for n, bits in zip(names, edges["in"][name], strict=True) if bits >> place & 1}
            assert held == set(circuit)
    for row in data["tables"]:
        assert len({edges["port"][edge] for edge in row["edges"]}) == 1
    by_port = [edges["port"][row["edges"][0]] for row in data["tables"]]
    assert max(map(by_port.count, by_port)) <= TABLES_PER_PORT
    assert json.loads(json.dumps(data, allow_nan=False)) == json.loads(json.dumps(data))


def test_files(found: Report, tmp_path: Path) -> None:
    files = found.save(tmp_path, export=True)
    assert files[0] == tmp_path / "report.html"
    assert all(file.is_file() for file in files)
    assert gw.Gates.load(tmp_path / "gates.safetensors") == found.gates
    assert Circuit.load(tmp_path / "circuits" / "ns+dn-64.json") == found.searches["ns+dn"][-1]
    tables = json.loads((tmp_path / "tables.json").read_text())
    assert len(tables) == len(found.tables)


def test_stability_is_the_overlap_of_both_halves(found: Report) -> None:
    """The second half's scores follow from the whole's and the first half's: as if it were searched by itself."""
    assert found.stability is not None
    model = gw.load_model("tiny")
    pairs = gw.task("ioi", model, examples=8).train
    for direction, jaccard in found.stability.items():
        one, two = (gw.discover(model, half, "eap", direction, edges=64) for half in (pairs[:4], pairs[4:]))
        assert jaccard == pytest.approx(len(one & two) / len(one | two))


def test_warnings_come_first_and_follow_the_numbers(found: Report) -> None:
    assert found.stability is not None
    shaky = replace(found, stability={"ns": 0.1, "dn": 0.9}, problems=("the pairs repeat.",))
    assert [remark.text for remark in doubts(shaky)] == ["The pairs repeat."]
    assert headline(shaky) == "The pairs repeat."
    assert trust(shaky)[0].level == "warning"
    assert "good" not in {remark.level for remark in (*facts(shaky), *trust(shaky))}
    assert "ns 10%" in next(remark.text for remark in trust(shaky) if remark.title == "Stability")
    steady = replace(found, stability={"ns": 0.9, "dn": 0.9})
    assert doubts(steady) == []
    assert next(remark.level for remark in trust(steady) if remark.title == "Stability") == "good"
    assert headline(steady).startswith(f"{len(found.gates.sound)} of 3,628 edges; faithful: yes")


def test_next_steps_change_one_thing(found: Report) -> None:
    shaky = replace(found, stability={"ns": 0.1, "dn": 0.9})
    steps = {step.why: step.changes for step in next_steps(shaky)}
    assert steps["test every gate, not only the strongest"] == {"all_gates": True}
    assert steps["more pairs make the circuit steadier"] == {"examples": 32}
    assert all("all_gates" not in step.changes for step in next_steps(replace(found, all_gates=True)))
    assert {"why": "more pairs make the circuit steadier", "changes": "examples=32"} in shaky.page_data["next"]
    used_up = {step.why: step.changes for step in next_steps(replace(shaky, used_up=True))}
    assert used_up["all pairs of the file are in use: write more, they make the circuit steadier"] == {}
    assert all("examples" not in changes for changes in used_up.values())
    assert "" in [step["changes"] for step in replace(shaky, used_up=True).page_data["next"]]


def test_methods_that_search_again_get_one_size_and_no_estimates_to_check(found: Report) -> None:
    model = gw.load_model("tiny")
    one = make_report(model, gw.task("ioi", model, examples=2), "acdc", edges=12, random_circuits=0, examples=1)
    assert one.sizes == (12,)
    assert one.stability is None
    assert one.calibration is not None  # effects are shown, though ACDC's scores are no estimates of them
    assert [part.rank_correlation for part in one.calibration.values()] == [None, None]
    assert "Scores" not in {remark.title for remark in trust(one)}
    assert one.page_data["curves"]["ns"][0]["random_circuit"] is None


def test_a_method_without_a_direction_gets_a_report_without_gates(tmp_path: Path) -> None:
    model = gw.load_model("tiny")
    task = gw.task("ioi", model, examples=8)
    one = make_report(model, task, "eap-ig", edges=32, random_circuits=0, examples=1)
    assert one.circuits()["ns|dn"] == gw.discover(model, task, "eap-ig", edges=32)
    assert (len(one.gates), one.tables, one.gate_tests) == (0, (), None)
    assert "no direction" in facts(one)[2].text
    assert "Labels" not in {remark.title for remark in trust(one)}
    assert {"method": "eap"} in [step.changes for step in next_steps(one)]
    assert one.page_data["directed"] is False
    assert one.save(tmp_path)[0].exists()
    assert gw.Gates.load(tmp_path / "gates.safetensors") == one.gates


def test_sizes_beyond_the_largest_are_refused() -> None:
    model = gw.load_model("tiny")
    task = gw.task("ioi", model, examples=2)
    with pytest.raises(gw.GatewiseError, match="beyond edges=12"):
        make_report(model, task, edges=12, sizes=[20])


def test_models_whose_heads_are_coupled_are_tested_too() -> None:
    """Gemma's norm after attention; and a model without a tokenizer."""
    model, pairs = small_model("gemma2"), random_pairs(lengths=(7, 5, 7, 6))
    one = make_report(model, Task("pairs", pairs, pairs, seed=0, bos=False), edges=60, random_circuits=1, examples=1)
    assert one.agreement.edges > 0
    assert one.calibration is not None
    data = one.page_data
    assert data["agreement"]["edges"] == one.agreement.edges
    assert data["examples"][0]["clean"].startswith("#")  # no tokenizer: token ids


class FullStore(Store):
    """A store that refuses to compute anything more."""

    def check_writable(self) -> None:
        raise AssertionError("it computes")


def test_a_second_look_comes_out_of_the_store(tmp_path: Path) -> None:
    """Nothing is computed, and the report is the same; what was asked otherwise is computed."""
    model = gw.load_model("tiny")
    made = gw.task("ioi", model, examples=4, test_examples=8)

    def look(store: Store, *, edges: int = 32, random_circuits: int = 1) -> dict[str, Any]:
        report = make_report(model, made, edges=edges, random_circuits=random_circuits, compute=Compute(store=store))
        return {name: part for name, part in report.page_data.items() if name != "seconds"}

    first = look(Store(tmp_path))
    assert look(FullStore(tmp_path)) == first
    with pytest.raises(AssertionError, match="it computes"):
        look(FullStore(tmp_path), random_circuits=2)
    with pytest.raises(AssertionError, match="it computes"):
        look(FullStore(tmp_path), edges=31)


def test_a_size_by_faithfulness() -> None:
    model = gw.load_model("tiny")
    task = gw.task("ioi", model, examples=24, test_examples=8)
    report = make_report(model, task, faithfulness=0.6, random_circuits=0, examples=1)
    chosen = gw.discover(model, task, "eap", faithfulness=0.6)
    assert report.choice is not None
    assert report.searches["ns"][-1] == chosen
    assert report.sizes[-1] == len(chosen) == report.choice.edges == report.page_data["faithfulness"]["edges"]
    assert len(report.sizes) > 1
    assert {remark.title: remark.level for remark in trust(report)}["Size"] in ("good", "note")
    assert report.evaluation.direction == "ns|dn"
    missed = make_report(model, task, faithfulness=0.999, edges=8, random_circuits=0, examples=1)
    assert missed.choice is not None
    assert missed.choice.edges is None
    assert missed.sizes[-1] == missed.choice.chosen.edges
    assert "not reached below 8 edges" in {remark.title: remark.text for remark in trust(missed)}["Size"]
    assert {"edges": 16} in [step.changes for step in next_steps(missed)]
