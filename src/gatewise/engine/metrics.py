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

from gatewise.devices import widened
from gatewise.errors import GatewiseError
from gatewise.models.components import softcapped
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

MetricFunction = Callable[[Tensor, Pairs], Tensor]  # logits [..., example, vocabulary], pairs -> [..., example]
Distance = Callable[[Tensor], Tensor]  # logits [..., example, vocabulary] -> [..., example]
_LOGITS = 1 << 22  # how many at a time


@dataclass(frozen=True)
class Metric:
    """A number per example, high where the model does the task.

    A bare function is a metric too, but what is found with it is not stored.

    Args:
        name: Part of the key under which results are stored.
        function: From logits at the last position [..., example, vocabulary] and pairs, whose tensors are on the same
            device, to a number per example [..., example]; None for KL, a distance without a value of its own.
        version: Part of the key as well: raise it when the meaning changes. None if it is unknown, so that results are
            not stored.
    """

    name: str
    function: MetricFunction | None
    version: str | None = "1"

    def value(self, logits: Tensor, pairs: Pairs) -> Tensor:
        """Compute the metric of every example.

        Args:
            logits: At the last position. [..., example, vocabulary]
            pairs: What the logits are about; the function gets them on the logits' device.

        Returns:
            The metric. [..., example]

        Raises:
            GatewiseError: KL has no value for one run, or the function gave another shape.
        """
        if self.function is None:
            raise GatewiseError(
                "KL is a distance between two runs; one run has none. Use the logit difference, or another metric."
            )
        values = self.function(logits, pairs.to(logits.device))
        if values.shape != logits.shape[:-1]:
            raise GatewiseError(
                f"the metric {self.name!r} gave a tensor of shape {tuple(values.shape)} for logits of shape "
                f"{tuple(logits.shape)}; expected one number per example, {tuple(logits.shape[:-1])}."
            )
        return values

    def distance(self, reference: Tensor, pairs: Pairs) -> Distance:
        """Make the function that says how far logits are from the reference's.

        Args:
            reference: Logits of the reference run. [example, vocabulary]
            pairs: What they are about.

        Returns:
            A differentiable function from logits [..., example, vocabulary] to distances [..., example].
        """
        if self.function is None:
            return partial(_kl, reference.float().log_softmax(dim=-1))
        value = self.value(reference, pairs)
        return lambda logits: (self.value(logits, pairs) - value).abs()

    def record(self) -> dict[str, Any]:
        """Describe the metric for provenance and keys.

        Returns:
            Its name and version.
        """
        return {"name": self.name, "version": self.version}


def _kl(log_p: Tensor, logits: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - logits.float().log_softmax(dim=-1))).sum(dim=-1)


def _logit_diff(logits: Tensor, pairs: Pairs) -> Tensor:  # no lambda: settings, and metrics with them, are pickled
    return pairs.logit_diff(logits)


KL = Metric("kl", None)
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


def unembedded_in_parts(model: Model, residual: Tensor, measure: Distance) -> Tensor:
    """Measure the logits, in float64, of last residuals, so many at a time that they fit. [..., example, d] ->
    [..., example]"""
    flat = residual.reshape(-1, *residual.shape[-2:])
    size = max(1, _LOGITS // (flat.shape[1] * model.vocabulary_size))
    values = [widened(measure(widened(model.unembed(part)))) for part in flat.split(size)]
    return torch.cat(values).reshape(residual.shape[:-1])


class Deviation:
    """Distances of last residuals from the reference by any metric: the slower, exact twin of `Divergence`."""

    screens = False

    def __init__(self, model: Model, reference_logits: Tensor, pairs: Pairs, metric: Metric) -> None:
        self.model = model
        self._distance = metric.distance(widened(reference_logits), pairs)

    def restart(self, residuals: int) -> None:
        """Nothing is learnt from residuals, so nothing has to be forgotten."""

    def exact(self, residual: Tensor) -> Tensor:
        """The distance of last residuals [..., example, d] -> [..., example], in float64."""
        return unembedded_in_parts(self.model, residual, self._distance)

    def estimate(
        self, residual: Tensor, wanted: float, basis: object = None, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The exact distances, and bounds of 0 on their error. [row, example] each"""
        distances = self.exact(residual)
        return distances, torch.zeros_like(distances)


def residual_values(model: Model, pairs: Pairs, metric: Metric = LOGIT_DIFF) -> Callable[[Tensor], Tensor]:
    """A function from last residuals [..., example, d] to the metric [..., example] in float64.

    Only the answers are unembedded where that is enough: for logit differences of logits.
    """
    if metric != LOGIT_DIFF or pairs.difference == "probability":
        return lambda residual: widened(metric.value(model.unembed(residual), pairs))
    answers = torch.unique(torch.cat([pairs.correct.flatten(), pairs.incorrect.flatten()]))
    answers = answers[answers >= 0]  # pairs with fewer answers than others are filled up with -1
    correct, incorrect = (
        torch.where(tokens >= 0, torch.searchsorted(answers, tokens), tokens)
        for tokens in (pairs.correct, pairs.incorrect)
    )
    among = replace(pairs, correct=correct, incorrect=incorrect)
    rows = model.head[answers.to(model.device)]

    def values(residual: Tensor) -> Tensor:
        logits = softcapped(linear(model.final_norm(residual), rows), model.softcap)
        return widened(metric.value(logits, among))

    return values
