"""Statistics that several parts need, once each: divergence, means and their errors, ranks, resampling, sign flips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from gatewise.devices import widened

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
    return widened(logits).log_softmax(dim=-1)


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
        """KL(reference || these) and KL(these || reference): a few tokens at a time, which stay in the cache. [example]

        With l these logits and Z their partition sum: sum p log p - sum p l + log Z, and sum q (l - log p) - log Z.
        """
        largest = logits.amax(dim=-1, keepdim=True).to(self._p.dtype)
        mean, total, weighted = torch.zeros_like(self._entropy).expand(3, -1).clone()
        columns = max(_BLOCK // len(logits), 1)
        for block, p, log_p in zip(*(x.split(columns, dim=-1) for x in (logits, self._p, self._log_p)), strict=True):
            below = block.to(p.dtype) - largest  # so that no exponential overflows
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
        values = values.cpu().double()
        error = float(values.std() / math.sqrt(len(values))) if len(values) > 1 else 0.0
        return cls(float(values.mean()), error)

    def __float__(self) -> float:
        return self.mean

    def __str__(self) -> str:
        return f"{self.mean:.3f}±{self.error:.2f}"


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Return Spearman's correlation: that of ranks, equal values sharing their mean rank. 0 if one side is constant."""
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
    """Return what each of `count` units weighs in each bootstrap resample; columns sum to 1. [unit, resample]"""
    drawn = torch.randint(0, count, (resamples, count), generator=torch.Generator().manual_seed(0))
    weights = torch.zeros(count, resamples, dtype=torch.float64)
    return weights.scatter_add_(0, drawn.T, torch.full((count, resamples), 1 / count, dtype=torch.float64))


def percentile_interval(values: Tensor, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return between what the middle values lie, along the last dimension."""
    ordered = values.sort(dim=-1).values
    cut = int(ordered.shape[-1] * (1 - confidence) / 2)
    return ordered[..., cut], ordered[..., -1 - cut]


def ratio_interval(tops: Sequence[float], bottoms: Sequence[float]) -> Interval:
    """Return the sum of tops over the sum of bottoms, one of each per unit, with its bootstrap interval over units.

    NaN if there is nothing to divide by; ends are NaN for fewer than two units.
    """
    top, bottom = (torch.tensor(values, dtype=torch.float64) for values in (tops, bottoms))
    value = float(top.sum() / bottom.sum()) if len(bottom) and bottom.sum() else math.nan
    if len(top) < 2:
        return Interval(value, math.nan, math.nan, len(top))
    weights = resampling_weights(len(top))
    above, below = top @ weights, bottom @ weights
    drawn = (above / below)[below != 0]
    low, high = percentile_interval(drawn) if len(drawn) else (math.nan, math.nan)
    return Interval(value, float(low), float(high), len(top))


def geometric_interval(values: Sequence[float]) -> Interval:
    """Return the geometric mean of positive values, one per unit, with its bootstrap interval over units.

    Ends are NaN for fewer than two units.
    """
    logs = torch.tensor(values, dtype=torch.float64).log()
    mean = math.exp(float(logs.mean()))
    if len(logs) < 2:
        return Interval(mean, math.nan, math.nan, len(logs))
    low, high = percentile_interval((logs @ resampling_weights(len(logs))).exp())
    return Interval(mean, float(low), float(high), len(logs))


def kept_share(left: Tensor, whole: Tensor, confidence: float = 0.95) -> tuple[float, float]:
    """Return 1 - mean(left) / mean(whole), the smallest over sides, and its lower confidence bound.

    The bound is one-sided, by resampling units: both means of all sides with the same units, since a unit that is hard
    for one is hard for the other. NaN where there is nothing to divide by.

    left, whole: [side, unit]
    """
    weights = resampling_weights(left.shape[-1])
    share = (1 - left.mean(dim=-1) / whole.mean(dim=-1)).amin()
    drawn = (1 - (left @ weights) / (whole @ weights)).amin(dim=0).sort().values
    return float(share), float(drawn[int(len(drawn) * (1 - confidence))])


def joint_sign_flip_p(values: Tensor) -> float:
    """Return p of all means being 0 at once, one for each kind: flips that make any as large as the largest is.

    If there is no effect, a unit's values are as likely to be negative as positive.

    values: [kind, unit]; a unit's sign is flipped for all kinds together, and means are in standard deviations.
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
    """Say which of many tests are significant at this false discovery rate, by Benjamini and Hochberg."""
    order = sorted(range(len(p)), key=p.__getitem__)
    passed = [rank for rank, test in enumerate(order, 1) if p[test] <= rate * rank / len(p)]
    significant = set(order[: max(passed, default=0)])
    return [test in significant for test in range(len(p))]
