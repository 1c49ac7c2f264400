"""One training of a ranking: its state, the soft masks, the sizes that are drawn, and its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gatewise.errors import GatewiseError
from gatewise.methods.objective import Objective

if TYPE_CHECKING:
    from gatewise.methods.ranking.method import Ranking

BETA1, BETA2 = 0.9, 0.95  # how long Adam remembers gradients, and squared gradients
_STRETCH = 0.05  # masks this close to 0 or 1 are 0 or 1: closed edges cost nothing, open ones are wholly open
_GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples modulo 1 are spread evenly, however many there are
_HALVINGS = 40  # of the interval in which tau lies: to the last bit of float32
_TINY = 1e-12


@dataclass(eq=False)
class RankingState:
    """All state of a training: what comes next depends on nothing else, since draws follow from seed and step."""

    scores: Tensor  # [edge]
    first: Tensor  # [edge], Adam's mean of gradients
    second: Tensor  # [edge], Adam's mean of squared gradients
    step: int = 0
    history: list[tuple[float, float]] = field(default_factory=list)  # size and distance of each step

    @classmethod
    def begin(cls, order: Tensor) -> RankingState:
        """Begin with a ranking. order: edges, the strongest first"""
        count = len(order)
        scores = torch.empty(count)
        # In units of a factor e of rank, so that the temperature means the same at all sizes.
        scores[order] = -torch.log((torch.arange(count) + 1.0) / count)
        return cls(scores, torch.zeros(count), torch.zeros(count))


@dataclass(frozen=True)
class Schedule:
    """What is drawn at each step: a size, and which examples; and how far scores move."""

    edges: int  # of the graph
    smallest: float  # sizes that are trained
    largest: float
    seed: int
    blind: bool  # the start is a random order: few of its edges make no path, so that sizes have to fall from all edges

    def size(self, step: int, method: Ranking) -> float:
        """Return how many edges are open at a step: evenly spread over log sizes, now and then beyond the largest."""
        begin = float(torch.rand(1, generator=torch.Generator().manual_seed(self.seed)))
        position = (begin + step * _GOLDEN) % 1.0
        falling = self._falling_steps(method)
        if step < falling:
            high, low = 0.9 * self.edges, 0.3 * self.largest
            return float(high * (low / high) ** (step / falling))
        # Not in the second half, when it would disturb what has settled.
        if method.explore and 2 * step < method.steps and step % method.explore == method.explore - 1:
            return float(self.largest * (self.edges / self.largest) ** position)
        return float(self.smallest * (self.largest / self.smallest) ** position)

    def rate(self, step: int, method: Ranking) -> float:
        """Return the learning rate: it rises linearly over the warm-up and falls linearly to 0 over the cool-down."""
        warm, cool = method.warm_up * method.steps, method.cool_down * method.steps
        factor = min(1.0, (step + 1) / max(1.0, warm), (method.steps - step) / max(1.0, cool))
        return method.rate * factor * (method.blind_rate if step < self._falling_steps(method) else 1.0)

    def batch(self, step: int, batches: int) -> int:
        """Return which examples a step runs: all batches in random order, again and again."""
        turn, position = divmod(step, batches)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + turn)
        return int(torch.randperm(batches, generator=generator)[position])

    def _falling_steps(self, method: Ranking) -> float:
        return method.blind_steps * method.steps if self.blind else 0.0


def soft_mask(scores: Tensor, size: float, temperature: float) -> tuple[Tensor, Tensor]:
    """Return masks that sum to `size`, in the order of scores, and their slopes dm/ds. [edge] each

    m = clamp(1.1 sigmoid((s - tau) / temperature) - 0.05, 0, 1), with tau such that they sum to `size`.
    """
    # Tau is looked for among the strongest edges, and among more of them if the weakest of those is open.
    count = min(len(scores), int(4 * size) + 64)
    while True:
        strongest = torch.topk(scores, count, sorted=False).values
        tau = _tau(strongest, size, temperature)
        if count == len(scores) or float(_stretched((strongest.min() - tau) / temperature)[0]) <= 0:
            break
        count = min(len(scores), 8 * count)
    stretched, slope = _stretched((scores - tau) / temperature)
    inside = (stretched > 0) & (stretched < 1)
    return stretched.clamp(0, 1), torch.where(inside, slope / temperature, 0.0)


def _tau(scores: Tensor, size: float, temperature: float) -> float:
    """Return the tau at which masks sum to `size`, by halving."""
    low, high = float(scores.min()) - 4 * temperature, float(scores.max()) + 4 * temperature
    for _ in range(_HALVINGS):
        tau = (low + high) / 2
        if float(_stretched((scores - tau) / temperature)[0].clamp_(0, 1).sum()) > size:
            low = tau
        else:
            high = tau
    return (low + high) / 2


def _stretched(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a sigmoid from -_STRETCH to 1 + _STRETCH, and its slope."""
    smooth, width = torch.sigmoid(x), 1 + 2 * _STRETCH
    return width * smooth - _STRETCH, width * smooth * (1 - smooth)


def take_step(objective: Objective, state: RankingState, schedule: Schedule, method: Ranking) -> None:
    """Draw a size, run its soft mask on the examples of the step, and move the scores. Changes the state."""
    size = schedule.size(state.step, method)
    mask, slope = soft_mask(state.scores, size, method.temperature)
    batch = schedule.batch(state.step, len(objective.steps))
    distance, into_mask = objective.of_each(mask, batch)
    if not math.isfinite(distance):
        raise GatewiseError(
            f"ranking: the distance from the reference is {distance} at step {state.step}; try dtype='float32', or a "
            f"metric that is finite on all logits."
        )
    wanted = _averaged(into_mask, size, method)
    # The sum of masks stays what it is: edges compete.
    wanted = slope * (wanted - (wanted @ slope) / slope.sum().clamp(min=_TINY))
    _adam(state, wanted, schedule.rate(state.step, method), method)
    state.step += 1
    state.history.append((size, distance))


def _averaged(gradient: Tensor, size: float, method: Ranking) -> Tensor:
    """Average over examples so that what is learned holds for others. [example, edge] -> [edge]

    A step has few examples, and a training few dozen, so that it fits itself to them: the KL of 500 edges was three
    times as large on other pairs. Two things help. A mean is shrunk by how uncertain it is, mean^2 / (mean^2 + variance
    of the mean): what only some examples want moves little. And edges that do much on single examples are favoured, the
    more the larger the size: effects that cancel on the search pairs do not cancel on others.
    """
    mean, square = gradient.mean(dim=0), gradient.square().mean(dim=0)
    examples = len(gradient)
    variance = (square - mean.square()).clamp(min=0) / max(1, examples - 1)  # of the mean
    trusted = mean.square() / (mean.square() + method.shrink * variance).clamp(min=_TINY**2)
    bonus = method.bonus * size / (size + _weak(gradient.shape[1], method))
    return mean * trusted - bonus * square.sqrt()


def _weak(edges: int, method: Ranking) -> int:
    """Return the rank from which on edges count as weak."""
    return max(1, min(method.weak, edges // 20))


def _adam(state: RankingState, gradient: Tensor, rate: float, method: Ranking) -> None:
    """Take one step of Adam, whose denominators have a floor.

    Plain Adam moves every edge about as fast, so that thousands with tiny gradients walk at random and spoil large
    sizes. The floor is a share of what weak edges have.
    """
    state.first.lerp_(gradient, 1 - BETA1)
    state.second.lerp_(gradient.square(), 1 - BETA2)
    count = state.step + 1
    mean = state.first / (1 - BETA1**count)
    spread = (state.second / (1 - BETA2**count)).sqrt()
    floor = method.floor * torch.topk(spread, _weak(len(spread), method)).values[-1]
    state.scores -= rate * mean / (spread + floor + _TINY)
