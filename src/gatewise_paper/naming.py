"""What things are called in tables and figures, and numbers in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from gatewise.methods.base import SEARCH_DIRECTIONS
from gatewise.methods.registry import methods

DIRECTIONS = SEARCH_DIRECTIONS
DIRECTION_NAMES = {"ns": "Ns", "dn": "Dn", "ns+dn": "Ns+Dn"}
METHOD_NAMES = {name: method.title for name, method in methods().items()}
_TASK_NAMES = {
    "ioi": "IOI",
    "gt": "GT",
    "sa": "SA",
    "gt:difference=probability": "GT by the probability logit difference",
    "ioi:corruption=all-names": "IOI, all names replaced",
}


def task_name(task: str) -> str:
    return _TASK_NAMES.get(task, task)


def mean_and_deviation(values: Sequence[float]) -> str:
    """`0.62 ± 0.1`; the mean alone for one value, `-` for none."""
    known = [value for value in values if not math.isnan(value)]
    return plus_minus(statistics.fmean(known), deviation(known)) if known else "-"


def plus_minus(mean: float, spread: float) -> str:
    return f"{mean:.3g}" if math.isnan(spread) else f"{mean:.3g} ± {spread:.2g}"


def deviation(values: Sequence[float]) -> float:
    """NaN for one value, or if one is not known."""
    return statistics.stdev(values) if len(values) > 1 and not any(map(math.isnan, values)) else math.nan


def seeds_note(seeds: Mapping[str, int], methods: Sequence[str]) -> str:
    """How many seeds each method has, for the note of a table."""
    return ", ".join(f"{METHOD_NAMES[method]} {seeds[method]}" for method in methods)
