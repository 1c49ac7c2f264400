"""Scores of every example, not only their mean: in blocks of examples that are read one after the other.

All examples times all edges are too many numbers for a memory (10,000 examples of SmolLM2: 4.9 GB). With a store each
block is an entry of its own, written as soon as it is there: an interrupted run resumes, and readers hold one block at
a time. Without a store they are kept in memory, if the budget allows it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.compute import Compute, current_compute, format_bytes
from gatewise.engine.runs.activations import Ablation
from gatewise.engine.runs.memory import give_back
from gatewise.engine.setting import AnyMetric, Batch, Data, Setting
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.methods.base import Method, Problem, SearchDirection
from gatewise.methods.exact import Exact
from gatewise.methods.provenance import Clock, ingredients, provenance, storable
from gatewise.methods.registry import find_method
from gatewise.methods.scores import Scores
from gatewise.methods.searching import check_problem
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.store.results import ARRAY, Store
from gatewise.tasks.pairs import Pairs
from gatewise.workers import WorkerPool, threads

_BLOCK_BYTES = 64 << 20  # of scores that are written and read at a time
_Block = tuple[tuple[int, int], ...]  # first and end of each of its batches


@dataclass(frozen=True, eq=False)
class ExampleScores:
    """Scores of all edges on each example. Their mean over examples is what `score_edges` gives.

    Attributes:
        graph: The graph of the model.
        pairs: The examples.
        provenance: Where the scores came from, as plain data.
    """

    graph: Graph
    pairs: Pairs
    provenance: Mapping[str, Any]
    _rows: Sequence[slice] = field(repr=False)
    _arrays: Sequence[Tensor] = field(default=(), repr=False)  # in memory, or else below
    _store: Store | None = field(default=None, repr=False)
    _keys: Sequence[str] = field(default=(), repr=False)

    def __len__(self) -> int:
        """How many examples."""
        return len(self.pairs)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Read the scores, some examples at a time.

        Yields:
            Which examples, and their scores. [example, edge]
        """
        for index, rows in enumerate(self._rows):
            if self._store is None:
                yield rows, self._arrays[index]
                continue
            array = self._store.get(self._keys[index], ARRAY)
            if array is None:
                raise GatewiseError(
                    f"scores of examples {rows.start} to {rows.stop - 1} are no longer in {self._store.shown}; call "
                    f"score_examples again."
                )
            yield rows, array

    def combine(self, weights: Tensor) -> Tensor:
        """Sum scores over examples with weights, as for means over resamples.

        Args:
            weights: Of each example in each sum. [sum, example]

        Returns:
            In float64. [sum, edge]
        """
        total = torch.zeros(len(weights), self.graph.n_edges, dtype=torch.float64)
        for rows, array in self.blocks():
            # In float32 products are twice as fast; a block is small enough for their sums.
            total += weights[:, rows].to(array.dtype) @ array
        return total

    def mean(self) -> Scores:
        """Average over examples.

        Returns:
            What `score_edges` gives.
        """
        total = torch.zeros(self.graph.n_edges, dtype=torch.float64)
        for _, array in self.blocks():
            total += array.sum(dim=0, dtype=torch.float64)
        return Scores(self.graph, (total / len(self)).float(), self.provenance)

    def of_edges(self, edges: Sequence[int]) -> Tensor:
        """Read the scores of some edges on all examples.

        Args:
            edges: Indices in `graph.edges`.

        Returns:
            [example, edge]
        """
        chosen = torch.as_tensor(edges, dtype=torch.long)
        return torch.cat([array[:, chosen] for _, array in self.blocks()])

    def __repr__(self) -> str:
        made = f"{self.provenance.get('method')} {self.provenance.get('direction')}"
        where = "in memory" if self._store is None else f"in {self._store.shown}"
        return f"<ExampleScores by {made}: {len(self):,} examples of {self.graph.n_edges:,} edges, {where}>"


def score_examples(
    model: Model,
    data: Data,
    method: str | Method = "eap",
    direction: SearchDirection = "ns",
    *,
    seed: int = 0,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> ExampleScores:
    """Score every edge on each example alone.

    Args:
        model: As for `discover`.
        data: As for `discover`.
        method: `eap`, `eap-ig`, `exact` (exact effects: one partial run per edge), or a method of your own that scores
            examples.
        direction: As for `discover`.
        seed: As for `discover`.
        ablation: As for `discover`.
        metric: As for `discover`.
        compute: As for `discover`. Give a store for many examples: scores are then written there block by block.

    Returns:
        Scores of all examples, read block by block; their mean is what `score_edges` gives.

    Raises:
        GatewiseError: The method does not score examples, or without a store the scores are more than the memory.
    """
    setting = Setting.of(model, data, "train", ablation=ablation, metric=metric, seed=seed, compute=compute)
    problem = Problem(setting, (direction,), {direction: (setting.graph.n_edges,)}, seed=seed)
    bound = Exact() if method == "exact" else find_method(method)
    if not bound.scores_examples:
        raise GatewiseError(
            f"{bound.name} does not score single examples: it searches on all of them at once. Use 'eap', 'eap-ig' or "
            f"'exact'."
        )
    check_problem(problem, bound)
    compute = current_compute(compute)
    store, workers = compute.open_store(), compute.worker_pool(model.device)
    if store is not None and not storable(problem):
        message = "the metric has no version, so scores are not stored but kept in memory; give a Metric with one."
        warnings.warn(message, GatewiseWarning, stacklevel=2)
        store = None
    _check_memory(setting, store)
    setting.check_finite_outputs()
    with threads(None if workers is None else 1):
        return _score(problem, bound, store, workers)


def _check_memory(setting: Setting, store: Store | None) -> None:
    """Refuse scores that would not fit, before the work."""
    needed = len(setting) * setting.graph.n_edges * 4
    if store is None and needed > setting.memory:
        raise GatewiseError(
            f"scores of {len(setting):,} examples times {setting.graph.n_edges:,} edges take {format_bytes(needed)}, "
            f"more than the memory of {format_bytes(setting.memory)}. Give a store, as in "
            f"compute=Compute(store='runs'), where they are written and read block by block; or use fewer examples."
        )


def _score(problem: Problem, method: Method, store: Store | None, workers: WorkerPool | None) -> ExampleScores:
    clock, (direction,) = Clock(), problem.directions
    blocks = _blocks(problem)
    rows = [slice(block[0][0], block[-1][1]) for block in blocks]
    facts = [_facts(problem, method, part) for part in rows]
    keys = [] if store is None else [store.key(fact, ARRAY) for fact in facts]
    missing = blocks
    if store is not None:
        store.tidy()
        missing = [block for block, key in zip(blocks, keys, strict=True) if store.get(key, ARRAY) is None]
    arrays: dict[int, Tensor] = {}
    pool = WorkerPool() if workers is None else workers
    with progress_bar(f"{method.title} {direction} of each example", len(missing)) as bar:
        for block, array in pool.results(missing, _score_block, (problem, method)):
            index = blocks.index(block)
            if store is None:
                arrays[index] = array
            else:
                store.remember(facts[index], lambda array=array: array, ARRAY)  # type: ignore[misc]
            bar.advance()
    record = provenance(problem, direction, method, clock.times())
    in_memory = [arrays[index] for index in range(len(blocks))] if store is None else []
    return ExampleScores(problem.graph, problem.pairs, record, rows, in_memory, store, keys)


def _facts(problem: Problem, method: Method, rows: slice) -> dict[str, Any]:
    """What determines a block of scores. Sizes do not."""
    return {
        "what": f"scores of examples {rows.start} to {rows.stop - 1} by {method.name}",
        "search": ingredients(problem, method) | {"sizes": "all"},
        "examples": [rows.start, rows.stop],
    }


def _blocks(problem: Problem) -> list[_Block]:
    """Cut the batches into blocks of about `_BLOCK_BYTES` of scores."""
    graph, setting = problem.graph, problem.setting
    # One matrix of scores per example and direction stands beside the gradients: a quarter of the budget is theirs.
    matrices = 4 * len(graph.ports) * len(graph.senders) * (1 + len(problem.single_directions))
    at_once = max(1, setting.memory // 4 // matrices)
    most = max(1, _BLOCK_BYTES // (4 * graph.n_edges))
    blocks: list[list[tuple[int, int]]] = []
    for whole in setting.batches(gradient=True):
        for batch in whole.cut(min(at_once, most)):
            rows = batch.rows
            if not blocks or rows.stop - blocks[-1][0][0] > most:
                blocks.append([])
            blocks[-1].append((rows.start, rows.stop))
    return [tuple(block) for block in blocks]


def _score_block(block: _Block, shared: tuple[Problem, Method]) -> Tensor:
    """Score all edges on the examples of a block. [example, edge]"""
    problem, method = shared
    parts: list[Tensor] = []
    for start, stop in block:
        batch = Batch(start, problem.pairs[start:stop])
        parts += problem.setting.in_fitting_batches(batch, lambda fitting: method.score_batch(problem, fitting))
        give_back()
    return torch.cat(parts)
