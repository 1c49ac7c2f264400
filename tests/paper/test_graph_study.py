"""The graph study finds what was synthetic into gates, and nothing where nothing was."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from gatewise.circuits.graph import Graph
from gatewise.gates.labels import Gates, label_gates
from gatewise_paper.experiments.graph_study import beyond_chance, study_gates

GRAPH = Graph.transformer(6, 6, 16)
HEADS = [f"a{layer}.h{head}" for layer in range(6) for head in range(6)]
ROLES = {head: ("one", "two", "three")[int(head[-1]) % 3] for head in HEADS}  # by head, the same in every layer
ALIKE = torch.tensor([[float(ROLES[a] == ROLES[b]) for b in HEADS] for a in HEADS], dtype=torch.float64)


def _synthetic(kind_of: Any) -> Gates:
    """Gates into the MLPs of layers 3 to 5, of four senders each; `kind_of` picks the senders."""
    rng = random.Random(0)
    edges: dict[str, list[str]] = {"AND": [], "OR": [], "ADDER": []}
    for layer in (3, 4, 5):
        ports = [f"a{layer}.h{head}<{port}>" for head in range(6) for port in "qkv"]
        for i, port in enumerate(ports):
            kind = ("AND", "OR", "ADDER")[i % 3]
            below = [head for head in HEADS if int(head[1]) < layer]
            edges[kind] += [f"{sender}->{port}" for sender in kind_of(kind, below, rng)]
    ns, dn = (GRAPH.circuit(edges[only] + edges["ADDER"]) for only in ("AND", "OR"))
    return label_gates(ns, dn)


def _as_the_paper_says(kind: str, below: list[str], rng: random.Random) -> list[str]:
    if kind == "AND":
        return [rng.choice([head for head in below if ROLES[head] == role]) for role in ("one", "two", "three")]
    if kind == "OR":
        role = rng.choice(("one", "two", "three"))
        late = [head for head in below if ROLES[head] == role and int(head[1]) == max(int(h[1]) for h in below)]
        return rng.sample(late, 2)
    return [rng.choice(below[:6]), rng.choice(below[-6:]), "input"]


def _by_chance(kind: str, below: list[str], rng: random.Random) -> list[str]:
    return rng.sample(below, 3)


def test_what_the_paper_says_is_seen_where_it_is_so() -> None:
    study = study_gates(_synthetic(_as_the_paper_says), ROLES, ALIKE)
    assert study["AND"]["same"]["value"] == 0
    assert study["OR"]["same"]["value"] == 1
    assert beyond_chance(study["AND"], "same") < -0.2
    assert beyond_chance(study["OR"], "same") > 0.2
    crossed = {kind: study[kind]["crossed"]["value"] for kind in ("AND", "OR", "ADDER")}
    assert crossed["OR"] < min(crossed["AND"], crossed["ADDER"])
    assert beyond_chance(study["ADDER"], "apart") > 0.2


def test_chance_is_chance() -> None:
    study = study_gates(_synthetic(_by_chance), ROLES, ALIKE)
    for kind in ("AND", "OR", "ADDER"):
        for what in ("same", "alike", "crossed", "apart"):
            one = study[kind][what]
            assert one["value"] == pytest.approx(one["chance"], abs=0.25 * max(1.0, one["chance"]))
    assert study["AND"]["same"]["value"] == study["AND"]["alike"]["value"]  # here both say the same


def test_too_few_pairs_have_no_value() -> None:
    ns, dn = GRAPH.circuit(["a0.h0->m1", "a0.h1->m1"]), GRAPH.circuit(["a0.h2->m1", "a0.h3->m1"])
    study = study_gates(label_gates(ns, dn), ROLES, ALIKE)
    assert study["AND"]["same"]["n"] == 1
    assert math.isnan(beyond_chance(study["AND"], "same"))
    assert study["ADDER"]["edges"] == 0
    assert math.isnan(study["ADDER"]["crossed"]["value"])


def test_similarity_has_a_value_where_functions_are_unknown() -> None:
    study = study_gates(_synthetic(_as_the_paper_says), {"a0.h0": "one"}, ALIKE)
    assert study["OR"]["same"]["n"] == 0
    assert math.isnan(beyond_chance(study["OR"], "same"))
    assert beyond_chance(study["OR"], "alike") > 0.2
    assert beyond_chance(study["AND"], "alike") < -0.2


def test_one_function_alone_tells_nothing() -> None:
    """If all heads of known function have the same one, chance is 1, and functions cannot judge."""
    study = study_gates(_synthetic(_as_the_paper_says), dict.fromkeys(HEADS, "one"), ALIKE)
    assert study["OR"]["same"]["value"] == study["OR"]["same"]["chance"] == 1
    assert math.isnan(beyond_chance(study["OR"], "same"))
