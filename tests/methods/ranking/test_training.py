"""A step of a learned ranking: soft masks of any size, what is drawn, and how scores move."""

from __future__ import annotations

import pytest
import torch
from small_models import problem, random_pairs, small_model

from gatewise.engine.runs.batches import bytes_needed
from gatewise.methods.objective import Objective
from gatewise.methods.ranking.method import Ranking
from gatewise.methods.ranking.training import RankingState, Schedule, soft_mask, take_step


@pytest.mark.parametrize("size", [1.0, 7.3, 50.0, 400.0, 899.0])
@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0])
def test_soft_masks_sum_to_the_size_in_the_order_of_the_scores(size: float, spread: float) -> None:
    scores = spread * torch.randn(1000, generator=torch.Generator().manual_seed(0))
    mask, slope = soft_mask(scores, size, 0.3)
    assert float(mask.sum()) == pytest.approx(size, rel=1e-4)
    order = torch.argsort(scores)
    assert mask[order].diff().ge(-1e-6).all()
    assert slope[(mask == 0) | (mask == 1)].eq(0).all()


def test_slope_is_the_derivative_of_the_mask_at_a_constant_tau() -> None:
    scores = torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask, slope = soft_mask(scores, 60.0, 0.3)
    inside = (mask > 0.01) & (mask < 0.99)
    # All scores of the same mask rise as one does: the mask is a function of score - tau.
    below, above = torch.argsort(scores)[:-1], torch.argsort(scores)[1:]
    both = inside[below] & inside[above] & (scores[above] - scores[below] < 0.02)
    rise = (mask[above] - mask[below]) / (scores[above] - scores[below])
    middle = (slope[above] + slope[below]) / 2
    assert both.sum() > 20
    torch.testing.assert_close(rise[both], middle[both], rtol=1e-3, atol=1e-6)


def test_sizes_are_spread_over_all_orders_of_magnitude_and_now_and_then_beyond() -> None:
    method = Ranking(steps=400, explore=20)
    schedule = Schedule(100_000, 50, 5_000, seed=3, blind=False)
    sizes = torch.tensor([schedule.size(step, method) for step in range(400)])
    beyond = sizes > 5_000
    assert int(beyond.sum()) == 10
    assert float(sizes[beyond].max()) > 50_000
    assert float(sizes.min()) >= 50
    place = (sizes[~beyond] / 50).log() / torch.tensor(100.0).log()  # 0 at the smallest, 1 at the largest
    assert torch.histc(place, bins=4, min=0, max=1).min() > 80


def test_every_example_has_its_turn_before_any_has_its_second() -> None:
    schedule = Schedule(100, 1, 40, seed=0, blind=False)
    turns = [schedule.batch(step, 6) for step in range(18)]
    for turn in range(3):
        assert sorted(turns[6 * turn : 6 * turn + 6]) == list(range(6))
    assert turns[:6] != turns[6:12]


def test_gradients_of_each_example_are_those_of_examples_run_alone_whatever_the_memory() -> None:
    asked = problem(small_model("gpt2"), random_pairs(), "ns", sizes=(10,))
    mask = torch.rand(asked.graph.n_edges, generator=torch.Generator().manual_seed(1))
    mask[::3] = 0
    memory = bytes_needed(asked.model, 1, asked.pairs.width, gradient=True)  # room for one example at a time
    tight = problem(small_model("gpt2"), random_pairs(), "ns", sizes=(10,), memory=memory)
    alone = [Objective(asked.setting, ("ns", "dn"), 1).of_each(mask, i) for i in range(3)]
    for setting in (asked.setting, tight.setting):
        distance, gradient = Objective(setting, ("ns", "dn"), 3).of_each(mask, 0)
        assert distance == pytest.approx(sum(value for value, _ in alone) / 3, rel=1e-5)
        torch.testing.assert_close(gradient, torch.cat([into for _, into in alone]), rtol=1e-4, atol=1e-6)
    assert gradient[:, ::3].eq(0).all()


def test_a_step_keeps_the_sum_of_masks_to_first_order_and_follows_the_gradient() -> None:
    """Without bonus and floor, scores move against the gradient of the distance at a constant sum of masks."""
    asked = problem(small_model("gpt2"), random_pairs(), "ns", sizes=(10,))
    method = Ranking(steps=10, shrink=0.0, bonus=0.0, floor=0.0, warm_up=0.0, explore=0, rate=1.0)
    objective = Objective(asked.setting, ("ns",), 3)
    state = RankingState.begin(torch.randperm(asked.graph.n_edges, generator=torch.Generator().manual_seed(0)))
    schedule = Schedule(asked.graph.n_edges, 30, 60, seed=0, blind=False)
    mask, slope = soft_mask(state.scores, schedule.size(0, method), method.temperature)
    _, gradient = objective(mask, 0)  # by the dense engine
    take_step(objective, state, schedule, method)
    wanted = state.first / 0.1  # Adam's mean after one step
    centred = gradient - (gradient @ slope) / slope.sum()
    torch.testing.assert_close(wanted, slope * centred, rtol=1e-3, atol=1e-6)
    assert float(wanted.sum()) == pytest.approx(0.0, abs=1e-5)
