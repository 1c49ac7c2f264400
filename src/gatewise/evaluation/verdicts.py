"""What the measures of a circuit mean, in sentences. A mark is given only where nothing speaks against it.

*Faithful* is one verdict out of three shares of the way from the empty circuit (0 %) to the whole model (100 %): by KL,
by logit difference and by accuracy. The least of them counts, and a logit difference beyond 100 % is as far from the
model as one below.

*Complete* is what removing the circuit destroys. It saturates: where a small part of the circuit already takes
everything away, the number says nothing about the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gatewise.evaluation.evaluations import Evaluation, share_between
from gatewise.evaluation.task_check import CLEAR, find_problems

Level = Literal["good", "note", "warning"]

GOOD, POOR = 0.8, 0.4  # shares of the way
BEYOND = 1.1  # of the model's own
SATURATED = 0.9  # of what the whole circuit destroys
OVER_CHANCE = 0.5  # of what random circuits leave
_SPREAD = 0.1  # accuracies of model and empty circuit that differ by less cannot be divided by their difference


@dataclass(frozen=True)
class Remark:
    """A sentence or two under a heading, whether it is reassuring, and the answer in a word or two."""

    level: Level
    title: str
    text: str
    answer: str = ""


def level_of(value: float, good: float, poor: float) -> Level:
    return "good" if value >= good else "note" if value >= poor else "warning"


def downgraded(remarks: Sequence[Remark]) -> list[Remark]:
    """The same where something speaks against the whole: nothing is marked as good, and no answer is a plain yes."""
    return [
        replace(one, level="note", answer=re.sub(r"^yes\b", "doubtful", one.answer)) if one.level == "good" else one
        for one in remarks
    ]


def doubts(one: Evaluation, problems: Sequence[str] = ()) -> list[Remark]:
    """What has to be said before any number: the pairs' problems, a model that cannot do the task, an empty circuit."""
    said = (*problems, *find_problems(one.ability))
    task = [Remark("warning", "Task", f"{text[0].upper()}{text[1:]}") for text in said]
    if one.on_path:
        return task
    edges = f"None of the {one.edges:,} edges lies" if one.edges else "The circuit has no edge, so none lies"
    text = f"{edges} on a path from the input to the logits: it does what the empty circuit does."
    return [*task, Remark("warning", "Empty circuit", text)]


def faithful(one: Evaluation) -> Remark:
    """One verdict out of KL, logit difference and accuracy."""
    logit_diff, accuracy = one.recovered_logit_diff, _accuracy_share(one)
    shares = (one.recovered, 1 - abs(1 - logit_diff), accuracy)
    least = -math.inf if any(map(math.isnan, shares)) else min(shares)
    level: Level = "warning" if one.on_path == 0 else level_of(least, GOOD, POOR)
    first = ""
    if logit_diff > BEYOND:
        first = f"Its logit difference is {percent(logit_diff)} of the model's, beyond what the model does. "
    elif one.recovered < 0:
        first = "It is further from the model than the empty circuit is. "
    text = (
        f"{first}Of the way from the empty circuit to the whole model it goes {percent(one.recovered)} by KL "
        f"({one.faithfulness} nats left of {one.empty.kl_from_full.mean:.3f}), {percent(logit_diff)} by logit "
        f"difference "
        f"({one.circuit.logit_diff.mean:.2f}; model {one.full.logit_diff.mean:.2f}, empty "
        f"{one.empty.logit_diff.mean:.2f}) and "
        f"{percent(accuracy)} by pairwise accuracy ({one.circuit.accuracy.mean:.0%} of the prompts; model "
        f"{one.full.accuracy.mean:.0%}, empty {one.empty.accuracy.mean:.0%}). The least counts."
    )
    word = {"good": "yes", "note": "partly", "warning": "no"}[level]
    return Remark(level, "How faithful?", text, f"{word}, {percent(max(least, 0.0))}")


def complete(curve: Sequence[Evaluation]) -> Remark:
    """Whether the last circuit of growing ones is complete; those before it tell whether the measure is saturated."""
    one = curve[-1]
    left = share_between(one.empty.logit_diff, one.complement.logit_diff, one.full.logit_diff)
    level: Level = level_of(one.destroyed, GOOD, POOR)
    against = []
    enough = next(part for part in curve if not part.destroyed < SATURATED * one.destroyed)
    saturated = one.destroyed >= POOR and 2 * enough.edges <= one.edges
    if saturated:
        against.append(
            f"Saturated: removing {enough.edges:,} edges of it destroys as much ({percent(enough.destroyed)}), so the "
            f"number says nothing about the others."
        )
    elif len(curve) == 1:
        against.append("Measured at one size only: whether a part of it would destroy as much is not known.")
    if one.destroyed > BEYOND:
        against.append("It is further from itself than with nothing but corrupted outputs: it breaks.")
    if not left < 1 - GOOD:
        against.append(f"{percent(left)} of the logit difference is left.")
    if one.random_complement is not None:
        chance = share_between(0.0, one.random_complement.kl_to_full, one.empty.kl_to_full)
        if not chance < one.destroyed * OVER_CHANCE:
            against.append(f"Removing as many random edges destroys {percent(chance)}.")
    text = (
        f"Without the circuit the model is {percent(one.destroyed)} as far from itself as with nothing but corrupted "
        f"outputs (KL {one.completeness} of {one.empty.kl_to_full.mean:.3f} nats)."
    )
    answer = f"{percent(one.destroyed)}{', saturated' if saturated else ''}"
    return Remark("note" if against and level == "good" else level, "How complete?", " ".join([*against, text]), answer)


def against_chance(one: Evaluation) -> Remark | None:
    """Whether the circuit does more than random ones of its size, and clearly so; None if there are none."""
    if one.random_circuit is None:
        return None
    random = share_between(one.empty.kl_from_full, one.random_circuit.kl_from_full, 0.0)
    gain = one.random_circuit.kl_from_full.mean - one.faithfulness.mean  # nats
    error = math.hypot(one.random_circuit.kl_from_full.error, one.faithfulness.error)
    of_the_rest = gain / one.random_circuit.kl_from_full.mean if one.random_circuit.kl_from_full.mean else 0.0
    level: Level = level_of(of_the_rest, OVER_CHANCE, 0.0) if gain > CLEAR * error else "warning"
    unclear = "" if gain > CLEAR * error else " The difference is no larger than chance makes it."
    text = (
        f"Random circuits of {one.edges:,} edges go {percent(random)} of the way to the model by KL; this one goes "
        f"{percent(one.recovered)}.{unclear}"
    )
    return Remark(level, "Against chance", text)


def percent(share: float) -> str:
    """The share of nothing is said to be none."""
    return f"{round(share, 2) + 0:.0%}" if math.isfinite(share) else "no share"


def _accuracy_share(one: Evaluation) -> float:
    full, alone, empty = (part.accuracy.mean for part in (one.full, one.circuit, one.empty))
    if full - empty < _SPREAD:
        return alone / full if full else math.nan
    return (alone - empty) / (full - empty)
