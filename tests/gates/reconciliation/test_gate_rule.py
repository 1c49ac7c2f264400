"""Corollary 1 gate by gate: the paper's example, and every removal against trying all sets of edges."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.circuits.graph import Graph
from gatewise.gates.labels import Gates, label_gates
from gatewise.gates.reconciliation import other_removals

GRAPH = Graph.layered(["A1", "A2", "A3", "A4"], [["B1", "B2"]], 6)  # ports B1, B2, logits
EDGES = [f"{sender}->{port}" for port in ("B1", "B2") for sender in ("A1", "A2", "A3", "A4")]


def gates(**kinds: list[str]) -> Gates:
    """Gates with these AND, OR and ADDER edges."""
    ns = GRAPH.circuit([*kinds.get("AND", []), *kinds.get("ADDER", [])])
    dn = GRAPH.circuit([*kinds.get("OR", []), *kinds.get("ADDER", [])])
    return label_gates(ns, dn)


def removal(keep: Gates, remove: Gates) -> list[str]:
    return other_removals([keep], [remove])["gate by gate"].edges


def test_the_papers_example() -> None:
    """Task A has i->j as an OR edge, task B must lose it: it goes, as the other OR edge is left."""
    assert removal(gates(OR=["A1->B1", "A2->B1"]), gates(ADDER=["A1->B1"])) == ["A1->B1"]


@pytest.mark.parametrize("kind", ["AND", "ADDER"])
def test_what_one_needs_and_the_other_must_lose_stays(kind: str) -> None:
    assert removal(gates(**{kind: ["A1->B1", "A2->B1"]}), gates(OR=["A1->B1", "A3->B1"])) == ["A3->B1"]


def test_another_edge_of_an_and_gate_goes_instead() -> None:
    assert removal(gates(ADDER=["A1->B1"]), gates(AND=["A1->B1", "A2->B1"])) == ["A2->B1"]


def test_the_last_sender_of_an_or_gate_stays() -> None:
    both = ["A1->B1", "A2->B1"]
    assert removal(gates(OR=both), gates(ADDER=both)) == ["A2->B1"]
    assert removal(gates(OR=["A1->B1"]), gates(ADDER=["A1->B1"])) == []  # a gate of one edge


def test_every_task_to_keep_has_its_way() -> None:
    keep = [gates(ADDER=["A1->B1"]), gates(ADDER=["A2->B1"])]
    remove = [gates(ADDER=["A1->B1", "A2->B1", "A3->B1"]), gates(ADDER=["A4->B2"])]
    assert other_removals(keep, remove)["gate by gate"].edges == ["A3->B1", "A4->B2"]
    assert "gate by gate" not in other_removals([], remove)


labels = st.dictionaries(st.sampled_from(EDGES), st.sampled_from(["AND", "OR", "ADDER"]))


def demands(task: Gates, every: tuple[str, str], single: str) -> list[set[str]]:
    """Sets of edges of each of which at least one has to stay (or go)."""
    needs = [{edge} for kind in every for gate in task if gate.type == kind for edge in gate.edges]
    return needs + [set(gate.edges) for gate in task if gate.type == single]


def made(labelled: dict[str, str]) -> Gates:
    return gates(**{kind: [e for e, k in labelled.items() if k == kind] for kind in ("AND", "OR", "ADDER")})


@settings(max_examples=60, deadline=None)
@given(labels, labels)
def test_all_demands_are_met_where_any_set_of_edges_meets_them(first: dict[str, str], second: dict[str, str]) -> None:
    keep, remove = made(first), made(second)
    stay = demands(keep, ("AND", "ADDER"), "OR")
    go = demands(remove, ("OR", "ADDER"), "AND")
    possible = any(
        all(need - set(gone) for need in stay) and all(need & set(gone) for need in go)
        for count in range(len(EDGES) + 1)
        for gone in itertools.combinations(EDGES, count)
    )
    removed = set(removal(keep, remove))
    assert all(need - removed for need in stay)  # the task to keep is never hurt
    assert all(need & removed for need in go) == possible
