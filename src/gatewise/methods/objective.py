"""What a step of a training runs: the distance of a mask's circuit from the reference, and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.forward.masked import MaskedEngine
from gatewise.engine.metrics import KL
from gatewise.engine.runs.activations import Direction, Intervention
from gatewise.engine.setting import Batch, Setting

_ROOM = 256 << 20  # bytes of a step's forward pass that may be kept for its backward pass, at most


class Objective:
    """The distance of a mask's circuit from the reference, and its gradient, on a batch of examples per step, in turn.

    The distance is KL(reference || circuit), or that of the setting's metric. `batch` decides which examples share a
    step; the memory budget only how many are run at a time, so that it does not change the result. What is prepared
    once is kept while it fits the budget, and prepared again beyond it.
    """

    def __init__(self, setting: Setting, directions: Sequence[Direction], batch: int) -> None:
        self.setting, self.model, self.directions = setting, setting.model, directions
        self.steps = step_batches(setting, batch)
        self._metric = setting.metric or KL
        self._prepared: dict[tuple[int, Direction], Intervention] = {}
        largest = max(len(batch.pairs) for batches in self.steps for batch in batches)
        spare = max(0, setting.memory - setting.needed_bytes(largest, gradient=True))
        self._kept_of_step = min(_ROOM, spare)  # bytes of a forward pass that are kept for the way back
        # What is prepared for the one batch there is, is part of what a step takes.
        self.room = spare - self._kept_of_step if self.preparations > 1 else setting.memory

    @property
    def preparations(self) -> int:
        """How many batches are prepared in all directions."""
        return len(self.directions) * sum(len(batches) for batches in self.steps)

    def examples(self, step: int) -> int:
        """Return how many examples a step runs."""
        return sum(len(batch.pairs) for batch in self.steps[step % len(self.steps)])

    def __call__(self, mask: Tensor, step: int) -> tuple[float, Tensor]:
        """Return the distance, averaged over examples and summed over directions, and its gradient.

        Args:
            mask: [edge] for all examples of the step; or [example, edge], whose gradient is 0 where it is 0.
            step: Which step, and so which examples.

        Returns:
            The distance, and its gradient in the mask's shape.
        """
        graph, batches = self.model.graph, self.steps[step % len(self.steps)]
        matrix, first = graph.matrix(mask), batches[0].first
        total, gradient = 0.0, torch.zeros_like(matrix)
        for direction in self.directions:
            for batch in batches:
                start = batch.first - first
                rows = slice(start, start + len(batch.pairs)) if mask.dim() == 2 else ...
                value, into_mask = self.gradient(matrix[rows], batch, direction)
                share = len(batch.pairs) / self.examples(step)
                total += float(value) * share
                gradient[rows] += into_mask.cpu() * share
        return total, graph.vector(gradient)

    def of_each(self, mask: Tensor, step: int) -> tuple[float, Tensor]:
        """Return the distance of one mask, and the gradient of every example's own distance.

        Args:
            mask: For all examples of the step. [edge]
            step: Which step, and so which examples.

        Returns:
            The distance, averaged over examples and summed over directions, and gradients that are 0 where the mask is
            0. [example, edge]
        """
        graph, batches = self.model.graph, self.steps[step % len(self.steps)]
        matrix, first, examples = graph.matrix(mask), batches[0].first, self.examples(step)
        total, gradient = 0.0, mask.new_zeros(examples, len(mask))
        for direction in self.directions:
            for batch in batches:
                value, into_mask = self.gradient_of_each(matrix, batch, direction)
                start = batch.first - first
                total += float(value) / examples
                gradient[start : start + len(batch.pairs)] += graph.vector(into_mask).to(gradient)
        return total, gradient

    def gradient_of_each(self, matrix: Tensor, batch: Batch, direction: Direction) -> tuple[Tensor, Tensor]:
        """Return the summed distance of a batch under one mask, and the gradient of every example's.

        matrix: [port, sender] -> [example, port, sender]
        """
        prepared = self.prepared(batch, direction)
        distance = self._metric.distance(prepared.reference_logits, batch.pairs)
        return self._masked(prepared).gradient(matrix, lambda logits: distance(logits).sum())

    def _masked(self, prepared: Intervention) -> MaskedEngine:
        return MaskedEngine(self.model, prepared, self._kept_of_step)

    def gradient(self, matrix: Tensor, batch: Batch, direction: Direction) -> tuple[Tensor, Tensor]:
        """Return the mean distance of a batch under a mask, and its gradient.

        matrix: [port, sender], or [example, port, sender]
        """
        prepared = self.prepared(batch, direction)
        loss = self._loss(prepared, batch)
        if matrix.dim() == 3:
            return self._masked(prepared).gradient(matrix, loss)
        return DenseEngine(self.model, prepared).gradient(matrix.to(self.model.device), loss)

    def _loss(self, prepared: Intervention, batch: Batch) -> Callable[[Tensor], Tensor]:
        distance = self._metric.distance(prepared.reference_logits, batch.pairs)
        return lambda logits: distance(logits).mean()

    def prepared(self, batch: Batch, direction: Direction) -> Intervention:
        """Return what running masks on a batch needs."""
        key = (batch.first, direction)
        if key in self._prepared:
            return self._prepared[key]
        prepared = self.setting.intervention(batch, direction, keep=False)
        size = bytes_of(prepared)
        if size <= self.room:
            self.room -= size
            self._prepared[key] = prepared
        return prepared


def bytes_of(prepared: Intervention) -> int:
    """Return the memory of what is prepared for a batch."""
    return prepared.other.nbytes + sum(base.nbytes for base in prepared.base) + prepared.reference_logits.nbytes


def step_batches(setting: Setting, batch: int) -> list[list[Batch]]:
    """Cut examples into steps: consecutive slices of at most `batch`, as equal as can be, cut to fit the memory."""
    count = len(setting)
    parts = -(-count // batch)
    steps = []
    for start, end in pairwise(count * i // parts for i in range(parts + 1)):
        cut = setting[start:end].batches(gradient=True)
        steps.append([Batch(start + within.first, within.pairs) for within in cut])
    return steps
