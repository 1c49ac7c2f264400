"""What is decided beforehand, and what else searches do: calibrated sizes, variants, tested gates, the trunk."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_TYPES
from gatewise.gates.testing.gate_test import test_gate
from gatewise.methods import discover
from gatewise.models.synthetic.gate_kinds import synthetic_receiver
from gatewise_paper import size_calibration
from gatewise_paper.experiment import Search, Variant
from gatewise_paper.experiments import EXPERIMENTS
from gatewise_paper.experiments.contribution import drawn_gates
from gatewise_paper.experiments.gate_ablation import AblationKey, Removals, largest_gates, share_of_one
from gatewise_paper.experiments.graph_study import role_groups, stated_value, study_tested
from gatewise_paper.experiments.misalignment import best_by_index
from gatewise_paper.experiments.proportion import shares_of_types
from gatewise_paper.lab import Lab
from gatewise_paper.measures.gate_ablation import gate_effects
from gatewise_paper.presets import PRESETS, QUICK, Preset
from gatewise_paper.sizes import Sizes
from gatewise_paper.tested_gates import TwoGroups, acting, by_type, strongest_pair

SMALL = QUICK.changed(
    sizes=(8, 20), seeds=2, pairs=2, held_out=4, tasks=("ioi",), parameters={"edge-pruning": {"steps": 3}}
)


SCRIPT = Path(__file__).parents[2] / "scripts" / "paper_overview.py"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(SMALL, tmp_path_factory.mktemp("setup"))


def test_sizes_are_chosen_where_a_circuit_does_neither_nothing_nor_everything() -> None:
    sizes = size_calibration.grid(300)
    assert sizes[:6] == [1, 2, 3, 4, 6, 8]
    assert sizes[-1] == 256
    shares = [1.0, 1.0, 0.95, 0.85, 0.7, 0.6, 0.45, 0.3, 0.12, 0.05, *[0.0] * (len(sizes) - 10)]
    found = size_calibration.choose(sizes, shares)
    assert found["judged"] == [sizes[i] for i in (3, 5, 6, 8)]
    assert found["primary"] == sizes[6]
    steep = size_calibration.choose([1, 2, 3], [1.0, 0.93, 0.02])
    assert (steep["judged"], steep["primary"]) == ([], 2)  # nothing to judge, and still a size to search for


def test_committed_sizes_are_those_of_the_presets() -> None:
    for preset in PRESETS.values():
        found = size_calibration.committed(preset.model)
        if found is not None and not preset.setups["eap"].sizes:
            assert preset.calibrated(found) == preset
            assert found["held_out"] == preset.held_out
            measures = {*size_calibration.MEASURES, size_calibration.REDUNDANCY}
            assert all(set(one) == measures for one in found["tasks"].values())
    assert QUICK.calibration
    assert QUICK.changed(model="gpt2").needs_calibration
    assert not QUICK.changed(sizes=[5]).needs_calibration
    assert QUICK.changed(model="gpt2").changed(model="tiny").calibration == QUICK.calibration


def test_where_gates_are_many_some_are_removed(lab: Lab) -> None:
    gates = lab.gates("ioi", "eap", 20, 0)
    assert drawn_gates(gates, None, 0) == list(gates)
    some = drawn_gates(gates, 2, 0)
    assert some == drawn_gates(gates, 2, 0)
    assert [gate for gate in gates if gate in some] == some
    assert all(
        sum(gate.type == kind for gate in some) == min(2, sum(gate.type == kind for gate in gates))
        for kind in GATE_TYPES
    )
    largest = largest_gates(lab, AblationKey("ioi", "eap", 0, 20, 3, "port", 1, 4, lab.preset.search_pairs), gates)
    wide = [gate for gate in gates if len(gate.edges) >= 2]
    effects = dict(zip(wide, gate_effects(lab.model, lab.gate_pairs("ioi", 0)[:4], wide), strict=True))
    for kind in GATE_TYPES:
        strongest = max((abs(effect) for gate, effect in effects.items() if gate.type == kind), default=None)
        chosen = [abs(effects[gate]) for gate in largest if gate.type == kind]
        assert chosen == ([] if strongest is None else [strongest])


def _primary(preset: Preset, measure: str, task: str) -> int:
    return preset.calibration[task][measure]["primary"]


def test_methods_have_the_sizes_that_were_chosen(lab: Lab) -> None:
    sizes = Lab(QUICK, lab.folder).sizes
    both = {_primary(QUICK, measure, "gt") for measure in size_calibration.MEASURES}
    assert set(sizes.of("acdc", "gt")) == both
    assert both | set(QUICK.calibration["gt"]["faithfulness"]["judged"]) < set(sizes.of("eap", "gt"))
    assert sizes.of("eap", "gt:difference=probability") == sizes.of("eap", "gt")
    assert sizes.of_gates("gt") == _primary(QUICK, "faithfulness", "gt")
    assert sizes.searched("edge-pruning", "gt") == (max(both),)


def test_a_measure_is_taken_where_it_says_something(lab: Lab) -> None:
    graph, judged = lab.model.graph, QUICK.calibration["gt"]["completeness"]["judged"]
    sizes = Sizes(QUICK, graph)
    measured = sizes.measured("completeness", "eap", "gt")
    assert set(judged) < set(measured) < set(sizes.of("eap", "gt"))
    assert max(measured) <= 2 * max(judged)
    assert sizes.measured("completeness", "eap", "gt", only_judged=True) == tuple(judged)
    assert sizes.measured("completeness", "acdc", "gt") == (_primary(QUICK, "completeness", "gt"),)
    assert Sizes(QUICK.changed(sizes=[5, 50]), graph).measured("completeness", "eap", "gt") == (5, 50)


def test_an_experiment_does_without_what_is_left_out(lab: Lab) -> None:
    preset = PRESETS["laptop"]
    assert preset.of("completeness") == preset
    assert "acdc" not in preset.of("faithfulness").methods
    assert {name for setup in preset.setups.values() for name in setup.left_out} < set(EXPERIMENTS)
    with pytest.raises(GatewiseError, match="faithfulness does without acdc"):
        preset.changed(methods=("acdc",)).of("faithfulness")
    sizes = Sizes(preset, lab.model.graph)  # sizes that were chosen do not depend on the graph
    for task in preset.tasks:
        assert sizes.of("acdc", task) == (_primary(preset, "completeness", task),)


def test_tested_gates_can_be_left_out() -> None:
    assert QUICK.changed(tested_tasks=()).tested_tasks == ()
    assert QUICK.changed(tested_tasks=("gt",)).tested_tasks == ("gt",)
    assert PRESETS["smollm2"].changed(tasks=("gt",)).tested_tasks == ()
    with pytest.raises(GatewiseError, match="gates are to be tested on foo; the tasks are ioi, gt, sa"):
        QUICK.changed(tested_tasks=("foo", "gt"))


def test_pairs_differ_as_a_variant_says(lab: Lab) -> None:
    def texts(seed: int, variant: Variant = "") -> list[str]:
        return list(lab.pairs("ioi", "eap", seed, variant).clean_text)

    assert texts(0, "fixed pairs") == texts(1, "fixed pairs") == texts(0)
    assert texts(0, "twice the pairs") == [*texts(0), *texts(1)]
    assert not set(texts(1, "twice the pairs")) & set(texts(0, "twice the pairs"))


def test_connected_circuits_lie_on_paths(lab: Lab) -> None:
    found = lab.circuits("ioi", "eap", "ns", 0, "connected")
    assert {size: len(one) for size, one in found.items()} == {8: 8, 20: 20}
    assert all(one.connected() == one for one in found.values())
    plain = lab.circuits("ioi", "eap", "ns")
    assert plain[8].connected() != plain[8]


def test_what_a_tau_keeps_holds_what_was_trimmed(lab: Lab) -> None:
    trimmed = lab.circuits("ioi", "acdc", "ns")[8]
    whole = lab.circuits("ioi", "acdc", "ns", 0, "untrimmed")[8]
    assert trimmed <= whole
    assert len(whole) == trimmed.provenance["notes"]["kept_at_tau"] >= 8
    tau, pairs = trimmed.provenance["notes"]["tau"], lab.pairs("ioi", "acdc")
    assert whole == discover(lab.model, pairs, "acdc", "ns", threshold=tau)  # what was read off is what a search keeps


def test_orders_of_acdc_share_pairs_and_tau(lab: Lab) -> None:
    lab.find(Search("ioi", "acdc", 1, ("ns",), "fixed pairs"))
    first, other = (lab.circuits("ioi", "acdc", "ns", seed, "fixed pairs")[8] for seed in (0, 1))
    assert first == lab.circuits("ioi", "acdc", "ns", 0, "untrimmed")[8]
    tau, pairs = lab.circuits("ioi", "acdc", "ns")[8].provenance["notes"]["tau"], lab.pairs("ioi", "acdc")
    assert other == discover(lab.model, pairs, "acdc", "ns", threshold=tau, seed=1)


def test_two_masks_are_averaged(lab: Lab) -> None:
    lab.find(Search("ioi", "edge-pruning", 1, ("ns",), "two masks"))
    found = lab.circuits("ioi", "edge-pruning", "ns", 1, "two masks")[20]
    parts = [lab.circuits("ioi", "edge-pruning", "ns", seed, "fixed pairs")[20].scores for seed in (1, 1_001)]
    assert parts[0] is not None
    assert parts[1] is not None
    assert found.scores is not None
    assert found.scores.tolist() == pytest.approx(((parts[0] + parts[1]) / 2).tolist())
    assert not parts[0].equal(parts[1])


@pytest.mark.parametrize(("kind", "label"), [("k-and-v", "AND"), ("or-of-groups", "OR")])
def test_groups_are_typed_by_how_they_act(kind: str, label: str) -> None:
    synthetic = synthetic_receiver(kind, noise=0.05, examples=32)
    found = test_gate(
        synthetic.model, synthetic.pairs, synthetic.receiver, synthetic.groups, rest="clean", confirm=False
    )
    assert set(strongest_pair(found)) == set(synthetic.groups)
    assert acting(found.group_labels.values()) == label


def test_types_of_two_groups() -> None:
    assert [acting(ways) for ways in (("AND", "ADDER"), ("OR", "undecided"), ("ADDER", "ADDER"), ("AND", "OR"))] == [
        *("AND", "OR", "ADDER", "mixed")
    ]
    assert acting(("ADDER", "undecided")) == "mixed"


def _gate(kind: str, one: float, other: float, both: float, groups: Any = (("a",), ("b", "c"))) -> TwoGroups:
    return TwoGroups("m1", kind, groups, False, one, other, both)


def test_tested_gates_by_type() -> None:
    gates = [_gate("AND", 1, 1, 1), _gate("OR", 0, 0, 1), _gate("ADDER", 0.25, 0.25, 1), _gate("mixed", 1, 0, 1)]
    assert shares_of_types(gates) == {"AND": 0.25, "OR": 0.25, "ADDER": 0.25, "outside": 0.25}
    assert gates[0].edges == 3
    removed = [
        Removals(g.receiver, [g.first, g.second], [g.second, g.first], [g.both] * 2) for g in by_type(gates)["ADDER"]
    ]
    assert share_of_one(removed, 0.1) == 0.25


def test_heads_of_two_groups_are_compared() -> None:
    graph = Graph.transformer(3, 4, 8)
    heads = [f"a{layer}.h{head}" for layer in range(3) for head in range(4)]
    roles = {head: ("one", "two")[int(head[-1]) % 2] for head in heads}
    alike = torch.tensor([[float(roles[a] == roles[b]) for b in heads] for a in heads])
    apart = (("a0.h0->m2", "a1.h0->m2", "a1.h2->m2"), ("a0.h1->m2", "a0.h3->m2", "a1.h1->m2", "a1.h3->m2"))
    found = study_tested(graph, [_gate("AND", 1, 1, 1, apart)], roles, alike)
    assert found["AND"]["same"]["n"] == 12
    assert found["AND"]["same"]["value"] == 0
    assert found["AND"]["same"]["chance"] > 0.3
    assert found["OR"]["same"]["n"] == 0


def test_heads_of_a_function_are_a_group() -> None:
    graph = Graph.transformer(3, 4, 8)
    roles = {"a0.h0": "previous token", "a0.h1": "duplicate token", "a1.h0": "duplicate token", "a1.h2": "induction"}
    groups = role_groups(graph, "a1.h2", ("previous token", "duplicate token"), roles)
    assert groups["previous token"] == [f"a0.h0->a1.h2<{port}>" for port in "qkv"]
    assert groups["duplicate token"] == [f"a0.h1->a1.h2<{port}>" for port in "qkv"]  # not its own layer
    assert role_groups(graph, "a2.h0", ("duplicate token",), roles).keys() == {"one half", "the other"}
    assert role_groups(graph, "a1.h2", ("duplicate token",), roles) == {}  # one head makes no two groups
    assert stated_value([["a1.h2", [0.8, 0.6], "AND", 0.1], ["a2.h0", [None, 0.1], "ADDER", 0.0]], "AND") == 0.5
    assert stated_value([["a1.h2", [-0.8, -0.6], "OR", 0.1]], "OR") == pytest.approx(0.7)
    assert math.isnan(stated_value([["a1.h2", [None, None], "undecided", 0.0]], "AND"))


def test_labels_are_held_against_gate_indices() -> None:
    sizes = {"curves": {"sound": {"sizes": [60, 100, 140]}}}
    assert best_by_index({**sizes, "indices": [0.1, 0.4, None]}, 100) == 1.0
    assert math.isnan(best_by_index({**sizes, "indices": [None] * 3}, 100))


def test_the_overview_has_primary_claims_of_all_models() -> None:
    overview = runpy.run_path(str(SCRIPT))["overview"]

    def content(**judgements: str) -> dict[str, Any]:
        verdicts = []
        for method, judgement in judgements.items():
            one = {
                "claim": "It is so.",
                "method": method,
                "paper": "1.2",
                "judgement": judgement,
                "standing": "primary",
            }
            other = {**one, "claim": "So is this.", "primary": False, "standing": "exploratory"}
            verdicts += [{**one, "primary": True}, other]
        return {"experiments": {"cost": {"verdicts": verdicts}}}

    gemma = [content(EAP="supported", ACDC="cannot tell"), content(Other="supported")]
    shown = overview({"Gemma": gemma, "tiny": [content(EAP="cannot tell")], "GPT-2": []})
    assert (
        "| cost | It is so. | 1.2 | supported (EAP, Other); cannot tell (ACDC) | cannot tell (EAP) | not run |" in shown
    )
    assert "So is this" not in shown


def test_calibration_is_written_by_a_command(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gatewise_paper.cli.reproduce import _calibrate

    path = tmp_path / "size_calibration.json"
    path.write_text('{"other": {}}')
    _calibrate(SMALL, path)
    written = json.loads(path.read_text())
    assert set(written) == {"other", "tiny"}
    assert written["tiny"]["weights"] == lab.model.fingerprint
    assert capsys.readouterr().out.startswith("ioi faithfulness: ")
    assert SMALL.changed(sizes=()).needs_calibration is False  # the committed one of its model
    assert set(SMALL.calibrated(written["tiny"]).calibration) == {"ioi"}
