"""One visual language for all figures: colours, markers and sizes, and the saving of files.

Colours are from Okabe and Ito's palette, which people with any common colour vision can tell apart; directions and
methods also differ by marker and line style.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gatewise.statistics import Interval
from gatewise_paper.naming import DIRECTION_NAMES, METHOD_NAMES, task_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:  # matplotlib is optional
    Axes = Figure = Any

DIRECTION_COLOURS = {"ns": "#0072B2", "dn": "#D55E00", "ns+dn": "#009E73"}
METHOD_COLOURS = {"acdc": "#CC79A7", "eap": "#E69F00", "edge-pruning": "#56B4E9"}
BASELINE_COLOUR = "#777777"
MARKERS = {"ns": "o", "dn": "s", "ns+dn": "^", "acdc": "o", "eap": "s", "edge-pruning": "^"}
LINES = {"ns": "--", "dn": ":", "ns+dn": "-"}
_MOST_TICKS = 7  # of an axis over many orders of magnitude
_LOOK: dict[Any, Any] = {
    "figure.dpi": 110,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.hashsalt": "gatewise",  # the same file for the same numbers
    "svg.fonttype": "none",
}


def panels(
    rows: int, columns: int, *, width: float = 3.2, height: float = 2.6, sharey: Literal["row"] | bool = False
) -> tuple[Figure, Any]:
    """A figure with a grid of axes, [rows][columns], always two-dimensional."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharey=sharey)


def by_task_and_method(
    tasks: Sequence[str], methods: Sequence[str], fill: Callable[[Any, str, str], None], label: str = "", **shape: Any
) -> Figure:
    """Panels with titles: tasks down, methods across. shape: as for `panels`."""

    def fill_titled(axes: Any, task: str, method: str) -> None:
        fill(axes, task, method)
        below = axes.get_title()
        axes.set_title(f"{METHOD_NAMES[method]}, {task_name(task)}{below and chr(10)}{below}")

    return filled(tasks, methods, fill_titled, label, **shape)


def filled(
    rows: Sequence[Any], columns: Sequence[Any], fill: Callable[[Any, Any, Any], None], label: str = "", **shape: Any
) -> Figure:
    """Panels, each filled by a call with its axes, row and column; one legend of all below. shape: as for `panels`."""
    figure, grid = panels(len(rows), len(columns), **shape)
    handles: dict[str, Any] = {}
    for line, row in zip(grid, rows, strict=True):
        for axes, column in zip(line, columns, strict=True):
            fill(axes, row, column)
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(name, handle)
        line[0].set_ylabel(label)
    if handles:
        legend_below(figure, list(handles.values()), list(handles))
    return figure


def direction_style(direction: str) -> dict[str, Any]:
    """How a line of a direction looks."""
    look = {"color": DIRECTION_COLOURS[direction], "marker": MARKERS[direction], "linestyle": LINES[direction]}
    return {**look, "markersize": 4, "label": DIRECTION_NAMES[direction]}


def bars(axes: Any, shift: int, values: Sequence[float], errors: Any, **style: Any) -> None:
    """One of three bars at each tick, with lines for their errors."""
    positions = [tick + 0.27 * (shift - 1) for tick in range(len(values))]
    axes.bar(positions, values, 0.25, yerr=errors, error_kw={"linewidth": 0.8, "capsize": 2}, **style)
    axes.grid(axis="x", visible=False)


def errors(values: Sequence[float], intervals: Iterable[Interval]) -> list[list[float]]:
    """Lengths of error bars, downwards and upwards; 0 where an interval is not known."""
    lengths: list[list[float]] = [[], []]
    for value, interval in zip(values, intervals, strict=True):
        for side, length in zip(lengths, (value - interval.low, interval.high - value), strict=True):
            side.append(max(0.0, length) if math.isfinite(length) else 0.0)
    return lengths


def size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """A logarithmic axis of numbers of edges, with a tick for each size."""
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=90, fontsize=7)  # upright, since many are close
    axes.minorticks_off()
    axes.set_xlabel("edges")


def wide_axis(axes: Axes, smallest: float) -> None:
    """A vertical axis for values of both signs over many orders of magnitude: logarithmic beyond about `smallest`.

    To be called when everything is drawn.
    """
    first = math.floor(math.log10(smallest))
    axes.set_yscale("symlog", linthresh=10.0**first)
    low, high = axes.get_ylim()
    powers = [10.0**k for k in range(first + 15, first - 1, -1)]
    up, down = ([power for power in powers if power <= end] for end in (high, -low))
    every = max(1, math.ceil((len(up) + len(down)) / _MOST_TICKS))
    up, down = (side[:-1:every] or side for side in (up, down))  # the smallest would collide with 0
    if up or down:
        axes.set_yticks([*(-power for power in down), 0, *up])
    axes.minorticks_off()


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str], *, columns: int | None = None) -> None:
    """One legend for all axes, under them, in as many columns as the figure is wide enough for."""
    widest = max(map(len, labels), default=1)
    fitting = max(1, int(figure.get_figwidth() / (0.5 + 0.07 * widest)))
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns or len(labels), fitting))


def draw(make: Callable[[], Figure], folder: Path, name: str) -> list[Path]:
    """Draw a figure to NAME.svg and NAME.png."""
    import matplotlib as mpl

    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_LOOK):
        figure = make()
        paths = [folder / f"{name}.svg", folder / f"{name}.png"]
        figure.savefig(paths[0], metadata={"Date": None})
        figure.savefig(paths[1], dpi=150, metadata={"Software": None})
    return paths
