"""The ground-truth benchmark, on few models; and the smallest example of each kind of failure in docs/truth.md."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from gatewise.engine import run_circuit
from gatewise.engine.running import last_logits
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.gates import add_backups, find_gates, labels_by_test, test_edge_pairs
from gatewise.methods import EdgePruning, Ranking, discover
from gatewise.models.synthetic.logic_model import (
    LogicGate,
    logic_model,
    synthetic_model,
    synthetic_pairs,
)
from gatewise.models.synthetic.random_circuits import SyntheticModel, random_logic_model
from gatewise.statistics import kl_divergence, log_probabilities
from gatewise_paper.truth.labels import (
    PRUNING_STEPS,
    UNION,
    Study,
    Trial,
    benchmark,
    label_row,
    logit_diffs_of_combinations,
    thresholds,
    trial,
)
from gatewise_paper.truth.ranking_cut import rank_edges, smallest_within


def plant(*gates: tuple[str, Any, str]) -> SyntheticModel:
    """A logic model from gates such as ("B", "AND", "A1 A2") that all emit 0 or 1; the last is read out."""
    made = []
    for node, kind, text in gates:
        senders = tuple(text.split())
        made.append(LogicGate(node, kind, senders, (1 / len(senders),) * len(senders) if kind == "ADDER" else ()))
    inner = {gate.node for gate in made}
    sources = sorted({sender for gate in made for sender in gate.senders} - inner)
    model = logic_model("synthetic:test", dict.fromkeys(sources, 1.0), [[gate] for gate in made], made[-1].node)
    truth = {f"{sender}->{gate.node}": gate.type for gate in made for sender in gate.senders}
    circuit = model.graph.circuit([*truth, f"{made[-1].node}->logits"])
    return SyntheticModel(model, synthetic_pairs(), tuple(made), truth, circuit)


def test_without_noise_and_nesting_tested_labels_are_the_truth() -> None:
    report = benchmark(Study(models=6), ("eap", "acdc"), ("orders",))
    for row in report.searches:
        if row.direction in (UNION, "ns+dn"):
            assert row.precision is not None
            assert row.recall is not None
            assert row.precision.value == row.recall.value == 1
    right = {(row.method, row.rule): row.accuracy for row in report.labels}
    assert all(found is not None for found in right.values())
    assert {key for key, found in right.items() if found is not None and found.value < 1} == {("acdc", "plain")}
    assert set(report.labels[0].by_fan_in) == {2, 3, 4, 5}
    assert report.searches[0].method == "eap"


def test_exhaustive_combinations() -> None:
    synthetic = plant(("B", "OR", "A1 A2 A3"), ("C", "AND", "B A4"))
    found = trial(synthetic, "exhaustive", 0.01, 0)
    assert found.circuits[UNION] == synthetic.circuit
    assert {edge: found.labels["exhaustive"][edge] for edge in synthetic.truth} == synthetic.truth


def test_logit_diffs_of_combinations_are_those_of_single_runs() -> None:
    synthetic = random_logic_model(3, layers=1, sources=5, noise=0.1, dtype=torch.float64)
    graph = synthetic.model.graph
    edges = [graph.index(edge) for edge in graph.edges if edge.endswith("->G1.1")]
    logit_diffs = logit_diffs_of_combinations(synthetic, edges)
    for kept in itertools.islice(itertools.product((0, 1), repeat=len(edges)), 0, None, 5):
        gone = graph.circuit([edge for edge, keep in zip(edges, kept, strict=True) if not keep])
        expected = synthetic.pairs.logit_diff(run_circuit(synthetic.model, synthetic.pairs, graph.full() - gone)).mean()
        assert float(logit_diffs[kept]) == pytest.approx(float(expected), abs=1e-9)


def test_thresholds_are_shares_of_the_total_effect() -> None:
    synthetic = random_logic_model(0, dtype=torch.float64)
    assert thresholds(synthetic, "eap", "ns", 0.01)[1] == pytest.approx(0.02)  # the logit difference is 2
    tau = {d: thresholds(synthetic, "acdc", d, 0.01)[1] for d in ("ns", "dn", "ns+dn")}
    assert tau["ns+dn"] == pytest.approx(tau["ns"] + tau["dn"])
    pruning = thresholds(synthetic, "edge-pruning", "dn", 0.01)
    assert pruning == (EdgePruning(penalty=tau["dn"], steps=PRUNING_STEPS), 0.5)


def test_learned_ranking_under_both_directions_is_the_truth_in_a_graph_20_times_as_large() -> None:
    study = Study(models=1, sources=120, layers=3)
    (synthetic,) = study.synthetic()
    assert synthetic.model.graph.n_edges >= 20 * len(synthetic.circuit)
    setting = Setting(synthetic.model, synthetic.pairs)
    order = rank_edges(setting, Ranking(steps=150), "ns+dn")
    assert smallest_within(setting, order, "ns+dn", study.share) == synthetic.circuit


def test_learned_ranking_is_a_row_for_every_direction() -> None:
    report = benchmark(Study(models=1, fan_in=(2, 3)), ("ranking",), ())
    recall = {row.direction: row.recall_by_type for row in report.searches}
    values = {key: {kind: share and share.value for kind, share in by_type.items()} for key, by_type in recall.items()}
    assert values["ns+dn"] == {"AND": 1, "OR": 1, "ADDER": 1}
    assert values["ns"]["AND"] == values["ns"]["ADDER"] == values["dn"]["OR"] == values["dn"]["ADDER"] == 1
    assert [row.rule for row in report.labels] == ["steady", "plain", "repaired", "tested", "tested in G"]


@pytest.mark.parametrize("seed", range(2))
def test_gates_of_a_model_of_adders_are_hardly_ever_labelled_and_or_or(seed: int) -> None:
    synthetic = random_logic_model(seed, types=("ADDER",), dtype=torch.float64)
    gates = find_gates(
        synthetic.model, synthetic.pairs, Ranking(steps=150), edges=len(synthetic.circuit), joint=False, seed=seed
    )
    assert gates.seed_overlap is not None
    labelled = len(gates.by_type["AND"]) + len(gates.by_type["OR"])
    assert labelled <= 0.05 * len(gates.sound)
    assert gates.by_type["ADDER"] >= synthetic.model.graph.circuit(list(synthetic.truth))


def test_false_gates_are_counted_among_edges_that_do_not_matter_too() -> None:
    synthetic = plant(("B", "AND", "A1 A2"), ("C", "ADDER", "B A3"))
    circuit = synthetic.circuit | synthetic.model.graph.circuit(["A3->B"])
    labels = {"A1->B": "AND", "A2->B": "OR", "A3->B": "AND", "B->C": "ADDER", "A3->C": None, "C->logits": "ADDER"}
    (row,) = [label_row("eap", "plain", [Trial(synthetic, {UNION: circuit}, {"plain": labels}, 0.0)])]
    assert row.false_gates is not None
    assert row.false_gates.value == pytest.approx(2 / 6)  # A2->B has the other type, A3->B does not matter


def test_refusals() -> None:
    with pytest.raises(GatewiseError, match="models >= 1"):
        Study(models=0)
    with pytest.raises(GatewiseError, match="'guess'"):
        benchmark(Study(models=1), ("guess",))
    with pytest.raises(GatewiseError, match="up to 16"):
        logit_diffs_of_combinations(random_logic_model(0), list(range(17)))


# The failures of docs/truth.md

AND_UNDER_OR = plant(("B", "AND", "A1 A2"), ("C", "OR", "B A3"))
OR_UNDER_AND = plant(("B", "OR", "A1 A2"), ("C", "AND", "B A3"))
ADDER_UNDER_OR = plant(("B", "ADDER", "A1 A2"), ("C", "OR", "B A3"))


def missed(synthetic: SyntheticModel, method: str) -> set[str]:
    return set(synthetic.truth) - set(trial(synthetic, method, 0.01, 0).circuits[UNION])


def test_a_gate_of_the_other_type_upstream_is_invisible_to_eap() -> None:
    assert missed(AND_UNDER_OR, "eap") == missed(OR_UNDER_AND, "eap") == {"A1->B", "A2->B"}


def test_acdc_finds_one_edge_of_it_which_has_no_partner_to_be_tested_with() -> None:
    for synthetic in (AND_UNDER_OR, OR_UNDER_AND):
        (left_out,) = missed(synthetic, "acdc")
        assert left_out.endswith("->B")
        (found,) = {"A1->B", "A2->B"} - {left_out}
        assert trial(synthetic, "acdc", 0.01, 0).labels["tested"].get(found) is None
        assert not missed(synthetic, "orders")


def test_two_sided_faithfulness_needs_one_edge_of_a_gate_behind_the_other_type() -> None:
    """So the KL says nothing of the others, whatever is trained on it; they appear when parts are switched."""
    for synthetic in (AND_UNDER_OR, OR_UNDER_AND):
        setting = Setting(synthetic.model, synthetic.pairs)
        order = rank_edges(setting, Ranking(steps=150), "ns+dn")
        circuit = smallest_within(setting, order, "ns+dn", 0.01)
        assert circuit <= synthetic.circuit
        (left_out,) = synthetic.circuit - circuit
        assert left_out in ("A1->B", "A2->B")
        completed = add_backups(synthetic.model, synthetic.pairs, circuit, share=0.01)
        assert completed == synthetic.circuit


def test_one_receiver_at_a_time_does_not_see_past_an_or() -> None:
    assert missed(AND_UNDER_OR, "exhaustive") == {"A1->B", "A2->B"}
    assert not missed(OR_UNDER_AND, "exhaustive")


def test_an_adder_behind_an_or_is_split_as_or_and_tested_as_adder() -> None:
    found = trial(ADDER_UNDER_OR, "eap", 0.01, 0).labels
    assert {found["plain"][edge] for edge in ("A1->B", "A2->B")} == {"OR"}
    assert {found["tested"][edge] for edge in ("A1->B", "A2->B")} == {"ADDER"}


def test_an_or_whose_sender_is_dead_in_the_found_circuit_is_tested_as_adder() -> None:
    """A1->B and A2->B were missed, so B emits nothing within what was found."""
    found = trial(AND_UNDER_OR, "eap", 0.01, 0).labels
    assert found["tested"]["B->C"] == "ADDER"
    assert found["tested in G"]["B->C"] == "OR"


@pytest.mark.parametrize(("kind", "strays"), [("AND", 3), ("OR", 2)])
def test_strays_do_not_outvote_the_partner(kind: Any, strays: int) -> None:
    """Every pair of a true edge and a stray one looks like an ADDER, and says little about both."""
    sources = ["A1", "A2", *(f"S{i}" for i in range(strays))]
    emitted = torch.tensor([[0.0] * len(sources), [1.0] * len(sources)], dtype=torch.float64)
    stray = torch.tensor([[0.0, 0.0] + [0.02] * strays + [0.0]], dtype=torch.float64)
    model = logic_model(
        "synthetic:stray", sources, [[LogicGate("B", kind, ("A1", "A2"))]], "B", emitted=emitted, stray=[stray]
    )
    tables = test_edge_pairs(model, synthetic_pairs(), model.graph.full())
    assert labels_by_test(tables)["A1->B"] == kind


def test_edge_pruning_leaves_two_edges_of_an_or_for_a_while() -> None:
    model, pairs = synthetic_model("or"), synthetic_pairs()
    p, q = (log_probabilities(last_logits(model, pairs, side)) for side in ("clean", "corrupted"))
    price = 0.01**2 * float(kl_divergence(p, q).mean())

    def left(steps: int, seed: int) -> int:
        found = discover(model, pairs, EdgePruning(penalty=price, steps=steps), "ns", threshold=0.5, seed=seed)
        return sum(edge in found for edge in ("A1->B", "A2->B"))

    assert max(left(300, seed) for seed in range(3)) == 2
    assert {left(PRUNING_STEPS, seed) for seed in range(3)} == {1}
