"""Edge Pruning: train a mask between 0 and 1 on every edge, so that few edges stay and the output changes little.

Every edge's mask follows a hard-concrete distribution (Louizos et al. 2018) with one parameter, log alpha. A step draws
one mask for all examples, or one for each, runs it, and descends

    KL(reference || circuit) + lambda1 g + lambda2 g^2               (a number of edges is asked for)
    KL(reference || circuit) + penalty * expected number of edges    (a threshold is asked for)

where g is the gap between the expected number of edges and a target that falls from all edges to the asked number, and
the lambdas ascend from 0. As published, the gap is one of sparsities, target - expected, and moves linearly; by default
it is log(expected / target), and the target falls geometrically, so that the lambdas mean the same (nats for the whole
circuit) in graphs of any size. An edge's score is the expected value of its mask. The other run is computed once per
example, not per step.

A mask for each example has less noise than one for all, so that a step does with half of the examples. Most masks are
exactly 0 before long, and a step runs what is open (engine/masked.py): the last steps cost a fraction of the first. One
mask for all (`draw="one"`, as published) is run by the dense engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from gatewise.circuits.selection import select_edges
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.forward.masked import MaskedEngine
from gatewise.engine.metrics import KL
from gatewise.engine.runs.activations import Direction, Intervention
from gatewise.engine.runs.counting import GRAIN, Counter
from gatewise.engine.setting import Batch, Setting
from gatewise.errors import GatewiseError
from gatewise.methods.base import Division, Finding, Method, Problem, SearchDirection, Work, kl_price, parts_of
from gatewise.methods.configs import OFFERED, EdgePruningConfig
from gatewise.progress import progress_bar

LOW, HIGH, TEMPERATURE, EPSILON = -0.1, 1.1, 2 / 3, 1e-6  # of the hard-concrete distribution
BETA1 = 0.9  # how long Adam remembers gradients
ROOM = 256 << 20  # bytes of a step's way forward that may be kept for its way back
_COUNTED = 8  # steps that a forecast counts
CHECKPOINT_STEPS = 20  # a search with a place for checkpoints saves its state after every so many steps


# The hard-concrete mask: a sigmoid with noise, stretched to (LOW, HIGH) and clamped to [0, 1].


def sample_mask(log_alpha: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The mask that a uniform draw gives, and its derivative with respect to log alpha."""
    u = uniform * (1 - 2 * EPSILON) + EPSILON
    smooth = torch.sigmoid((torch.logit(u) + log_alpha) / TEMPERATURE)
    stretched = smooth * (HIGH - LOW) + LOW
    slope = (HIGH - LOW) / TEMPERATURE * smooth * (1 - smooth)
    return stretched.clamp(0, 1), slope * ((stretched > 0) & (stretched < 1))


def probability_above(log_alpha: Tensor, value: float) -> Tensor:
    """Probability that the mask is larger than a value in [0, 1)."""
    x = (value - LOW) / (HIGH - LOW)
    return torch.sigmoid(log_alpha - TEMPERATURE * math.log(x / (1 - x)))


def expected_mask(log_alpha: Tensor, points: int = 64) -> Tensor:
    """Expected value of the mask: its probability of lying above v, integrated over v in [0, 1]. In float64.

    Strictly increasing in log alpha, so that it also ranks edges whose masks are all but certain; 0.5 at log alpha 0.
    """
    wide = log_alpha.double()
    total = torch.zeros_like(wide)
    for i in range(points):
        total += probability_above(wide, (i + 0.5) / points)
    return total / points


# Training


@dataclass(eq=False)
class Training:
    """All state of a training: what comes next depends on nothing else."""

    parameters: Tensor  # [edge + 2]: log alpha of every edge, then the two lambdas
    first: Tensor  # [edge + 2], Adam's mean of gradients
    second: Tensor  # [edge + 2], Adam's mean of squared gradients
    generator: Tensor  # state of the random numbers
    step: int = 0
    history: list[tuple[float, float]] = field(default_factory=list)  # KL and expected number of edges of each step

    @classmethod
    def begin(cls, edges: int, config: EdgePruningConfig, seed: int) -> Training:
        generator = torch.Generator().manual_seed(seed)
        log_alpha = config.start + config.spread * torch.randn(edges, generator=generator)
        zeros = torch.zeros(edges + 2)
        return cls(torch.cat([log_alpha, zeros[:2]]), zeros, zeros.clone(), generator.get_state())

    @property
    def log_alpha(self) -> Tensor:
        return self.parameters[:-2]

    def continued(self) -> Training:
        """A new training that starts from the masks of this one."""
        zeros = torch.zeros_like(self.parameters)
        return Training(torch.cat([self.log_alpha, zeros[:2]]), zeros, zeros.clone(), self.generator)

    def adam(self, gradient: Tensor, rate: Tensor, config: EdgePruningConfig) -> None:
        """One step of AdamW."""
        self.step += 1
        self.first.lerp_(gradient, 1 - BETA1)
        self.second.lerp_(gradient.square(), 1 - config.beta2)
        mean, square = self.first / (1 - BETA1**self.step), self.second / (1 - config.beta2**self.step)
        self.parameters -= rate * (mean / (square.sqrt() + 1e-8) + config.weight_decay * self.parameters)


@dataclass(frozen=True)
class Goal:
    """What a training is for: `size` edges, from `start_size` on, or the price of an edge if there is no size."""

    size: int | None = None
    start_size: int = 0


def train(
    objective: Objective, state: Training, goal: Goal, config: EdgePruningConfig, save: Callable[[Training], None]
) -> Iterator[int]:
    """Step until the schedule ends or the training has settled. Changes the state; yields steps that need no more work.

    `save` is called after every `CHECKPOINT_STEPS` steps.
    """
    yield state.step
    while state.step < config.steps and not settled(state, goal, config):
        take_step(objective, state, goal, config)
        yield 1
        if state.step % CHECKPOINT_STEPS == 0:
            save(state)
    yield config.steps - state.step


def take_step(objective: Objective, state: Training, goal: Goal, config: EdgePruningConfig) -> None:
    """Draw a mask, run it, and move log alpha and the lambdas."""
    generator = torch.Generator()
    generator.set_state(state.generator)
    log_alpha, n = state.log_alpha, len(state.log_alpha)
    shape = (objective.examples(state.step), n) if config.draw == "each" else (n,)
    mask, slope = sample_mask(log_alpha, torch.rand(shape, generator=generator))
    state.generator = generator.get_state()
    kl, into_mask = objective(mask, state.step)
    if not math.isfinite(kl):
        raise GatewiseError(f"edge-pruning: the KL is {kl} at step {state.step}; try dtype='float32'.")
    kept = probability_above(log_alpha, 0.0)
    expected = float(kept.double().sum())
    gradient = torch.zeros_like(state.parameters)
    if goal.size is None:
        price = config.penalty
    else:
        excess, slope_of_excess = gap(expected, n, target(state.step, goal, config), config)
        lambda1, lambda2 = state.parameters[-2:].tolist()
        price = (lambda1 + 2 * lambda2 * excess) * slope_of_excess
        gradient[-2], gradient[-1] = -excess, -(excess**2)  # minus: the lambdas ascend
    gradient[:-2] = (into_mask * slope).reshape(-1, n).sum(dim=0) + price * kept * (1 - kept)
    warmth = rate_factor(state.step, config)
    rate = torch.full_like(gradient, config.rate * warmth)
    rate[-2:] = config.multiplier_rate * warmth
    state.adam(gradient, rate, config)
    state.history.append((kl, expected))


def gap(expected: float, edges: int, aim: float, config: EdgePruningConfig) -> tuple[float, float]:
    """How much larger the circuit is than it should be, and the derivative with respect to its expected size."""
    if config.schedule == "linear":
        return (expected - aim) / edges, 1 / edges
    return math.log(expected / aim), 1 / expected


def target(step: int, goal: Goal, config: EdgePruningConfig) -> float:
    """The number of edges to be at by this step."""
    assert goal.size is not None
    ramp = config.ramp * config.steps
    done = step / ramp if step < ramp else 1.0
    if config.schedule == "linear":
        return goal.start_size + (goal.size - goal.start_size) * done
    return float(goal.start_size * (goal.size / goal.start_size) ** done)


def rate_factor(step: int, config: EdgePruningConfig) -> float:
    """Rates rise linearly over the warm-up and fall linearly to 0 over the cool-down."""
    warm, cool = config.warm_up * config.steps, config.cool_down * config.steps
    return min(1.0, (step + 1) / max(1.0, warm), (config.steps - step) / max(1.0, cool))


def settled(state: Training, goal: Goal, config: EdgePruningConfig) -> bool:
    """Whether KL and size have stopped moving: the halves of the last `patience` steps agree, and the size is right.

    Never without a size: two edges of which one would do stay together for a while, and look settled, before one goes.
    """
    half = config.patience // 2
    if half == 0 or goal.size is None or state.step < config.ramp * config.steps + 2 * half:
        return False
    recent = torch.tensor(state.history[-2 * half :], dtype=torch.float64).reshape(2, half, 2)
    (kl_before, _), (kl_now, edges_now) = recent.mean(dim=1).tolist()
    noise = float(recent[:, :, 0].std()) / math.sqrt(half)
    return bool(abs(edges_now - goal.size) <= 0.02 * goal.size and kl_before - kl_now < max(0.01 * kl_before, noise))


# What is run at each step


class Objective:
    """The distance of a mask's circuit from the reference, and its gradient, on a batch of examples per step, in turn.

    The distance is KL(reference || circuit), or that of the setting's metric. `batch` decides which examples share a
    step; the memory budget only how many are run at a time, so that it does not change the result. What is prepared
    once is kept while it fits the budget, and prepared again beyond it.
    """

    def __init__(self, setting: Setting, directions: Sequence[Direction], batch: int) -> None:
        self.setting, self.model, self.directions = setting, setting.model, directions
        self._metric = setting.metric or KL
        self._steps = step_batches(setting, batch)
        self._kept: dict[tuple[int, Direction], Intervention] = {}
        self._room = setting.memory

    def examples(self, step: int) -> int:
        """How many examples a step runs."""
        return sum(len(batch.pairs) for batch in self._steps[step % len(self._steps)])

    def __call__(self, mask: Tensor, step: int) -> tuple[float, Tensor]:
        """The distance, averaged over examples and summed over directions, and its gradient, of the mask's shape.

        mask: [edge] for all examples of the step; or [example, edge], whose gradient is 0 where it is 0.
        """
        graph, parts = self.model.graph, self._steps[step % len(self._steps)]
        matrix, first = graph.matrix(mask), parts[0].first
        total, gradient = 0.0, torch.zeros_like(matrix)
        for direction in self.directions:
            for batch in parts:
                rows = slice(batch.first - first, batch.first - first + len(batch.pairs)) if mask.dim() == 2 else ...
                value, into_mask = self.gradient(matrix[rows], batch, direction)
                share = len(batch.pairs) / self.examples(step)
                total += float(value) * share
                gradient[rows] += into_mask.cpu() * share
        return total, graph.vector(gradient)

    def gradient(self, matrix: Tensor, batch: Batch, direction: Direction) -> tuple[Tensor, Tensor]:
        """The mean distance of a batch under a mask [port, sender] or masks [example, port, sender]; its gradient."""
        prepared = self.prepared(batch, direction)
        loss = self.loss(prepared, batch)
        if matrix.dim() == 3:
            return MaskedEngine(self.model, prepared, ROOM).gradient(matrix, loss)
        return DenseEngine(self.model, prepared).gradient(matrix.to(self.model.device), loss)

    def loss(self, prepared: Intervention, batch: Batch) -> Callable[[Tensor], Tensor]:
        """The mean distance of logits from the reference's."""
        distance = self._metric.distance(prepared.reference_logits, batch.pairs)
        return lambda logits: distance(logits).mean()

    def prepared(self, batch: Batch, direction: Direction) -> Intervention:
        """What running masks on a batch needs."""
        key = (batch.first, direction)
        if key in self._kept:
            return self._kept[key]
        prepared = self.setting.intervention(batch, direction, keep=False)
        size = bytes_of(prepared)
        if size <= self._room:
            self._room -= size
            self._kept[key] = prepared
        return prepared


def bytes_of(prepared: Intervention) -> int:
    return prepared.other.nbytes + sum(base.nbytes for base in prepared.base) + prepared.reference_logits.nbytes


def step_batches(setting: Setting, batch: int) -> list[list[Batch]]:
    """The examples of each step: consecutive slices of at most `batch`, as equal as can be, cut to fit the memory."""
    count = len(setting)
    parts = -(-count // batch)
    cuts = [count * i // parts for i in range(parts + 1)]
    return [
        [Batch(start + one.first, one.pairs) for one in setting[start:end].batches(gradient=True)]
        for start, end in pairwise(cuts)
    ]


# From trainings to circuits


@dataclass(frozen=True)
class _Job:
    """Trainings of one objective, from the largest size to the smallest, each starting from the one before."""

    directions: tuple[Direction, ...]
    sizes: tuple[int | None, ...]  # None: a threshold, or all edges: no sparsity is asked for, the penalty has to rank


def search(problem: Problem, config: EdgePruningConfig) -> dict[SearchDirection, list[Finding]]:
    """One training per direction and size, or one per direction for a threshold; `mean` trains nothing for ns+dn."""
    jobs = all_jobs(problem, config)
    return findings(problem, config, {jobs[0]: _trainings(problem, jobs, config)})


def all_jobs(problem: Problem, config: EdgePruningConfig) -> list[_Job]:
    """The trainings that have nothing in common."""
    return list(dict.fromkeys(job for direction in problem.directions for job in _jobs(problem, direction, config)))


def trained_job(problem: Problem, config: EdgePruningConfig, job: _Job) -> dict[tuple[_Job, int | None], Training]:
    return _trainings(problem, [job], config)


def findings(
    problem: Problem, config: EdgePruningConfig, trained: Mapping[_Job, Mapping[tuple[_Job, int | None], Training]]
) -> dict[SearchDirection, list[Finding]]:
    """The circuits of all directions, from what was trained."""
    together = {place: training for some in trained.values() for place, training in some.items()}
    return {
        direction: _findings(problem, direction, _jobs(problem, direction, config), together, config)
        for direction in problem.directions
    }


def _jobs(problem: Problem, direction: SearchDirection, config: EdgePruningConfig) -> list[_Job]:
    """What has to be trained for a direction."""
    asked = {_trained_size(size, problem, direction, config) for size in problem.sizes.get(direction, ())} or {None}
    falling = sorted((size for size in asked if size is not None), reverse=True)
    sizes = (*([None] if None in asked else []), *falling)
    apart = [(one,) for one in parts_of(direction)] if config.combine == "mean" else [parts_of(direction)]
    return [_Job(directions, sizes) for directions in apart]


def _findings(
    problem: Problem,
    direction: SearchDirection,
    jobs: Sequence[_Job],
    trained: Mapping[tuple[_Job, int | None], Training],
    config: EdgePruningConfig,
) -> list[Finding]:
    found = {size: _scores([trained[job, size] for job in jobs]) for size in jobs[0].sizes}
    if problem.threshold is not None:
        scores, _, notes = found[None]
        return [Finding(scores >= problem.threshold, scores, notes)]
    findings = []
    for size in problem.sizes[direction]:
        scores, log_alpha, notes = found[_trained_size(size, problem, direction, config)]
        mask = select_edges(problem.graph, _strength(scores, log_alpha), size, problem.select)
        findings.append(Finding(mask, scores, notes))
    return findings


def _trained_size(size: int, problem: Problem, direction: SearchDirection, config: EdgePruningConfig) -> int | None:
    """The size to train at; None for the whole graph."""
    if config.rank_all:
        size = min(problem.sizes[direction])
    return None if size >= problem.graph.n_edges else size


def _trainings(
    problem: Problem, jobs: Sequence[_Job], config: EdgePruningConfig
) -> dict[tuple[_Job, int | None], Training]:
    """The trainings of all jobs, those of the last checkpoint first."""
    edges = problem.graph.n_edges
    done, interrupted = _saved(problem)
    places = [(job, size) for job in jobs for size in job.sizes]
    objective: Objective | None = None
    with progress_bar(f"edge pruning, {', '.join(problem.directions)}", config.steps * len(places)) as bar:
        bar.advance(config.steps * len(done))
        for job, size in places[len(done) :]:
            if objective is None or objective.directions != job.directions:
                objective = Objective(problem.setting, job.directions, config.examples_per_step(len(problem.setting)))
            before = [other for other in job.sizes[: job.sizes.index(size)] if other is not None]
            goal = Goal(size, before[-1] if before else edges)
            state = done[-1].continued() if before and size is not None else Training.begin(edges, config, problem.seed)
            state, interrupted = interrupted or state, None
            for steps in train(objective, state, goal, config, lambda now: _save(problem, [*done, now])):
                bar.advance(steps)
            done.append(state)
    return dict(zip(places, done, strict=True))


def _save(problem: Problem, trainings: Sequence[Training]) -> None:
    """Keep the trainings that are done, and the state of the one that is not, the last."""
    arrays = {f"parameters.{i}": one.parameters for i, one in enumerate(trainings)}
    arrays |= {f"generator.{i}": one.generator for i, one in enumerate(trainings)}
    arrays |= {"first": trainings[-1].first, "second": trainings[-1].second}  # no longer needed of those that are done
    state = {"steps": [one.step for one in trainings], "histories": [one.history for one in trainings]}
    problem.checkpoint.save(state, arrays)


def _saved(problem: Problem) -> tuple[list[Training], Training | None]:
    """The trainings of the last checkpoint that are done, and the one that is not."""
    saved = problem.checkpoint.load()
    if saved is None:
        return [], None
    arrays, trainings = saved.arrays, []
    for i, (step, history) in enumerate(zip(saved.state["steps"], saved.state["histories"], strict=True)):
        parameters, zeros = arrays[f"parameters.{i}"], torch.zeros_like(arrays["first"])
        known = [(kl, expected) for kl, expected in history]
        trainings.append(Training(parameters, zeros, zeros.clone(), arrays[f"generator.{i}"], step, known))
    trainings[-1].first, trainings[-1].second = arrays["first"], arrays["second"]
    return trainings[:-1], trainings[-1]


def _scores(trainings: Sequence[Training]) -> tuple[Tensor, Tensor, dict[str, object]]:
    """The mean of the expected masks, the sum of log alpha, and what the trainings took."""
    scores = torch.stack([expected_mask(one.log_alpha) for one in trainings]).mean(dim=0)
    log_alpha = torch.stack([one.log_alpha for one in trainings]).sum(dim=0)
    notes = {
        "steps": [one.step for one in trainings],
        "kl": [round(one.history[-1][0], 6) for one in trainings],
        "expected_edges": [round(one.history[-1][1], 2) for one in trainings],
    }
    return scores, log_alpha, notes


def _strength(scores: Tensor, log_alpha: Tensor) -> Tensor:
    """Numbers that order edges by score, and equal ones by log alpha, then the first in order. [edge]"""
    order = torch.argsort(log_alpha, descending=True, stable=True)
    order = order[torch.argsort(scores[order], descending=True, stable=True)]
    strength = torch.empty(len(order))
    strength[order] = torch.arange(len(order), 0, -1, dtype=strength.dtype)
    return strength


def open_edges(step: int, goal: Goal, edges: int, config: EdgePruningConfig) -> int:
    """About how many edges are open at a step: as many as wanted, or as can be, since log alpha moves only so fast."""
    moved = sum(config.rate * rate_factor(before, config) for before in range(step))
    still = edges * float(probability_above(torch.tensor(config.start - moved), 0.0))
    return edges if goal.size is None else round(max(still, min(edges, target(step, goal, config))))


def _forecast(problem: Problem, config: EdgePruningConfig) -> Work:
    """All steps of the schedule. With a mask for each example, some are counted, on random masks of as many edges.

    What is prepared is kept between steps while it fits the budget.
    """
    setting, directions, graph = problem.setting, problem.runs, problem.graph
    batch = config.examples_per_step(len(setting))
    steps = step_batches(setting, batch)
    first, parts = steps[0][0], steps[0]
    objective = Objective(setting, directions[:1], batch)
    with Counter() as preparing:
        kept = bytes_of(objective.prepared(first, directions[0]))
    sizes = [size for some in problem.sizes.values() for size in some if size < graph.n_edges]
    goal = Goal(min(sizes, default=None), graph.n_edges)
    each = config.draw == "each"
    chance = torch.rand(graph.n_edges, generator=torch.Generator().manual_seed(0))
    peak, operations, moved = 0, 0.0, 0.0
    marks = sorted({config.steps * i // _COUNTED for i in range(_COUNTED)})
    counted: dict[int, Counter] = {}
    for begin, end in pairwise([*marks, config.steps]):
        size = open_edges((begin + end) // 2, goal, graph.n_edges, config) if each else graph.n_edges
        if size not in counted:
            with Counter() as counted[size]:
                mask = graph.matrix(select_edges(graph, chance, size).float())
                objective.gradient(mask.expand(len(first.pairs), -1, -1) if each else mask, first, directions[0])
        peak = max(peak, counted[size].peak)
        operations += (end - begin) * counted[size].operations
        moved += (end - begin) * counted[size].moved
    places = len(steps) * len(parts) * len(directions)
    others = min(setting.memory, (places - 1) * kept)
    per_step = len(parts) * len(directions)
    often = config.steps * per_step if places * kept > setting.memory else places
    return Work(
        runs=int(GRAIN * (max(preparing.peak, preparing.live + peak) + others)),
        # log alpha, Adam's two means, what a step makes of them; and for each draw, it, the mask, its slope, gradients
        buffers=(6 + 6 * (objective.examples(0) if each else 1)) * 4 * graph.n_edges,
        operations=per_step * operations + often * preparing.operations,
        moved=per_step * moved + often * preparing.moved,
        micro_batch=len(first.pairs),
        micro_batches=len(steps) * len(parts),
    )


EDGE_PRUNING = Method(
    **vars(OFFERED["edge-pruning"]),
    search=search,
    together=True,
    for_share=lambda setting, direction, share: {"threshold": 0.5, "penalty": kl_price(setting, direction, share)},
    forecast=_forecast,
    parts=Division(all_jobs, trained_job, findings, saves=True),
)
