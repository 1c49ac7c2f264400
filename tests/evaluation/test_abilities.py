"""What a model makes of a task: objections when it is doubtful, and only then; measures by their definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gatewise.engine import last_logits
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.evaluation.abilities import ability, check_task, find_problems
from gatewise.models import load_model
from gatewise.models.model import Model
from gatewise.tasks import Pairs, task


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load_model("tiny")


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


def test_a_task_of_another_tokenizer_is_refused(tiny: Model) -> None:
    made = task("sa", tiny, examples=2)
    elsewhere = replace(made, train=replace(made.train, vocabulary="another"))
    with pytest.raises(GatewiseError, match="another tokenizer than that of tiny"):
        check_task(tiny, elsewhere)


def test_findings_are_warnings_too(tiny: Model) -> None:
    made = task("sa", tiny, examples=8)
    swapped = replace(made, train=made.train.swapped())  # right and wrong stay: now the model is wrong
    with pytest.warns(GatewiseWarning, match=r"sa on tiny: the model prefers the right answer on only 0%"):
        (problem,) = check_task(tiny, swapped)
    assert problem.startswith("the model prefers")


def test_ability_is_what_its_parts_say(tiny: Model) -> None:
    pairs = task("gt", tiny, examples=9).test
    found = ability(tiny, pairs)
    clean, corrupted = (last_logits(tiny, pairs, side=side) for side in ("clean", "corrupted"))
    assert found.pairs == 9
    assert found.right_over_wrong == pytest.approx(pairs.right_over_wrong(clean).float().mean().item())
    assert found.top_is_right == pytest.approx(pairs.top_is_right(clean).float().mean().item())
    assert found.margin_clean == pytest.approx(pairs.margin(clean).mean().item())
    assert found.margin_corrupted == pytest.approx(pairs.margin(corrupted).mean().item())
