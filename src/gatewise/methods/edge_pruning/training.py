"""One training: its state, its steps, and the schedule of its target and its rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gatewise.errors import GatewiseError
from gatewise.methods.edge_pruning.hard_concrete import probability_above, sample_mask
from gatewise.methods.objective import Objective

if TYPE_CHECKING:
    from gatewise.methods.edge_pruning.method import EdgePruning

BETA1 = 0.9  # how long Adam remembers gradients
CHECKPOINT_STEPS = 20  # a search with a checkpoint saves its state after every so many steps
_SPREAD = 0.01  # standard deviation of log alpha at first: enough that no two masks are alike


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
    def begin(cls, edges: int, start: float, seed: int) -> Training:
        """Begin with all masks open. start: mean of log alpha"""
        generator = torch.Generator().manual_seed(seed)
        log_alpha = start + _SPREAD * torch.randn(edges, generator=generator)
        zeros = torch.zeros(edges + 2)
        return cls(torch.cat([log_alpha, zeros[:2]]), zeros, zeros.clone(), generator.get_state())

    @property
    def log_alpha(self) -> Tensor:
        """Of every edge's mask. [edge]"""
        return self.parameters[:-2]

    def continued(self) -> Training:
        """Begin a new training from the masks of this one."""
        zeros = torch.zeros_like(self.parameters)
        return Training(torch.cat([self.log_alpha, zeros[:2]]), zeros, zeros.clone(), self.generator)

    def adam(self, gradient: Tensor, rate: Tensor, beta2: float, weight_decay: float) -> None:
        """Take one step of AdamW."""
        self.step += 1
        self.first.lerp_(gradient, 1 - BETA1)
        self.second.lerp_(gradient.square(), 1 - beta2)
        mean, square = self.first / (1 - BETA1**self.step), self.second / (1 - beta2**self.step)
        self.parameters -= rate * (mean / (square.sqrt() + 1e-8) + weight_decay * self.parameters)


@dataclass(frozen=True)
class Goal:
    """What a training is for: `size` edges, falling from `start_size`; without a size, the penalty per edge."""

    size: int | None = None
    start_size: int = 0


def train(
    objective: Objective, state: Training, goal: Goal, method: EdgePruning, save: Callable[[Training], None]
) -> Iterator[int]:
    """Step until the schedule ends or the training has settled. Changes the state; yields steps that need no more work.

    `save` is called after every `CHECKPOINT_STEPS` steps.
    """
    yield state.step
    while state.step < method.steps and not settled(state, goal, method):
        take_step(objective, state, goal, method)
        yield 1
        if state.step % CHECKPOINT_STEPS == 0:
            save(state)
    yield method.steps - state.step


def take_step(objective: Objective, state: Training, goal: Goal, method: EdgePruning) -> None:
    """Draw a mask, run it, and move log alpha and the lambdas."""
    generator = torch.Generator()
    generator.set_state(state.generator)
    log_alpha, edges = state.log_alpha, len(state.log_alpha)
    shape = (objective.examples(state.step), edges) if method.draw == "each" else (edges,)
    mask, slope = sample_mask(log_alpha, torch.rand(shape, generator=generator))
    state.generator = generator.get_state()
    kl, into_mask = objective(mask, state.step)
    if not math.isfinite(kl):
        raise GatewiseError(f"edge-pruning: the KL is {kl} at step {state.step}; try dtype='float32'.")
    is_open = probability_above(log_alpha, 0.0)
    expected = float(is_open.double().sum())
    gradient = torch.zeros_like(state.parameters)
    penalty = method.penalty
    if goal.size is not None:
        excess, slope_of_excess = gap(expected, edges, target(state.step, goal, method), method)
        lambda1, lambda2 = state.parameters[-2:].tolist()
        penalty = (lambda1 + 2 * lambda2 * excess) * slope_of_excess
        gradient[-2], gradient[-1] = -excess, -(excess**2)  # minus: the lambdas ascend
    gradient[:-2] = (into_mask * slope).reshape(-1, edges).sum(dim=0) + penalty * is_open * (1 - is_open)
    factor = rate_factor(state.step, method)
    multiplier_rate, beta2, weight_decay = method.optimiser
    rate = torch.full_like(gradient, method.rate * factor)
    rate[-2:] = multiplier_rate * factor
    state.adam(gradient, rate, beta2, weight_decay)
    state.history.append((kl, expected))


def gap(expected: float, edges: int, aim: float, method: EdgePruning) -> tuple[float, float]:
    """Return how much larger the circuit is than it should be, and the derivative with respect to its expected size."""
    if method.schedule == "linear":
        return (expected - aim) / edges, 1 / edges
    return math.log(expected / aim), 1 / expected


def target(step: int, goal: Goal, method: EdgePruning) -> float:
    """Return the number of edges to be at by this step."""
    assert goal.size is not None
    ramp = method.ramp * method.steps
    done = step / ramp if step < ramp else 1.0
    if method.schedule == "linear":
        return goal.start_size + (goal.size - goal.start_size) * done
    return float(goal.start_size * (goal.size / goal.start_size) ** done)


def rate_factor(step: int, method: EdgePruning) -> float:
    """Return the factor of the rates: it rises linearly over the warm-up and falls linearly to 0 over the cool-down."""
    warm, cool = method.warm_up * method.steps, method.cool_down * method.steps
    return min(1.0, (step + 1) / max(1.0, warm), (method.steps - step) / max(1.0, cool))


def settled(state: Training, goal: Goal, method: EdgePruning) -> bool:
    """True if KL and size have stopped moving: the halves of the last `patience` steps agree, and the size is reached.

    Never without a size: two edges of which one would do stay together for a while, and look settled, before one goes.
    """
    half = method.patience // 2
    if half == 0 or goal.size is None or state.step < method.ramp * method.steps + 2 * half:
        return False
    recent = torch.tensor(state.history[-2 * half :], dtype=torch.float64).reshape(2, half, 2)
    (kl_before, _), (kl_now, edges_now) = recent.mean(dim=1).tolist()
    noise = float(recent[:, :, 0].std()) / math.sqrt(half)
    return bool(abs(edges_now - goal.size) <= 0.02 * goal.size and kl_before - kl_now < max(0.01 * kl_before, noise))


def open_edges(step: int, goal: Goal, edges: int, method: EdgePruning) -> int:
    """Estimate the edges open at a step: as many as wanted, or as can be, since log alpha moves only so fast."""
    if goal.size is None:
        return edges
    moved = sum(method.rate * rate_factor(before, method) for before in range(step))
    still_open = edges * float(probability_above(torch.tensor(method.start - moved), 0.0))
    return round(max(still_open, min(edges, target(step, goal, method))))
