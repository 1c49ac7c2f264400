"""Verdicts: what is true by construction is supported, what is false contradicted, and chance is seldom decided."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.methods import discover
from gatewise.models.synthetic.random_circuits import random_logic_model
from gatewise_paper.claims import Above, Between, Claim, decide, least, pool, relative, rule, settle
from gatewise_paper.experiments.stability import Spread, by_seed, overlaps

CLAIMED = Above(0.05)
REPEATS = 200
OFTEN = 0.05 + 2 * math.sqrt(0.05 * 0.95 / REPEATS)  # two standard errors above 5 %


@pytest.fixture(scope="module")
def recalls() -> dict[str, list[float]]:
    """Share of the OR edges of eight synthetic models that EAP finds, by direction: a seed is a model."""
    found: dict[str, list[float]] = {"ns": [], "dn": []}
    for seed in range(8):
        synthetic = random_logic_model(seed, dtype=torch.float64)
        true = [edge for edge, kind in synthetic.truth.items() if kind == "OR"]
        for direction, shares in found.items():
            circuit: Circuit = discover(synthetic.model, synthetic.pairs, "eap", direction, threshold=0.05)  # type: ignore[arg-type]
            shares.append(sum(edge in circuit for edge in true) / len(true) if true else math.nan)
    return found


def _minus(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


def test_on_synthetic_models_claims_come_out_as_they_were_made(recalls: dict[str, list[float]]) -> None:
    """Dn finds OR edges, which Ns does not: the first table of the paper, and so it was synthetic."""
    ns, dn = recalls["ns"], recalls["dn"]
    assert decide(_minus(dn, ns), CLAIMED).judgement == "supported"
    assert decide(_minus(ns, dn), CLAIMED).judgement == "contradicted"
    assert decide(_minus(dn, dn), CLAIMED).judgement == "no difference"
    assert decide(_minus(dn, ns)[:5], CLAIMED).judgement == "cannot tell"
    assert decide(dn, Between(0.95, 1.0)).judgement == "supported"
    assert decide(ns, Between(0.95, 1.0)).judgement == "contradicted"


@pytest.mark.parametrize("seeds", [6, 8])
def test_shuffled_labels_are_seldom_decided(recalls: dict[str, list[float]], seeds: int) -> None:
    """Which of a seed's two values is whose is drawn: no claim is true, and few come out as decided."""
    rng = random.Random(seeds)
    differences = [abs(d) + 0.01 * i for i, d in enumerate(_minus(recalls["dn"], recalls["ns"])[:seeds])]
    decided = 0
    for _ in range(REPEATS):
        shuffled = [rng.choice((-1, 1)) * difference for difference in differences]
        decided += decide(shuffled, CLAIMED).judgement in ("supported", "contradicted")
    assert decided / REPEATS <= OFTEN


def _random_spread(rng: random.Random, graph: Graph, seeds: int) -> Spread:
    """Circuits of 40 edges around a core of 20, with two labels that mean nothing."""
    core = rng.sample(range(graph.n_edges), 20)
    circuits = [graph.circuit({*core, *rng.sample(range(graph.n_edges), 20)}) for _ in range(2 * seeds)]
    found = {"ns": overlaps(circuits[:seeds]), "ns+dn": overlaps(circuits[seeds:])}
    return Spread(found, seeds, dict.fromkeys(found, 40))


def test_labels_that_mean_nothing_are_seldom_decided_by_distances() -> None:
    """Pseudo-values of mean distances are not independent; this shows that the test keeps its level all the same."""
    rng, graph = random.Random(0), Graph.transformer(2, 3, 8)
    decided = 0
    for _ in range(REPEATS):
        values = by_seed({40: _random_spread(rng, graph, 8)}, [40], "ns", "ns+dn")
        decided += decide(values, Above(0.0)).judgement in ("supported", "contradicted")
    assert decided / REPEATS <= OFTEN


def test_no_difference_needs_an_interval_within_what_does_not_matter() -> None:
    assert decide([0.01, -0.01, 0.02, -0.02, 0.01, 0.0], CLAIMED).judgement == "no difference"
    assert decide([0.01, 0.02, 0.02, 0.03, 0.01, 0.02], CLAIMED).judgement == "no difference"  # sure, and too small
    assert decide([0.04, 0.2, 0.02, 0.3, 0.01, 0.2], CLAIMED).judgement == "supported"
    assert decide([-0.2, 0.2, -0.1, 0.3, -0.3, 0.2], CLAIMED).judgement == "cannot tell"


def test_claims_of_equality() -> None:
    near = Between(0.75, 1.25)
    assert decide([1.0, 0.9, 1.1, 1.0, 1.05, 0.95], near).judgement == "supported"
    assert decide([0.5, 0.4, 0.6, 0.5, 0.55, 0.45], near).judgement == "contradicted"
    assert decide([0.5, 0.9, 1.4, 0.6, 1.3, 0.7], near).judgement == "cannot tell"
    assert decide([1.9, 2.0, 1.8, 1.9, 1.9, 2.0], Between(-math.inf, 2.1)).judgement == "supported"


def test_seeds_without_a_value_are_counted() -> None:
    found = decide([math.nan, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3], CLAIMED)
    assert (found.judgement, found.left_out, found.interval.n) == ("supported", 1, 6)
    assert decide([math.nan] * 6, CLAIMED).judgement == "cannot tell"
    assert decide([], Between(0, 1)).judgement == "cannot tell"


def test_tasks_stand_beside_the_pool() -> None:
    """One task supports the claim, another contradicts it: the pool says neither, and both are told."""
    up, down = [0.3, 0.2, 0.4, 0.3, 0.2, 0.4], [-0.3, -0.4, -0.2, -0.2, -0.4, -0.3]
    claim = Claim("It is so.", "a number", {"IOI": up, "GT": down}, paper="0.3")
    found = rule(claim, method="EAP", primary=True)
    assert {task: one.judgement for task, one in found.tasks.items()} == {"IOI": "supported", "GT": "contradicted"}
    assert found.judgement not in ("supported", "contradicted")
    assert "IOI supported" in found.because
    assert "GT contradicted" in found.because
    assert found.standing == "primary"
    assert found.paper == "0.3"
    assert rule(Claim("It is so.", "a number", {"IOI": up})).standing == "exploratory"
    assert found.to_json()["tasks"]["GT"]["interval"]["n"] == 6


def test_pooling_is_by_seed() -> None:
    assert pool({"a": [1.0, 2.0], "b": [3.0, 4.0, 9.0]}) == [2.0, 3.0]
    assert math.isnan(pool({"a": [1.0, math.nan], "b": [3.0, 4.0]})[1])
    assert pool({"a": [1.0], "b": [math.nan]}) == [1.0]  # a task without any value
    assert pool({}) == []


def test_what_is_not_random_is_settled() -> None:
    judgements = [settle("So.", holds, "", method="EAP").judgement for holds in (True, False)]
    assert judgements == ["supported", "contradicted"]
    assert settle("So.", True, "", method="EAP").standing == ""


def test_factors_and_unknown_values() -> None:
    assert relative(2.0, 1.0) == pytest.approx(1 / 3)
    assert relative(1.0, 2.0) == pytest.approx(-1 / 3)
    assert math.isnan(relative(0.0, 0.0))
    assert least(2.0, 1.0) == 1.0
    assert math.isnan(least(1.0, math.nan))
    assert math.isnan(least(math.nan, 1.0))


def test_it_is_said_what_would_change_our_mind() -> None:
    def otherwise(values: Sequence[float], claimed: Above | Between = CLAIMED) -> str:
        return rule(Claim("It is so.", "a number", {"IOI": values}, claimed)).otherwise

    assert otherwise([0.3, 0.2, 0.4, 0.3, 0.2, 0.4]) == "an interval that reaches 0"
    assert otherwise([0.01, -0.01, 0.02, -0.02, 0.01, 0.0]) == "an interval that lies beyond ±0.05 on one side of 0"
    assert otherwise([0.3, 0.3]) == "6 seeds or more"
    assert otherwise([math.nan] * 6) == "seeds that have a value"
    assert otherwise([1.0] * 6, Between(0.75, 1.25)) == "an interval that leaves 0.75 to 1.25"
    assert otherwise([3.0] * 6, Between(-math.inf, 2.1)) == "an interval that reaches at most 2.1"
    needed = otherwise([-0.2, 0.6, -0.1, 0.5, -0.3, 0.4])  # a mean of 0.15 within about -0.25 to 0.5
    assert 20 < int(needed.split()[1]) < 60
