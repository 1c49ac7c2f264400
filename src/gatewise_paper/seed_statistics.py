"""Statistics of the verdicts: sign flips over seeds, ratios of clustered units, the jackknife.

*Sign flips*: if a method makes no difference, a seed's difference is as likely to be positive as negative. Every sign
of every seed is flipped, and the observed mean held against all 2^n: exact for any distribution and any number of
seeds, so that fewer than six can decide nothing at 5 %. The interval is the test turned around: the means of all
subsets of the values cut the line into 2^n pieces that hold the true middle with equal probability (Hartigan 1969).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence

import torch
from torch import Tensor

from gatewise.statistics import Interval, ratio_interval

_EXACT = 20  # values, up to which all flips are tried; beyond, as many are drawn
_TIE = 1e-12  # relative: the same numbers added in another order are equal


def clustered_ratio(units: Iterable[tuple[Hashable, float, float]]) -> Interval:
    """Return `ratio_interval` where units of one name belong together and are drawn together: name, top, bottom."""
    tops: dict[Hashable, float] = {}
    bottoms: dict[Hashable, float] = {}
    for name, top, bottom in units:
        tops[name] = tops.get(name, 0.0) + top
        bottoms[name] = bottoms.get(name, 0.0) + bottom
    return ratio_interval(list(tops.values()), list(bottoms.values()))


def sign_flip_p(values: Sequence[float]) -> float:
    """Two-sided p of the mean being 0: the share of sign flips whose mean is as far from 0."""
    given = torch.tensor(values, dtype=torch.float64)
    sums = _subset_sums(given)[0]  # flipping a subset takes twice its sum from the whole sum
    flipped, observed = (given.sum() - 2 * sums).abs(), float(given.sum().abs())
    return float((flipped >= observed - _TIE * float(given.abs().sum())).double().mean())


def sign_flip_interval(values: Sequence[float], level: float = 0.05) -> Interval:
    """The mean, and all true middles that the sign-flip test does not reject; infinite for too few values."""
    given = torch.tensor(values, dtype=torch.float64)
    mean = float(given.mean()) if len(given) else math.nan
    sums, counts = _subset_sums(given)
    cut = int(len(sums) * level / 2)  # of the pieces on each side
    if cut < 1:
        return Interval(mean, -math.inf, math.inf, len(given))
    means = (sums / counts)[counts > 0].sort().values
    return Interval(mean, float(means[cut - 1]), float(means[-cut]), len(given))


def _subset_sums(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sums and sizes of all subsets of the values, the empty one first; of a sample of them if there are too many."""
    if len(values) > _EXACT:
        generator = torch.Generator().manual_seed(0)
        inside = torch.randint(0, 2, (2**16, len(values)), generator=generator, dtype=torch.float64)
        inside[0] = 0.0
        return inside @ values, inside.sum(dim=1)
    sums, counts = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for value in values:
        sums, counts = torch.cat([sums, sums + value]), torch.cat([counts, counts + 1])
    return sums, counts


def pseudo_values(statistic: Callable[[Sequence[int]], float], n: int) -> list[float]:
    """One value for each of n units for a statistic of all of them: what it owes to the unit (the jackknife's).

    Their mean is the statistic, but for its bias. `statistic` is given the numbers of the units to use.
    """
    everything = statistic(range(n))
    return [n * everything - (n - 1) * statistic([i for i in range(n) if i != left_out]) for left_out in range(n)]
