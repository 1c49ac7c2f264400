"""Stability: how much circuits change with the seed, Ns against Ns+Dn (tabdifferencehamming).

A seed has pairs of its own and seeds the method. The distance of two circuits is the number of edges that exactly one
of them has; its mean is over all pairs of seeds. Those are not independent, so what a seed adds to the mean is its
jackknife pseudo-value: their deviation gives the ± of a difference, and verdicts are about them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError
from gatewise.evaluation import overlap
from gatewise.methods.contract import SearchDirection
from gatewise.paper.claims import Above, Ruling, rule, rules
from gatewise.paper.contract import Experiment, Measured, Measurement, Result, Search, Table, by_size
from gatewise.paper.figures import BASELINE_COLOUR, Figure, by_task_and_method, direction_style, size_axis
from gatewise.paper.lab import Lab
from gatewise.paper.presets import Preset
from gatewise.paper.published import HAMMING
from gatewise.paper.words import DIRECTION_NAMES, METHOD_NAMES, TASK_NAMES, deviation, plus_minus, seeds_note
from gatewise.statistics import pseudo_values, rank_correlation

_NAME = "stability"
_COMPARED: tuple[SearchDirection, ...] = ("ns", "ns+dn")


class StabilityKey(NamedTuple):
    task: str
    method: str
    seeds: int


class Spread:
    """Distances between the circuits of all seeds, for each direction."""

    def __init__(self, found: Mapping[str, Mapping[str, Any]], seeds: int) -> None:
        """found: what `overlaps` gives, by direction."""
        self.seeds = seeds
        self.jaccard = {direction: float(one["jaccard"]) for direction, one in found.items()}
        self._square = {}
        firsts, seconds = torch.triu_indices(seeds, seeds, 1)
        for direction, one in found.items():
            square = torch.zeros(seeds, seeds, dtype=torch.float64)
            square[firsts, seconds] = torch.tensor(one["hamming"], dtype=torch.float64)
            self._square[direction] = square + square.T

    def mean(self, direction: str, units: Sequence[int] | None = None) -> float:
        """Mean distance over pairs of seeds, or of some of them."""
        kept = list(range(self.seeds) if units is None else units)
        some = self._square[direction][kept][:, kept]
        return float(some.sum() / (len(kept) * (len(kept) - 1)))

    def difference(self, units: Sequence[int] | None = None) -> float:
        """Ns minus Ns+Dn."""
        return self.mean("ns", units) - self.mean("ns+dn", units)

    def by_seed(self, direction: str = "") -> list[float]:
        """What each seed adds to the mean distance, or to the difference; NaN for fewer than three seeds."""
        if self.seeds < 3:
            return [math.nan] * self.seeds
        statistic = self.difference if not direction else lambda units: self.mean(direction, units)
        return pseudo_values(statistic, self.seeds)

    @property
    def error(self) -> float:
        """Standard error of the difference."""
        return deviation(self.by_seed()) / math.sqrt(self.seeds)


Spreads = dict[tuple[str, str], dict[int, Spread]]  # by task and method; by size


def distances(lab: Lab, key: StabilityKey) -> dict[str, Any]:
    """How far apart the circuits of all seeds are: by direction, one for each size."""
    found: dict[str, Any] = {}
    for direction in _COMPARED:
        seeds = [lab.circuits(key.task, key.method, direction, seed) for seed in range(key.seeds)]
        found[direction] = [overlaps([one[size] for one in seeds]) for size in lab.sizes(key.method)]
    return found


def overlaps(circuits: Sequence[Circuit]) -> dict[str, Any]:
    """Hamming distances of all pairs of circuits, and their mean Jaccard."""
    found = overlap(circuits)
    return {"hamming": found.hamming.tolist(), "jaccard": found.mean_jaccard}


def _methods(preset: Preset) -> list[str]:
    """Those with seeds to compare."""
    return [method for method in preset.methods if preset.seeds_for(_NAME)[method] > 1]


def _check(preset: Preset) -> None:
    if not _methods(preset):
        raise GatewiseError("stability compares the circuits of several seeds, and there is one; use --seeds 3 or so.")


def _measurements(lab: Lab) -> Iterator[Measurement]:
    for task in lab.preset.tasks:
        for method in _methods(lab.preset):
            seeds = lab.preset.seeds_for(_NAME)[method]
            searches = tuple(Search(task, method, seed, _COMPARED) for seed in range(seeds))
            yield Measurement(distances, StabilityKey(task, method, seeds), searches)


def _judge(lab: Lab, measured: Measured) -> Result:
    spreads: Spreads = {
        (key.task, key.method): {
            size: Spread({direction: found[direction][i] for direction in _COMPARED}, key.seeds)
            for i, size in enumerate(lab.sizes(key.method))
        }
        for key, found in measured.items()
    }
    return Result(
        tables=[_differences(lab, spreads), *(_distances(lab, spreads, task) for task in lab.preset.tasks)],
        rulings=_rulings(lab, spreads),
        paper=(HAMMING,),
        figures={
            "Stability: mean share of a circuit's edges that another seed replaces (Hamming distance over twice the "
            "size), over circuit size. Low is stable; the dotted line is two random circuits.": lambda: _figure(
                lab, spreads
            )
        },
        notes=[
            "The paper does not say what its deviations are over. A difference in edges grows with the size of the "
            "circuits by its scale alone; the figure and the verdicts have shares.",
            "Methods search on different numbers of pairs (see the settings), which also makes circuits vary: "
            "compare directions of one method rather than methods.",
        ],
    )


def _differences(lab: Lab, spreads: Spreads) -> Table:
    """The paper's layout."""
    columns = {
        f"{TASK_NAMES[task]} {METHOD_NAMES[method]}": {
            size: plus_minus(one.difference(), one.error) for size, one in some.items()
        }
        for (task, method), some in spreads.items()
    }
    note = f"± is the jackknife's standard error over seeds. Positive: Ns is more random. Seeds: {_seeds(lab)}."
    return by_size("Mean Hamming distance over seeds, Ns minus Ns+Dn", columns, note)


def _distances(lab: Lab, spreads: Spreads, task: str) -> Table:
    """The distances themselves, and Jaccard."""
    columns = {
        f"{METHOD_NAMES[method]} {DIRECTION_NAMES[d]}": {
            size: f"{one.mean(d):.3g} ({one.jaccard[d]:.2f})" for size, one in some.items()
        }
        for (of, method), some in spreads.items()
        if of == task
        for d in _COMPARED
    }
    note = f"Mean over pairs of seeds; shared edges as a share of all in brackets (Jaccard). Seeds: {_seeds(lab)}."
    return by_size(f"{TASK_NAMES[task]}: Hamming distance (Jaccard)", columns, note)


def _rulings(lab: Lab, spreads: Spreads) -> list[Ruling]:
    claimed, methods = Above(lab.preset.smallest), _methods(lab.preset)
    rulings: list[Ruling] = []
    for method in methods:
        sizes = lab.judged_sizes(_NAME, method)
        rulings += rules(
            METHOD_NAMES[method],
            claimed,
            (
                "Circuits found by Ns+Dn vary less with the seed than those found by Ns.",
                "mean distance of Ns less that of Ns+Dn, as a share of twice the size",
                {TASK_NAMES[task]: by_seed(spreads[task, method], some) for task, some in sizes.items()},
            ),
            (
                "The difference between Ns and Ns+Dn grows with the number of edges.",
                "rank correlation of size and difference in edges",
                {TASK_NAMES[task]: growth(spreads[task, method]) for task in sizes},
            ),
        )
    for method in [m for m in methods if m != "eap" and "eap" in methods]:
        values = {}
        for task, some in lab.judged_sizes(_NAME, method, "eap").items():
            one, eap = (by_seed(spreads[task, name], some, "ns") for name in (method, "eap"))
            values[TASK_NAMES[task]] = [a - b for a, b in zip(one, eap, strict=False)]
        rulings.append(
            rule(
                f"{METHOD_NAMES[method]} is more random than EAP.",
                "mean distance of its Ns circuits less that of EAP's, as a share of twice the size",
                values,
                claimed,
                method=f"{METHOD_NAMES[method]}, EAP",
            )
        )
    return rulings


def by_seed(spreads: dict[int, Spread], sizes: Sequence[int], direction: str = "") -> list[float]:
    """What each seed adds to the distance, or to the difference, as a share of twice the size; mean over sizes."""
    shares = [[value / (2 * size) for value in spreads[size].by_seed(direction)] for size in sizes]
    return [statistics.fmean(seed) for seed in zip(*shares, strict=True)]


def growth(spreads: dict[int, Spread]) -> list[float]:
    """Rank correlation of the size and of what each seed adds to the difference; NaN for fewer than three sizes."""
    sizes = torch.tensor(list(spreads), dtype=torch.float64)
    seeds = zip(*(one.by_seed() for one in spreads.values()), strict=True)
    return [
        rank_correlation(sizes, torch.tensor(seed, dtype=torch.float64))
        if len(sizes) > 2 and not math.isnan(seed[0])
        else math.nan
        for seed in seeds
    ]


def _figure(lab: Lab, spreads: Spreads) -> Figure:
    edges = lab.model.graph.n_edges

    def fill(at: Any, task: str, method: str) -> None:
        some = spreads[task, method]
        for direction in _COMPARED:
            shares = [one.mean(direction) / (2 * size) for size, one in some.items()]
            at.plot(list(some), shares, **direction_style(direction))
        chance = [1 - size / edges for size in some]
        at.plot(list(some), chance, color=BASELINE_COLOUR, linestyle=":", linewidth=1, label="random circuits")
        size_axis(at, list(some))
        at.set_ylim(0, 1.05)

    return by_task_and_method(lab.preset.tasks, _methods(lab.preset), fill, "share replaced", sharey=True)


def _seeds(lab: Lab) -> str:
    return seeds_note(lab.preset.seeds_for(_NAME), _methods(lab.preset))


EXPERIMENT = Experiment(
    name=_NAME,
    title="Stability over seeds",
    claim="circuits found by Ns+Dn differ less between seeds than circuits found by Ns, most of all for ACDC and Edge "
    "Pruning, and more so with more edges.",
    labels=("tabdifferencehamming",),
    measurements=_measurements,
    judge=_judge,
    check=_check,
)
