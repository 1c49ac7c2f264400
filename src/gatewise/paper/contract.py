"""What an experiment is, and what it gives.

An experiment says which searches it needs (`cells`), so that all of them can run side by side and none twice, and then
computes its outcome from them (`run`). Whatever takes more than a second goes through `lab.remember`, so that an
interrupted run goes on where it stopped; what takes longer is a list of `jobs`, which run side by side too. An
outcome is plain data but for its figures, which are drawn from plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gatewise.methods.contract import SearchDirection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.paper.lab import Lab
    from gatewise.paper.presets import Preset

Judgement = Literal["holds", "holds partly", "does not hold", "cannot be judged"]
METHODS = ("acdc", "eap", "edge-pruning")  # in the paper's order
METHOD_NAMES = {"acdc": "ACDC", "eap": "EAP", "edge-pruning": "Edge Pruning"}
DIRECTIONS: tuple[SearchDirection, ...] = ("ns", "dn", "ns+dn")
DIRECTION_NAMES = {"ns": "Ns", "dn": "Dn", "ns+dn": "Ns+Dn"}
TASK_NAMES = {"ioi": "IOI", "gt": "GT", "sa": "SA"}


@dataclass(frozen=True, order=True)
class Cell:
    """One search: circuits of all of a preset's sizes. With `measured`, their behaviour on held-out pairs too."""

    task: str
    method: str
    direction: SearchDirection
    seed: int = 0
    measured: bool = False


@dataclass(frozen=True)
class Job:
    """A part of an experiment's own work, done by a process of the pool once all searches are done.

    `work` is a function of a module, called with the lab and `about`. What it finds counts only through
    `lab.remember`, where the experiment's `run` finds it again.
    """

    work: Callable[..., object]
    about: tuple[str | int | float, ...] = ()

    def run(self, lab: Lab) -> None:
        self.work(lab, *self.about)

    def __str__(self) -> str:
        named = f"{self.work.__module__.rpartition('.')[2]}.{self.work.__name__}"
        return f"{named} {', '.join(map(str, self.about))}".strip()


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers. Numbers are shown with three significant digits unless they are text already."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float | None]]
    note: str = ""  # what the numbers are over: seeds, examples, what ± means


@dataclass(frozen=True)
class Verdict:
    """What becomes of one claim of the paper here, with the statistic that says so."""

    claim: str  # the paper's, in one sentence
    judgement: Judgement
    because: str  # the statistic, in one or two sentences


@dataclass(frozen=True)
class Outcome:
    """What an experiment found."""

    tables: Sequence[Table]  # ours
    verdicts: Sequence[Verdict]
    paper: Sequence[Table] = ()  # the paper's own numbers, to stand beside ours
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)  # caption -> draws it
    notes: Sequence[str] = ()  # choices, limits, what was seen besides

    def to_json(self) -> dict[str, Any]:
        return {
            "tables": [asdict(table) for table in self.tables],
            "paper": [asdict(table) for table in self.paper],
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "figures": list(self.figures),
            "notes": list(self.notes),
        }


def _no_cells(preset: Preset) -> list[Cell]:
    return []


def _no_jobs(preset: Preset) -> list[Job]:
    return []


def _ready(preset: Preset) -> None:
    """Experiments that need more than the model raise a GatewiseError here if they do not have it."""


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper."""

    name: str  # on the command line
    title: str
    claim: str  # the paper's, in one sentence
    labels: Sequence[str]  # of the paper's figures and tables
    run: Callable[[Lab], Outcome]
    cells: Callable[[Preset], list[Cell]] = _no_cells
    jobs: Callable[[Preset], list[Job]] = _no_jobs
    check: Callable[[Preset], None] = _ready


def grid(
    preset: Preset,
    *,
    tasks: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    directions: Sequence[SearchDirection] = DIRECTIONS,
    seeds: Mapping[str, int] | int = 1,
    measured: bool = False,
) -> list[Cell]:
    """Cells for all combinations; `seeds`: how many, for all methods or for each."""
    return [
        Cell(task, method, direction, seed, measured)
        for task in (preset.tasks if tasks is None else tasks)
        for method in (preset.methods if methods is None else methods)
        for direction in directions
        for seed in range(seeds if isinstance(seeds, int) else seeds[method])
    ]
