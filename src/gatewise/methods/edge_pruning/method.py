"""`EdgePruning`: train a mask between 0 and 1 on every edge, so that few edges stay and the output changes little.

Every edge's mask follows a hard-concrete distribution with one parameter, log alpha. A step draws one mask for all
examples, or one for each, runs it, and descends

    KL(reference || circuit) + lambda1 g + lambda2 g^2               (a number of edges is asked for)
    KL(reference || circuit) + penalty * expected number of edges    (a threshold is asked for)

where g is the gap between the expected number of edges and a target that falls from all edges to the asked number, and
the lambdas ascend from 0. As published, the gap is one of sparsities, target - expected, and moves linearly; by default
it is log(expected / target), and the target falls geometrically, so that the lambdas mean the same (nats for the whole
circuit) in graphs of any size. An edge's score is the expected value of its mask. The other run is computed once per
example, not per step.

A mask for each example has less noise than one for all, so that a step does with half of the examples. Most masks are
exactly 0 before long, and a step runs what is open (engine/forward/masked.py): the last steps cost a fraction of the
first. One mask for all (`draw="one"`, as published) is run by the dense engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.selection import select_edges
from gatewise.engine.runs.activations import Direction
from gatewise.engine.runs.counting import GRAIN, Counter
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.methods.base import Finding, Method, Problem, SearchDirection, Work, kl_of_share, single_directions_of
from gatewise.methods.edge_pruning.hard_concrete import expected_mask
from gatewise.methods.edge_pruning.training import Goal, Training, open_edges, train
from gatewise.methods.objective import Objective, bytes_of
from gatewise.progress import progress_bar

_MOST_PER_STEP = 32  # examples of a step, by default
_COUNTED = 8  # steps that a forecast counts
_UNSETTLED = 0.25  # deviation of the expected number of edges from the asked one, from which on it is warned of


class Optimiser(NamedTuple):
    """Settings of AdamW that go with a schedule."""

    multiplier_rate: float  # learning rate of the lambdas
    beta2: float  # how long Adam remembers squared gradients
    weight_decay: float


_OPTIMISERS = {"geometric": Optimiser(0.2, 0.95, 0.0), "linear": Optimiser(0.8, 0.999, 0.01)}


@dataclass(frozen=True)
class Series:
    """Trainings of one objective, from the largest size to the smallest, each starting from the one before."""

    directions: tuple[Direction, ...]
    sizes: tuple[int | None, ...]  # None: a threshold, or all edges: no sparsity is asked for, the penalty has to rank


Trainings = dict[tuple[Series, int | None], Training]


@dataclass(frozen=True)
class EdgePruning(Method):
    """Edge Pruning: training of a hard-concrete mask on every edge.

    The defaults need a tenth of the published steps: see bench/edge_pruning_settings.py.

    Args:
        steps: Steps of a training.
        ramp: Share of the steps over which the target falls from all edges to the asked number.
        schedule: How the target falls: "geometric", or "linear", which is the published one with its optimiser.
        rate: Learning rate of log alpha.
        warm_up: Share of the steps, at first, over which the rates rise linearly from 0.
        cool_down: Share of the steps, at last, over which they fall linearly to 0.
        start: Mean of log alpha at first.
        penalty: Sparsity penalty in nats per edge, if a threshold is asked for: like ACDC's tau, an edge stays if it
            is worth more KL than that.
        batch: Examples per step, in turn; by default half of them, and at most 32, or 32 with one mask.
        draw: A mask for "each" example of a step, or "one" for all.
        patience: Steps after the ramp whose halves are compared, to stop early; 0: never.
        combine: For ns+dn: the "mean" of two trainings, or a "joint" training on the sum of both losses.
        rank_all: Rank edges for all sizes by one training, at the smallest size.
    """

    name = "edge-pruning"
    title = "Edge Pruning"
    summary = "train a hard-concrete mask on every edge (Bhaskar et al. 2024)"
    together = True
    threshold_meaning = "expected mask value, from 0 to 1, trained at `penalty` nats per edge"
    saves_parts = True
    seeded = True

    steps: int = 300
    ramp: float = 0.7
    schedule: Literal["geometric", "linear"] = "geometric"
    rate: float = 0.3
    warm_up: float = 0.05
    cool_down: float = 0.25
    start: float = 3.0
    penalty: float = 0.01
    batch: int | None = None
    draw: Literal["one", "each"] = "each"
    patience: int = 30
    combine: Literal["mean", "joint"] = "mean"
    rank_all: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "rate", "batch"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise GatewiseError(f"{name} of edge-pruning is {getattr(self, name)}; expected more than 0.")
        for name in ("penalty", "patience"):
            if not getattr(self, name) >= 0:
                raise GatewiseError(f"{name} of edge-pruning is {getattr(self, name)}; expected 0 or more.")
        for name in ("ramp", "warm_up", "cool_down"):
            if not 0 <= getattr(self, name) <= 1:
                raise GatewiseError(f"{name} of edge-pruning is {getattr(self, name)}; expected a share from 0 to 1.")

    @property
    def optimiser(self) -> Optimiser:
        """Settings of AdamW that go with the schedule."""
        return _OPTIMISERS[self.schedule]

    def examples_per_step(self, examples: int) -> int:
        """Return how many examples a step runs.

        Args:
            examples: How many there are.

        Returns:
            `batch`, or what is right for the way masks are drawn.
        """
        if self.batch is not None:
            return self.batch
        return min(_MOST_PER_STEP, -(-examples // 2)) if self.draw == "each" else _MOST_PER_STEP

    def search(self, problem: Problem) -> dict[SearchDirection, list[Finding]]:
        """Train once per direction and size, or once per direction for a threshold; the mean of two needs no more."""
        return self.join_parts(problem, {None: self._train(problem, self.parts(problem))})

    def parts(self, problem: Problem) -> Sequence[Any]:
        """List the series of trainings that have nothing in common."""
        needed = [series for direction in problem.directions for series in self._series(problem, direction)]
        return list(dict.fromkeys(needed))

    def search_part(self, problem: Problem, part: Series) -> Trainings:
        """Do one series of trainings."""
        return self._train(problem, [part])

    def join_parts(self, problem: Problem, outcomes: Mapping[Any, Trainings]) -> dict[SearchDirection, list[Finding]]:
        """Choose the circuits of all directions by their masks."""
        trainings: Trainings = {}
        for outcome in outcomes.values():
            trainings |= outcome
        return {direction: self._findings(problem, direction, trainings) for direction in problem.directions}

    def threshold_for(self, setting: Setting, direction: SearchDirection, share: float) -> tuple[Method, float]:
        """Return the KL of an edge that carries this share as the penalty, and half an edge as the threshold."""
        return replace(self, penalty=kl_of_share(setting, direction, share)), 0.5

    def _series(self, problem: Problem, direction: SearchDirection) -> list[Series]:
        """List what has to be trained for a direction."""
        sizes = {self._trained_size(size, problem, direction) for size in problem.sizes.get(direction, ())} or {None}
        falling = sorted((size for size in sizes if size is not None), reverse=True)
        ordered = (*([None] if None in sizes else []), *falling)
        singles = single_directions_of(direction)
        objectives = [(single,) for single in singles] if self.combine == "mean" else [singles]
        return [Series(directions, ordered) for directions in objectives]

    def _trained_size(self, size: int, problem: Problem, direction: SearchDirection) -> int | None:
        """Return the size to train at; None for the whole graph."""
        if self.rank_all:
            size = min(problem.sizes[direction])
        return None if size >= problem.graph.n_edges else size

    def _train(self, problem: Problem, all_series: Sequence[Series]) -> Trainings:
        """Do series of trainings, from the last checkpoint on."""
        edges = problem.graph.n_edges
        done, interrupted = _load(problem)
        planned = [(series, size) for series in all_series for size in series.sizes]
        objective: Objective | None = None
        with progress_bar(f"edge pruning, {', '.join(problem.directions)}", self.steps * len(planned)) as bar:
            bar.advance(self.steps * len(done))
            for series, size in planned[len(done) :]:
                if objective is None or objective.directions != series.directions:
                    batch = self.examples_per_step(len(problem.setting))
                    objective = Objective(problem.setting, series.directions, batch)
                larger = [before for before in series.sizes[: series.sizes.index(size)] if before is not None]
                if larger and size is not None:
                    state = done[-1].continued()
                else:
                    state = Training.begin(edges, self.start, problem.seed)
                state, interrupted = interrupted or state, None
                goal = Goal(size, larger[-1] if larger else edges)
                for steps in train(objective, state, goal, self, lambda current: _save(problem, [*done, current])):
                    bar.advance(steps)
                done.append(state)
        return dict(zip(planned, done, strict=True))

    def _findings(self, problem: Problem, direction: SearchDirection, trainings: Trainings) -> list[Finding]:
        """Cut the masks of a direction at every size, or at the threshold."""
        all_series = self._series(problem, direction)
        scored = {size: _scores([trainings[series, size] for series in all_series]) for size in all_series[0].sizes}
        if problem.threshold is not None:
            scores, _, notes = scored[None]
            return [Finding(scores >= problem.threshold, scores, notes)]
        findings = []
        for size in problem.sizes[direction]:
            trained_for = self._trained_size(size, problem, direction)
            scores, log_alpha, notes = scored[trained_for]
            notes = {**notes, "trained_for": trained_for}
            mask = select_edges(problem.graph, _strength(scores, log_alpha), size, problem.select)
            findings.append(Finding(mask, scores, notes))
        return findings

    def doubts(self, circuit: Circuit) -> list[str]:
        """Point out masks that have not settled: they expect another number of edges than the circuit has."""
        notes = circuit.provenance.get("notes", {})
        asked = notes.get("trained_for")
        far = [edges for edges in notes.get("expected_edges", []) if asked and abs(edges / asked - 1) > _UNSETTLED]
        if not far:
            return []
        return [
            f"is cut from masks that were to keep {asked:,} edges and expect {far[0]:,.0f}: the training has not "
            f"settled. Give it more steps than {self.steps:,} (--set steps={2 * self.steps})."
        ]

    def forecast(self, problem: Problem) -> Work:
        """Count all steps of the schedule: with a mask for each example, by some of them, on random masks.

        What is prepared is kept between steps while it fits the budget.
        """
        setting, directions, graph = problem.setting, problem.single_directions, problem.graph
        objective = Objective(setting, directions[:1], self.examples_per_step(len(setting)))
        batches = objective.steps[0]
        room = objective.room
        with Counter() as preparing:
            prepared_bytes = bytes_of(objective.prepared(batches[0], directions[0]))
        sizes = [size for sizes in problem.sizes.values() for size in sizes if size < graph.n_edges]
        goal = Goal(min(sizes, default=None), graph.n_edges)
        each = self.draw == "each"
        chance = torch.rand(graph.n_edges, generator=torch.Generator().manual_seed(0))
        peak, operations, moved = 0, 0.0, 0.0
        marks = sorted({self.steps * i // _COUNTED for i in range(_COUNTED)})
        counted: dict[int, Counter] = {}
        for begin, end in pairwise([*marks, self.steps]):
            size = open_edges((begin + end) // 2, goal, graph.n_edges, self) if each else graph.n_edges
            if size not in counted:
                with Counter() as counted[size]:
                    mask = graph.matrix(select_edges(graph, chance, size).float())
                    masks = mask.expand(len(batches[0].pairs), -1, -1) if each else mask
                    objective.gradient(masks, batches[0], directions[0])
            peak = max(peak, counted[size].peak)
            operations += (end - begin) * counted[size].operations
            moved += (end - begin) * counted[size].moved
        per_step = len(batches) * len(directions)
        preparations = len(objective.steps) * per_step
        others = min(room, (preparations - 1) * prepared_bytes)
        if preparations * prepared_bytes > room:
            preparations = self.steps * per_step  # they are made again at every step
        return Work(
            runs=int(GRAIN * (max(preparing.peak, preparing.live + peak) + others)),
            # log alpha, Adam's two means, what a step makes of them; for each draw: it, the mask, its slope, gradients
            buffers=(6 + 6 * (objective.examples(0) if each else 1)) * 4 * graph.n_edges,
            operations=per_step * operations + preparations * preparing.operations,
            moved=per_step * moved + preparations * preparing.moved,
            micro_batch=len(batches[0].pairs),
            micro_batches=len(objective.steps) * len(batches),
        )


def _save(problem: Problem, trainings: Sequence[Training]) -> None:
    """Save the trainings that are done, and the state of the current one, the last."""
    arrays = {f"parameters.{i}": training.parameters for i, training in enumerate(trainings)}
    arrays |= {f"generator.{i}": training.generator for i, training in enumerate(trainings)}
    arrays |= {"first": trainings[-1].first, "second": trainings[-1].second}  # no longer needed of those that are done
    state = {
        "steps": [training.step for training in trainings],
        "histories": [training.history for training in trainings],
    }
    problem.checkpoint.save(state, arrays)


def _load(problem: Problem) -> tuple[list[Training], Training | None]:
    """Return the trainings of the last checkpoint that are done, and the one that was interrupted."""
    saved = problem.checkpoint.load()
    if saved is None:
        return [], None
    arrays, trainings = saved.arrays, []
    for i, (step, history) in enumerate(zip(saved.state["steps"], saved.state["histories"], strict=True)):
        parameters, zeros = arrays[f"parameters.{i}"], torch.zeros_like(arrays["first"])
        measured = [(kl, expected) for kl, expected in history]
        trainings.append(Training(parameters, zeros, zeros.clone(), arrays[f"generator.{i}"], step, measured))
    trainings[-1].first, trainings[-1].second = arrays["first"], arrays["second"]
    return trainings[:-1], trainings[-1]


def _scores(trainings: Sequence[Training]) -> tuple[Tensor, Tensor, dict[str, object]]:
    """Return the mean of the expected masks, the sum of log alpha, and what the trainings took."""
    scores = torch.stack([expected_mask(training.log_alpha) for training in trainings]).mean(dim=0)
    log_alpha = torch.stack([training.log_alpha for training in trainings]).sum(dim=0)
    notes = {
        "steps": [training.step for training in trainings],
        "kl": [round(training.history[-1][0], 6) for training in trainings],
        "expected_edges": [round(training.history[-1][1], 2) for training in trainings],
    }
    return scores, log_alpha, notes


def _strength(scores: Tensor, log_alpha: Tensor) -> Tensor:
    """Number edges so that they are ordered by score, equal ones by log alpha, then the first in order. [edge]"""
    # Scores of masks that are all but certain are equal in float64, while their log alphas still differ.
    order = torch.argsort(log_alpha, descending=True, stable=True)
    order = order[torch.argsort(scores[order], descending=True, stable=True)]
    strength = torch.empty(len(order))
    strength[order] = torch.arange(len(order), 0, -1, dtype=strength.dtype)
    return strength
