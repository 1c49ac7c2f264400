"""How well a model does a task before any circuit is searched, and what makes numbers on it doubtful."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from gatewise.compute import Compute
from gatewise.engine.setting import Data, Setting
from gatewise.errors import GatewiseWarning
from gatewise.models.model import Model
from gatewise.statistics import Measure
from gatewise.tasks import Task

POOR_ACCURACY = 0.75  # pairwise accuracy on clean prompts
SMALL_SHARE = 0.1  # of the clean logit difference that the corruption should at least take away
CLEAR = 2.0  # standard errors that a difference has to exceed
CLEARLY_WORSE = 0.05  # pairwise accuracy that is lost by the wrong choice about BOS


@dataclass(frozen=True, repr=False)
class Ability:
    """How well a model does a task.

    Attributes:
        pairs: Number of pairs that were measured.
        pairwise_accuracy: Share of clean prompts where the correct answer leads the incorrect one.
        top1_accuracy: Share of clean prompts whose most probable token is a correct answer.
        logit_diff_clean: Mean logit difference on clean prompts.
        logit_diff_corrupted: Mean logit difference on corrupted prompts.
        logit_diff_error: Standard error of the difference of these two means.
        pairwise_accuracy_corrupted: Share of corrupted prompts where the (clean prompt's) correct answer leads.
    """

    pairs: int
    pairwise_accuracy: float
    top1_accuracy: float
    logit_diff_clean: float
    logit_diff_corrupted: float
    logit_diff_error: float = 0.0
    pairwise_accuracy_corrupted: float = 0.0

    def __repr__(self) -> str:
        against = find_problems(self)
        return (
            f"<Ability on {self.pairs} pairs: pairwise accuracy {self.pairwise_accuracy:.0%}, top-1 accuracy "
            f"{self.top1_accuracy:.0%}, logit difference {self.logit_diff_clean:.2f} on clean and "
            f"{self.logit_diff_corrupted:.2f} on corrupted prompts; {' '.join(against) or 'nothing speaks against it'}>"
        )


def ability(model: Model, data: Data, *, compute: Compute | None = None) -> Ability:
    """Run a model on both sides of pairs and measure its answers.

    Args:
        model: The model to measure.
        data: Pairs, a task (its held-out pairs are taken) or a setting.
        compute: Where to run, by default the innermost `with gw.Compute(...)`.

    Returns:
        Accuracies and logit differences.
    """
    setting = Setting.of(model, data, "test", compute=compute)
    pairs, clean, corrupted = setting.pairs, setting.last_logits("clean"), setting.last_logits("corrupted")
    on_clean, on_corrupted = (Measure.of(pairs.logit_diff(logits)) for logits in (clean, corrupted))
    return Ability(
        pairs=len(pairs),
        pairwise_accuracy=Measure.of(pairs.pairwise_accuracy(clean)).mean,
        top1_accuracy=Measure.of(pairs.top1_accuracy(clean)).mean,
        logit_diff_clean=on_clean.mean,
        logit_diff_corrupted=on_corrupted.mean,
        logit_diff_error=math.hypot(on_clean.error, on_corrupted.error),
        pairwise_accuracy_corrupted=Measure.of(pairs.pairwise_accuracy(corrupted)).mean,
    )


def check_task(model: Model, task: Task, *, compute: Compute | None = None) -> list[str]:
    """Find what makes numbers on a task doubtful for a model, in either half of its pairs.

    Args:
        model: The model that the task is for.
        task: The task, with its pairs to search on and to test on.
        compute: Where to run, by default the innermost `with gw.Compute(...)`.

    Returns:
        The problems, a sentence each; each is also a warning. None means that nothing speaks against the task.

    Raises:
        GatewiseError: If the task was made for another tokenizer.
    """
    problems = task.problems()
    for purpose, pairs in (("search", task.train), ("test", task.test)):
        measured = ability(model, pairs, compute=compute)
        problems += [f"pairs to {purpose} on: {problem}" for problem in find_problems(measured)]
    for problem in problems:
        warnings.warn(f"{task.name} on {model.name}: {problem}", GatewiseWarning, stacklevel=2)
    return problems


def bos_problem(chosen: Ability, other: Ability, *, bos: bool) -> str | None:
    """A sentence if the model does the task clearly worse with BOS, or without, than it would the other way."""
    if other.pairwise_accuracy - chosen.pairwise_accuracy < CLEARLY_WORSE:
        return None
    now, then, option = ("with", "without", "--no-bos") if bos else ("without", "with", "--bos")
    return (
        f"the model prefers the correct answer on {chosen.pairwise_accuracy:.0%} of the held-out prompts {now} BOS, "
        f"and on {other.pairwise_accuracy:.0%} {then} it; use {option} (bos={not bos})."
    )


def find_problems(measured: Ability) -> list[str]:
    """Why a circuit would explain little: the model cannot do the task, or the corruption takes nothing away."""
    problems = []
    if measured.pairwise_accuracy < POOR_ACCURACY:
        problems.append(
            f"the model cannot do this task: it prefers the correct answer on only {measured.pairwise_accuracy:.0%} "
            f"of the clean prompts."
        )
    elif measured.top1_accuracy == 0:
        problems.append(
            "the model never gives a correct answer: on none of the clean prompts is one its most probable token."
        )
    difference = abs(measured.logit_diff_clean - measured.logit_diff_corrupted)
    if difference <= max(SMALL_SHARE * abs(measured.logit_diff_clean), CLEAR * measured.logit_diff_error):
        problems.append(
            f"the logit difference hardly differs between the sides, or no more than by chance "
            f"({measured.logit_diff_clean:.3f} on clean, {measured.logit_diff_corrupted:.3f} on corrupted prompts, "
            f"± {measured.logit_diff_error:.2g}), so that normalised effects mean nothing; choose a corruption that "
            f"takes the answer away."
        )
    if not problems and measured.pairwise_accuracy_corrupted > measured.pairwise_accuracy:
        problems.append(
            f"the model does better on corrupted prompts: its pairwise accuracy is "
            f"{measured.pairwise_accuracy_corrupted:.0%} on them, and {measured.pairwise_accuracy:.0%} on the clean "
            f"ones. Are the two sides exchanged?"
        )
    return problems
