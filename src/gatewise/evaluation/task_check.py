"""What a model makes of a task, before any circuit: how well it does it, what makes it doubtful, and pair by pair."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from torch import Tensor

from gatewise.compute import Compute
from gatewise.engine import last_logits
from gatewise.errors import GatewiseWarning
from gatewise.models.model import Model
from gatewise.statistics import Measure
from gatewise.tasks import Pairs, Task

POOR_ACCURACY = 0.75  # pairwise accuracy on clean prompts
SMALL_SHARE = 0.1  # of the clean logit difference that the corruption should at least take away
CLEAR = 2.0  # standard errors that a difference has to exceed
CLEARLY_WORSE = 0.05  # of the clean prompts: by how many fewer answers are right


@dataclass(frozen=True)
class Ability:
    """How well a model does a task, over so many pairs."""

    pairs: int
    pairwise_accuracy: float  # share of clean prompts
    top1_accuracy: float  # share of clean prompts whose most probable token is right
    logit_diff_clean: float
    logit_diff_corrupted: float
    logit_diff_error: float = 0.0  # standard error of the difference of the two
    right_on_corrupted: float = 0.0  # share of corrupted prompts with pairwise accuracy


@dataclass(frozen=True)
class Preview:
    """One pair, with the total probability of its right and of its incorrect answers on both sides."""

    clean: str
    corrupted: str
    correct: tuple[str, ...]
    incorrect: tuple[str, ...]
    right_on_clean: float
    wrong_on_clean: float
    right_on_corrupted: float
    wrong_on_corrupted: float


def ability(model: Model, pairs: Pairs, *, compute: Compute | None = None) -> Ability:
    """Run the model on both sides of the pairs and measure its answers."""
    clean, corrupted = _both_sides(model, pairs, compute)
    correct, top, right_on_corrupted = (
        values.double().mean().item()
        for values in (pairs.pairwise_accuracy(clean), pairs.top1_accuracy(clean), pairs.pairwise_accuracy(corrupted))
    )
    one, other = (Measure.of(pairs.logit_diff(side)) for side in (clean, corrupted))
    error = math.hypot(one.error, other.error)
    return Ability(len(pairs), correct, top, one.mean, other.mean, error, right_on_corrupted)


def check_task(model: Model, task: Task, *, compute: Compute | None = None) -> list[str]:
    """What makes numbers on this task doubtful for this model, in either half of its pairs; each is also a warning."""
    problems = task.problems()
    for half, pairs in (("search", task.train), ("test", task.test)):
        found = find_problems(ability(model, pairs, compute=compute))
        problems += [f"pairs to {half} on: {problem}" for problem in found]
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
        f"and "
        f"on {other.pairwise_accuracy:.0%} {then} it; use {option} (bos={not bos})."
    )


def find_problems(found: Ability) -> list[str]:
    """Why a circuit would explain little: the model cannot do the task, or the corruption takes nothing away."""
    problems = []
    if found.pairwise_accuracy < POOR_ACCURACY:
        problems.append(
            f"the model cannot do this task: it prefers the correct answer on only {found.pairwise_accuracy:.0%} of "
            f"the "
            f"clean prompts."
        )
    elif found.top1_accuracy == 0:
        problems.append(
            "the model never gives a correct answer: on none of the clean prompts is one its most probable word."
        )
    difference = abs(found.logit_diff_clean - found.logit_diff_corrupted)
    if difference <= max(SMALL_SHARE * abs(found.logit_diff_clean), CLEAR * found.logit_diff_error):
        problems.append(
            f"the logit difference hardly differs between the sides, or no more than by chance "
            f"({found.logit_diff_clean:.3f} on "
            f"clean, {found.logit_diff_corrupted:.3f} on corrupted prompts, ± {found.logit_diff_error:.2g}), so that "
            f"shares of "
            f"it mean nothing; choose a corruption that takes the answer away."
        )
    if not problems and found.right_on_corrupted > found.pairwise_accuracy:
        problems.append(
            f"the model does better on corrupted prompts: pairwise accuracy on {found.right_on_corrupted:.0%} of them, "
            f"and on {found.pairwise_accuracy:.0%} of the clean ones. Are the two sides exchanged?"
        )
    return problems


def preview(model: Model, pairs: Pairs, *, compute: Compute | None = None) -> list[Preview]:
    """Run the model on both sides of the pairs and read off the answers' probabilities."""
    clean, corrupted = (logits.float().softmax(dim=-1).cpu() for logits in _both_sides(model, pairs, compute))
    shown = []
    for i, (clean_text, corrupted_text) in enumerate(zip(pairs.clean_text, pairs.corrupted_text, strict=True)):
        correct, incorrect = (answers[answers >= 0] for answers in (pairs.correct[i], pairs.incorrect[i]))
        sums = [side[i, answers].sum().item() for side in (clean, corrupted) for answers in (correct, incorrect)]
        texts = [
            tuple(model.tokenizer.decode([token]) for token in answers.tolist()) for answers in (correct, incorrect)
        ]
        shown.append(Preview(clean_text, corrupted_text, texts[0], texts[1], *sums))
    return shown


def _both_sides(model: Model, pairs: Pairs, compute: Compute | None) -> tuple[Tensor, Tensor]:
    """Last logits on the clean and on the corrupted prompts."""
    return last_logits(model, pairs, "clean", compute=compute), last_logits(model, pairs, "corrupted", compute=compute)
