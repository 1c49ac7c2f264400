"""What a model makes of a task, before any circuit: how well it does it, what makes it doubtful, and pair by pair."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from torch import Tensor

from gatewise.engine import last_logits
from gatewise.engine.setting import Memory
from gatewise.errors import GatewiseWarning
from gatewise.models.model import Model
from gatewise.tasks import Pairs, Task

POOR_ACCURACY = 0.75  # right over wrong on clean prompts
SMALL_SHARE = 0.1  # of the clean margin that the corruption should at least take away
CLEARLY_WORSE = 0.05  # of the clean prompts: by how many fewer answers are right


@dataclass(frozen=True)
class Ability:
    """How well a model does a task, over so many pairs."""

    pairs: int
    right_over_wrong: float  # share of clean prompts
    top_is_right: float  # share of clean prompts whose most probable token is right
    margin_clean: float
    margin_corrupted: float


@dataclass(frozen=True)
class Preview:
    """One pair, with the total probability of its right and of its wrong answers on both sides."""

    clean: str
    corrupted: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    right_on_clean: float
    wrong_on_clean: float
    right_on_corrupted: float
    wrong_on_corrupted: float


def ability(model: Model, pairs: Pairs, *, memory: Memory = None) -> Ability:
    """Run the model on both sides of the pairs and measure its answers."""
    clean, corrupted = _both_sides(model, pairs, memory)
    measured = (pairs.right_over_wrong(clean), pairs.top_is_right(clean), pairs.margin(clean), pairs.margin(corrupted))
    return Ability(len(pairs), *(values.double().mean().item() for values in measured))


def check_task(model: Model, task: Task, *, memory: Memory = None) -> list[str]:
    """What makes numbers on this task doubtful for this model; each finding is also emitted as a warning."""
    problems = find_problems(task.train, *_both_sides(model, task.train, memory))
    for problem in problems:
        warnings.warn(f"{task.name} on {model.name}: {problem}", GatewiseWarning, stacklevel=2)
    return problems


def bos_problem(chosen: Ability, other: Ability, *, bos: bool) -> str | None:
    """A sentence if the model does the task clearly worse with BOS, or without, than it would the other way."""
    if other.right_over_wrong - chosen.right_over_wrong < CLEARLY_WORSE:
        return None
    now, then, option = ("with", "without", "--no-bos") if bos else ("without", "with", "--bos")
    return (
        f"the model prefers the right answer on {chosen.right_over_wrong:.0%} of the held-out prompts {now} BOS, and "
        f"on {other.right_over_wrong:.0%} {then} it; use {option} (bos={not bos})."
    )


def find_problems(pairs: Pairs, clean: Tensor, corrupted: Tensor) -> list[str]:
    """Findings as sentences; none if all is well. clean, corrupted: logits [example, vocabulary]."""
    problems = []
    equal = int((pairs.clean == pairs.corrupted).all(dim=1).sum())
    if equal:
        problems.append(f"clean and corrupted prompt are the same in {equal} of {len(pairs)} pairs.")
    accuracy = pairs.right_over_wrong(clean).float().mean().item()
    if accuracy < POOR_ACCURACY:
        problems.append(
            f"the model prefers the right answer on only {accuracy:.0%} of the clean prompts; "
            f"a circuit for something the model cannot do explains little."
        )
    margin = pairs.margin(clean).float()
    difference = (margin - pairs.margin(corrupted).float()).mean().abs()
    if difference <= SMALL_SHARE * margin.abs().mean():
        problems.append(
            f"the margin hardly differs between the sides ({margin.mean():.3f} on clean, "
            f"{pairs.margin(corrupted).float().mean():.3f} on corrupted prompts); "
            f"choose a corruption that takes the answer away."
        )
    return problems


def preview(model: Model, pairs: Pairs, *, memory: Memory = None) -> list[Preview]:
    """Run the model on both sides of the pairs and read off the answers' probabilities."""
    clean, corrupted = (logits.float().softmax(dim=-1).cpu() for logits in _both_sides(model, pairs, memory))
    shown = []
    for i, (clean_text, corrupted_text) in enumerate(zip(pairs.clean_text, pairs.corrupted_text, strict=True)):
        right, wrong = (answers[answers >= 0] for answers in (pairs.right[i], pairs.wrong[i]))
        sums = [side[i, answers].sum().item() for side in (clean, corrupted) for answers in (right, wrong)]
        texts = [tuple(model.tokenizer.decode([token]) for token in answers.tolist()) for answers in (right, wrong)]
        shown.append(Preview(clean_text, corrupted_text, texts[0], texts[1], *sums))
    return shown


def _both_sides(model: Model, pairs: Pairs, memory: Memory) -> tuple[Tensor, Tensor]:
    """Last logits on the clean and on the corrupted prompts."""
    return last_logits(model, pairs, "clean", memory=memory), last_logits(model, pairs, "corrupted", memory=memory)
