"""Edge Pruning: the mask's maths, trainings on models whose truth is known, and the contract of a method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_models import problem, random_pairs, small_model

from gatewise.engine.runs.batches import bytes_needed
from gatewise.errors import GatewiseError
from gatewise.methods.base import Finding, Problem
from gatewise.methods.edge_pruning.hard_concrete import expected_mask, probability_above, sample_mask
from gatewise.methods.edge_pruning.method import EdgePruning
from gatewise.methods.edge_pruning.training import Goal, Training, settled, take_step
from gatewise.methods.objective import Objective
from gatewise.models.loader import load_model
from gatewise.models.synthetic.logic_model import synthetic_pairs

QUICK = EdgePruning(steps=20)


def run(asked: Problem, **parameters: object) -> list[Finding]:
    """Of the first direction."""
    return replace(QUICK, **parameters).search(asked)[asked.directions[0]]  # type: ignore[arg-type]


def small_problem(direction: str = "ns", sizes: tuple[int, ...] = (10,), seed: int = 0, **others: object) -> Problem:
    return problem(small_model("gpt2"), random_pairs(), direction, sizes=sizes, seed=seed, **others)  # type: ignore[arg-type]


# The hard-concrete mask


def test_probability_and_expectation_of_the_mask_are_those_of_its_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    for value in (-3.0, -0.5, 0.0, 1.0, 4.0):
        log_alpha = torch.full((400_000,), value)
        mask, _ = sample_mask(log_alpha, torch.rand(400_000, generator=generator))
        assert float((mask > 0).float().mean()) == pytest.approx(float(probability_above(log_alpha[:1], 0.0)), abs=3e-3)
        assert float(mask.mean()) == pytest.approx(float(expected_mask(log_alpha[:1])), abs=3e-3)


def test_mask_is_certain_in_the_limits_and_even_in_the_middle() -> None:
    uniform = torch.linspace(0.001, 0.999, 99)
    assert sample_mask(torch.full((99,), 20.0), uniform)[0].eq(1).all()
    assert sample_mask(torch.full((99,), -20.0), uniform)[0].eq(0).all()
    low, middle, high = expected_mask(torch.tensor([-30.0, 0.0, 30.0])).tolist()
    assert low == pytest.approx(0, abs=1e-12)
    assert middle == pytest.approx(0.5)
    assert high == pytest.approx(1)


def test_expected_mask_ranks_even_masks_that_are_all_but_certain() -> None:
    steps = torch.linspace(-20, 20, 401)
    assert expected_mask(steps).diff().gt(0).all()


def test_slope_of_the_mask_is_its_derivative() -> None:
    generator = torch.Generator().manual_seed(0)
    log_alpha = torch.randn(500, generator=generator, dtype=torch.float64).mul(2).requires_grad_(True)
    mask, slope = sample_mask(log_alpha, torch.rand(500, generator=generator, dtype=torch.float64))
    (expected,) = torch.autograd.grad(mask.sum(), log_alpha)
    torch.testing.assert_close(slope.detach(), expected)
    assert slope.eq(0).any()
    assert slope.gt(0).any()


# The training step


def test_objective_is_the_divergence_and_its_gradient_whatever_the_memory() -> None:
    asked = small_problem()
    mask = torch.rand(asked.model.graph.n_edges, generator=torch.Generator().manual_seed(1))
    one = bytes_needed(asked.model, 1, asked.pairs.width, gradient=True)  # room for one example at a time
    kl, gradient = Objective(asked.setting, ("ns",), 32)(mask, 0)
    tight, tight_gradient = Objective(small_problem(memory=one).setting, ("ns",), 32)(mask, 0)
    assert tight == pytest.approx(kl, rel=1e-5)
    torch.testing.assert_close(tight_gradient, gradient, rtol=1e-4, atol=1e-6)
    edge = int(gradient.abs().argmax())
    shifted = []
    for shift in (1e-2, -1e-2):
        moved = mask.clone()
        moved[edge] += shift
        shifted.append(Objective(asked.setting, ("ns",), 32)(moved, 0)[0])
    assert (shifted[0] - shifted[1]) / 2e-2 == pytest.approx(float(gradient[edge]), rel=1e-2)


def test_examples_take_turns_in_equal_batches() -> None:
    asked = small_problem()
    mask = torch.full((asked.model.graph.n_edges,), 0.5)
    one_by_one = Objective(asked.setting, ("ns",), 1)
    losses = [one_by_one(mask, step)[0] for step in range(6)]
    assert losses[:3] == losses[3:]
    assert sum(losses[:3]) / 3 == pytest.approx(Objective(asked.setting, ("ns",), 3)(mask, 0)[0], rel=1e-5)


def test_a_mask_for_each_example_is_the_mean_of_examples_run_alone() -> None:
    asked = small_problem()
    masks = torch.rand(3, asked.model.graph.n_edges, generator=torch.Generator().manual_seed(1))
    one_by_one = Objective(asked.setting, ("ns",), 1)
    alone = [one_by_one(masks[i : i + 1], i) for i in range(3)]
    memory = bytes_needed(asked.model, 1, asked.pairs.width, gradient=True)  # room for one example at a time
    for setting in (asked.setting, small_problem(memory=memory).setting):
        kl, gradient = Objective(setting, ("ns",), 3)(masks, 0)
        assert kl == pytest.approx(sum(value for value, _ in alone) / 3, rel=1e-5)
        torch.testing.assert_close(gradient, torch.cat([into for _, into in alone]) / 3, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("draw", ["each", "one"])
def test_lagrangian_gradient_is_the_derivative_of_the_printed_loss(draw: Any) -> None:
    """One step as published, against autograd on KL + lambda1 (t - s) + lambda2 (t - s)^2; lambda1 has any sign."""
    asked = small_problem()
    n = asked.model.graph.n_edges
    method = EdgePruning(schedule="linear", steps=10, ramp=0.0, warm_up=0.0, draw=draw)
    state = Training.begin(n, method.start, seed=3)
    state.parameters[-2:] = torch.tensor([-2.0, 5.0])
    log_alpha = state.log_alpha.clone().requires_grad_(True)
    lambdas = state.parameters[-2:].clone().requires_grad_(True)
    generator = torch.Generator()
    generator.set_state(state.generator)
    shape = (len(asked.pairs), n) if draw == "each" else (n,)
    mask, _ = sample_mask(log_alpha, torch.rand(shape, generator=generator))
    objective = Objective(asked.setting, ("ns",), 32)
    _, into_mask = objective(mask.detach(), 0)
    sparsity, target = 1 - probability_above(log_alpha, 0.0).mean(), 1 - 10 / n
    loss = (mask * into_mask).sum() + lambdas[0] * (target - sparsity) + lambdas[1] * (target - sparsity).square()
    into_alpha, into_lambdas = torch.autograd.grad(loss, (log_alpha, lambdas))
    take_step(objective, state, Goal(10, n), method)
    found = state.first / 0.1  # Adam's mean after one step
    torch.testing.assert_close(found[:-2], into_alpha, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(found[-2:], -into_lambdas, rtol=1e-4, atol=1e-7)


def test_a_training_continues_from_its_state_as_if_it_had_not_stopped() -> None:
    asked, goal = small_problem(), Goal(10, 100)
    objective = Objective(asked.setting, ("ns",), 2)
    state = Training.begin(asked.model.graph.n_edges, QUICK.start, seed=0)
    for _ in range(3):
        take_step(objective, state, goal, QUICK)
    tensors = {name: getattr(state, name).clone() for name in ("parameters", "first", "second", "generator")}
    resumed = Training(**tensors, step=state.step, history=list(state.history))
    for one in (state, resumed):
        for _ in range(3):
            take_step(Objective(asked.setting, ("ns",), 2), one, goal, QUICK)
    assert torch.equal(state.parameters, resumed.parameters)
    assert state.history == resumed.history


# Synthetic models: the paper's Table 1, by threshold


TABLE_1 = [  # how many of the gate's two edges are found
    ("and", "ns", 2),
    ("or", "ns", 1),
    ("adder", "ns", 2),
    ("and", "dn", 1),
    ("or", "dn", 2),
    ("adder", "dn", 2),
]


def synthetic_circuit(kind: str, direction: str, seed: int = 0, draw: Any = "one") -> set[str]:
    model = load_model(f"synthetic:{kind}")
    asked = problem(model, synthetic_pairs(), direction, threshold=0.5, seed=seed)
    (finding,) = EdgePruning(draw=draw).search(asked)[direction]  # type: ignore[index]
    return {model.graph.edges[i] for i in finding.mask.nonzero().flatten().tolist()}


@pytest.mark.parametrize("draw", ["one", "each"])
@pytest.mark.parametrize(("kind", "direction", "found"), TABLE_1)
def test_table_1_of_the_paper(kind: str, direction: str, found: int, draw: str) -> None:
    circuit = synthetic_circuit(kind, direction, draw=draw)
    assert "B->logits" in circuit
    gate = circuit - {"B->logits"}
    assert gate <= {"A1->B", "A2->B"}
    assert len(gate) == found


@pytest.mark.parametrize("draw", ["one", "each"])
def test_which_edge_of_an_or_gate_is_found_depends_on_the_seed(draw: str) -> None:
    found = [synthetic_circuit("or", "ns", seed, draw) for seed in range(6)]
    assert {"A1->B", "B->logits"} in found
    assert {"A2->B", "B->logits"} in found


@pytest.mark.parametrize("draw", ["one", "each"])
@pytest.mark.parametrize("direction", ["ns", "dn"])
def test_synthetic_circuit_of_three_gates(direction: str, draw: str) -> None:
    circuit = synthetic_circuit("combined", direction, draw=draw)
    gates = {"A1->B1", "A2->B1"}, {"A3->B2", "A4->B2"}  # AND, OR
    full, partial = gates if direction == "ns" else reversed(gates)
    assert circuit - partial == full | {"B1->C", "B2->C", "C->logits"}
    assert len(circuit & partial) == 1


# The contract


def test_finds_exactly_the_asked_number_of_edges_for_every_size_in_any_order() -> None:
    findings = run(small_problem(sizes=(3, 40, 110, 17)))
    assert [int(finding.mask.sum()) for finding in findings] == [3, 40, 110, 17]
    for finding in findings:
        inside, outside = finding.scores[finding.mask], finding.scores[~finding.mask]
        assert len(outside) == 0 or inside.min() >= outside.max()


def test_sizes_are_trained_from_the_largest_on() -> None:
    large, small = run(small_problem(sizes=(40, 5)))
    (alone,) = run(small_problem(sizes=(40,)))
    (cold,) = run(small_problem(sizes=(5,)))
    assert torch.equal(large.scores, alone.scores)
    assert not torch.equal(small.scores, cold.scores)


def test_rank_all_takes_every_size_from_one_training() -> None:
    large, small = run(small_problem(sizes=(40, 5)), rank_all=True)
    assert torch.equal(large.scores, small.scores)
    assert not (small.mask & ~large.mask).any()


def test_the_seed_decides_everything() -> None:
    first, again, other = (run(small_problem(seed=seed))[0] for seed in (0, 0, 1))
    assert torch.equal(first.scores, again.scores)
    assert not torch.equal(first.scores, other.scores)


def test_dn_is_ns_on_swapped_pairs() -> None:
    asked = small_problem("dn")
    swapped = problem(asked.model, asked.pairs.swapped(), "ns", sizes=(10,))
    assert torch.equal(run(asked)[0].scores, run(swapped)[0].scores)


def test_both_directions_average_their_expected_masks() -> None:
    ns, dn, both = (run(small_problem(direction))[0] for direction in ("ns", "dn", "ns+dn"))
    torch.testing.assert_close(both.scores, (ns.scores + dn.scores) / 2)
    assert int(both.mask.sum()) == 10


def test_joint_training_descends_the_sum_of_both_losses() -> None:
    asked = small_problem("ns+dn")
    mask = torch.full((asked.model.graph.n_edges,), 0.5)
    ns, dn, both = (Objective(asked.setting, some, 32)(mask, 0) for some in (("ns",), ("dn",), ("ns", "dn")))
    assert both[0] == pytest.approx(ns[0] + dn[0])
    torch.testing.assert_close(both[1], ns[1] + dn[1])
    joint, mean = run(asked, combine="joint")[0], run(asked)[0]
    assert int(joint.mask.sum()) == 10
    assert not torch.equal(joint.scores, mean.scores)


def test_a_trained_circuit_beats_random_ones() -> None:
    asked = small_problem(sizes=(30,))
    (finding,) = run(asked, steps=150)
    objective = Objective(asked.setting, ("ns",), 32)
    random = [asked.model.graph.random_circuit(30, seed).mask for seed in range(9)]
    usual = sorted(objective(mask.float(), 0)[0] for mask in random)[4]
    assert objective(finding.mask.float(), 0)[0] < 0.5 * usual


def test_training_stops_when_size_and_divergence_have_settled() -> None:
    method, goal = EdgePruning(steps=100, ramp=0.2, patience=20), Goal(10, 110)
    state = Training.begin(110, method.start, seed=0)

    def stops(history: list[tuple[float, float]], step: int = 40) -> bool:
        return settled(replace(state, step=step, history=history), goal, method)

    assert stops([(0.5, 10.1)] * 40)
    assert not stops([(0.5, 10.1)] * 40, step=39)  # the ramp and `patience` steps come first
    assert not stops([(0.5, 12.0)] * 40)
    assert not stops([(1 - step / 100, 10.0) for step in range(40)])
    assert not settled(replace(state, step=90, history=[(0.5, 10.1)] * 90), Goal(), method)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"draw": "two"}, "draw=two: expected one or each"),
        ({"combine": "sum"}, "combine=sum: expected mean or joint"),
        ({"schedule": "cosine"}, "expected geometric or linear"),
        ({"steps": 0}, "steps of edge-pruning is 0; expected more than 0"),
        ({"penalty": -1.0}, "penalty of edge-pruning is -1.0; expected 0 or more"),
        ({"ramp": 2.0}, "ramp of edge-pruning is 2.0; expected a share"),
        ({"rate": float("nan")}, "rate of edge-pruning is nan"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(GatewiseError, match=message):
        EdgePruning(**parameters)  # type: ignore[arg-type]
