"""Metrics as values: what a search keeps unchanged, and what effects and evaluations are measured in.

A metric gives a number per example from the logits at the last position. A search asks how far a circuit's metric is
from the reference's; for KL that distance is all there is, for the others it is |metric - the reference's metric|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from gatewise.errors import GatewiseError
from gatewise.models.components import softcapped
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

MetricFunction = Callable[[Tensor, Pairs], Tensor]  # logits [..., example, vocabulary], pairs -> [..., example]
Distance = Callable[[Tensor], Tensor]  # logits [..., example, vocabulary] -> [..., example]
_LOGITS = 1 << 25  # how many at a time


@dataclass(frozen=True)
class Metric:
    """A number per example, high where the model does the task.

    Give your own a name, and a version that you raise when its meaning changes: both are part of the key under which
    results are stored. A bare function is a metric too, but what is found with it is not stored.
    """

    name: str
    function: MetricFunction | None  # None: KL, a distance without a value of its own
    version: str | None = "1"  # None: unknown, so that results are not stored

    def value(self, logits: Tensor, pairs: Pairs) -> Tensor:
        """The metric of every example. [..., example]"""
        if self.function is None:
            raise GatewiseError(
                "KL is a distance between two runs; one run has none. Use the logit difference, or another metric."
            )
        found = self.function(logits, pairs)
        if found.shape != logits.shape[:-1]:
            raise GatewiseError(
                f"the metric {self.name!r} gave a tensor of shape {tuple(found.shape)} for logits of shape "
                f"{tuple(logits.shape)}; expected one number per example, {tuple(logits.shape[:-1])}."
            )
        return found

    def distance(self, reference: Tensor, pairs: Pairs) -> Distance:
        """How far logits are from the reference's [example, vocabulary]; differentiable."""
        if self.function is None:
            return partial(_kl, reference.float().log_softmax(dim=-1))
        value = self.value(reference, pairs)
        return lambda logits: (self.value(logits, pairs) - value).abs()

    def record(self) -> dict[str, Any]:
        """For provenance and keys."""
        return {"name": self.name, "version": self.version}


def _kl(log_p: Tensor, logits: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - logits.float().log_softmax(dim=-1))).sum(dim=-1)


KL = Metric("kl", None)


def _logit_diff(logits: Tensor, pairs: Pairs) -> Tensor:
    return pairs.logit_diff(logits)


LOGIT_DIFF = Metric("logit_diff", _logit_diff)
_NAMED = {metric.name: metric for metric in (LOGIT_DIFF, KL)}


def metric_of(given: str | Metric | MetricFunction | None) -> Metric | None:
    """A metric by name, as it is, or around a function; None stays None: whatever the method takes by itself."""
    if given is None or isinstance(given, Metric):
        return given
    if callable(given):
        return Metric(getattr(given, "__name__", "function"), given, version=None)
    if given not in _NAMED:
        raise GatewiseError(
            f"metric is one of {', '.join(map(repr, _NAMED))}, a function of logits and pairs, or an engine.Metric; "
            f"got {given!r}."
        )
    return _NAMED[given]


class Deviation:
    """Distances of last residuals from the reference by any metric: the slower, exact twin of `Divergence`."""

    screens = False

    def __init__(self, model: Model, reference_logits: Tensor, pairs: Pairs, metric: Metric) -> None:
        self.model = model
        self._distance = metric.distance(reference_logits.double(), pairs)

    def restart(self, residuals: int) -> None:
        """Nothing is learnt from residuals, so nothing has to be forgotten."""

    def exact(self, residual: Tensor) -> Tensor:
        """The distance of last residuals [..., example, d] -> [..., example], in float64."""
        flat = residual.reshape(-1, *residual.shape[-2:])
        size = max(1, _LOGITS // (flat.shape[1] * self.model.vocabulary_size))
        found = [self._distance(self.model.unembed(part).double()).double() for part in flat.split(size)]
        return torch.cat(found).reshape(residual.shape[:-1])

    def estimate(
        self, residual: Tensor, wanted: float, span: object = None, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The exact distances, and bounds of 0 on their error. [row, example] each"""
        found = self.exact(residual)
        return found, torch.zeros_like(found)


def residual_values(model: Model, pairs: Pairs, metric: Metric = LOGIT_DIFF) -> Callable[[Tensor], Tensor]:
    """A function from last residuals [..., example, d] to the metric [..., example] in float64.

    Only the answers are unembedded where that is enough: for logit differences of logits.
    """
    if metric != LOGIT_DIFF or pairs.difference == "probability":
        return lambda residual: metric.value(model.unembed(residual), pairs).double()
    words = torch.unique(torch.cat([pairs.correct.flatten(), pairs.incorrect.flatten()]))
    words = words[words >= 0]
    place = torch.full((model.vocabulary_size,), -1)
    place[words] = torch.arange(len(words))
    among = replace(
        pairs,
        correct=torch.where(pairs.correct >= 0, place[pairs.correct], pairs.correct),
        incorrect=torch.where(pairs.incorrect >= 0, place[pairs.incorrect], pairs.incorrect),
    )
    rows = model.head[words.to(model.device)]

    def values(residual: Tensor) -> Tensor:
        logits = softcapped(linear(model.final_norm(residual), rows), model.softcap)
        return metric.value(logits, among).double()

    return values
