"""Splitting circuits into gates: set properties, the repair, files, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import random_pairs, small_model

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.circuits.selection import select_edges
from gatewise.compute import Compute
from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_TYPES
from gatewise.gates import Gates, label_gates, labels_by_test, test_edge_pairs
from gatewise.gates.discovery import find_gates
from gatewise.methods import discover
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs

GRAPH = Graph.transformer(2, 2, 8)
edge_sets = st.sets(st.integers(0, GRAPH.n_edges - 1))


@given(edge_sets, edge_sets, st.sampled_from(["plain", "repaired"]), st.sampled_from(["port", "node"]))
def test_types_are_disjoint_and_cover_the_union(ns: set[int], dn: set[int], rule: str, by: str) -> None:
    gates = label_gates(Circuit.from_indices(GRAPH, ns), Circuit.from_indices(GRAPH, dn), rule=rule, by=by)  # type: ignore[arg-type]
    for one in GATE_TYPES:
        for other in GATE_TYPES:
            assert one == other or not gates.by_type[one] & gates.by_type[other]
    union = gates.by_type["AND"] | gates.by_type["OR"] | gates.by_type["ADDER"] | gates.unlabelled
    assert union == gates.ns | gates.dn == gates.sound
    assert sum(len(gate.edges) for gate in gates) == len(gates.sound - gates.unlabelled)
    if rule == "plain":
        assert gates.by_type["AND"] == gates.ns - gates.dn
        assert not gates.unlabelled
    else:
        assert all(len(gate.edges) >= 2 for gate in gates)


@given(edge_sets, edge_sets)
def test_swapping_the_circuits_swaps_and_and_or(ns: set[int], dn: set[int]) -> None:
    a, b = Circuit.from_indices(GRAPH, ns), Circuit.from_indices(GRAPH, dn)
    for rule in ("plain", "repaired"):
        one, other = label_gates(a, b, rule=rule), label_gates(b, a, rule=rule)
        assert one.by_type["AND"] == other.by_type["OR"]
        assert one.by_type["ADDER"] == other.by_type["ADDER"]


TRUTH = {
    "A1->B1": "AND",
    "A2->B1": "AND",
    "A3->B2": "OR",
    "A4->B2": "OR",
    "B1->C": "ADDER",
    "B2->C": "ADDER",
}


def find(method: str, rule: str, seed: int = 0) -> Gates:
    model, pairs = synthetic_model("combined"), synthetic_pairs()
    threshold = {"eap": 0.01, "acdc": 0.01, "edge-pruning": 0.5}[method]
    ns, dn = (discover(model, pairs, method, d, threshold=threshold, seed=seed) for d in ("ns", "dn"))
    return label_gates(ns, dn, rule=rule)  # type: ignore[arg-type]


def test_eaps_split_is_the_truth() -> None:
    gates = find("eap", "plain")
    assert {edge: gates.label(edge) for edge in TRUTH} == TRUTH


@pytest.mark.parametrize("method", ["acdc", "edge-pruning"])
def test_the_plain_split_of_the_others_mislabels_one_edge_per_gate(method: str) -> None:
    """By the paper's own Table 1: one edge of each AND and of each OR gate is found in both directions."""
    gates = find(method, "plain")
    for pair, kind in ((("A1->B1", "A2->B1"), "AND"), (("A3->B2", "A4->B2"), "OR")):
        assert sorted(str(gates.label(edge)) for edge in pair) == sorted([kind, "ADDER"])
    repaired = find(method, "repaired")
    assert {edge: repaired.label(edge) for edge in TRUTH} == TRUTH


def test_round_trip_and_repr(tmp_path: Path) -> None:
    gates = find("acdc", "repaired")
    gates.save(tmp_path / "gates.safetensors")
    assert Gates.load(tmp_path / "gates.safetensors") == gates
    assert "AND   B1 = A1 & A2" in repr(gates)
    assert "in both" in gates.venn()
    assert sum(gates.proportions().values()) == pytest.approx(1)
    assert gates.layer_span()["AND"] == 1
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(GatewiseError, match="not a gates file"):
        Gates.load(tmp_path / "other.json")
    with pytest.raises(GatewiseError, match=r"save them to .*gates.safetensors"):
        gates.save(tmp_path / "gates.json")
    with pytest.raises(GatewiseError, match=r"maybe a gates file.*export"):
        Circuit.load(tmp_path / "gates.safetensors")


def test_scores_and_provenance_come_back_exactly_and_are_exported(tmp_path: Path) -> None:
    scores = torch.randn(3, GRAPH.n_edges, generator=torch.Generator().manual_seed(0)) * 1e-9
    given = [
        Circuit(GRAPH, select_edges(GRAPH, values, size), values, {"direction": direction})
        for values, size, direction in zip(scores, (5, 7, 9), ("ns", "dn", "ns+dn"), strict=True)
    ]
    gates = label_gates(given[0], given[1], joint=given[2])
    gates.save(tmp_path / "gates.safetensors")
    loaded = Gates.load(tmp_path / "gates.safetensors")
    assert loaded == gates
    files = loaded.export(tmp_path / "circuits")
    assert [file.name for file in files] == ["ns-5.json", "dn-7.json", "ns+dn-9.json"]
    for found, file, wanted in zip((loaded.ns, loaded.dn, loaded.joint), files, given, strict=True):
        assert found is not None
        assert found.scores is not None
        assert wanted.scores is not None
        assert found.scores.dtype == wanted.scores.dtype
        assert torch.equal(found.scores, wanted.scores)
        assert found.provenance == wanted.provenance
        assert Circuit.load(file) == found


def test_refusals() -> None:
    model, pairs = synthetic_model("combined"), synthetic_pairs()
    ns, dn = (discover(model, pairs, "eap", d, edges=3) for d in ("ns", "dn"))
    with pytest.raises(GatewiseError, match="different graphs"):
        label_gates(ns, GRAPH.full())
    with pytest.raises(GatewiseError, match="'dn' was expected"):
        label_gates(ns, ns)
    with pytest.raises(GatewiseError, match="has no direction"):
        label_gates(discover(model, pairs, "eap-ig", edges=3), dn)
    with pytest.raises(GatewiseError, match="different pairs"):
        label_gates(ns, discover(model, synthetic_pairs(2), "eap", "dn", edges=3))
    with pytest.raises(GatewiseError, match="none of 'plain', 'repaired'"):
        label_gates(ns, dn, rule="clever")  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("edges", [10, 40])
def test_swapping_the_pairs_swaps_and_and_or(architecture: str, edges: int) -> None:
    """For equal sizes, edges chosen by |score|, and no ties."""
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs()
    one, other = (find_gates(model, p, "eap", edges=edges, joint=False) for p in (pairs, pairs.swapped()))
    assert one.by_type["AND"] == other.by_type["OR"]
    assert one.by_type["OR"] == other.by_type["AND"]
    assert one.by_type["ADDER"] == other.by_type["ADDER"]
    assert one.by_type["AND"]  # the two directions do differ


def test_labels_do_not_depend_on_batch_size() -> None:
    model, pairs = small_model("llama", dtype=torch.float64), random_pairs(lengths=(6, 4, 6, 5))
    circuit = model.graph.random_circuit(80, seed=1)
    whole, split = (
        test_edge_pairs(model, pairs, circuit, compute=Compute(memory=memory)) for memory in (None, 150_000)
    )
    assert labels_by_test(whole) == labels_by_test(split)
    assert [table.label for table in whole] == [table.label for table in split]


def circuit(*edges: int) -> Circuit:
    return Circuit.from_indices(GRAPH, edges)


def test_only_edges_on_which_all_seeds_agree_have_a_label() -> None:
    shared = range(20)
    ns, dn = circuit(*shared, 30, 31, 32), circuit(*shared, 40, 41, 42)
    other = circuit(*shared, 30, 31, 33), circuit(*shared, 40, 32, 43)
    gates = label_gates(ns, dn, other_seeds=[other])
    assert gates.by_type["AND"] == circuit(30, 31)  # 32 was found by the other seed's denoising
    assert gates.by_type["OR"] == circuit(40)
    assert gates.by_type["ADDER"] == circuit(*shared)
    assert gates.unlabelled == circuit(32, 41, 42)
    assert gates.seed_overlap is not None
    assert gates.seed_overlap.ns == pytest.approx(22 / 24)
    assert gates.seed_overlap.dn == pytest.approx(21 / 25)
    assert gates.seed_overlap.directions == pytest.approx((21 / 25 + 20 / 26) / 2)
    assert gates.seed_overlap.beyond_noise
    assert "only edges that all seeds agree on have a label" in repr(gates)
    assert label_gates(ns, dn).seed_overlap is None


def test_directions_that_differ_no_more_than_seeds_have_no_and_or_or() -> None:
    shared = range(10)
    ns, dn = circuit(*shared, 30, 31), circuit(*shared, 32, 33)
    gates = label_gates(ns, dn, other_seeds=[(circuit(*shared, 30, 33), circuit(*shared, 31, 35))])
    assert gates.seed_overlap is not None
    assert not gates.seed_overlap.beyond_noise
    assert (len(gates.by_type["AND"]), len(gates.by_type["OR"])) == (0, 0)
    assert gates.by_type["ADDER"] == circuit(*shared)
    assert "seed noise" in repr(gates)


def test_files_keep_what_seeds_share(tmp_path: Path) -> None:
    gates = label_gates(circuit(1, 2, 3), circuit(1, 2, 4), other_seeds=[(circuit(1, 2, 3), circuit(1, 2, 4))])
    gates.save(tmp_path / "gates.safetensors")
    assert Gates.load(tmp_path / "gates.safetensors").seed_overlap == gates.seed_overlap
