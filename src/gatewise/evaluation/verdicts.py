"""What the measures of a circuit mean, in sentences. A mark is given only where nothing speaks against it.

*Faithful* is one verdict out of three normalised measures, 0 % for the empty circuit and 100 % for the whole model: KL,
logit difference and pairwise accuracy. The least of them counts, and a logit difference beyond 100 % is as far from the
model as one below. Of a logically complete circuit, searched in both directions, KL by denoising counts too; of others
it stands beside.

*Complete* is what removing the circuit destroys. It saturates: where a small part of the circuit already takes
everything away, the number says nothing about the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gatewise.evaluation.evaluations import Evaluation, normalise
from gatewise.evaluation.task_check import CLEAR, find_problems

Level = Literal["good", "note", "warning"]

GOOD, POOR = 0.8, 0.4  # normalised measures
BEYOND = 1.1  # of the model's own
SATURATED = 0.9  # of what the whole circuit destroys
OVER_CHANCE = 0.5  # of what random circuits leave
_SPREAD = 0.1  # accuracies of model and empty circuit that differ by less cannot be divided by their difference


@dataclass(frozen=True)
class Remark:
    """A sentence or two under a heading.

    Attributes:
        level: Whether it reassures: "good", "note" or "warning".
        title: The heading.
        text: The sentences.
        answer: The same in a word or two; may be empty.
    """

    level: Level
    title: str
    text: str
    answer: str = ""


def level_of(value: float, good: float, poor: float) -> Level:
    """Good from one limit on, a warning below the other."""
    return "good" if value >= good else "note" if value >= poor else "warning"


def downgraded(remarks: Sequence[Remark]) -> list[Remark]:
    """The same where something speaks against the whole: nothing is marked as good, and no answer is a plain yes."""
    doubtful = []
    for remark in remarks:
        answer = re.sub(r"^yes\b", "doubtful", remark.answer)
        doubtful.append(replace(remark, level="note", answer=answer) if remark.level == "good" else remark)
    return doubtful


def doubts(evaluation: Evaluation, problems: Sequence[str] = ()) -> list[Remark]:
    """List what has to be said before any number.

    Args:
        evaluation: Of the circuit, by `gw.evaluate`.
        problems: Of the pairs, such as `task.problems()`.

    Returns:
        Warnings about the pairs, about a model that cannot do the task, and about a circuit without a path; none if
        all is well.
    """
    texts = (*problems, *find_problems(evaluation.ability))
    remarks = [Remark("warning", "Task", f"{text[0].upper()}{text[1:]}") for text in texts]
    if not evaluation.on_path:
        edges = f"None of the {evaluation.edges:,} edges lies" if evaluation.edges else "There is no edge, so none lies"
        text = f"{edges} on a path from the input to the logits: it does what the empty circuit does."
        remarks.append(Remark("warning", "Empty circuit", text))
    return remarks


def faithful(evaluation: Evaluation) -> Remark:
    """Judge whether a circuit does what the model does.

    Args:
        evaluation: Of the circuit, by `gw.evaluate`.

    Returns:
        One verdict out of normalised KL, logit difference and pairwise accuracy: the least counts.
    """
    logit_diff, accuracy = evaluation.recovered_logit_diff, _normalised_accuracy(evaluation)
    measures = [evaluation.recovered, 1 - abs(1 - logit_diff), accuracy]
    if evaluation.two_sided and evaluation.recovered_dn is not None:
        measures.append(evaluation.recovered_dn)
    least = -math.inf if any(map(math.isnan, measures)) else min(measures)
    level: Level = "warning" if evaluation.on_path == 0 else level_of(least, GOOD, POOR)
    first = ""
    if logit_diff > BEYOND:
        first = f"Its logit difference is {percent(logit_diff)} of the model's, beyond what the model does. "
    elif evaluation.recovered < 0:
        first = "It is further from the model than the empty circuit is. "
    circuit, full, empty = evaluation.circuit, evaluation.full, evaluation.empty
    text = (
        f"{first}Between the empty circuit (0%) and the whole model (100%) it reaches {percent(evaluation.recovered)} "
        f"by KL ({evaluation.faithfulness} nats left of {empty.kl_from_full.mean:.3f}), {percent(logit_diff)} by logit "
        f"difference ({circuit.logit_diff.mean:.2f}; model {full.logit_diff.mean:.2f}, empty "
        f"{empty.logit_diff.mean:.2f}) and {percent(accuracy)} by pairwise accuracy ({circuit.accuracy.mean:.0%} of "
        f"the prompts; model {full.accuracy.mean:.0%}, empty {empty.accuracy.mean:.0%}). {_second_side(evaluation)}"
    )
    word = {"good": "yes", "note": "partly", "warning": "no"}[level]
    return Remark(level, "How faithful?", text, f"{word}, {percent(max(least, 0.0))}")


def _second_side(evaluation: Evaluation) -> str:
    """What denoising says, and what counts."""
    if evaluation.recovered_dn is None or evaluation.dn_circuit is None or evaluation.dn_empty is None:
        return "The least counts."
    counts = "The least counts." if evaluation.two_sided else "The least of the first three counts."
    return (
        f"By denoising, where the circuit alone is corrupted, it takes {percent(evaluation.recovered_dn)} away by KL "
        f"({evaluation.dn_circuit.kl_from_full} nats left of {evaluation.dn_empty.kl_from_full.mean:.3f}). {counts}"
    )


def complete(curve: Sequence[Evaluation]) -> Remark:
    """Judge whether removing a circuit takes the task away.

    Args:
        curve: Evaluations of growing circuits, the one to judge last. Those before it tell whether the measure is
            saturated; alone, it cannot be told.

    Returns:
        The verdict, with what speaks against it first.
    """
    whole = curve[-1]
    left = normalise(whole.complement.logit_diff, whole.empty.logit_diff, whole.full.logit_diff)
    level: Level = level_of(whole.destroyed, GOOD, POOR)
    against = []
    enough = next(part for part in curve if not part.destroyed < SATURATED * whole.destroyed)
    saturated = whole.destroyed >= POOR and 2 * enough.edges <= whole.edges
    if saturated:
        against.append(
            f"Saturated: removing {enough.edges:,} edges of it destroys as much ({percent(enough.destroyed)}), so the "
            f"number says nothing about the others."
        )
    elif len(curve) == 1:
        against.append("Measured at one size only: whether a part of it would destroy as much is not known.")
    if whole.destroyed > BEYOND:
        against.append(
            "Removing it moves the model further than full corruption does: this is breakage, not completeness."
        )
    if not left < 1 - GOOD:  # NaN too
        against.append(f"{percent(left)} of the logit difference is left.")
    if whole.random_complement is not None:
        chance = normalise(whole.random_complement.kl_to_full, 0.0, whole.empty.kl_to_full)
        if not chance < whole.destroyed * OVER_CHANCE:
            against.append(f"Removing as many random edges destroys {percent(chance)}.")
    text = (
        f"Without the circuit the model is {percent(whole.destroyed)} as far from itself as under full corruption "
        f"(KL {whole.completeness} of {whole.empty.kl_to_full.mean:.3f} nats)."
    )
    answer = f"{percent(whole.destroyed)}{', saturated' if saturated else ''}"
    return Remark("note" if against and level == "good" else level, "How complete?", " ".join([*against, text]), answer)


def against_chance(evaluation: Evaluation) -> Remark | None:
    """Whether the circuit does more than random ones of its size, and clearly so; None if there are none."""
    if evaluation.random_circuit is None:
        return None
    random = evaluation.random_circuit.kl_from_full
    gain = random.mean - evaluation.faithfulness.mean  # nats
    clear = gain > CLEAR * math.hypot(random.error, evaluation.faithfulness.error)
    level: Level = level_of(gain / random.mean, OVER_CHANCE, 0.0) if clear else "warning"
    text = (
        f"Random circuits of {evaluation.edges:,} edges reach "
        f"{percent(evaluation.recovered_by_chance)} by KL; this one reaches "
        f"{percent(evaluation.recovered)}.{'' if clear else ' The difference is no larger than chance makes it.'}"
    )
    return Remark(level, "Against chance", text)


def percent(share: float) -> str:
    """A share as a percentage, never as -0%; a share of nothing is none."""
    return f"{round(share, 2) + 0:.0%}" if math.isfinite(share) else "no share"


def _normalised_accuracy(evaluation: Evaluation) -> float:
    full, alone, empty = (part.accuracy.mean for part in (evaluation.full, evaluation.circuit, evaluation.empty))
    if full - empty < _SPREAD:
        return alone / full if full else math.nan
    return (alone - empty) / (full - empty)
