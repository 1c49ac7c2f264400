"""The validator speaks when a task is doubtful, and only then."""

from __future__ import annotations

import pytest
import torch

from gatewise.errors import GatewiseError
from gatewise.tasks import Pairs, task
from gatewise.tasks.validation import find_problems

from .conftest import TextModel


def logits(right: list[float]) -> torch.Tensor:
    """Two answers: token 0 with these logits, token 1 with 0."""
    return torch.tensor([[value, 0.0] for value in right])


def pairs(clean: list[list[int]], corrupted: list[list[int]]) -> Pairs:
    return Pairs.from_tokens(clean, corrupted, [0] * len(clean), [1] * len(clean))


FOUR = pairs([[1, 2]] * 4, [[3, 2]] * 4)


def test_silent_when_all_is_well() -> None:
    assert find_problems(FOUR, logits([3, 3, 3, -1]), logits([-3, 0, 1, 0])) == []


def test_poor_accuracy() -> None:
    (problem,) = find_problems(FOUR, logits([3, 3, -3, -3]), logits([-3, -3, -3, -3]))
    assert "only 50%" in problem


def test_margin_that_hardly_differs() -> None:
    (problem,) = find_problems(FOUR, logits([3, 3, 3, 3]), logits([3, 3, 3, 2.9]))
    assert "hardly differs between the sides (3.000 on clean, 2.975 on corrupted" in problem


def test_equal_prompts() -> None:
    some = pairs([[1, 2], [1, 2]], [[1, 2], [3, 2]])
    (problem,) = find_problems(some, logits([3, 3]), logits([3, 0]))
    assert "same in 1 of 2 pairs" in problem


def test_a_task_of_another_tokenizer_is_refused(two_digits: TextModel, words: TextModel) -> None:
    made = task("sa", two_digits, examples=2)
    with pytest.raises(GatewiseError, match=r"another tokenizer.*task\('sa', model\)"):
        made.validate(words)  # type: ignore[arg-type]
