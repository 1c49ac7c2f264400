"""Margins of residuals: unembedding the answers alone gives what the whole vocabulary gives."""

from __future__ import annotations

import pytest
import torch
from small_models import VOCABULARY, small_model

from gatewise.engine.metrics import residual_values
from gatewise.tasks.example import DIFFERENCES, Difference
from gatewise.tasks.pairs import Pairs


@pytest.mark.parametrize("architecture", ["gpt2", "gemma2"])  # the second caps its logits
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_logit_diffs_with_several_answers(architecture: str, difference: Difference) -> None:
    model = small_model(architecture)
    prompts, other = [[1, 2, 3]] * 4, [[1, 4, 3]] * 4
    answers = torch.stack([torch.randperm(VOCABULARY) for _ in prompts]).tolist()
    sizes = ((1, 1), (3, 2), (1, 5), (9, 20))
    correct = [row[:size] for row, (size, _) in zip(answers, sizes, strict=True)]
    incorrect = [row[size : size + more] for row, (size, more) in zip(answers, sizes, strict=True)]
    pairs = Pairs.from_tokens(prompts, other, correct, incorrect, difference=difference)
    residual = torch.randn(5, len(prompts), model.d_model)
    expected = pairs.logit_diff(model.unembed(residual)).double()
    torch.testing.assert_close(residual_values(model, pairs)(residual), expected, rtol=1e-5, atol=1e-5)
