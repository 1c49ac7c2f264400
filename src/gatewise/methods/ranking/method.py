"""`Ranking`: learn one real number per edge, so that its n strongest edges are a faithful circuit for every n.

A step draws a size k, opens the k strongest edges softly (masks between 0 and 1 that sum to k), runs these masks on a
few examples, and moves the scores down the gradient of the distance from the reference (KL by default), at a constant
sum of masks. Sizes are drawn evenly over log k, so that one training ranks edges for all sizes, and circuits of
different sizes are nested. Noising and denoising differ in which run is the reference; ns+dn is trained on the sum of
both distances.

The start is EAP-IG's ranking, or a random one. It does not decide: now and then a size between the largest and the
whole graph is drawn, so that an edge far down gets a gradient and can rise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.circuits.selection import select_edges
from gatewise.engine.runs.activations import Direction
from gatewise.engine.runs.batches import window_of
from gatewise.engine.runs.counting import GRAIN, Counter
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.methods.base import Finding, Method, Problem, SearchDirection, Work, ranked, single_directions_of
from gatewise.methods.eap import Eap, EapIg
from gatewise.methods.objective import Objective, bytes_of
from gatewise.methods.ranking.training import RankingState, Schedule, take_step
from gatewise.progress import Bar, progress_bar

_START_EXAMPLES = 16  # for the start ranking
_COLUMNS = 56  # of a step: fewer leave a processor waiting for weights
_FEWEST_PER_STEP, _MOST_PER_STEP = 8, 32
_LARGEST, _LARGEST_SHARE = 6_000, 0.4  # of the sizes that are trained
_SMALLEST, _SMALLEST_SHARE = 50, 1 / 400
_CHECKPOINT_STEPS = 20  # a search with a checkpoint saves its state after every so many steps
_COUNTED = 5  # sizes that a forecast counts
_STEPS_OF_REPORT, _STEPS_FOR_HIGH_GOALS, _HIGH_GOAL = 100, 300, 0.8  # of each of two trainings: minutes

Objectives = tuple[Direction, ...]  # directions whose distances are summed in one training
# First rankings of settings that are in use: trainings of several seeds share them.
_STARTS: WeakKeyDictionary[Setting, dict[Objectives, Tensor]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Ranking(Method):
    """Learned ranking: one training of scores for all edges, for circuits of all sizes.

    Args:
        steps: Steps of a training.
        examples: Examples per step, in turn; by default 8 to 32, as many as have 56 tokens that differ.
        rate: Learning rate of the scores, whose unit is a factor e of rank at first.
        warm_up: Share of the steps, at first, over which the rate rises linearly from 0.
        cool_down: Share of the steps, at last, over which it falls linearly to 0.
        temperature: Of the masks, in units of the scores: masks are soft for ranks from about 0.4 k to 2.5 k.
        smallest: Smallest size that is trained; by default 50, or 1/400 of the graph if that is less.
        largest: Largest size that is trained; by default 6,000, or 0.4 of the graph if that is less.
        start: The first ranking: `eap-ig` (`eap` where the ablation has no second run), or a `random` one.
        explore: Every so many steps of the first half, a size between the largest and the whole graph; 0: never.
        shrink: How much gradients are shrunk that the examples of a step do not agree on; 0: not at all.
        bonus: How much edges are favoured for their effects on single examples, at large sizes.
        floor: What is added to Adam's denominators, in units of that of the edge of rank `weak`.
        weak: From about this rank on edges are weak; at most a twentieth of the graph.
        blind_steps: With a random start, share of the steps over which sizes fall from the whole graph.
        blind_rate: Factor of the rate over those steps.
        combine: For ns+dn: a "joint" training on the sum of both distances, or the "mean" of two trainings.
    """

    name = "ranking"
    title = "Ranking"
    summary = "learn one ranking of all edges, whose top n are a faithful circuit for every n"
    together = True
    ranks_once = True
    threshold_meaning = "smallest learned score, about log(edges / rank)"
    saves_parts = True
    seeded = True

    steps: int = 350
    examples: int | None = None
    rate: float = 0.2
    warm_up: float = 0.05
    cool_down: float = 0.6
    temperature: float = 0.3
    smallest: int | None = None
    largest: int | None = None
    start: Literal["eap-ig", "random"] = "eap-ig"
    explore: int = 20
    shrink: float = 1.0
    bonus: float = 0.15
    floor: float = 0.3
    weak: int = 1000
    blind_steps: float = 0.25
    blind_rate: float = 3.0
    combine: Literal["joint", "mean"] = "joint"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "examples", "rate", "temperature", "smallest", "largest", "weak", "blind_rate"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise GatewiseError(f"{name} of ranking is {getattr(self, name)}; expected more than 0.")
        for name in ("explore", "shrink", "bonus", "floor"):
            if not getattr(self, name) >= 0:
                raise GatewiseError(f"{name} of ranking is {getattr(self, name)}; expected 0 or more.")
        for name in ("warm_up", "cool_down", "blind_steps"):
            if not 0 <= getattr(self, name) <= 1:
                raise GatewiseError(f"{name} of ranking is {getattr(self, name)}; expected a share from 0 to 1.")
        if self.smallest is not None and self.largest is not None and self.smallest > self.largest:
            raise GatewiseError(
                f"ranking trains sizes from smallest to largest, got {self.smallest:,} and {self.largest:,}."
            )

    def trained_sizes(self, graph: Graph) -> tuple[float, float]:
        """Return the smallest and the largest size that is trained.

        Args:
            graph: Whose edges are ranked.

        Returns:
            Numbers of edges. Circuits of other sizes follow the ranking too, but nothing was trained for them.
        """
        edges = graph.n_edges
        # Not all edges: masks that sum to all of them leave nothing to choose.
        largest = min(self.largest or min(_LARGEST, _LARGEST_SHARE * edges), 0.9 * edges)
        return min(self.smallest or max(1.0, min(_SMALLEST, _SMALLEST_SHARE * edges)), largest), largest

    def examples_per_step(self, setting: Setting) -> int:
        """Return how many examples a step runs.

        Args:
            setting: The pairs to search on.

        Returns:
            `examples`, or enough for a full step's work.
        """
        if self.examples is not None:
            return self.examples
        columns = window_of(setting.pairs) if setting.ablation == "patching" else setting.pairs.width
        return max(_FEWEST_PER_STEP, min(_MOST_PER_STEP, _COLUMNS // columns))

    def for_report(self, faithfulness: float | None) -> Ranking:
        """Return fewer steps, more of them for a high goal, and ns+dn without a training of its own."""
        steps = _STEPS_FOR_HIGH_GOALS if faithfulness is not None and faithfulness > _HIGH_GOAL else _STEPS_OF_REPORT
        return replace(self, steps=min(self.steps, steps), combine="mean")

    def check(self, problem: Problem) -> None:
        """Refuse a metric that has no gradient."""
        metric = problem.setting.metric
        if metric is None or metric.function is None:
            return
        first = problem.setting[:1]
        logits = first.last_logits().detach().requires_grad_(True)
        with torch.enable_grad():
            value = metric.value(logits, first.pairs)
        if not value.requires_grad:
            raise GatewiseError(
                f"the metric {metric.name!r} has no gradient with respect to the logits, and ranking descends it. Use "
                f"KL (metric=None), the logit difference, or a metric of differentiable torch operations."
            )

    def search(self, problem: Problem) -> dict[SearchDirection, list[Finding]]:
        """Train once for each objective that the directions need."""
        return self.join_parts(problem, {None: self._train(problem, self.parts(problem))})

    def parts(self, problem: Problem) -> Sequence[Objectives]:
        """List the trainings, which have nothing in common but their start."""
        objectives: dict[Objectives, None] = {}
        for direction in problem.directions:
            objectives |= dict.fromkeys(self._objectives(direction))
        return list(objectives)

    def search_part(self, problem: Problem, part: Objectives) -> dict[Objectives, RankingState]:
        """Do one training."""
        return self._train(problem, [part])

    def join_parts(
        self, problem: Problem, outcomes: Mapping[Any, Mapping[Objectives, RankingState]]
    ) -> dict[SearchDirection, list[Finding]]:
        """Cut the rankings of all directions at all sizes."""
        trainings: dict[Objectives, RankingState] = {}
        for outcome in outcomes.values():
            trainings |= outcome
        scores: dict[SearchDirection, Tensor] = {}
        notes: dict[SearchDirection, dict[str, object]] = {}
        for direction in problem.directions:
            used = [trainings[objectives] for objectives in self._objectives(direction)]
            learned = torch.stack([training.scores.double() for training in used]).mean(dim=0)
            scores[direction] = learned - learned.min()  # at least 0; in float64, so that the order stays as it is
            notes[direction] = {"steps": self.steps, "distance": distances_by_size(used)}
        findings = ranked(problem, scores)
        return {
            direction: [replace(finding, notes=notes[direction]) for finding in findings[direction]]
            for direction in problem.directions
        }

    def _objectives(self, direction: SearchDirection) -> list[Objectives]:
        """List the trainings whose mean score is a direction's."""
        singles = single_directions_of(direction)
        return [singles] if self.combine == "joint" else [(single,) for single in singles]

    def _train(self, problem: Problem, planned: Sequence[Objectives]) -> dict[Objectives, RankingState]:
        """Train one objective after the other, from the last checkpoint on."""
        graph = problem.graph
        smallest, largest = self.trained_sizes(graph)
        schedule = Schedule(graph.n_edges, smallest, largest, problem.seed, self.start == "random")
        setting = _by_window(problem.setting)
        done = _load(problem)
        orders = [self._first_order(problem, objectives) for objectives in planned[len(done) :]]
        with progress_bar("ranking", self.steps * len(planned)) as bar:
            bar.advance(sum(training.step for training in done))
            for number, objectives in enumerate(planned):
                if number == len(done):
                    done.append(RankingState.begin(orders.pop(0)))
                state = done[number]
                objective = Objective(setting, objectives, self.examples_per_step(setting))
                while state.step < self.steps:
                    take_step(objective, state, schedule, self)
                    _show(bar, objectives, state)
                    if state.step % _CHECKPOINT_STEPS == 0:
                        _save(problem, done)
        return dict(zip(planned, done, strict=True))

    def _first_order(self, problem: Problem, objectives: Objectives) -> Tensor:
        """Rank edges before the training: the strongest first. [edge]"""
        setting = problem.setting
        if self.start == "random":
            return torch.randperm(problem.graph.n_edges, generator=torch.Generator().manual_seed(problem.seed))
        starts = _STARTS.setdefault(setting, {})
        if objectives not in starts:
            starts[objectives] = self._estimated_order(setting, objectives)
        return starts[objectives]

    def _estimated_order(self, setting: Setting, objectives: Objectives) -> Tensor:
        """Rank edges by a linear estimate, which does not depend on the seed. [edge]"""
        pairs = setting.pairs[:_START_EXAMPLES]
        pairs = pairs.swapped() if objectives == ("dn",) else pairs  # Dn is Ns with the runs swapped
        metric = None if setting.metric is None or setting.metric.function is None else setting.metric
        known = Setting(setting.model, pairs, ablation=setting.ablation, metric=metric, memory=setting.memory)
        method = EapIg() if setting.ablation == "patching" else Eap()
        (finding,) = method.search(Problem(known, ("ns",), {"ns": (setting.graph.n_edges,)}))["ns"]
        return torch.argsort(finding.scores.abs(), descending=True, stable=True).cpu()

    def forecast(self, problem: Problem) -> Work:
        """Count a step at some sizes, on random masks, and what is prepared before the first."""
        setting, graph = problem.setting, problem.graph
        trainings = self.parts(problem)
        directions = len([direction for objectives in trainings for direction in objectives])
        objective = Objective(setting, ("ns",), self.examples_per_step(setting))
        batch, room = objective.steps[0][0], objective.room
        with Counter() as preparing:
            prepared_bytes = bytes_of(objective.prepared(batch, "ns"))
        smallest, largest = self.trained_sizes(graph)
        chance = torch.rand(graph.n_edges, generator=torch.Generator().manual_seed(0))
        peak, operations, moved = 0, 0.0, 0.0
        for index in range(_COUNTED):
            size = smallest * (largest / smallest) ** ((index + 0.5) / _COUNTED)
            with Counter() as counted:
                # About twice as many edges are open, in part, as their masks sum to.
                mask = graph.matrix(select_edges(graph, chance, min(graph.n_edges, int(2 * size) + 1)).float())
                objective.gradient_of_each(mask, batch, "ns")
            peak = max(peak, counted.peak)
            operations += counted.operations / _COUNTED
            moved += counted.moved / _COUNTED
        steps = self.steps * directions * len(objective.steps[0])
        preparations = len(objective.steps) * len(objective.steps[0]) * directions
        others = min(room, (preparations - 1) * prepared_bytes)
        if preparations * prepared_bytes > room:
            preparations = steps  # they are made again at every step
        return Work(
            runs=int(GRAIN * (max(preparing.peak, preparing.live + peak) + others)),
            # Scores, Adam's two means, masks and slopes; gradients of each example as vectors and as matrices.
            buffers=(8 + 6 * objective.examples(0)) * 4 * graph.n_edges,
            operations=steps * operations + preparations * preparing.operations,
            moved=steps * moved + preparations * preparing.moved,
            micro_batch=len(batch.pairs),
            micro_batches=len(objective.steps) * len(objective.steps[0]),
        )


def distances_by_size(trainings: Sequence[RankingState]) -> dict[str, float]:
    """Average the distances of the last third of the steps by order of magnitude of the size, e.g. {"10-99": 0.4}."""
    collected: dict[int, list[float]] = {}
    for training in trainings:
        for size, distance in training.history[-max(1, training.step // 3) :]:
            collected.setdefault(len(str(int(size))), []).append(distance)
    averages: dict[str, float] = {}
    for digits, distances in sorted(collected.items()):
        averages[f"{10 ** (digits - 1)}-{10**digits - 1}"] = round(sum(distances) / len(distances), 6)
    return averages


def _show(bar: Bar, objectives: Objectives, state: RankingState) -> None:
    """Tell how far the training has come, with the present distances."""
    present = ", ".join(f"{distance:.3f} at {sizes}" for sizes, distance in distances_by_size([state]).items())
    bar.describe(f"ranking {'+'.join(objectives)}, distance {present} edges")
    bar.advance()


def _by_window(setting: Setting) -> Setting:
    """Put pairs that differ from the same column on together: a batch is as wide as its widest pair."""
    pairs = setting.pairs
    order = torch.argsort(pairs.width - pairs.first_difference, stable=True)
    return setting.with_pairs(pairs[order.tolist()])


def _save(problem: Problem, trainings: Sequence[RankingState]) -> None:
    """Save the trainings that are done, and the state of the current one, the last."""
    arrays: dict[str, Tensor] = {}
    for i, training in enumerate(trainings):
        arrays |= {f"scores.{i}": training.scores, f"first.{i}": training.first, f"second.{i}": training.second}
    state = {"steps": [training.step for training in trainings], "histories": [t.history for t in trainings]}
    problem.checkpoint.save(state, arrays)


def _load(problem: Problem) -> list[RankingState]:
    """Return the trainings of the last checkpoint; only the last may be unfinished."""
    saved = problem.checkpoint.load()
    trainings: list[RankingState] = []
    if saved is not None:
        for i, (step, history) in enumerate(zip(saved.state["steps"], saved.state["histories"], strict=True)):
            scores, first, second = (saved.arrays[f"{name}.{i}"] for name in ("scores", "first", "second"))
            trainings.append(
                RankingState(scores, first, second, step, [(size, distance) for size, distance in history])
            )
    return trainings
