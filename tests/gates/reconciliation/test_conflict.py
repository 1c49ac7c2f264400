"""Two tasks at once: the paper's example, and every verdict against trying all sets of edges."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise.gates.labels import Gates, label_gates
from gatewise.gates.reconciliation.conflict import find_conflicts

GRAPH = Graph.layered(["A1", "A2", "A3", "A4"], [["B1", "B2"]], 6)  # ports B1, B2, logits
EDGES = [f"{sender}->{port}" for port in ("B1", "B2") for sender in ("A1", "A2", "A3", "A4")]


def gates(**kinds: list[str]) -> Gates:
    """Gates with these AND, OR and ADDER edges."""
    ns = GRAPH.circuit([*kinds.get("AND", []), *kinds.get("ADDER", [])])
    dn = GRAPH.circuit([*kinds.get("OR", []), *kinds.get("ADDER", [])])
    return label_gates(ns, dn)


def test_the_papers_example() -> None:
    """Task A has i->j as an OR edge, task B must lose it: no conflict, as the other OR edge is left."""
    found = find_conflicts(gates(OR=["A1->B1", "A2->B1"]), gates(ADDER=["A1->B1"]))
    assert [(c.edge, c.verdict, c.instead) for c in found.clashes] == [("A1->B1", "dissolved by OR", ("A2->B1",))]
    assert found.compatible
    assert found.removal.edges == ["A1->B1"]


@pytest.mark.parametrize("kind", ["AND", "ADDER"])
def test_what_one_needs_and_the_other_must_lose_is_a_conflict(kind: str) -> None:
    found = find_conflicts(gates(**{kind: ["A1->B1", "A2->B1"]}), gates(OR=["A1->B1", "A3->B1"]))
    assert [(c.edge, c.keep, c.remove, c.verdict) for c in found.clashes] == [("A1->B1", kind, "OR", "conflict")]
    assert not found.compatible
    assert found.removal.edges == ["A3->B1"]


def test_another_edge_of_an_and_gate_goes_instead() -> None:
    found = find_conflicts(gates(ADDER=["A1->B1"]), gates(AND=["A1->B1", "A2->B1"]))
    assert [(c.verdict, c.instead) for c in found.clashes] == [("dissolved by AND", ("A2->B1",))]
    assert found.removal.edges == ["A2->B1"]


def test_the_last_sender_of_an_or_gate_stays() -> None:
    both = ["A1->B1", "A2->B1"]
    found = find_conflicts(gates(OR=both), gates(ADDER=both))
    assert found.counts() == {"conflict": 1, "dissolved by OR": 1, "dissolved by AND": 0}
    assert not find_conflicts(gates(OR=["A1->B1"]), gates(ADDER=["A1->B1"])).compatible  # a gate of one edge


labels = st.dictionaries(st.sampled_from(EDGES), st.sampled_from(["AND", "OR", "ADDER"]))


def demands(task: Gates, every: tuple[str, str], one: str) -> list[set[str]]:
    """Sets of edges of each of which at least one has to stay (or go)."""
    found = [{edge} for kind in every for gate in task if gate.type == kind for edge in gate.edges]
    return found + [set(gate.edges) for gate in task if gate.type == one]


def made(labelled: dict[str, str]) -> Gates:
    return gates(**{kind: [e for e, k in labelled.items() if k == kind] for kind in ("AND", "OR", "ADDER")})


@settings(max_examples=60, deadline=None)
@given(labels, labels)
def test_verdicts_are_those_of_trying_everything(first: dict[str, str], second: dict[str, str]) -> None:
    keep, remove = made(first), made(second)
    found = find_conflicts(keep, remove)
    stay = demands(keep, ("AND", "ADDER"), "OR")
    go = demands(remove, ("OR", "ADDER"), "AND")
    possible = any(
        all(need - set(gone) for need in stay) and all(need & set(gone) for need in go)
        for count in range(len(EDGES) + 1)
        for gone in itertools.combinations(EDGES, count)
    )
    assert found.compatible == possible
    removed = set(found.removal.edges)
    assert all(need - removed for need in stay)  # the task to keep is never hurt
    if found.compatible:
        assert all(need & removed for need in go)
    assert {clash.edge for clash in found.clashes} == set(first) & set(second)


def test_different_models_are_refused() -> None:
    other = Graph.layered(["A1"], [["B1"]], 2)
    with pytest.raises(GatewiseError, match="different models"):
        find_conflicts(gates(), label_gates(other.empty(), other.empty()))
    weights = [Circuit(GRAPH, GRAPH.empty().mask, None, {"weights": name}) for name in ("one", "two")]
    with pytest.raises(GatewiseError, match="different weights"):
        find_conflicts(*(label_gates(circuit, circuit) for circuit in weights))
