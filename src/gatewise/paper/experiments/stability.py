"""Stability: how much circuits change with the seed, Ns against Ns+Dn (tabdifferencehamming).

A seed has pairs of its own and seeds the method. The distance of two circuits is the number of edges that exactly one
of them has; its mean is over all pairs of seeds. Those are not independent, so the ± of a difference is the jackknife's
standard error: what leaving out each seed in turn does to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError
from gatewise.evaluation import overlap
from gatewise.methods.contract import SearchDirection
from gatewise.paper.contract import (
    DIRECTION_NAMES,
    METHOD_NAMES,
    TASK_NAMES,
    Cell,
    Experiment,
    Judgement,
    Outcome,
    Table,
    Verdict,
    grid,
)
from gatewise.paper.experiments.curves import Comparison, judge
from gatewise.paper.experiments.statistics import jackknife, seeds_note
from gatewise.paper.figures import (
    BASELINE_COLOUR,
    DIRECTION_COLOURS,
    LINES,
    MARKERS,
    legend_below,
    panels,
    size_axis,
)
from gatewise.paper.published import HAMMING
from gatewise.statistics import rank_correlation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.paper.lab import Lab
    from gatewise.paper.presets import Preset

_COMPARED: tuple[SearchDirection, ...] = ("ns", "ns+dn")
Spreads = Mapping[tuple[str, str, int], "Spread"]  # by task, method, size


@dataclass(frozen=True, eq=False)
class Spread:
    """Distances between the circuits of all seeds, Ns and Ns+Dn: [seed, seed] each."""

    hamming: Mapping[str, Tensor]
    jaccard: Mapping[str, float]  # mean over pairs of seeds

    def mean(self, direction: str, without: int | None = None) -> float:
        """Mean distance over pairs of seeds, perhaps without one seed."""
        distances = self.hamming[direction]
        kept = [i for i in range(len(distances)) if i != without]
        some = distances[kept][:, kept]
        return float(some.sum() / (len(kept) * (len(kept) - 1)))

    def difference(self, without: int | None = None) -> float:
        """Ns minus Ns+Dn."""
        return self.mean("ns", without) - self.mean("ns+dn", without)

    @cached_property
    def error(self) -> float:
        """Standard error of the difference; NaN for fewer than three seeds."""
        return jackknife(self.difference, len(self.hamming["ns"]))


def spread(circuits: Mapping[str, Sequence[Circuit]]) -> Spread:
    """Distances within the Ns and the Ns+Dn circuits of several seeds."""
    hamming, jaccard = {}, {}
    for direction, found in circuits.items():
        overlapping = overlap(found)
        square = torch.zeros(len(found), len(found), dtype=torch.float64)
        firsts, seconds = torch.triu_indices(len(found), len(found), 1)
        square[firsts, seconds] = overlapping.hamming
        hamming[direction], jaccard[direction] = square + square.T, overlapping.mean_jaccard
    return Spread(hamming, jaccard)


def judge_growth(curves: Sequence[Sequence[float]]) -> tuple[Judgement, int]:
    """Whether curves over growing sizes rise, by their rank correlation with size; and how many do."""
    rising = sum(
        rank_correlation(torch.arange(len(c)).double(), torch.tensor(c, dtype=torch.float64)) > 0.5 for c in curves
    )
    if not curves or min(map(len, curves)) < 3:
        return "cannot be judged", rising
    share = rising / len(curves)
    return ("holds" if share >= 0.8 else "holds partly" if share > 0.5 else "does not hold"), rising


def _methods(preset: Preset) -> list[str]:
    """Those with seeds to compare."""
    return [method for method in preset.methods if preset.stability_seeds[method] > 1]


def _check(preset: Preset) -> None:
    if not _methods(preset):
        raise GatewiseError("stability compares the circuits of several seeds, and there is one; use --seeds 3 or so.")


def _cells(preset: Preset) -> list[Cell]:
    return grid(preset, methods=_methods(preset), directions=_COMPARED, seeds=preset.stability_seeds)


def _run(lab: Lab) -> Outcome:
    spreads = {
        (task, method, size): found
        for task in lab.preset.tasks
        for method in _methods(lab.preset)
        for size, found in _measure(lab, task, method).items()
    }
    return Outcome(
        tables=[_differences(lab, spreads), *_distances(lab, spreads)],
        verdicts=_verdicts(lab, spreads),
        paper=(HAMMING,),
        figures={
            "Stability: mean share of a circuit's edges that another seed replaces (Hamming distance over twice the "
            "size), over circuit size. Low is stable; the dotted line is two random circuits.": lambda: _figure(
                lab, spreads
            )
        },
        notes=[
            "The paper does not say what its deviations are over. A difference in edges grows with the size of the "
            "circuits by its scale alone; the figure shows shares.",
            "Methods search on different numbers of pairs (see the settings), which also makes circuits vary: "
            "compare directions of one method rather than methods.",
        ],
    )


def _measure(lab: Lab, task: str, method: str) -> dict[int, Spread]:
    seeds = range(lab.preset.stability_seeds[method])
    circuits = {d: [lab.circuits(task, method, d, seed) for seed in seeds] for d in _COMPARED}
    return {
        size: spread({d: [one[size] for one in found] for d, found in circuits.items()}) for size in lab.sizes(method)
    }


def _differences(lab: Lab, spreads: Spreads) -> Table:
    """The paper's layout."""
    columns = [(task, method) for task in lab.preset.tasks for method in _methods(lab.preset)]
    rows: list[list[str | int | None]] = []
    for size in sorted({size for _, _, size in spreads}):
        cells = [spreads.get((task, method, size)) for task, method in columns]
        rows.append([size, *(None if c is None else f"{c.difference():.3g}{_error(c)}" for c in cells)])
    return Table(
        "Mean Hamming distance over seeds, Ns minus Ns+Dn",
        ["edges", *(f"{TASK_NAMES[task]} {METHOD_NAMES[method]}" for task, method in columns)],
        rows,
        f"± is the jackknife's standard error over seeds. Positive: Ns is more random. Seeds: {_seeds(lab)}.",
    )


def _distances(lab: Lab, spreads: Spreads) -> list[Table]:
    """The distances themselves, and Jaccard, a table for each task."""
    found = []
    for task in lab.preset.tasks:
        columns = [(method, direction) for method in _methods(lab.preset) for direction in _COMPARED]
        rows: list[list[str | int | None]] = []
        for size in sorted({size for _, _, size in spreads}):
            cells = [(spreads.get((task, method, size)), direction) for method, direction in columns]
            rows.append([size, *(None if c is None else f"{c.mean(d):.3g} ({c.jaccard[d]:.2f})" for c, d in cells)])
        names = (f"{METHOD_NAMES[method]} {DIRECTION_NAMES[direction]}" for method, direction in columns)
        note = f"Mean over pairs of seeds; shared edges as a share of all in brackets (Jaccard). Seeds: {_seeds(lab)}."
        found.append(Table(f"{TASK_NAMES[task]}: Hamming distance (Jaccard)", ["edges", *names], rows, note))
    return found


def _verdicts(lab: Lab, spreads: Spreads) -> list[Verdict]:
    methods, tasks = _methods(lab.preset), lab.preset.tasks
    everywhere = Comparison(tuple(one.difference() for one in spreads.values()))
    clear = [one.difference() / one.error for one in spreads.values() if one.error > 0]
    by_method = ", ".join(
        f"{METHOD_NAMES[m]} in {sum(s.difference() > 0 for (_, n, _), s in spreads.items() if n == m)} of "
        f"{sum(n == m for _, n, _ in spreads)}"
        for m in methods
    )
    verdicts = [
        Verdict(
            "Circuits found by Ns+Dn vary less with the seed than those found by Ns.",
            judge(everywhere, larger=True),
            f"The mean distance of Ns is {everywhere} ({by_method}). It is larger by more than two standard errors in "
            f"{sum(z > 2 for z in clear)}, smaller by more than two in {sum(z < -2 for z in clear)} cells.",
        )
    ]
    for method in [m for m in methods if m != "eap" and "eap" in methods]:
        pairs = [
            (spreads[task, method, size], spreads[task, "eap", size]) for task in tasks for size in lab.common_sizes
        ]
        distance = Comparison(tuple(mine.mean("ns") - eap.mean("ns") for mine, eap in pairs))
        gap = Comparison(tuple(mine.difference() - eap.difference() for mine, eap in pairs))
        verdicts.append(
            Verdict(
                f"{METHOD_NAMES[method]} is more random than EAP.",
                judge(distance, larger=True),
                f"The mean distance of its Ns circuits, against EAP's, is {distance}; what the paper's table has, the "
                f"difference of Ns and Ns+Dn, is {gap}.",
            )
        )
    curves = [
        [spreads[task, method, size].difference() for size in lab.sizes(method)] for task in tasks for method in methods
    ]
    judgement, rising = judge_growth(curves)
    verdicts.append(
        Verdict(
            "The difference between Ns and Ns+Dn grows with the number of edges.",
            judgement,
            f"It rises with size (rank correlation above 0.5) for {rising} of {len(curves)} pairs of task and method.",
        )
    )
    return verdicts


def _figure(lab: Lab, spreads: Spreads) -> Figure:
    methods, tasks = _methods(lab.preset), lab.preset.tasks
    drawn, axes = panels(len(tasks), len(methods), sharey=True)
    edges = lab.model.graph.n_edges
    for row, task in enumerate(tasks):
        for column, method in enumerate(methods):
            at, sizes = axes[row][column], lab.sizes(method)
            for direction in _COMPARED:
                at.plot(
                    sizes,
                    [spreads[task, method, size].mean(direction) / (2 * size) for size in sizes],
                    color=DIRECTION_COLOURS[direction],
                    marker=MARKERS[direction],
                    linestyle=LINES[direction],
                    markersize=4,
                    label=DIRECTION_NAMES[direction],
                )
            chance = [1 - size / edges for size in sizes]
            at.plot(sizes, chance, color=BASELINE_COLOUR, linestyle=":", linewidth=1, label="random circuits")
            size_axis(at, sizes)
            at.set_ylim(0, 1.05)
            at.set_title(f"{METHOD_NAMES[method]}, {TASK_NAMES[task]}")
        axes[row][0].set_ylabel("share replaced")
    handles, labels = axes[0][0].get_legend_handles_labels()
    legend_below(drawn, handles, labels)
    return drawn


def _error(spread: Spread) -> str:
    return "" if math.isnan(spread.error) else f" ± {spread.error:.2g}"


def _seeds(lab: Lab) -> str:
    return seeds_note({m: lab.preset.stability_seeds[m] for m in _methods(lab.preset)}, METHOD_NAMES)


EXPERIMENT = Experiment(
    name="stability",
    title="Stability over seeds",
    claim="circuits found by Ns+Dn differ less between seeds than circuits found by Ns, most of all for ACDC and Edge "
    "Pruning, and more so with more edges.",
    labels=("tabdifferencehamming",),
    run=_run,
    cells=_cells,
    check=_check,
)
