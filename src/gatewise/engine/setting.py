"""`Setting`: a model and pairs, checked once, with the batches and both runs that engines work on made once.

Public calls take `(model, pairs)` or a setting in their place; everything below them takes a setting. What removed
edges carry (the ablation) and what is measured (the metric) belong to it, since they decide what is run and compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.compute import Compute, current_compute, parse_bytes
from gatewise.engine.metrics import LOGIT_DIFF, Metric, MetricFunction, metric_of
from gatewise.engine.runs.activations import (
    Ablation,
    BothRuns,
    Direction,
    Intervention,
    Moments,
    ablated_runs,
    both_runs,
    check_choice,
    check_circuits,
    check_pairs,
    clean_moments,
    lay_out,
    plain_run,
    prefix_of,
)
from gatewise.engine.runs.batches import batches
from gatewise.errors import GatewiseError
from gatewise.models.model import Model
from gatewise.tasks import Task
from gatewise.tasks.pairs import Pairs

Memory: TypeAlias = "int | str | None"
AnyMetric: TypeAlias = "str | Metric | MetricFunction | None"
Half = Literal["train", "test"]
SideName = Literal["clean", "corrupted"]
SIDES: tuple[SideName, SideName] = ("clean", "corrupted")


class Batch(NamedTuple):
    """Pairs that are run together."""

    first: int  # index of the first example
    pairs: Pairs


class Setting:
    """What a search, an evaluation or a test is about: a model on pairs, and what removed edges carry there.

    ablation: `patching` (the other run), or `zero`, `mean` or `noise`, which have one direction only.
    metric: what is measured; None: what each method or measure takes by itself. seed: of noise ablation.
    memory: bytes of activations at a time, or text such as '8GB'; runs are kept for later calls while they fit it.
    """

    def __init__(
        self,
        model: Model,
        pairs: Pairs,
        *,
        ablation: Ablation = "patching",
        metric: AnyMetric = None,
        seed: int = 0,
        memory: Memory = None,
    ) -> None:
        check_choice("ns", ablation)
        if not isinstance(pairs, Pairs):
            raise GatewiseError(f"expected Pairs, got {pairs!r}. Of a task, pass task.train or task.test.")
        check_pairs(model, pairs)
        self.model, self.pairs = model, pairs
        self.ablation, self.metric, self.seed = ablation, metric_of(metric), seed
        self.memory = parse_bytes(memory)
        self._batches: dict[bool, list[Batch]] = {}
        self._runs: dict[tuple[int, int], BothRuns] = {}
        self._room = self.memory

    @classmethod
    def of(
        cls,
        model: Model,
        data: Data,
        half: Half | None = None,
        *,
        ablation: Ablation | None = None,
        metric: AnyMetric = None,
        seed: int = 0,
        compute: Compute | None = None,
    ) -> Setting:
        """Return the setting that was given as data, or make one of pairs or of one half of a task.

        Args:
            model: The model that every public call begins with.
            data: Pairs, a task, or a setting of this model.
            half: Which pairs of a task are meant; None where a task is ambiguous.
            ablation: What removed edges carry; None for patching. Not beside a setting, which has its own.
            metric: What is measured; None for what each method takes by itself. Not beside a setting.
            seed: Of noise ablation.
            compute: The memory budget; a setting has its own.

        Returns:
            A setting, with its pairs checked against the model.
        """
        if isinstance(data, Setting):
            if data.model is not model:
                raise GatewiseError(f"the setting is of {data.model.name}, not of the {model.name} that was given.")
            for name, value in (("ablation", ablation), ("metric", metric)):
                if value is not None:
                    raise GatewiseError(
                        f"a Setting was given and {name}= beside it, which the setting already has. Leave it out, or "
                        f"make another Setting."
                    )
            return data
        if isinstance(data, Task):
            if half is None:
                raise GatewiseError(f"which pairs of {data!r}? Pass its task.train or task.test.")
            data = data.train if half == "train" else data.test
        memory = current_compute(compute).memory_bytes
        return cls(model, data, ablation=ablation or "patching", metric=metric, seed=seed, memory=memory)

    def __reduce__(self) -> tuple[Any, ...]:
        """For workers: what it is about, without the runs."""
        return partial(Setting, **self._choices), (self.model, self.pairs)

    @property
    def graph(self) -> Graph:
        return self.model.graph

    def __len__(self) -> int:
        """How many examples."""
        return len(self.pairs)

    def __getitem__(self, rows: slice) -> Setting:
        """The same for a slice of the examples."""
        return self.with_pairs(self.pairs[rows])

    def with_pairs(self, pairs: Pairs) -> Setting:
        """The same on other pairs."""
        return Setting(self.model, pairs, **self._choices)

    @property
    def _choices(self) -> dict[str, Any]:
        return {"ablation": self.ablation, "metric": self.metric, "seed": self.seed, "memory": self.memory}

    @property
    def value(self) -> Metric:
        """The metric that has a value for every run: the chosen one, or the pairs' logit difference."""
        return LOGIT_DIFF if self.metric is None or self.metric.function is None else self.metric

    def batches(self, *, gradient: bool = False) -> list[Batch]:
        """Consecutive examples that fit the memory together."""
        if gradient not in self._batches:
            shared = self.ablation == "patching"
            parts = batches(self.model, self.pairs, self.memory, gradient=gradient, share_prefix=shared)
            self._batches[gradient] = [Batch(*part) for part in parts]
        return self._batches[gradient]

    def runs(self, batch: Batch, *, keep: bool = True) -> BothRuns:
        """Both sides of a batch, run once; kept for the next time while the memory allows it."""
        key = (batch.first, len(batch.pairs))
        if key in self._runs:
            return self._runs[key]
        found = self._run(batch)
        size = sum(run.outputs.nbytes + run.logits.nbytes for run in (found.clean, found.corrupted))
        if keep and size <= self._room:
            self._room -= size
            self._runs[key] = found
        return found

    def _run(self, batch: Batch) -> BothRuns:
        if self.ablation == "patching":
            return both_runs(self.model, batch.pairs)
        return ablated_runs(
            self.model,
            batch.pairs,
            self.ablation,
            seed=self.seed,
            first_example=batch.first,
            moments=None if self.ablation == "zero" else self._moments,
        )

    @cached_property
    def _moments(self) -> Moments:
        """Of all pairs, whatever batch is asked about."""
        return clean_moments(self.model, [batch.pairs for batch in self.batches()])

    def intervention(self, batch: Batch, direction: Direction = "ns", *, keep: bool = True) -> Intervention:
        """What an engine needs to run circuits on a batch."""
        self.check_direction(direction)
        return self.runs(batch, keep=keep).intervention(self.model, direction)

    def check_direction(self, direction: str) -> None:
        """Refuse a direction that the ablation does not have."""
        check_choice(direction, self.ablation)

    def check_circuits(self, circuits: Sequence[Circuit]) -> None:
        """Refuse circuits of another graph."""
        check_circuits(self.model, circuits)

    def check_sound(self) -> None:
        """Refuse weights and outputs that are not finite, before a search; looked at once."""
        self.model.check_finite()
        assert self._outputs_finite

    @cached_property
    def _outputs_finite(self) -> bool:
        for side in SIDES:
            if not bool(torch.isfinite(Setting(self.model, self.pairs[:1]).last_logits(side)).all()):
                raise GatewiseError(
                    f"{self.model.name} gives NaN or infinite logits on the {side} side; try dtype='float32'."
                )
        return True

    def last_logits(self, side: SideName = "clean") -> Tensor:
        """Logits of the whole model at the last position of one side. [example, vocabulary]"""
        found = []
        for _, part in batches(self.model, self.pairs, self.memory):
            layout = lay_out(self.model, part, share_prefix=True)
            tokens = part.clean if side == "clean" else part.corrupted
            found.append(plain_run(self.model, tokens, layout, prefix_of(self.model, tokens, layout)).logits)
        return torch.cat(found)

    def __repr__(self) -> str:
        metric = "" if self.metric is None else f", measured by {self.metric.name}"
        return f"<Setting: {self.model.name} on {len(self)} pairs of {self.pairs.name}, {self.ablation}{metric}>"


Data: TypeAlias = Pairs | Task | Setting  # what every public call takes after the model
