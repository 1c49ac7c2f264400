"""`Setting`: a model and pairs, checked once, with the batches and both runs that engines work on made once.

Public calls take `(model, pairs)` or a setting in their place; everything below them takes a setting. What removed
edges carry (the ablation) and what is measured (the metric) belong to it, since they decide what is run and compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.compute import Compute, current_compute, memory_budget
from gatewise.devices import halvings, is_accelerator, is_out_of_memory, release_cached_memory
from gatewise.engine.metrics import LOGIT_DIFF, Metric, MetricFunction, metric_of
from gatewise.engine.runs.activations import (
    Ablation,
    BothRuns,
    Direction,
    Intervention,
    Moments,
    ablated_runs,
    both_runs,
    clean_moments,
    lay_out,
    plain_run,
)
from gatewise.engine.runs.batches import ROW_BYTES, batches, bytes_needed, window_of
from gatewise.engine.runs.memory import map_large_blocks
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.limits import check_seed
from gatewise.models.components import is_cut_up
from gatewise.models.logit_check import check_prompts
from gatewise.models.model import Model
from gatewise.tasks import Task
from gatewise.tasks.encoding import tokenizer_fingerprint
from gatewise.tasks.pairs import Pairs

Memory: TypeAlias = "int | str | None"
AnyMetric: TypeAlias = "str | Metric | MetricFunction | None"
Outcome = TypeVar("Outcome")
Half = Literal["train", "test"]
SideName = Literal["clean", "corrupted"]
SIDES: tuple[SideName, SideName] = ("clean", "corrupted")


class Batch(NamedTuple):
    """Pairs that are run together."""

    first: int  # index of the first example
    pairs: Pairs

    @property
    def rows(self) -> slice:
        """The examples of the batch among all."""
        return slice(self.first, self.first + len(self.pairs))

    def cut(self, size: int) -> list[Batch]:
        """The same examples in batches of at most so many."""
        starts = range(0, len(self.pairs), size)
        return [Batch(self.first + start, self.pairs[start : start + size]) for start in starts]


class Setting:
    """What a search, an evaluation or a test is about: a model on pairs, and what removed edges carry there.

    Args:
        model: The model.
        pairs: Clean and corrupted prompts, and their answers.
        ablation: What removed edges carry: `patching` (outputs of the other run), or `zero`, `mean` or `noise`, which
            have one direction only, noising.
        metric: What is measured; None for what each method or measure takes by itself.
        seed: Of noise ablation.
        memory: Bytes of activations at a time, or text such as '8GB'; runs are kept for later calls while they fit it.

    Raises:
        GatewiseError: The pairs are not this model's, or an option is unknown.
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
        self.model, self.pairs = model, pairs
        self.ablation, self.metric, self.seed = ablation, metric_of(metric), seed
        check_seed(seed)
        self.check_direction("ns")
        _check_pairs(model, pairs)
        self.memory, self._asked_memory = memory_budget(memory, model.device), memory
        self.memory_from_device = memory is None and is_accelerator(model.device)  # the budget is what was free
        if self.has_budget and model.device.type == "cpu" and is_cut_up(pairs.width):
            map_large_blocks()
        self._batches: dict[bool, list[Batch]] = {}  # by whether a gradient is taken
        self._runs: dict[tuple[int, int], BothRuns] = {}
        self._bytes_of_runs = 0  # bytes of these runs

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

        Raises:
            GatewiseError: The setting is of another model or was given options that it has, or a task is ambiguous.
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
        memory = current_compute(compute).memory
        return cls(model, data, ablation=ablation or "patching", metric=metric, seed=seed, memory=memory)

    def __reduce__(self) -> tuple[Any, ...]:
        """For workers: what it is about, without the runs, which are large and quick to make again."""
        return _made_again, (self.model, self.pairs, self._choices, self.memory_from_device)

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
        """Make the same setting on other pairs.

        Args:
            pairs: Of the same model.

        Returns:
            A setting with the same ablation, metric, seed and memory.
        """
        return _made_again(self.model, pairs, self._choices, self.memory_from_device)

    @property
    def _choices(self) -> dict[str, Any]:
        memory = self.memory if self.memory_from_device else self._asked_memory  # measured once, for workers too
        return {"ablation": self.ablation, "metric": self.metric, "seed": self.seed, "memory": memory}

    @property
    def value(self) -> Metric:
        """The metric that has a value for every run: the chosen one, or the pairs' logit difference."""
        return LOGIT_DIFF if self.metric is None or self.metric.function is None else self.metric

    def batches(self, *, gradient: bool = False) -> list[Batch]:
        """Cut the pairs into batches of consecutive examples that fit the memory.

        Args:
            gradient: Whether gradients are taken, for which activations are kept.

        Returns:
            The batches, the same at every call.
        """
        if gradient not in self._batches:
            parts = batches(self.model, self.pairs, self.memory, gradient=gradient, share_prefix=self._shares_prefix)
            self._batches[gradient] = [Batch(*part) for part in parts]
        return self._batches[gradient]

    @property
    def _shares_prefix(self) -> bool:
        # A constant or a draw differs from the clean outputs at all columns, so only patching has a shared prefix.
        return self.ablation == "patching"

    @property
    def has_budget(self) -> bool:
        """Whether a memory budget was given: what cannot be cut into batches is then refused beyond it."""
        return self._asked_memory is not None and not self.memory_from_device

    def needed_bytes(self, examples: int, *, gradient: bool = False, states: int = 0) -> int:
        """Estimate what working on so many examples at once takes.

        Args:
            examples: Number of examples.
            gradient: Whether gradients are taken.
            states: In how many directions the incremental engine keeps the state of every node.

        Returns:
            Bytes, runs and buffers together.
        """
        width = self.pairs.width
        window = window_of(self.pairs) if self._shares_prefix else width
        return bytes_needed(self.model, examples, window, width, gradient=gradient, states=states)

    @property
    def row_bytes(self) -> int:
        """What the rows of one proposal of the incremental engine may take: the usual, or a quarter of the budget."""
        return min(ROW_BYTES, self.memory // 4)

    def runs(self, batch: Batch, *, keep: bool = True) -> BothRuns:
        """Run both sides of a batch once.

        Args:
            batch: One of `batches()`, or any other.
            keep: Whether to keep the runs for the next time, while the memory allows it.

        Returns:
            The runs of the clean and the corrupted side, or of what the ablation puts in its place.
        """
        key = (batch.first, len(batch.pairs))
        if key in self._runs:
            return self._runs[key]
        runs = self._run(batch)
        size = sum(run.outputs.nbytes + run.logits.nbytes for run in (runs.clean, runs.corrupted))
        # Those of all pairs are part of what is worked on; beside others, the work on a whole batch has to fit.
        beside = 0 if len(batch.pairs) == len(self) else self.needed_bytes(len(self.batches()[0].pairs))
        if keep and self._bytes_of_runs + size + beside <= self.memory:
            self._bytes_of_runs += size
            self._runs[key] = runs
        return runs

    def _run(self, batch: Batch) -> BothRuns:
        if self.ablation == "patching":
            return both_runs(self.model, batch.pairs)
        moments = None if self.ablation == "zero" else self._moments
        return ablated_runs(
            self.model, batch.pairs, self.ablation, seed=self.seed, first_example=batch.first, moments=moments
        )

    @cached_property
    def _moments(self) -> Moments:
        """Of all pairs, whatever batch is asked about."""
        return clean_moments(self.model, [batch.pairs for batch in self.batches()])

    def intervention(self, batch: Batch, direction: Direction = "ns", *, keep: bool = True) -> Intervention:
        """Prepare what an engine needs to run circuits on a batch.

        Args:
            batch: One of `batches()`, or any other.
            direction: `ns` (noising) or `dn` (denoising).
            keep: Whether to keep the runs for the next time, while the memory allows it.

        Returns:
            The reference side's input, and what removed edges carry.
        """
        self.check_direction(direction)
        return self.runs(batch, keep=keep).intervention(self.model, direction)

    def check_direction(self, direction: str) -> None:
        """Refuse a direction that the ablation does not have.

        Args:
            direction: `ns` or `dn`.

        Raises:
            GatewiseError: There is no such direction.
        """
        if direction not in ("ns", "dn"):
            raise GatewiseError(f"direction is 'ns' (noising) or 'dn' (denoising), got {direction!r}.")
        if self.ablation not in ("patching", "zero", "mean", "noise"):
            raise GatewiseError(f"ablation is 'patching', 'zero', 'mean' or 'noise', got {self.ablation!r}.")
        if direction == "dn" and self.ablation != "patching":
            raise GatewiseError(
                f"direction 'dn' with {self.ablation} ablation: denoising starts from a corrupted run, and "
                f"{self.ablation} ablation has none. Use ablation='patching', or direction='ns'."
            )

    def check_circuits(self, circuits: Sequence[Circuit]) -> None:
        """Refuse circuits of another graph.

        Args:
            circuits: What is to be run.

        Raises:
            GatewiseError: One of them is of another graph.
        """
        for circuit in circuits:
            if circuit.graph != self.graph:
                raise GatewiseError(
                    f"the circuit belongs to {circuit.graph!r}, but {self.model.name} has {self.graph!r}. "
                    f"Load the model it was found in, with the same `qkv`."
                )

    def check_finite_outputs(self) -> None:
        """Refuse weights and outputs that are not finite, before a search; looked at once.

        Raises:
            GatewiseError: A weight or a logit is NaN or infinite.
        """
        self.model.check_finite()
        assert self._outputs_finite

    @cached_property
    def _outputs_finite(self) -> bool:
        first = Setting(self.model, self.pairs[:1])
        finite = torch.stack([torch.isfinite(first.last_logits(side)).all() for side in SIDES]).tolist()
        for side, is_finite in zip(SIDES, finite, strict=True):
            if not is_finite:
                raise GatewiseError(
                    f"{self.model.name} gives NaN or infinite logits on the {side} side; try dtype='float32'."
                )
        return True

    def with_less_memory(self) -> Setting:
        """Make the same setting with half of the memory budget.

        Returns:
            A setting whose batches have about half as many examples.
        """
        choices = {**self._choices, "memory": self.memory // 2}
        return _made_again(self.model, self.pairs, choices, self.memory_from_device)

    def in_fitting_batches(self, batch: Batch, work: Callable[[Batch], Outcome]) -> list[Outcome]:
        """Work on a batch, or on ever smaller parts of it where an accelerator's memory does not hold it.

        Args:
            batch: One of `batches()`.
            work: Called with a batch; what it gives is summed or joined by the caller.

        Returns:
            What `work` gave, in the order of the examples: one outcome, unless the memory was full.

        Raises:
            GatewiseError: One example alone does not fit.
        """
        left = batch.cut(-(-len(batch.pairs) >> halvings()) or 1)[::-1]
        outcomes = []
        while left:
            part = left.pop()
            try:
                outcomes.append(work(part))
                continue
            except RuntimeError as error:
                if not is_accelerator(self.model.device) or not is_out_of_memory(error):
                    raise
            # Only here, where the error is gone, is what its frames held free again.
            self.make_room(len(part.pairs))
            left += part.cut(-(-len(part.pairs) // 2))[::-1]
        return outcomes

    def make_room(self, examples: int) -> None:
        """Let go of what is kept on a full device, and tell the user.

        Args:
            examples: So many at a time did not fit.

        Raises:
            GatewiseError: It was one example.
        """
        device = self.model.device
        self._runs.clear()
        self._bytes_of_runs = self.memory  # as many as the budget allows: no more are kept
        release_cached_memory(device)
        if examples == 1:
            raise GatewiseError(
                f"{device} ran out of memory with one example of {self.pairs.width} tokens. Shorten the prompts, use "
                f"dtype='bfloat16', or another device."
            )
        warnings.warn(
            f"{device} ran out of memory with {examples} examples at a time; going on with half as many. Give memory= "
            f"(--memory) to choose a budget.",
            GatewiseWarning,
            stacklevel=3,
        )

    def last_logits(self, side: SideName = "clean") -> Tensor:
        """Run the whole model on one side.

        Args:
            side: `clean` or `corrupted`.

        Returns:
            Logits at the last position. [example, vocabulary]
        """
        logits = []
        for _, part in batches(self.model, self.pairs, self.memory):
            tokens = part.clean if side == "clean" else part.corrupted
            logits.append(plain_run(self.model, tokens, lay_out(self.model, part, share_prefix=True)).logits)
        return torch.cat(logits)

    def __repr__(self) -> str:
        metric = "" if self.metric is None else f", measured by {self.metric.name}"
        return f"<Setting: {self.model.name} on {len(self)} pairs of {self.pairs.name}, {self.ablation}{metric}>"


def _made_again(model: Model, pairs: Pairs, choices: Mapping[str, Any], memory_from_device: bool) -> Setting:
    """A setting like another; its memory is given as a number even if that was what a device had free."""
    setting = Setting(model, pairs, **choices)
    setting.memory_from_device = memory_from_device
    return setting


def _check_pairs(model: Model, pairs: Pairs) -> None:
    """Refuse pairs whose tokens cannot be this model's."""
    if not isinstance(pairs, Pairs):
        raise GatewiseError(f"expected Pairs, got {pairs!r}. Of a task, pass task.train or task.test.")
    largest = max(int(t.max()) for t in (pairs.clean, pairs.corrupted, pairs.correct, pairs.incorrect))
    if largest >= model.vocabulary_size:
        raise GatewiseError(
            f"the pairs hold token {largest}, but {model.name} has {model.vocabulary_size:,} tokens. They were made "
            f"for another tokenizer; make the task again with this model."
        )
    if pairs.vocabulary and model.tokenizer is not None and pairs.vocabulary != tokenizer_fingerprint(model.tokenizer):
        raise GatewiseError(
            f"the pairs {pairs.name!r} were made with another tokenizer than that of {model.name}, so their token ids "
            f"mean other words there; make the task again with this model."
        )
    limit = getattr(getattr(model.hf, "config", None), "max_position_embeddings", None)
    if limit is not None and pairs.width > limit:
        raise GatewiseError(f"a prompt has {pairs.width} tokens, but {model.name} reads at most {limit}.")
    check_prompts(model, pairs.width)


Data: TypeAlias = Pairs | Task | Setting  # what every public call takes after the model
