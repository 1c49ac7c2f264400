"""Pairs from token ids."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gatewise.errors import GatewiseError
from gatewise.tasks import Pairs

CLEAN, CORRUPTED = [[1, 2, 3], [4, 5]], [[1, 9, 3], [4, 6]]


@pytest.mark.parametrize("one", [1, [1], (1,), np.int64(1), torch.tensor(1), torch.tensor([1])])
def test_answers_in_any_form(one: object) -> None:
    pairs = Pairs.from_tokens(CLEAN, CORRUPTED, [one, [2, 3]], [4, 5])  # type: ignore[list-item]
    assert pairs.correct.tolist() == [[1, -1], [2, 3]]
    assert Pairs.from_tokens(CLEAN, CORRUPTED, torch.tensor([1, 2]), [4, 5]).correct.tolist() == [[1], [2]]  # type: ignore[arg-type]


def test_left_padding_and_slices() -> None:
    pairs = Pairs.from_tokens(CLEAN, CORRUPTED, [0, 0], [1, 1])
    assert pairs.clean.tolist() == [[1, 2, 3], [0, 4, 5]]
    assert pairs.first_difference.tolist() == [1, 2]
    assert pairs[1:].clean.tolist() == [[4, 5]]
    assert pairs.swapped().swapped().fingerprint == pairs.fingerprint != pairs.swapped().fingerprint
    with pytest.raises(GatewiseError, match="there are 2 pairs"):
        pairs[2:]


def test_logit_diffs_and_accuracies() -> None:
    pairs = Pairs.from_tokens(CLEAN, CORRUPTED, [0, [0, 1]], [[1, 2], 2])
    logits = torch.tensor([[3.0, 1.0, 0.0], [0.0, 1.0, 2.0]], requires_grad=True)
    exponentials = logits.detach().exp()
    expected = [3 - exponentials[0, 1:].sum().log(), exponentials[1, :2].sum().log() - 2]
    torch.testing.assert_close(pairs.logit_diff(logits).detach(), torch.stack(expected))
    assert pairs.pairwise_accuracy(logits).tolist() == pairs.top1_accuracy(logits).tolist() == [True, False]
    pairs.logit_diff(logits).sum().backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[0], torch.cat([torch.ones(1), -logits.detach()[0, 1:].softmax(-1)]))
    shares = logits.detach().softmax(-1)
    by_probability = Pairs.from_tokens(CLEAN, CORRUPTED, [0, [0, 1]], [[1, 2], 2], difference="probability")
    expected = torch.stack([shares[0, 0] - shares[0, 1:].sum(), shares[1, :2].sum() - shares[1, 2]])  # type: ignore[assignment]
    torch.testing.assert_close(by_probability.logit_diff(logits.detach()), expected)


def test_the_logit_logit_diff_of_single_answers_is_a_difference() -> None:
    logits = torch.randn(2, 50) * 20
    one = Pairs.from_tokens(CLEAN, CORRUPTED, [7, 8], [20, 21])
    among_lists = Pairs.from_tokens(CLEAN, CORRUPTED, [7, [8, 30]], [20, [21, 31]])  # the first row is filled up
    rows = torch.arange(2)
    difference = logits[rows, torch.tensor([7, 8])] - logits[rows, torch.tensor([20, 21])]
    assert torch.equal(one.logit_diff(logits), difference)
    assert torch.equal(among_lists.logit_diff(logits)[0], difference[0])


def test_errors() -> None:
    with pytest.raises(GatewiseError, match="pair 1: the clean prompt has 2 tokens and the corrupted one 1"):
        Pairs.from_tokens(CLEAN, [[1, 2, 3], [4]], [0, 0], [1, 1])
    with pytest.raises(GatewiseError, match="equally many"):
        Pairs.from_tokens(CLEAN, CORRUPTED, [0], [1, 1])
    with pytest.raises(GatewiseError, match="pair 0: the correct answer needs at least one token id"):
        Pairs.from_tokens(CLEAN, CORRUPTED, [[], 0], [1, 1])
    with pytest.raises(GatewiseError, match="difference is"):
        Pairs.from_tokens(CLEAN, CORRUPTED, [0, 0], [1, 1], difference="other")  # type: ignore[arg-type]
