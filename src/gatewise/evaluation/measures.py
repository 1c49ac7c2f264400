"""What is measured on logits at the last position: divergences, and means with their standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def log_probabilities(logits: Tensor) -> Tensor:
    """In float64 where the device has it: divergences near 0 are differences of nearly equal numbers."""
    return logits.to(torch.float32 if logits.device.type == "mps" else torch.float64).log_softmax(dim=-1)


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) over the whole vocabulary, from log-probabilities. [..., example]"""
    return (p.exp() * (p - q)).sum(dim=-1).clamp(min=0)


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
