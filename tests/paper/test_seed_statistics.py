"""Sign flips and the jackknife: by hand, against slow twins, and how often nulls are called decided."""

from __future__ import annotations

import math
import random
import statistics
from itertools import product

import pytest
import torch

from gatewise.statistics import joint_sign_flip_p
from gatewise_paper.seed_statistics import pseudo_values, sign_flip_interval, sign_flip_p


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


def test_joint_p_of_one_kind_is_that_of_the_plain_test() -> None:
    values = _drawn(9, seed=1)
    assert joint_sign_flip_p(torch.tensor([values]).double()) == pytest.approx(sign_flip_p(values), abs=0.02)


def test_pseudo_values_of_a_mean_are_the_values() -> None:
    values = _drawn(7, seed=1)
    assert pseudo_values(lambda units: statistics.fmean(values[i] for i in units), 7) == pytest.approx(values)
