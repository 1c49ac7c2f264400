"""The hard-concrete mask (Louizos et al. 2018): a sigmoid with noise, stretched to (LOW, HIGH) and clamped to [0, 1].

It has one parameter for each edge, log alpha, and is exactly 0 or exactly 1 with a probability above 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOW, HIGH, TEMPERATURE = -0.1, 1.1, 2 / 3
_EPSILON = 1e-6  # draws stay this far from 0 and 1, where the logit is infinite


def sample_mask(log_alpha: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mask that a uniform draw gives, and its derivative with respect to log alpha."""
    u = uniform * (1 - 2 * _EPSILON) + _EPSILON
    smooth = torch.sigmoid((torch.logit(u) + log_alpha) / TEMPERATURE)
    stretched = smooth * (HIGH - LOW) + LOW
    slope = (HIGH - LOW) / TEMPERATURE * smooth * (1 - smooth)
    return stretched.clamp(0, 1), slope * ((stretched > 0) & (stretched < 1))


def probability_above(log_alpha: Tensor, value: float) -> Tensor:
    """Return the probability that the mask is larger than a value in [0, 1)."""
    x = (value - LOW) / (HIGH - LOW)
    return torch.sigmoid(log_alpha - TEMPERATURE * math.log(x / (1 - x)))


def expected_mask(log_alpha: Tensor, points: int = 64) -> Tensor:
    """Return the mask's expected value: its probability of lying above v, integrated over v in [0, 1]. In float64.

    Strictly increasing in log alpha, so that it also ranks edges whose masks are all but certain; 0.5 at log alpha 0.
    """
    wide = log_alpha.double()
    total = torch.zeros_like(wide)
    for i in range(points):
        total += probability_above(wide, (i + 0.5) / points)
    return total / points
