"""What a model makes of a task: objections when it is doubtful, and only then; measures by their definition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gatewise.engine import last_logits
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.evaluation.task_check import Ability, ability, check_task, find_problems
from gatewise.models import load_model
from gatewise.models.model import Model
from gatewise.tasks import task


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load_model("tiny")


WELL = Ability(16, 0.9, 0.5, 3.0, 0.2, 0.3, 0.5)


def test_silent_when_all_is_well() -> None:
    assert find_problems(WELL) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pairwise_accuracy": 0.6}, "only 60% of the clean prompts"),
        ({"top1_accuracy": 0.0}, "never gives a correct answer"),
        ({"logit_diff_corrupted": 2.9, "logit_diff_error": 0.001}, "3.000 on clean, 2.900 on corrupted"),
        ({"logit_diff_error": 1.5}, "no more than by chance"),
        ({"pairwise_accuracy_corrupted": 0.95}, "95% on them, and 90% on the clean"),
    ],
)
def test_each_doubt_alone(changed: dict[str, float], said: str) -> None:
    (problem,) = find_problems(replace(WELL, **changed))  # type: ignore[arg-type]
    assert said in problem


def test_a_task_of_another_tokenizer_is_refused(tiny: Model) -> None:
    made = task("sa", tiny, examples=2)
    elsewhere = replace(made, train=replace(made.train, vocabulary="another"))
    with pytest.raises(GatewiseError, match="another tokenizer than that of tiny"):
        check_task(tiny, elsewhere)


def test_findings_of_both_halves_are_warnings_too(tiny: Model) -> None:
    made = task("sa", tiny, examples=8)
    swapped = replace(made, test=made.test.swapped())  # right and wrong stay: now the model is wrong
    with pytest.warns(GatewiseWarning, match=r"sa on tiny: pairs to test on: .* on only 0%"):
        (problem,) = check_task(tiny, swapped)
    assert "cannot do this task" in problem
    assert check_task(tiny, made) == []


def test_ability_is_what_its_parts_say(tiny: Model) -> None:
    pairs = task("gt", tiny, examples=9).test
    found = ability(tiny, pairs)
    clean, corrupted = (last_logits(tiny, pairs, side=side) for side in ("clean", "corrupted"))
    assert found.pairs == 9
    assert found.pairwise_accuracy == pytest.approx(pairs.pairwise_accuracy(clean).float().mean().item())
    assert found.top1_accuracy == pytest.approx(pairs.top1_accuracy(clean).float().mean().item())
    assert found.logit_diff_clean == pytest.approx(pairs.logit_diff(clean).mean().item())
    assert found.pairwise_accuracy_corrupted == pytest.approx(pairs.pairwise_accuracy(corrupted).float().mean().item())
    errors = [pairs.logit_diff(side).double().std().item() / 3 for side in (clean, corrupted)]
    assert found.logit_diff_error == pytest.approx((errors[0] ** 2 + errors[1] ** 2) ** 0.5)
    assert found.logit_diff_corrupted == pytest.approx(pairs.logit_diff(corrupted).mean().item())
