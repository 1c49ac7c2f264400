"""Redundancy: what is indispensable alone stays in place, and among the others planted OR gates show."""

from __future__ import annotations

import pytest
import torch

from gatewise.circuits.circuit import Circuit
from gatewise.engine.setting import Setting
from gatewise.evaluation import evaluate
from gatewise.methods import discover
from gatewise.models.planted_random import PlantedModel, random_planted
from gatewise.paper.claims import Above, decide
from gatewise.paper.indispensable import indispensable, indispensable_for, strongest_others

LIMITS = {"candidates": 200, "removed_on": 8, "smallest": 0.05}


def _or_edges(planted: PlantedModel) -> list[str]:
    return [edge for edge, kind in planted.truth.items() if kind == "OR"]


def test_indispensable_edges_are_those_that_cost_enough_alone() -> None:
    planted = random_planted(0, dtype=torch.float64)
    setting = Setting(planted.model, planted.pairs)
    found = indispensable(setting, list(planted.truth), 0.05)
    full = planted.model.graph.full()
    for edge in planted.truth:
        (one,) = evaluate(planted.model, planted.pairs, [full - planted.model.graph.circuit([edge])], random_circuits=0)
        cost = float(one.faithfulness) / float(one.empty.kl_from_full)
        assert (edge in found) == (cost >= 0.05)
        assert found.get(edge, cost) == pytest.approx(cost, abs=1e-9)
    assert indispensable(setting, [], 0.05) == {}


def test_what_is_left_in_place_is_in_no_circuit() -> None:
    planted = random_planted(0)
    graph = planted.model.graph
    circuit = discover(planted.model, planted.pairs, "eap", "ns", edges=5)
    first, second, *_ = circuit.top(5)
    sizes = (1, 3, graph.n_edges - 2)
    found = strongest_others(circuit, [first, second], sizes)
    assert tuple(map(len, found)) == sizes
    assert not any(first in one or second in one for one in found)
    assert list(found[1].top(3)) == list(circuit.top(5))[2:]


def test_what_was_planted_is_seen() -> None:
    """EAP by Ns finds no OR edge, by Ns+Dn it does: without the indispensable, that is what removing them shows."""
    more: list[float] = []
    for seed in range(40):
        planted = random_planted(seed, dtype=torch.float64)
        true = _or_edges(planted)
        left = indispensable_for(planted.model, planted.pairs, "eap", **LIMITS)  # type: ignore[arg-type]
        if not true or set(left) & set(true):
            continue
        ranked: dict[str, Circuit] = discover(planted.model, planted.pairs, "eap", ("ns", "ns+dn"), edges=len(true))
        circuits = [strongest_others(one, left, [len(true)])[0] for one in ranked.values()]
        ns, both = evaluate(planted.model, planted.pairs, circuits, random_circuits=0)
        more.append(both.destroyed - ns.destroyed)
    assert len(more) >= 8
    assert decide(more, Above(0.05)).judgement == "supported"
