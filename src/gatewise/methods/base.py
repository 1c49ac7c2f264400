"""What a discovery method is: one small frozen config, and one function from a problem to findings.

All that other parts want to know about a method is said by its `Method`, so that a new one is one file: give it to
`discover`, `make_report` or a sweep as it is, or name it `module:NAME` where a text is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.circuits.selection import Selection, select_each
from gatewise.engine.runs.activations import Direction
from gatewise.engine.setting import SIDES, Setting
from gatewise.models.model import Model
from gatewise.statistics import kl_divergence, log_probabilities
from gatewise.store.checkpoints import Checkpoint
from gatewise.tasks.pairs import Pairs

SearchDirection = Literal["ns", "dn", "ns+dn"]
SEARCH_DIRECTIONS: tuple[SearchDirection, ...] = ("ns", "dn", "ns+dn")


@dataclass(frozen=True, eq=False)
class Problem:
    """What is asked of a method. Either every direction has sizes, or there is a threshold."""

    setting: Setting
    directions: tuple[SearchDirection, ...]
    sizes: Mapping[SearchDirection, tuple[int, ...]] = field(default_factory=dict)  # circuits of exactly so many edges
    threshold: float | None = None  # in the method's own unit
    select: Selection = "top"
    seed: int = 0
    checkpoint: Checkpoint = field(default_factory=Checkpoint)  # where a long search keeps its state, if anywhere

    @property
    def model(self) -> Model:
        return self.setting.model

    @property
    def pairs(self) -> Pairs:
        return self.setting.pairs

    @property
    def graph(self) -> Graph:
        return self.setting.graph

    @property
    def runs(self) -> tuple[Direction, ...]:
        """The directions to run: what the asked ones consist of."""
        both: tuple[Direction, ...] = ("ns", "dn")
        return tuple(one for one in both if any(one in parts_of(asked) for asked in self.directions))

    def only(self, *directions: SearchDirection) -> Problem:
        """The same for some of the directions."""
        sizes = {direction: self.sizes[direction] for direction in directions} if self.sizes else {}
        return replace(self, directions=directions, sizes=sizes)


def parts_of(direction: SearchDirection) -> tuple[Direction, ...]:
    """The runs that a direction consists of: itself, or both."""
    return ("ns", "dn") if direction == "ns+dn" else (direction,)


@dataclass(frozen=True, eq=False)
class Finding:
    """One circuit a method found, before it gets its provenance."""

    mask: Tensor  # [edge] of bool
    scores: Tensor  # [edge], higher means more important; what they are is the method's to document
    notes: Mapping[str, Any] = field(default_factory=dict)  # plain data: counts, corrections, correlations


Findings = Mapping[SearchDirection, Sequence[Finding]]  # for each direction one per size, or one for the threshold


@dataclass(frozen=True)
class Work:
    """What a search takes besides the weights, for a forecast."""

    runs: int  # bytes of outputs and activations of the examples that are in memory at a time
    buffers: int  # bytes of sums, masks, optimiser state and chains
    operations: float
    moved: float  # bytes
    micro_batch: int
    micro_batches: int
    rough_f: float | None = None  # plain forward passes by a rule of thumb, where operations cannot be counted


@dataclass(frozen=True)
class Division:
    """How one search is cut into parts that workers do, in any order, with the result that it has in one process."""

    names: Callable[[Problem, Any], Sequence[Any]]  # of the parts; plain, and the same wherever they are asked for
    work: Callable[[Problem, Any, Any], Any]  # problem, config, name -> what is found there
    join: Callable[[Problem, Any, Mapping[Any, Any]], Findings]  # what was found, by name
    saves: bool = False  # whether a part keeps its state in the problem's checkpoint


@dataclass(frozen=True)
class Method:
    """A way of finding circuits."""

    name: str
    summary: str  # one line for `gatewise methods`
    config: type[Any]  # a frozen dataclass; its fields are the method's parameters
    search: Callable[[Problem, Any], Findings]
    version: str = "1"  # raise it when results change: it is part of the key under which they are stored
    title: str = ""  # for tables and figures; default: the name
    directed: bool = True  # False: the method has no direction, and gates cannot be split from it
    together: bool = False  # whether directions share work: then all are asked for at once, else one after the other
    ranks_once: bool = False  # whether scores estimate effects and serve all sizes: further ones cost next to nothing
    additive: bool = False  # whether scores are means over examples: then those of some follow from those of the others
    threshold_meaning: str = ""  # unit of `threshold`
    for_share: Callable[[Setting, SearchDirection, float], dict[str, Any]] | None = None
    """Arguments of `discover` with which an edge counts if it carries this share of the effect."""
    forecast: Callable[[Problem, Any], Work] | None = None  # on the meta device; None: only the two runs are counted
    parts: Division | None = None  # None: workers share no search; those of several directions are done side by side

    def __post_init__(self) -> None:
        if not self.title:
            object.__setattr__(self, "title", self.name)


def ranked(
    problem: Problem, scores: Mapping[SearchDirection, Tensor], notes: Mapping[SearchDirection, Any] | None = None
) -> dict[SearchDirection, list[Finding]]:
    """Findings of a method that gives every edge one score per direction: cut by |score|, as often as asked."""
    found: dict[SearchDirection, list[Finding]] = {}
    for direction in problem.directions:
        values, about = scores[direction], (notes or {}).get(direction, {})
        strength = values.abs()
        if problem.threshold is not None:
            found[direction] = [Finding(strength >= problem.threshold, values, about)]
            continue
        masks = select_each(problem.graph, strength, problem.sizes[direction], problem.select)
        found[direction] = [Finding(mask, values, about) for mask in masks]
    return found


def logit_diff_share(setting: Setting, direction: SearchDirection, share: float) -> dict[str, Any]:
    """`for_share` of a method whose scores are in units of the metric; ns+dn is a sum of two."""
    clean, corrupted = (setting.value.value(setting.last_logits(side), setting.pairs).mean() for side in SIDES)
    return {"threshold": share * abs(float(clean - corrupted)) * len(parts_of(direction))}


def kl_price(setting: Setting, direction: SearchDirection, share: float) -> float:
    """KL, which is quadratic near its reference, of what carries this share of the difference between the runs."""
    clean, corrupted = (log_probabilities(setting.last_logits(side)) for side in SIDES)
    between = {"ns": kl_divergence(clean, corrupted), "dn": kl_divergence(corrupted, clean)}
    return share**2 * sum(float(between[one].mean()) for one in parts_of(direction))
