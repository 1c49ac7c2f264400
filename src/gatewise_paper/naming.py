"""What things are called in tables and figures, and numbers in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from gatewise.methods.base import SEARCH_DIRECTIONS
from gatewise.methods.registry import methods

DIRECTIONS = SEARCH_DIRECTIONS
DIRECTION_NAMES = {"ns": "Ns", "dn": "Dn", "ns+dn": "Ns+Dn"}
METHOD_NAMES = {name: method.title for name, method in methods().items()}
_TASK_NAMES = {
    "ioi": "IOI",
    "gt": "GT",
    "sa": "SA",
    "gt:difference=probability": "GT by probability difference",
    "ioi:corruption=all-names": "IOI, all names replaced",
}


def task_name(task: str) -> str:
    return _TASK_NAMES.get(task, task)


def plain_task(task: str) -> str:
    """The name of a task without its options."""
    return task.partition(":")[0]


def mean_known(values: Iterable[float]) -> float:
    """The mean of the values that are known; NaN if none is."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.fmean(known) if known else math.nan


def standard_deviation(values: Sequence[float]) -> float:
    """NaN for a single value, or if one is not known."""
    return statistics.stdev(values) if len(values) > 1 and not any(map(math.isnan, values)) else math.nan


def mean_and_deviation(values: Sequence[float]) -> str:
    """`0.62 ± 0.1`, mean and standard deviation; the mean alone for a single value, `-` for none."""
    known = [value for value in values if not math.isnan(value)]
    return plus_minus(mean_known(known), standard_deviation(known)) if known else "-"


def plus_minus(mean: float, spread: float) -> str:
    return f"{mean:.3g}" if math.isnan(spread) else f"{mean:.3g} ± {spread:.2g}"


def seeds_note(seeds: Mapping[str, int]) -> str:
    """How many seeds each method has, for the note of a table."""
    return ", ".join(f"{METHOD_NAMES[method]} {count}" for method, count in seeds.items())
