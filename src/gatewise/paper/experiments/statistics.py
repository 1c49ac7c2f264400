"""Statistics of the verdicts: intervals by the bootstrap, over clusters where values belong together."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_RESAMPLES = 2_000
_SEED = 0


@dataclass(frozen=True)
class Interval:
    """An estimate, and where it lies with 95 % of the resamples. n: the units that were resampled."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3g} (95 % {self.low:.3g} to {self.high:.3g}, n = {self.n})"


def bootstrap(units: Sequence[Any], statistic: Callable[[Sequence[Any]], float]) -> Interval:
    """The statistic of the units, and its percentile interval over units drawn anew. NaN for fewer than two units."""
    if len(units) < 2:
        value = statistic(units) if units else math.nan
        return Interval(value, math.nan, math.nan, len(units))
    rng = random.Random(_SEED)
    found = sorted(statistic(rng.choices(units, k=len(units))) for _ in range(_RESAMPLES))
    found = [value for value in found if not math.isnan(value)]
    if not found:
        return Interval(statistic(units), math.nan, math.nan, len(units))
    return Interval(
        statistic(units), found[int(0.025 * len(found))], found[math.ceil(0.975 * len(found)) - 1], len(units)
    )


def clusters(values: Sequence[tuple[Hashable, float, float]]) -> list[tuple[float, float]]:
    """Sums of two numbers over all that have the same name, so that what belongs together is drawn together."""
    sums: dict[Hashable, list[float]] = {}
    for name, one, two in values:
        total = sums.setdefault(name, [0.0, 0.0])
        total[0] += one
        total[1] += two
    return [(one, two) for one, two in sums.values()]


def ratio(units: Sequence[tuple[float, float]]) -> float:
    """The sum of the first numbers over the sum of the second; NaN if that is 0."""
    below = sum(two for _, two in units)
    return sum(one for one, _ in units) / below if below else math.nan


def mean_and_deviation(values: Sequence[float]) -> str:
    """`0.62 ± 0.1`; the mean alone for one value, `-` for none."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "-"
    mean = statistics.fmean(known)
    return f"{mean:.3g} ± {statistics.stdev(known):.2g}" if len(known) > 1 else f"{mean:.3g}"


def jackknife(leave_out: Callable[[int | None], float], n: int) -> float:
    """Standard error of a statistic over n units, from its values without each of them; NaN for fewer than three."""
    if n < 3:
        return math.nan
    values = [leave_out(i) for i in range(n)]
    mean = statistics.fmean(values)
    return math.sqrt((n - 1) / n * sum((value - mean) ** 2 for value in values))


def seeds_note(seeds: Mapping[str, int], names: Mapping[str, str]) -> str:
    """How many seeds each method has, for the note of a table."""
    return ", ".join(f"{names[method]} {count}" for method, count in seeds.items())
