"""What an experiment is, and what it gives.

An experiment is two functions. `measurements` says what to measure: each `Measurement` is a function of the lab and a
key, which gives plain data, and names the searches whose circuits it needs. `judge` makes tables, figures and rulings
of what was measured, and measures nothing. The runner stands between them: it does all searches and all measurements
of all experiments, each once, side by side, through the run store. So whatever is interrupted resumes, and no claim is
worded after looking at the numbers.

    class EdgesKey(NamedTuple):  # all that determines the value, besides model, circuits and held-out pairs
        task: str
        method: str
        seed: int

    def shared_edges(lab: Lab, key: EdgesKey) -> int:
        ns, dn = (lab.circuits(key.task, key.method, direction, key.seed)[100] for direction in ("ns", "dn"))
        return len(ns & dn)

    def _measurements(lab: Lab) -> Iterator[Measurement]:
        for task, method, seed in lab.grid():
            yield Measurement(shared_edges, EdgesKey(task, method, seed), (Search(task, method, seed, ("ns", "dn")),))

    def _judge(lab: Lab, measured: Measured) -> Outcome: ...  # measured[EdgesKey("ioi", "eap", 0)] is a number
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gatewise.methods.base import SearchDirection
from gatewise_paper.claims import Ruling
from gatewise_paper.measured import Measured
from gatewise_paper.naming import DIRECTIONS
from gatewise_paper.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise_paper.lab import Lab
    from gatewise_paper.presets import Preset

Variant = Literal["", "connected", "untrimmed", "fixed pairs", "twice the pairs", "two masks"]
"""What is otherwise in a search:

- connected: the same scores, and of them the edges that lie on paths from the input to the logits;
- untrimmed: what ACDC keeps at the tau that keeps n edges or a few more, all of it;
- fixed pairs: all seeds have the same pairs, so that only the first masks of Edge Pruning differ, or ACDC's order, with
  one tau for all: that at which the first seed keeps n edges or a few more;
- twice the pairs: a control for EAP by Ns+Dn, which averages two gradients;
- two masks: the same for Edge Pruning, the mean of the masks of two trainings by Ns, on fixed pairs.
"""


class SearchName(NamedTuple):
    """What a search is about, whatever its directions."""

    task: str
    method: str
    seed: int
    variant: Variant


@dataclass(frozen=True, order=True)
class Search:
    """Circuits of all sizes that a preset has for a method and task, in several directions."""

    task: str
    method: str
    seed: int = 0
    directions: tuple[SearchDirection, ...] = DIRECTIONS
    variant: Variant = ""

    @property
    def name(self) -> SearchName:
        return SearchName(self.task, self.method, self.seed, self.variant)

    @property
    def is_derived(self) -> bool:
        """Whether its circuits are read off those of another search."""
        of_first_seed = self.method == "acdc" and self.variant == "fixed pairs" and self.seed == 0
        return self.variant in ("connected", "two masks", "untrimmed") or of_first_seed

    def __str__(self) -> str:
        method = f"{self.method} ({self.variant})" if self.variant else self.method
        return f"{method} {', '.join(self.directions)} on {self.task}, seed {self.seed}"


class TaskKey(NamedTuple):
    """Of what is measured once for each task."""

    task: str


class SeedKey(NamedTuple):
    """Of what is measured on the circuits of one seed."""

    task: str
    method: str
    seed: int


@dataclass(frozen=True)
class Measurement:
    """A value to measure.

    `work` is a function of a module. The key is a named tuple of plain values: with the circuits of the searches, the
    held-out pairs of its `task` if it has one, and the model it says all that determines the value. by_scores: the
    value depends on the scores of these circuits too.
    """

    work: Callable[[Lab, Any], Any]
    key: Any
    searches: tuple[Search, ...] = ()
    by_scores: bool = False

    @property
    def name(self) -> str:
        return f"{self.work.__module__.rpartition('.')[2]}.{self.work.__name__}"

    def __str__(self) -> str:
        return f"{self.name} {', '.join(map(str, self.key))}"


@dataclass(frozen=True)
class Outcome:
    """What an experiment gives."""

    tables: Sequence[Table]  # ours
    rulings: Sequence[Ruling]
    paper: Sequence[Table] = ()  # the paper's own numbers, to stand beside ours
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)  # caption -> draws it
    notes: Sequence[str] = ()  # choices, limits, what was seen besides

    def to_json(self) -> dict[str, Any]:
        return {
            "tables": [asdict(table) for table in self.tables],
            "paper": [asdict(table) for table in self.paper],
            "verdicts": [ruling.to_json() for ruling in self.rulings],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper."""

    name: str  # on the command line
    title: str
    claim: str  # the paper's, in one sentence
    labels: Sequence[str]  # of the paper's figures and tables
    measurements: Callable[[Lab], Iterable[Measurement]]
    judge: Callable[[Lab, Measured], Outcome]
    check: Callable[[Preset], None] = lambda preset: None  # raises a GatewiseError if what it needs is not there
