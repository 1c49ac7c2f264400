"""Ranks, resampling and sign flips: by hand, against slow twins, and how often nulls are called decided."""

from __future__ import annotations

import math
import random
import statistics
from itertools import product

import pytest
import torch

from gatewise.statistics import (
    Reference,
    discoveries,
    joint_sign_flip_p,
    kl_divergence,
    log_probabilities,
    pseudo_values,
    rank_correlation,
    ratio_interval,
    resampling_weights,
    sign_flip_interval,
    sign_flip_p,
)


def test_rank_correlation() -> None:
    a = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(a, a**3) == pytest.approx(1)
    assert rank_correlation(a, -a) == pytest.approx(-1)
    assert rank_correlation(a, torch.ones(4)) == 0
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: by hand 4.5 / sqrt(4.5 * 5)
    assert rank_correlation(torch.tensor([0.0, 1.0, 1.0, 2.0]), a) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_kl_is_that_of_torch_and_never_negative() -> None:
    p, q = (log_probabilities(logits) for logits in torch.randn(2, 5, 40, generator=torch.Generator().manual_seed(0)))
    expected = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1)
    torch.testing.assert_close(kl_divergence(p, q), expected)
    assert torch.equal(kl_divergence(p, p), torch.zeros(5, dtype=torch.float64))


def _drawn(n: int, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0.3, 1) for _ in range(n)]


def _naive_p(values: list[float]) -> float:
    flips = [sum(s * v for s, v in zip(signs, values, strict=True)) for signs in product((1, -1), repeat=len(values))]
    return sum(abs(flip) >= abs(sum(values)) - 1e-9 for flip in flips) / len(flips)


@pytest.mark.parametrize("n", [1, 2, 5, 6, 9])
def test_all_signs_are_flipped(n: int) -> None:
    values = _drawn(n, seed=n)
    assert sign_flip_p(values) == pytest.approx(_naive_p(values))


@pytest.mark.parametrize("n", [6, 8, 11])
def test_the_interval_is_what_the_test_does_not_reject(n: int) -> None:
    values = _drawn(n, seed=100 + n)
    found = sign_flip_interval(values)
    assert found.value == pytest.approx(statistics.fmean(values))
    for inside, middle in ((True, 0.999), (False, 1.001)):
        for end in (found.low, found.high):
            shifted = found.value + middle * (end - found.value)
            assert (_naive_p([value - shifted for value in values]) > 0.05) == inside


def test_few_seeds_decide_nothing() -> None:
    assert sign_flip_p([1.0] * 5) == pytest.approx(2 / 32)
    assert sign_flip_p([1.0] * 6) == pytest.approx(2 / 64)
    assert math.isinf(sign_flip_interval([1.0] * 5).high)
    assert (sign_flip_interval([1.0] * 6).low, sign_flip_interval([1.0] * 6).high) == (1.0, 1.0)
    assert math.isnan(sign_flip_interval([]).value)


def test_equal_values_have_a_point_as_interval() -> None:
    assert sign_flip_p([0.0] * 8) == 1.0
    found = sign_flip_interval([0.0] * 8)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_many_values_are_sampled_and_hardly_differ_from_few() -> None:
    values = _drawn(21, seed=3)
    deviation = statistics.stdev(values) / math.sqrt(len(values))
    found = sign_flip_interval(values)
    assert found.low == pytest.approx(found.value - 2.08 * deviation, abs=0.1 * deviation)  # t of 20 degrees: 2.086
    assert found.high == pytest.approx(found.value + 2.08 * deviation, abs=0.1 * deviation)
    assert sign_flip_p(values) == pytest.approx(sign_flip_p(values[:20]), abs=0.2)


@pytest.mark.parametrize("n", [6, 10])
def test_nulls_of_any_shape_are_rejected_in_at_most_a_twentieth(n: int) -> None:
    rng = random.Random(n)
    repeats = 400
    rejected = sum(
        sign_flip_p([rng.choice((-1, 1)) * rng.paretovariate(1) for _ in range(n)]) <= 0.05 for _ in range(repeats)
    )
    assert rejected / repeats <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / repeats)


def test_a_ratio_is_of_sums_and_resampled_by_unit() -> None:
    found = ratio_interval([1.0, 3.0, 2.0, 2.0], [2.0, 2.0, 2.0, 2.0])
    assert found.value == 1.0
    assert 0.5 <= found.low < 1.0 < found.high <= 1.5
    assert math.isnan(ratio_interval([], []).value)
    assert math.isnan(ratio_interval([1.0], [2.0]).low)
    assert ratio_interval([1.0], [2.0]).value == 0.5
    assert math.isnan(ratio_interval([1.0, 1.0], [0.0, 0.0]).value)


def test_resampling_weights_are_counts_of_draws() -> None:
    weights = resampling_weights(5, 300)
    torch.testing.assert_close(weights.sum(dim=0), torch.ones(300, dtype=torch.float64))
    torch.testing.assert_close((weights * 5).round(), weights * 5)
    assert float(weights.mean()) == pytest.approx(0.2)


def test_joint_p_of_one_kind_is_that_of_the_plain_test() -> None:
    values = _drawn(9, seed=1)
    assert joint_sign_flip_p(torch.tensor([values]).double()) == pytest.approx(sign_flip_p(values), abs=0.02)


def test_joint_p_is_small_for_an_effect_of_one_kind_and_seldom_for_none() -> None:
    noise = torch.randn(200, 3, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rate = sum(joint_sign_flip_p(values) <= 0.05 for values in noise) / len(noise)
    assert rate <= 0.05 + 2 * (0.05 * 0.95 / 200) ** 0.5
    assert joint_sign_flip_p(noise[0] + torch.tensor([0.0, 3.0, 0.0])[:, None]) < 0.001
    assert joint_sign_flip_p(torch.zeros(2, 9)) == 1


def test_benjamini_hochberg() -> None:
    assert discoveries([0.01, 0.04, 0.03, 0.5]) == [True, False, False, False]
    assert discoveries([0.01, 0.03, 0.02, 0.5]) == [True, True, True, False]
    assert discoveries([]) == []


def test_pseudo_values_of_a_mean_are_the_values() -> None:
    values = _drawn(7, seed=1)
    assert pseudo_values(lambda units: statistics.fmean(values[i] for i in units), 7) == pytest.approx(values)


@pytest.mark.parametrize("words", [1, 7, 70_000])
def test_divergences_from_a_reference_are_those_of_log_probabilities(words: int) -> None:
    generator = torch.Generator().manual_seed(words)
    ours, theirs = 5 * torch.randn(2, 3, words, generator=generator, dtype=torch.float64)
    before = theirs.clone()
    log_p, log_q = log_probabilities(ours), log_probabilities(theirs)
    found = Reference(ours).divergences(theirs)
    torch.testing.assert_close(found, (kl_divergence(log_p, log_q), kl_divergence(log_q, log_p)), atol=1e-12, rtol=0)
    assert max(float(one.max()) for one in Reference(ours).divergences(ours)) < 1e-13
    assert torch.equal(theirs, before)
