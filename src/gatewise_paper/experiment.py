"""What an experiment is, and what it gives.

An experiment says what to measure (`measurements`): each is a function of the lab and a key, gives plain data and names
the searches whose circuits it needs. The runner does all searches and all measurements of all experiments, each once,
side by side, through the run store; then `judge` makes tables, figures and rulings of what was measured. So settings
are enumerated once, and an interrupted run goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from gatewise.methods.base import SearchDirection
from gatewise_paper.claims import Ruling
from gatewise_paper.naming import DIRECTIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise_paper.lab import Lab
    from gatewise_paper.presets import Preset

Measured = Mapping[Any, Any]  # what was measured, by key, in the order of the experiment
Value = TypeVar("Value")
Variant = Literal["", "connected", "untrimmed", "fixed pairs", "twice the pairs", "two masks"]
"""What is otherwise in a search:

- connected: the same scores, and of them the edges that lie on paths from the input to the logits;
- untrimmed: what ACDC keeps at the tau that keeps n edges or a few more, all of it;
- fixed pairs: all seeds have the same pairs, so that only the first masks of Edge Pruning differ, or ACDC's order, with
  one tau for all: that at which the first seed keeps n edges or a few more;
- twice the pairs: a control for EAP by Ns+Dn, which averages two gradients;
- two masks: the same for Edge Pruning, the mean of the masks of two trainings by Ns, on fixed pairs.
"""


@dataclass(frozen=True, order=True)
class Search:
    """Circuits of all of a preset's sizes, in some directions."""

    task: str
    method: str
    seed: int = 0
    directions: tuple[SearchDirection, ...] = DIRECTIONS
    variant: Variant = ""

    @property
    def about(self) -> tuple[str, str, int, Variant]:
        return self.task, self.method, self.seed, self.variant

    def __str__(self) -> str:
        name = f"{self.method} ({self.variant})" if self.variant else self.method
        return f"{name} {', '.join(self.directions)} on {self.task}, seed {self.seed}"


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
    """One thing to measure, a cell of an experiment.

    `work` is a function of a module. The key is a named tuple of plain values: with the circuits of the searches, the
    held-out pairs of its `task` if it has one, and the model it says all that determines the result. by_scores: the
    result depends on the scores of these circuits too.
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
class Table:
    """Rows of text and numbers. Numbers are shown with three significant digits unless they are text already."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float | None]]
    note: str = ""  # what the numbers are over: seeds, examples, what ± means


def by_size(title: str, columns: Mapping[str, Mapping[int, str | None]], note: str, *, first: str = "edges") -> Table:
    """Sizes down, one column for each mapping of sizes; what a column does not have stays empty."""
    sizes = sorted({size for column in columns.values() for size in column})
    rows = [[size, *(column.get(size) for column in columns.values())] for size in sizes]
    return Table(title, [first, *columns], rows, note)


@dataclass(frozen=True)
class Result:
    """What an experiment found."""

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


def _ready(preset: Preset) -> None:
    """Experiments that need more than the model raise a GatewiseError here if they do not have it."""


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper."""

    name: str  # on the command line
    title: str
    claim: str  # the paper's, in one sentence
    labels: Sequence[str]  # of the paper's figures and tables
    measurements: Callable[[Lab], Iterable[Measurement]]
    judge: Callable[[Lab, Measured], Result]
    check: Callable[[Preset], None] = _ready


def group(measured: Mapping[Any, Value], *fields: str) -> dict[Any, list[Value]]:
    """Values by some fields of their keys (by a tuple of them if there are several), in the order of measuring."""
    found: dict[Any, list[Value]] = {}
    for key, value in measured.items():
        at = tuple(getattr(key, name) for name in fields)
        found.setdefault(at if len(fields) > 1 else at[0], []).append(value)
    return found


def of_kind(measured: Measured, kind: type) -> dict[Any, Any]:
    """What was measured under keys of one kind."""
    return {key: value for key, value in measured.items() if isinstance(key, kind)}
