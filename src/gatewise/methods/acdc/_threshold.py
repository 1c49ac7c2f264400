"""Which tau of ACDC keeps a number of edges: a search over searches.

A high tau keeps few edges, which is soon found; so taus go from high to low, along the line that log count against log
tau roughly is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from gatewise.methods.acdc._checkpoint import Outcome

_NEARLY_THE_SAME = 1.02  # as a ratio of taus
_TYPICAL_POWER = 1.3  # of 1 / edges kept with which tau falls, about


def nearest_outcome(
    size: int,
    outcomes: Mapping[float, Outcome],
    search: Callable[[float], object],
    *,
    tolerance: float,
    max_thresholds: int,
) -> Outcome:
    """Find an outcome that keeps at least `size` edges, and hardly more if the allowed number of searches finds one.

    outcomes: by tau, at least one; `search` adds to them.
    """
    for _ in range(max_thresholds):
        counts = {threshold: outcome.edges for threshold, outcome in outcomes.items()}
        near = any(size <= count <= size * (1 + tolerance) for count in counts.values())
        if near or _leaps(counts, size):
            break
        search(next_threshold(counts, size * (1 + tolerance / 2)))
    large = [outcome for outcome in outcomes.values() if outcome.edges >= size]
    if not large:  # even tiny thresholds keep too few: the rest is chosen by effect
        return max(outcomes.values(), key=lambda outcome: outcome.edges)
    return min(large, key=lambda outcome: outcome.edges)


def _leaps(counts: Mapping[float, int], size: int) -> bool:
    """True if the number of edges leaps over the size between two taus that are nearly the same."""
    low = max((threshold for threshold, count in counts.items() if count >= size), default=math.inf)
    high = min((threshold for threshold, count in counts.items() if count < size and threshold > low), default=math.inf)
    return high < low * _NEARLY_THE_SAME


def next_threshold(counts: dict[float, int], wanted: float) -> float:
    """Guess the tau that keeps `wanted` edges: log count against log tau is roughly a falling line."""
    above = [threshold for threshold, count in counts.items() if count >= wanted]
    below = [threshold for threshold, count in counts.items() if count < wanted]
    if not above or not below:
        nearest, *further = sorted(above, reverse=True) if above else sorted(below)
        power = _falling(counts, nearest, further[0]) if further else _TYPICAL_POWER
        factor = math.pow(max(counts[nearest], 1) / wanted, power)
        # At least by half, so that the search moves on; at most thirtyfold, since the line is only roughly one.
        return nearest * (min(max(factor, 1.5), 30.0) if above else max(min(factor, 1 / 1.5), 1 / 30))
    low = max(above)
    high = min((threshold for threshold in below if threshold > low), default=4 * low)
    at_low, at_high = math.log(counts[low]), math.log(max(counts.get(high, 1), 0.5))
    share = (at_low - math.log(wanted)) / (at_low - at_high) if at_low > at_high else 0.5
    return low * math.pow(high / low, min(max(share, 0.1), 0.9))


def _falling(counts: dict[float, int], nearest: float, further: float) -> float:
    """Estimate the power of 1 / edges kept with which tau falls, by two thresholds on one side of what is wanted."""
    grown = math.log(max(counts[nearest], 1) / max(counts[further], 1))
    return min(max(math.log(further / nearest) / grown if grown else math.inf, 0.5), 5.0)
