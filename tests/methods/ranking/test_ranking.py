"""Learned ranking on models whose truth is known, and the contract of a method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import problem, random_pairs, small_model

import gatewise as gw
from gatewise.compute import Compute
from gatewise.engine.metrics import Metric
from gatewise.engine.runs.batches import bytes_needed
from gatewise.errors import GatewiseError
from gatewise.methods import EapIg, Ranking, discover_all
from gatewise.methods.ranking.method import distances_by_size
from gatewise.methods.ranking.training import RankingState
from gatewise.models.synthetic.random_circuits import SyntheticModel, random_logic_model
from gatewise.tasks.pairs import Pairs

QUICK = Ranking(steps=24, examples=2)
LARGE = {"layers": 3, "fan_in": (2, 5), "sources": 120}  # a graph at least 20 times as large as its circuit


def recovered(synthetic: SyntheticModel, direction: Any, method: Ranking, kind: str) -> tuple[int, int]:
    """How many edges of gates of a type are in the circuit of as many edges as matter, and how many there are."""
    circuit = gw.discover(synthetic.model, synthetic.pairs, method, direction, edges=len(synthetic.circuit))
    edges = [edge for edge, label in synthetic.truth.items() if label == kind]
    return sum(edge in circuit for edge in edges), len(edges)


# Synthetic models


@pytest.mark.parametrize(("direction", "kinds"), [("ns", ("AND", "ADDER")), ("dn", ("OR", "ADDER"))])
def test_one_direction_finds_the_gates_that_it_can_see(direction: str, kinds: tuple[str, ...]) -> None:
    synthetic = random_logic_model(1, **LARGE)  # type: ignore[arg-type]
    assert synthetic.model.graph.n_edges >= 20 * len(synthetic.circuit)
    for kind in kinds:
        count, of = recovered(synthetic, direction, Ranking(steps=150), kind)
        assert count == of


def test_both_directions_find_all_three_gates() -> None:
    synthetic = random_logic_model(1, **LARGE)  # type: ignore[arg-type]
    for kind in ("AND", "OR", "ADDER"):
        count, of = recovered(synthetic, "ns+dn", Ranking(steps=150), kind)
        assert count == of


@pytest.mark.parametrize("kind", ["AND", "ADDER"])
def test_edges_far_down_the_start_come_back(kind: str) -> None:
    """The edges of a gate are put last in the first ranking, as if EAP-IG had not seen them."""
    synthetic = random_logic_model(2, layers=2, fan_in=(2, 4), sources=60)
    model, edges = synthetic.model, synthetic.model.graph.n_edges
    seen_by_start = EapIg().search(problem(model, synthetic.pairs, "ns", sizes=(edges,)))["ns"][0].scores.abs()
    for edge, label in synthetic.truth.items():
        if label == kind:
            seen_by_start[model.graph.index(edge)] = -1
    start = torch.argsort(seen_by_start, descending=True, stable=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ranking, "_first_order", lambda *_: start)
        count, of = recovered(synthetic, "ns", Ranking(steps=300), kind)
        without, _ = recovered(synthetic, "ns", Ranking(steps=300, explore=0), kind)
    assert count == of
    assert without < of


def test_a_random_start_finds_what_noising_sees() -> None:
    synthetic = random_logic_model(2, layers=2, fan_in=(2, 4), sources=60)
    for kind in ("AND", "ADDER"):
        count, of = recovered(synthetic, "ns", Ranking(steps=300, start="random"), kind)
        assert count == of


# The contract


def test_one_training_gives_nested_circuits_of_all_sizes() -> None:
    (circuits,) = discover_all(small_model("gpt2"), random_pairs(), QUICK, ["ns"], sizes=[5, 20, 60]).values()
    assert [len(circuit) for circuit in circuits] == [5, 20, 60]
    assert circuits[0] <= circuits[1] <= circuits[2]
    scores = circuits[0].scores
    assert scores is not None
    assert float(scores.min()) == 0
    assert all(torch.equal(scores, circuit.scores) for circuit in circuits)  # type: ignore[arg-type]


def test_it_learns() -> None:
    model, pairs = small_model("llama"), random_pairs()
    trained = gw.discover(model, pairs, Ranking(steps=100), edges=40)
    first = gw.discover(model, pairs, EapIg(), edges=40)
    evaluations = gw.evaluate(model, pairs, [trained, first])
    assert evaluations[0].faithfulness.mean < 0.7 * evaluations[1].faithfulness.mean


@pytest.mark.parametrize("ablation", ["zero", "mean", "noise"])
def test_other_ablations_and_metrics(ablation: Any) -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    circuit = gw.discover(model, pairs, QUICK, edges=20, ablation=ablation, metric="logit_diff")
    assert len(circuit) == 20
    assert circuit.provenance["ablation"] == ablation


def test_denoising_is_noising_with_the_runs_swapped() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    dn = gw.discover(model, pairs, QUICK, "dn", edges=20)
    ns = gw.discover(model, pairs.swapped(), QUICK, "ns", edges=20)
    assert dn == ns
    torch.testing.assert_close(dn.scores, ns.scores)


def test_the_mean_of_two_trainings_is_the_mean_of_their_scores() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    method = Ranking(steps=10, combine="mean")
    found = discover_all(model, pairs, method, ["ns", "dn", "ns+dn"], sizes=[20])
    ns, dn, both = (found[direction][0].scores for direction in ("ns", "dn", "ns+dn"))
    assert ns is not None
    assert dn is not None
    mean = (ns + dn) / 2
    torch.testing.assert_close(both, mean - mean.min())


def test_a_memory_budget_does_not_change_the_result_beyond_rounding() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    budget = bytes_needed(model, 1, pairs.width, gradient=True)
    whole = gw.discover(model, pairs, QUICK, "ns+dn", edges=20)
    tight = gw.discover(model, pairs, QUICK, "ns+dn", edges=20, compute=Compute(memory=budget))
    torch.testing.assert_close(tight.scores, whole.scores, rtol=1e-3, atol=1e-3)


def test_prompts_of_other_lengths_are_put_together_and_change_nothing_else() -> None:
    """The order of the pairs decides which share a step, and nothing else: with all in one step, only sums differ."""
    model, pairs = small_model("gpt2"), random_pairs()
    method = Ranking(steps=10, examples=len(pairs))
    turned = pairs[list(reversed(range(len(pairs))))]
    torch.testing.assert_close(
        gw.discover(model, pairs, method, edges=20).scores,
        gw.discover(model, turned, method, edges=20).scores,
        rtol=1e-3,
        atol=1e-3,
    )


def test_the_store_has_it_and_no_checkpoint_stays(tmp_path: Path) -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    compute = Compute(store=tmp_path)
    asked: dict[str, Any] = {"directions": ("ns", "dn"), "sizes": [10, 20], "compute": compute}
    first = discover_all(model, pairs, QUICK, **asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ranking, "search", lambda *_: pytest.fail("searched again"))
        assert discover_all(model, pairs, QUICK, **asked) == first
    assert not list(tmp_path.rglob("*.checkpoint"))


# What is refused


def rank_of_answer(logits: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """Has no gradient."""
    return (logits > logits.gather(-1, pairs.correct[:, :1])).float().sum(-1)


def infinite(logits: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    return pairs.logit_diff(logits) * torch.inf


@pytest.mark.parametrize(
    ("function", "message"), [(rank_of_answer, "has no gradient"), (infinite, "distance from the reference is")]
)
def test_metrics_that_cannot_be_trained(function: Any, message: str) -> None:
    with pytest.raises(GatewiseError, match=message):
        gw.discover(small_model("gpt2"), random_pairs(), Ranking(steps=5, start="random"), edges=20,
                    metric=Metric("own", function))  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"steps": 0}, "steps of ranking is 0; expected more than 0"),
        ({"bonus": -1}, "bonus of ranking is -1"),
        ({"cool_down": 1.5}, "expected a share from 0 to 1"),
        ({"smallest": 100, "largest": 10}, "from smallest to largest, got 100 and 10"),
        ({"start": "best"}, "expected eap-ig or random"),
    ],
)
def test_parameters_that_make_no_sense(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(GatewiseError, match=message):
        Ranking(**parameters)


def test_sizes_beyond_the_graph() -> None:
    model = small_model("gpt2")
    with pytest.raises(GatewiseError, match="a circuit of 10,000 edges was asked for"):
        gw.discover(model, random_pairs(), QUICK, edges=10_000)


def test_distances_are_told_by_order_of_magnitude() -> None:
    state = RankingState.begin(torch.arange(5))
    state.history = [(5.0, 9.0), (50.0, 0.5), (7.0, 1.0), (800.0, 0.25)]
    state.step = 4
    assert distances_by_size([state]) == {"100-999": 0.25}
    state.step = 12
    assert distances_by_size([state]) == {"1-9": 5.0, "10-99": 0.5, "100-999": 0.25}
