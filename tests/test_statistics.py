"""Divergences, ranks, resampling and joint sign flips: by hand, and how often nulls are called decided."""

from __future__ import annotations

import math

import pytest
import torch

from gatewise.statistics import (
    Reference,
    discoveries,
    joint_sign_flip_p,
    kl_divergence,
    log_probabilities,
    rank_correlation,
    ratio_interval,
    resampling_weights,
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
