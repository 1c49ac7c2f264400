"""Statistics that several parts need, once each: divergence, means and their errors, ranks, resampling, sign flips.

*Sign flips*: if a method makes no difference, a seed's difference is as likely to be positive as negative. Every sign
of every seed is flipped, and the observed mean held against all 2^n: exact for any distribution and any number of
seeds, so that fewer than six can decide nothing at 5 %. The interval is the test turned around: the means of all
subsets of the values cut the line into 2^n pieces that hold the true middle with equal probability (Hartigan 1969).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

_EXACT = 20  # values, up to which all flips are tried; beyond, as many are drawn
_RESAMPLES = 1_000
_BLOCK = 1 << 16  # numbers at a time
_FLIPS = 10_000
_TIE = 1e-12  # relative: the same numbers added in another order are equal


@dataclass(frozen=True)
class Interval:
    """An estimate, and where it lies with 95 % confidence. n: the units it rests on."""

    value: float
    low: float
    high: float
    n: int

    @property
    def without_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        if not math.isfinite(self.high - self.low):
            return f"{self.value:.3g} (n = {self.n})"
        return f"{self.value:.3g} (95 % {self.low:.3g} to {self.high:.3g}, n = {self.n})"


def log_probabilities(logits: Tensor) -> Tensor:
    """In float64 where the device has it: divergences near 0 are differences of nearly equal numbers."""
    return logits.to(torch.float32 if logits.device.type == "mps" else torch.float64).log_softmax(dim=-1)


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) over the whole vocabulary, from log-probabilities. [..., example]"""
    return (p.exp() * (p - q)).sum(dim=-1).clamp(min=0)


class Reference:
    """A distribution for each example, for divergences of many others from it and to it."""

    def __init__(self, logits: Tensor) -> None:
        """logits: [example, vocabulary]"""
        self._log_p = log_probabilities(logits)
        self._p = self._log_p.exp()
        self._entropy = (self._p * self._log_p).sum(dim=-1)

    def divergences(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """KL(reference || these) and KL(these || reference): a few words at a time, which stay in the cache. [example]

        With l these logits and Z their partition sum: sum p log p - sum p l + log Z, and sum q (l - log p) - log Z.
        """
        largest = logits.amax(dim=-1, keepdim=True).to(self._p.dtype)
        mean, total, weighted = torch.zeros_like(self._entropy).expand(3, -1).clone()
        words = max(_BLOCK // len(logits), 1)
        for some, p, log_p in zip(*(x.split(words, dim=-1) for x in (logits, self._p, self._log_p)), strict=True):
            below = some.to(p.dtype) - largest
            mean += torch.linalg.vecdot(p, below)
            q = below.exp()
            total += q.sum(dim=-1)
            weighted += torch.linalg.vecdot(q, below.sub_(log_p))
        log_z = total.log()
        return (self._entropy - mean + log_z).clamp(min=0), (weighted / total - log_z).clamp(min=0)


@dataclass(frozen=True)
class Measure:
    """A mean over examples and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Tensor) -> Measure:
        """values: [example]"""
        values = values.double()
        error = float(values.std() / math.sqrt(len(values))) if len(values) > 1 else 0.0
        return cls(float(values.mean()), error)

    def __float__(self) -> float:
        return self.mean

    def __str__(self) -> str:
        return f"{self.mean:.3f}±{self.error:.2f}"


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's: the correlation of ranks, equal values sharing their mean rank. 0 if one side is constant."""
    x, y = (_ranks(values) for values in (a, b))
    x, y = x - x.mean(), y - y.mean()
    spread = x.norm() * y.norm()
    return float((x * y).sum() / spread) if spread > 0 else 0.0


def _ranks(values: Tensor) -> Tensor:
    _, groups, sizes = torch.unique(values, return_inverse=True, return_counts=True)
    last = sizes.cumsum(0).double()
    ranks: Tensor = (last - (sizes.double() - 1) / 2)[groups]
    return ranks


@cache
def resampling_weights(count: int, resamples: int = _RESAMPLES) -> Tensor:
    """What each of `count` units weighs in each bootstrap resample; columns sum to 1. [unit, resample]"""
    drawn = torch.randint(0, count, (resamples, count), generator=torch.Generator().manual_seed(0))
    weights = torch.zeros(count, resamples, dtype=torch.float64)
    return weights.scatter_add_(0, drawn.T, torch.full((count, resamples), 1 / count, dtype=torch.float64))


def percentile_interval(values: Tensor, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    """Between what the middle values lie, along the last dimension."""
    ordered = values.sort(dim=-1).values
    cut = int(ordered.shape[-1] * (1 - confidence) / 2)
    return ordered[..., cut], ordered[..., -1 - cut]


def ratio_interval(tops: Sequence[float], bottoms: Sequence[float]) -> Interval:
    """Sum over sum of one top and one bottom for each unit, with its bootstrap interval over units.

    NaN if there is nothing to divide by; ends are NaN for fewer than two units.
    """
    one, other = (torch.tensor(values, dtype=torch.float64) for values in (tops, bottoms))
    value = float(one.sum() / other.sum()) if len(other) and other.sum() else math.nan
    if len(one) < 2:
        return Interval(value, math.nan, math.nan, len(one))
    weights = resampling_weights(len(one))
    above, below = one @ weights, other @ weights
    drawn = (above / below)[below != 0]
    low, high = percentile_interval(drawn) if len(drawn) else (math.nan, math.nan)
    return Interval(value, float(low), float(high), len(one))


def clustered_ratio(units: Iterable[tuple[Hashable, float, float]]) -> Interval:
    """The same, where units of one name belong together and are drawn together: name, top, bottom."""
    sums: dict[Hashable, tuple[float, float]] = {}
    for name, top, bottom in units:
        one, other = sums.get(name, (0.0, 0.0))
        sums[name] = (one + top, other + bottom)
    return ratio_interval([top for top, _ in sums.values()], [bottom for _, bottom in sums.values()])


def sign_flip_p(values: Sequence[float]) -> float:
    """Two-sided p of the mean being 0: the share of sign flips whose mean is as far from 0."""
    given = torch.tensor(values, dtype=torch.float64)
    sums = _subset_sums(given)[0]  # flipping a subset takes twice its sum from the whole sum
    flipped, observed = (given.sum() - 2 * sums).abs(), float(given.sum().abs())
    return float((flipped >= observed - _TIE * float(given.abs().sum())).double().mean())


def joint_sign_flip_p(values: Tensor) -> float:
    """p of all means being 0 at once, one for each kind: flips that make any as large as the largest is.

    values: [kind, unit]; a unit's sign is flipped for all kinds together, and means are in units of their deviation.
    """
    scale = values.square().mean(dim=-1).sqrt()
    standard = (values / scale[:, None])[scale > 0]
    if not len(standard):
        return 1.0
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (_FLIPS, values.shape[-1]), generator=generator, dtype=torch.float64) * 2 - 1
    signs[0] = 1.0
    largest = (signs @ standard.T.double()).abs().amax(dim=-1)
    return float((largest >= largest[0] * (1 - _TIE)).double().mean())


def discoveries(p: Sequence[float], rate: float = 0.05) -> list[bool]:
    """Benjamini-Hochberg: which of many tests stand if at most this share of those may be false."""
    order = sorted(range(len(p)), key=p.__getitem__)
    passed = [rank for rank, place in enumerate(order, 1) if p[place] <= rate * rank / len(p)]
    found = set(order[: max(passed, default=0)])
    return [place in found for place in range(len(p))]


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
