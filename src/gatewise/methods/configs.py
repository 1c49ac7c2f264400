"""The methods of the package as people see them: names, parameters, what a threshold means.

Nothing here needs torch, so that `gatewise methods` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gatewise.errors import GatewiseError


@dataclass(frozen=True)
class Offer:
    """What is said about a method; the fields of `Method` with the same names."""

    name: str
    title: str
    summary: str
    config: type[Any]
    threshold_meaning: str
    directed: bool = True


@dataclass(frozen=True)
class AcdcConfig:
    """Parameters of ACDC."""

    combine: Literal["sum", "either"] = "sum"  # how ns+dn judges an edge
    chain: int = 128  # longest chain; changes the speed, not the result
    batch: int | None = None  # examples at a time; changes the memory, not the result
    tolerance: float = 0.1  # a tau that keeps at most this share more edges than asked for is good enough
    runs: int = 12  # most values of tau to try for a number of edges
    first_threshold: float | None = None  # to try; None: the distance of the runs over the edges asked for

    def __post_init__(self) -> None:
        if self.combine not in ("sum", "either"):
            raise GatewiseError(f"combine is 'sum' (the paper) or 'either', got {self.combine!r}.")
        if self.chain < 1 or self.runs < 1 or (self.batch is not None and self.batch < 1):
            raise GatewiseError("chain, batch and runs are at least 1.")
        if self.first_threshold is not None and not self.first_threshold > 0:
            raise GatewiseError(f"first_threshold is a tau above 0, got {self.first_threshold!r}.")


@dataclass(frozen=True)
class EapConfig:
    """Parameters of EAP."""

    combine: Literal["sum", "max"] = "sum"  # of ns+dn: the sum (paper), or the score of larger magnitude
    calibrate: int = 0  # edges to compare with their exact effects; the rank correlation is noted

    def __post_init__(self) -> None:
        _check_calibrate(self.calibrate)
        if self.combine not in ("sum", "max"):
            raise GatewiseError(f"combine is 'sum' or 'max' (the score of larger magnitude), got {self.combine!r}.")


@dataclass(frozen=True)
class EapIgConfig:
    """Parameters of EAP-IG."""

    steps: int = 5  # points between the corrupted and the clean input at which the gradient is taken
    calibrate: int = 0  # edges to compare with their exact effects; the rank correlation is noted

    def __post_init__(self) -> None:
        _check_calibrate(self.calibrate)
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise GatewiseError(f"steps is a whole number of at least 1, got {self.steps!r}.")


def _check_calibrate(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise GatewiseError(f"calibrate is a number of edges, 0 for none; got {count!r}.")


_MOST_PER_STEP = 32


@dataclass(frozen=True)
class EdgePruningConfig:
    """Parameters of Edge Pruning. The defaults need a tenth of the published steps: see bench/edge_pruning_settings.py.

    `penalty` is the price of an edge when a threshold is asked for, in nats: like ACDC's tau, an edge stays if it is
    worth more KL than that. `batch` examples are used per step, in turn, with `one` mask for all or one for `each`; by
    default half of them, and at most 32, or 32 with one mask.
    """

    steps: int = 300
    ramp: float = 0.7  # share of the steps over which the target falls from all edges to the asked number
    schedule: Literal["geometric", "linear"] = "geometric"  # of the target number of edges
    rate: float = 0.3  # of log alpha
    multiplier_rate: float = 0.2  # of the lambdas
    warm_up: float = 0.05  # share of the steps, at first, over which the rates rise linearly from 0
    cool_down: float = 0.25  # share of the steps, at last, over which they fall linearly to 0
    beta2: float = 0.95  # how long Adam remembers squared gradients
    weight_decay: float = 0.0
    start: float = 3.0  # mean of log alpha at first
    spread: float = 0.01  # its standard deviation
    penalty: float = 0.01
    batch: int | None = None
    draw: Literal["one", "each"] = "each"
    patience: int = 30  # steps after the ramp whose halves are compared, to stop early; 0: never
    combine: Literal["mean", "joint"] = "mean"  # for ns+dn: average two trainings, or train on the sum of both losses
    rank_all: bool = False  # rank the edges for all sizes by one training, at the smallest size

    def __post_init__(self) -> None:
        if self.combine not in ("mean", "joint"):
            raise GatewiseError(f"combine is 'mean' or 'joint' for edge-pruning, got {self.combine!r}.")
        if self.draw not in ("one", "each"):
            raise GatewiseError(f"draw is 'one' or 'each' for edge-pruning, got {self.draw!r}.")
        if self.schedule not in ("geometric", "linear"):
            raise GatewiseError(f"schedule is 'geometric' or 'linear', got {self.schedule!r}.")
        for name in ("steps", "rate", "multiplier_rate", "batch"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise GatewiseError(f"{name} of edge-pruning is {getattr(self, name)}; expected more than 0.")
        for name in ("penalty", "spread", "patience", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise GatewiseError(f"{name} of edge-pruning is {getattr(self, name)}; expected 0 or more.")
        for name in ("ramp", "warm_up", "cool_down", "beta2"):
            if not 0 <= getattr(self, name) <= 1:
                raise GatewiseError(f"{name} of edge-pruning is {getattr(self, name)}; expected a share from 0 to 1.")

    def examples_per_step(self, examples: int) -> int:
        """Of so many in all."""
        if self.batch is not None:
            return self.batch
        return min(_MOST_PER_STEP, -(-examples // 2)) if self.draw == "each" else _MOST_PER_STEP


_STRENGTH = "smallest |score|, in units of the logit difference"
_OFFERS = (
    Offer(
        "acdc",
        "ACDC",
        "Greedy search: remove every edge whose removal changes the output by less than tau.",
        AcdcConfig,
        "tau, the change of KL in nats",
    ),
    Offer(
        "eap",
        "EAP",
        "a linear estimate of every edge's effect from one gradient per direction",
        EapConfig,
        _STRENGTH,
    ),
    Offer(
        "eap-ig",
        "EAP-IG",
        "EAP with the gradient averaged between the corrupted and the clean input; has no direction",
        EapIgConfig,
        _STRENGTH,
        directed=False,
    ),
    Offer(
        "edge-pruning",
        "Edge Pruning",
        "train a hard-concrete mask on every edge (Bhaskar et al. 2024)",
        EdgePruningConfig,
        "expected mask value, from 0 to 1, trained at `penalty` nats per edge",
    ),
)
OFFERED = {offer.name: offer for offer in _OFFERS}
