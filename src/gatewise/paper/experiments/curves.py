"""What completeness and faithfulness share: a measure of circuits over sizes, directions, methods and tasks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatewise.paper.contract import DIRECTION_NAMES, DIRECTIONS, METHOD_NAMES, TASK_NAMES, Judgement, Table
from gatewise.paper.figures import (
    BASELINE_COLOUR,
    DIRECTION_COLOURS,
    LINES,
    MARKERS,
    legend_below,
    panels,
    size_axis,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.paper.lab import Lab

# Which part of an Evaluation, and which of its divergences
FAITHFULNESS = ("circuit", "kl_from_full")  # KL(G || C)
COMPLETENESS = ("complement", "kl_to_full")  # KL(G\\C || G)
SATURATED = 0.05  # how near the empty circuit's KL, as a share of it, leaves nothing to compare
FEWEST = 4  # cells that a verdict needs


@dataclass(frozen=True)
class Point:
    """A measure over the seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.deviation:.2g}" if len(self.values) > 1 else f"{self.mean:.3g}"


@dataclass(frozen=True)
class Curves:
    """KL and accuracy: by task, method, direction, size. The dotted lines of figures: full and empty, by task."""

    points: Mapping[tuple[str, str, str, int], tuple[Point, Point]]
    full: Mapping[str, tuple[float, float]]  # KL, accuracy
    empty: Mapping[str, tuple[float, float]]


def measure(lab: Lab, what: tuple[str, str]) -> Curves:
    """Read a measure off all circuits' behaviours on held-out pairs."""
    part, kl = what
    points: dict[tuple[str, str, str, int], tuple[Point, Point]] = {}
    full, empty = {}, {}
    for task in lab.preset.tasks:
        for method in lab.preset.methods:
            for direction in DIRECTIONS:
                seeds = [lab.behaviours(task, method, direction, s) for s in range(lab.preset.seeds[method])]
                for size in lab.sizes(method):
                    found = [seed[size][part] for seed in seeds]
                    points[task, method, direction, size] = (
                        Point(tuple(_mean(one[kl]) for one in found)),
                        Point(tuple(_mean(one["accuracy"]) for one in found)),
                    )
        any_size = next(iter(seeds[0].values()))
        full[task], empty[task] = (
            (_mean(any_size[which][kl]), _mean(any_size[which]["accuracy"])) for which in ("full", "empty")
        )
    return Curves(points, full, empty)


def table(lab: Lab, curves: Curves, task: str, which: int, title: str) -> Table:
    """The paper's layout: sizes down, methods and directions across. which: 0 for KL, 1 for accuracy."""
    methods = lab.preset.methods
    sizes = sorted({size for method in methods for size in lab.sizes(method)})
    columns = ["edges", *(f"{METHOD_NAMES[m]} {DIRECTION_NAMES[d]}" for m in methods for d in DIRECTIONS)]
    rows: list[list[str | int | None]] = []
    for size in sizes:
        cells = [curves.points.get((task, m, d, size)) for m in methods for d in DIRECTIONS]
        rows.append([size, *(None if cell is None else str(cell[which]) for cell in cells)])
    seeds = ", ".join(f"{METHOD_NAMES[m]} {lab.preset.seeds[m]}" for m in methods)
    ends = f"Whole model {curves.full[task][which]:.3g}, empty circuit (corrupted run) {curves.empty[task][which]:.3g}."
    return Table(f"{TASK_NAMES[task]}: {title}", columns, rows, f"Mean ± deviation over seeds ({seeds}). {ends}")


def figure(lab: Lab, curves: Curves, which: int, label: str) -> Callable[[], Figure]:
    """Panels: tasks down, methods across; a line for each direction."""

    def draw() -> Figure:
        methods, tasks = lab.preset.methods, lab.preset.tasks
        drawn, axes = panels(len(tasks), len(methods), sharey="row")
        for row, task in enumerate(tasks):
            for column, method in enumerate(methods):
                at = axes[row][column]
                for direction in DIRECTIONS:
                    sizes = lab.sizes(method)
                    line = [curves.points[task, method, direction, size][which] for size in sizes]
                    at.errorbar(
                        sizes,
                        [point.mean for point in line],
                        yerr=[point.deviation for point in line],
                        color=DIRECTION_COLOURS[direction],
                        marker=MARKERS[direction],
                        linestyle=LINES[direction],
                        markersize=4,
                        capsize=2,
                        label=DIRECTION_NAMES[direction],
                    )
                for ends, name, style in ((curves.full, "whole model", "-"), (curves.empty, "empty circuit", ":")):
                    at.axhline(ends[task][which], color=BASELINE_COLOUR, linewidth=0.8, linestyle=style, label=name)
                size_axis(at, sizes)
                at.set_title(f"{METHOD_NAMES[method]}, {TASK_NAMES[task]}")
            axes[row][0].set_ylabel(label)
        handles, labels = axes[0][0].get_legend_handles_labels()
        legend_below(drawn, handles, labels)
        return drawn

    return draw


@dataclass(frozen=True)
class Comparison:
    """One direction against another, cell by cell (a task, a method, a size; means over seeds)."""

    differences: tuple[float, ...]  # first minus second
    saturated: int = 0  # cells left out, since both are as good as the empty circuit

    @property
    def larger(self) -> int:
        """Cells in which the first is larger."""
        return sum(difference > 0 for difference in self.differences)

    @property
    def p(self) -> float:
        """Two-sided sign test; ties are left out. Cells share data and are not independent: a rough guide."""
        smaller = sum(difference < 0 for difference in self.differences)
        n, k = self.larger + smaller, min(self.larger, smaller)
        return min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n) if n else 1.0

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences) if self.differences else math.nan

    def __str__(self) -> str:
        cells = f"larger in {self.larger} of {len(self.differences)} cells"
        left_out = f"; {self.saturated} saturated cells are left out" if self.saturated else ""
        if not self.differences:
            return cells + left_out
        return f"{cells} (sign test p = {self.p:.2g}), by {self.mean:+.3g} on average{left_out}"


def compare(
    curves: Curves, one: str, other: str, which: int, methods: Sequence[str], *, unsaturated: bool = False
) -> Comparison:
    """Compare two directions over all tasks, sizes and the given methods. which: 0 for KL, 1 for accuracy.

    unsaturated: leave out cells in which the KL of both is within 5 % of the empty circuit's.
    """
    differences: list[float] = []
    saturated = 0
    for task, method, direction, size in curves.points:
        if direction != one or method not in methods:
            continue
        first, second = (curves.points[task, method, d, size] for d in (one, other))
        if unsaturated and is_saturated((first[0].mean, second[0].mean), curves.empty[task][0]):
            saturated += 1
        else:
            differences.append(first[which].mean - second[which].mean)
    return Comparison(tuple(differences), saturated)


def is_saturated(kls: Sequence[float], empty: float) -> bool:
    """Whether removing these circuits is already as bad as removing everything."""
    return all(abs(kl - empty) <= SATURATED * abs(empty) for kl in kls)


def judge(comparison: Comparison, *, larger: bool) -> Judgement:
    """Whether a claim that the first is larger (or smaller) holds: in nearly all cells, in most, or not.

    The mean difference has to have the right sign too.
    """
    if len(comparison.differences) < FEWEST:
        return "cannot be judged"
    share = comparison.larger / len(comparison.differences)
    share = share if larger else sum(d < 0 for d in comparison.differences) / len(comparison.differences)
    if (comparison.mean > 0) != larger:
        return "does not hold"
    if share >= 0.8 and comparison.p < 0.05:
        return "holds"
    return "holds partly" if share > 0.5 else "does not hold"


def _mean(entry: Any) -> float:
    return float(entry["mean"])
