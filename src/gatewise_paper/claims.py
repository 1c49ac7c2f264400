"""Verdicts on the paper's claims: supported, contradicted, no difference or cannot tell, by values over seeds.

The unit is a seed, its pairs and its search: sizes, gates and samples within a seed belong together, so each seed gives
one number. What is claimed of that number, and which difference is too small to matter, is declared beforehand. A test
by exact sign flips over seeds then has four outcomes:

- *supported*: its 95 % interval lies where the claim says;
- *contradicted*: it lies on the other side;
- *no difference*: it lies within the difference that is too small to matter;
- *cannot tell*: anything else. With fewer than six seeds nothing else can come out.

Each task is judged for itself, then the mean over tasks of each seed: the pooled outcome stands beside those of the
tasks, never in their place. One claim for each experiment and method is primary, named before the runs; all others are
exploratory, since so few seeds survive no correction for asking often.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from gatewise.statistics import Interval
from gatewise_paper.seed_statistics import sign_flip_interval, sign_flip_p

Judgement = Literal["supported", "contradicted", "no difference", "cannot tell"]
JUDGEMENTS: tuple[Judgement, ...] = get_args(Judgement)
# Declared before any run, for all presets
SMALLEST_DIFFERENCE = 0.05  # up to which accuracies, shares and normalised KL do not differ
EFFECT_FLOOR = 0.01  # normalised KL below which what is removed together has no effect


@dataclass(frozen=True)
class Above:
    """A claim that a value is above 0: supported if its interval is, and does not lie wholly within ±smallest."""

    smallest: float = SMALLEST_DIFFERENCE

    def judge(self, interval: Interval) -> Judgement:
        if -self.smallest <= interval.low and interval.high <= self.smallest:
            return "no difference"
        return "supported" if interval.low > 0 else "contradicted" if interval.high < 0 else "cannot tell"

    def room(self, value: float) -> float:
        """How wide half of an interval around a value may be to decide anything."""
        return max(abs(value), self.smallest - abs(value))

    def otherwise(self, judgement: Judgement) -> str:
        """What would have to be seen for another judgement."""
        if judgement in ("supported", "contradicted"):
            return "an interval that reaches 0"
        return f"an interval that lies beyond ±{self.smallest:g} on one side of 0"

    def __str__(self) -> str:
        return f"claimed: above 0; within ±{self.smallest:g} is no difference"


@dataclass(frozen=True)
class Between:
    """A claim that a value lies between two others, such as that there is no difference."""

    low: float
    high: float

    def judge(self, interval: Interval) -> Judgement:
        if self.low <= interval.low and interval.high <= self.high:
            return "supported"
        return "contradicted" if interval.high < self.low or interval.low > self.high else "cannot tell"

    def room(self, value: float) -> float:
        return min(abs(value - end) for end in (self.low, self.high))

    def otherwise(self, judgement: Judgement) -> str:
        return f"an interval that {'leaves' if judgement == 'supported' else 'reaches'} {self._bounds}"

    @property
    def _bounds(self) -> str:
        if math.isinf(self.high):
            return f"{self.low:.3g} or more"
        return f"at most {self.high:.3g}" if math.isinf(self.low) else f"{self.low:.3g} to {self.high:.3g}"

    def __str__(self) -> str:
        return f"claimed: {self._bounds}"


Values = Mapping[str, Sequence[float]]  # by task, one for each seed
_FEWEST = 6  # seeds that can decide anything
_MANY = 1_000  # seeds that nobody will run


@dataclass(frozen=True)
class Claim:
    """What the paper says, and our number for it."""

    text: str  # the paper's, in one sentence
    what: str  # what the values are
    values: Values
    claimed: Above | Between = Above()
    paper: str = ""  # the paper's own number


@dataclass(frozen=True)
class Decision:
    """What the values of seeds say about a claim."""

    judgement: Judgement
    interval: Interval
    p: float  # of the mean being 0, two-sided
    left_out: int = 0  # seeds without a value

    @property
    def effect(self) -> str:
        return str(self.interval) if self.interval.n else "no seed has a value"

    def __str__(self) -> str:
        missing = f"; {self.left_out} seeds have no value" if self.left_out and self.interval.n else ""
        return f"{self.judgement}, {self.effect}{missing}"


@dataclass(frozen=True)
class Ruling:
    """A claim of the paper, and what became of it."""

    claim: str  # the paper's, in one sentence
    judgement: Judgement
    because: str  # the statistic, in words
    method: str = ""  # if the claim is about one
    primary: bool = False  # else exploratory
    pooled: Decision | None = None  # None if nothing is random
    tasks: Mapping[str, Decision] = field(default_factory=dict)
    paper: str = ""  # its number
    otherwise: str = ""  # what would change our mind

    @property
    def standing(self) -> str:
        return "" if self.pooled is None else "primary" if self.primary else "exploratory"

    def to_json(self) -> dict[str, Any]:
        effect = "" if self.pooled is None else self.pooled.effect
        return {**asdict(self), "standing": self.standing, "effect": effect}


def decide(values: Sequence[float], claimed: Above | Between) -> Decision:
    """Judge one value for each seed, NaN for a seed that has none."""
    known = [value for value in values if not math.isnan(value)]
    interval = sign_flip_interval(known)
    judgement = claimed.judge(interval) if known else "cannot tell"
    return Decision(judgement, interval, sign_flip_p(known), len(values) - len(known))


def rule(claim: Claim, *, method: str = "", primary: bool = False, besides: str = "") -> Ruling:
    """Judge each task, then all of them together. besides: what else is to be said."""
    claimed = claim.claimed
    pooled = decide(pool(claim.values), claimed)
    by_task: dict[str, Decision] = {}
    if len(claim.values) > 1:
        by_task = {task: decide(values, claimed) for task, values in claim.values.items()}
    because = f"{claim.what}: {pooled.effect}, p = {pooled.p:.2g} ({claimed})."
    if by_task:
        because += f" By task: {'; '.join(f'{task} {decision}' for task, decision in by_task.items())}."
    return Ruling(
        claim.text,
        pooled.judgement,
        f"{because} {besides}".rstrip(),
        method,
        primary,
        pooled,
        by_task,
        claim.paper,
        _otherwise(pooled, claimed),
    )


def _otherwise(decision: Decision, claimed: Above | Between) -> str:
    """What would change our mind: other values, or more seeds."""
    interval, judgement = decision.interval, decision.judgement
    if judgement != "cannot tell":
        return claimed.otherwise(judgement)
    if not interval.n:
        return "seeds that have a value"
    if interval.n < _FEWEST:
        return f"{_FEWEST} seeds or more"
    # Intervals shrink with the square root of the number of seeds.
    room = claimed.room(interval.value)
    needed = math.ceil(interval.n * ((interval.high - interval.low) / 2 / room) ** 2) if room else _MANY
    needed = max(needed, interval.n + 1)
    return f"about {needed} seeds, if their mean stays" if needed < _MANY else "more seeds than can be run"


def rules(method: str, *claims: Claim, besides: str = "", primary: bool = True) -> list[Ruling]:
    """Judge claims about one method: the first is primary (unless none is), and has `besides`."""
    first, *others = claims
    return [
        rule(first, method=method, primary=primary, besides=besides),
        *(rule(claim, method=method) for claim in others),
    ]


def pool(values: Values) -> list[float]:
    """The mean over tasks for each seed; NaN where a task has no value. Tasks without any do not count."""
    known = [seeds for seeds in values.values() if not all(map(math.isnan, seeds))]
    return [statistics.fmean(seed) for seed in zip(*known, strict=False)] if known else []


def settle(claim: str, holds: bool, because: str, *, method: str) -> Ruling:
    """Judge a claim in which nothing is random: it holds, or it does not."""
    return Ruling(claim, "supported" if holds else "contradicted", because, method, otherwise="an error in the code")


def relative(first: float, second: float) -> float:
    """How much larger the first value is than the second, from -1 to 1; a factor of two is 1/3. NaN if both are 0."""
    size = abs(first) + abs(second)
    return (first - second) / size if size else math.nan


def least(*values: float) -> float:
    """The smallest; NaN if one is not known."""
    return math.nan if any(map(math.isnan, values)) else min(values)
