"""Stability: how much circuits change with the seed, Ns against Ns+Dn (tabdifferencehamming).

What differs between seeds is told apart. *The search*: all seeds have the same pairs, and only ACDC's order differs (at
one tau) or Edge Pruning's first masks, which is the cause that the paper names; EAP has none. *The pairs*: each seed
has its own. Ns+Dn averages two searches, which makes anything steadier, so there are controls: EAP by Ns with twice the
pairs, and the mean of two masks that Edge Pruning trains by Ns.

The distance of two circuits is the number of edges that exactly one of them has; its mean is over all pairs of seeds.
Those are not independent, so what a seed adds to the mean is its jackknife pseudo-value: their deviation gives the ± of
a difference, and verdicts are about them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError
from gatewise.evaluation import overlap
from gatewise.methods.base import SearchDirection
from gatewise.statistics import rank_correlation
from gatewise_paper.claims import Above, Claim, Ruling, rule, rules
from gatewise_paper.experiment import Experiment, Measured, Measurement, Result, Search, Table, Variant, by_size
from gatewise_paper.figures import BASELINE_COLOUR, Figure, by_task_and_method, direction_style, size_axis
from gatewise_paper.lab import Lab
from gatewise_paper.naming import DIRECTION_NAMES, METHOD_NAMES, deviation, plus_minus, seeds_note, task_name
from gatewise_paper.presets import Preset
from gatewise_paper.printed_numbers import HAMMING
from gatewise_paper.seed_statistics import pseudo_values

_NAME = "stability"
_PAPER = {"acdc": "21.8 ± 5.3", "eap": "4.7 ± 1.8", "edge-pruning": "89.6 ± 27.9"}
_COMPARED: tuple[SearchDirection, ...] = ("ns", "ns+dn")


_CONTROLS: dict[str, Variant] = {"eap": "twice the pairs", "edge-pruning": "two masks"}
_CAUSES: dict[Variant, str] = {"fixed pairs": "search", "": "pairs"}


class StabilityKey(NamedTuple):
    task: str
    method: str
    seeds: int
    variant: Variant = ""


def cause_of(method: str) -> Variant:
    """What the paper means by the randomness of a method: that of its search, of the pairs if the search has none."""
    return "" if method == "eap" else "fixed pairs"


class Spread:
    """Distances between the circuits of all seeds, for each direction: `ns`, `ns+dn`, and perhaps `control`."""

    def __init__(self, found: Mapping[str, Mapping[str, Any]], seeds: int, edges: Mapping[str, float]) -> None:
        """found: what `overlaps` gives, by direction. edges: how many the circuits have, in the mean over seeds."""
        self.seeds = seeds
        self._edges = edges
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

    def share(self, direction: str, units: Sequence[int] | None = None) -> float:
        """The mean distance as a share of twice the circuits' size: 0 if all are equal, 1 if none share an edge."""
        return self.mean(direction, units) / max(1.0, 2 * self._edges[direction])

    def difference(self, units: Sequence[int] | None = None) -> float:
        """Ns minus Ns+Dn, in edges."""
        return self.mean("ns", units) - self.mean("ns+dn", units)

    def by_seed(self) -> list[float]:
        """What each seed adds to the difference; NaN for fewer than three seeds."""
        return self._by_seed(self.difference)

    def shares_by_seed(self, direction: str = "", of: str = "ns") -> list[float]:
        """What each seed adds to the share, or to that of Ns (or another) less that of Ns+Dn."""
        if direction:
            return self._by_seed(lambda units: self.share(direction, units))
        return self._by_seed(lambda units: self.share(of, units) - self.share("ns+dn", units))

    def _by_seed(self, value: Callable[[Sequence[int]], float]) -> list[float]:
        return [math.nan] * self.seeds if self.seeds < 3 else pseudo_values(value, self.seeds)

    @property
    def error(self) -> float:
        """Standard error of the difference."""
        return deviation(self.by_seed()) / math.sqrt(self.seeds)


Spreads = dict[tuple[str, str, Variant], dict[int, Spread]]  # by task, method and what differs; by size


def distances(lab: Lab, key: StabilityKey) -> dict[str, Any]:
    """How far apart the circuits of all seeds are: by direction, one for each size."""
    found: dict[str, Any] = {}
    for direction in _directions(key.variant):
        seeds = [lab.circuits(key.task, key.method, direction, seed, key.variant) for seed in range(key.seeds)]
        found[direction] = [overlaps([one[size] for one in seeds]) for size in lab.sizes(key.method, key.task)]
    return found


def _directions(variant: Variant) -> tuple[SearchDirection, ...]:
    return ("ns",) if variant in _CONTROLS.values() else _COMPARED


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
            variants = dict.fromkeys((cause_of(method), "", *(_CONTROLS[m] for m in _CONTROLS if m == method)))
            for variant in variants:
                some = _directions(variant)
                searches = tuple(Search(task, method, seed, some, variant) for seed in range(seeds))
                yield Measurement(distances, StabilityKey(task, method, seeds, variant), searches)


def _judge(lab: Lab, measured: Measured) -> Result:
    spreads: Spreads = {}
    for key, found in measured.items():
        if key.variant in _CONTROLS.values():
            continue
        control = measured.get(key._replace(variant=_CONTROLS.get(key.method, "")), {})
        if key.variant == cause_of(key.method) and len(control) == 1:
            found = {**found, "control": control["ns"]}
        spreads[key.task, key.method, key.variant] = {
            size: Spread({name: some[i] for name, some in found.items()}, key.seeds, _edges(lab, key, size))
            for i, size in enumerate(lab.sizes(key.method, key.task))
        }
    return Result(
        tables=[_differences(lab, spreads), *(_distances(lab, spreads, task) for task in lab.preset.tasks)],
        rulings=_rulings(lab, spreads),
        paper=(HAMMING,),
        figures={
            "Stability: mean share of a circuit's edges that another seed replaces (Hamming distance over twice the "
            "size), over circuit size; seeds differ in the search (ACDC, Edge Pruning) or in the pairs (EAP). Control: "
            "Ns with twice the pairs, or the mean of two masks. Low is stable; the dotted line is two random "
            "circuits.": lambda: _figure(lab, spreads)
        },
        notes=[
            "The paper does not say what its deviations are over. A difference in edges grows with the size of the "
            "circuits by its scale alone; the figure and the verdicts have shares.",
            "Methods search on different numbers of pairs (see the settings), which also makes circuits vary: "
            "compare directions of one method rather than methods.",
            "With one tau for all orders, ACDC's circuits are not all of the same size; shares are of their mean size.",
        ],
    )


def _edges(lab: Lab, key: StabilityKey, size: int) -> dict[str, float]:
    """How many edges the circuits have, by direction: as many as were asked for, unless a tau decides."""
    edges = dict.fromkeys((*_COMPARED, "control"), float(size))
    if key.method != "acdc" or key.variant != "fixed pairs":
        return edges
    for direction in _COMPARED:
        seeds = [lab.circuits(key.task, key.method, direction, seed, key.variant) for seed in range(key.seeds)]
        edges[direction] = statistics.fmean(len(one[size]) for one in seeds)
    return edges


def _differences(lab: Lab, spreads: Spreads) -> Table:
    """The paper's layout."""
    columns = {
        f"{task_name(task)} {METHOD_NAMES[method]}, {_CAUSES[variant]}": {
            size: plus_minus(one.difference(), one.error) for size, one in some.items()
        }
        for (task, method, variant), some in spreads.items()
    }
    note = (
        "What differs between seeds stands after the method: the search alone, on fixed pairs (ACDC with one tau, "
        "untrimmed), or the pairs too. ± is "
        f"the jackknife's standard error over seeds. Positive: Ns is more random. Seeds: {_seeds(lab)}."
    )
    return by_size("Mean Hamming distance over seeds, Ns minus Ns+Dn", columns, note)


def _distances(lab: Lab, spreads: Spreads, task: str) -> Table:
    """The distances themselves, and Jaccard."""
    columns = {
        f"{METHOD_NAMES[method]} {_named(d, method)}, {_CAUSES[variant]}": {
            size: f"{one.mean(d):.3g} ({one.jaccard[d]:.2f})" for size, one in some.items() if d in one.jaccard
        }
        for (of, method, variant), some in spreads.items()
        if of == task
        for d in next(iter(some.values())).jaccard
    }
    note = f"Mean over pairs of seeds; shared edges as a share of all in brackets (Jaccard). Seeds: {_seeds(lab)}."
    return by_size(f"{task_name(task)}: Hamming distance (Jaccard)", columns, note)


def _named(direction: str, method: str) -> str:
    return f"Ns, {_CONTROLS[method]}" if direction == "control" else DIRECTION_NAMES[direction]


def _rulings(lab: Lab, spreads: Spreads) -> list[Ruling]:
    claimed, methods = Above(lab.preset.smallest), _methods(lab.preset)
    rulings: list[Ruling] = []

    def values(method: str, variant: Variant, of: str = "ns") -> dict[str, list[float]]:
        sizes = lab.judged_sizes(_NAME, method)
        return {task_name(t): by_seed(spreads[t, method, variant], some, of=of) for t, some in sizes.items()}

    for method in methods:
        name, cause = METHOD_NAMES[method], cause_of(method)
        printed = f"{_PAPER[method]} edges of 1,000 (IOI)"
        what = "mean distance of {} less that of Ns+Dn, as a share of twice the size"
        claims = [
            Claim(
                f"Circuits found by Ns+Dn vary less with the {_CAUSES[cause]} than those found by Ns.",
                what.format("Ns"),
                values(method, cause),
                paper=printed,
            ),
            Claim(
                "The difference between Ns and Ns+Dn grows with the number of edges.",
                "rank correlation of size and difference in edges",
                {task_name(t): growth(spreads[t, method, cause]) for t in lab.preset.tasks},
                paper="0.4 to 510 edges for 100 to 5,000",
            ),
        ]
        if cause:
            text = "Circuits found by Ns+Dn also vary less if each seed has its own pairs."
            claims.append(Claim(text, what.format("Ns"), values(method, "")))
        if method in _CONTROLS:
            control = _CONTROLS[method]
            text = f"It is not that two searches are averaged: Ns+Dn also varies less than Ns with {control}."
            claims.append(Claim(text, what.format(f"Ns with {control}"), values(method, cause, "control")))
        rulings += rules(name, claimed, *claims)
    for method in [m for m in methods if m != "eap" and "eap" in methods]:
        apart = {}
        for task, some in lab.judged_sizes(_NAME, method, "eap").items():
            one, eap = (by_seed(spreads[task, name, ""], some, "ns") for name in (method, "eap"))
            apart[task_name(task)] = [a - b for a, b in zip(one, eap, strict=False)]
        claim = Claim(
            f"{METHOD_NAMES[method]} is more random than EAP.",
            "mean distance of its Ns circuits less that of EAP's, as a share of twice the size, pairs of each seed",
            apart,
            paper=f"{_PAPER[method]} against {_PAPER['eap']} edges (differences of Ns and Ns+Dn)",
        )
        rulings.append(rule(claim, claimed, method=f"{METHOD_NAMES[method]}, EAP"))
    return rulings


def by_seed(spreads: dict[int, Spread], sizes: Sequence[int], direction: str = "", of: str = "ns") -> list[float]:
    """What each seed adds to the distance, or to the difference, as a share of twice the size; mean over sizes."""
    shares = [spreads[size].shares_by_seed(direction, of) for size in sizes]
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
        some = spreads[task, method, cause_of(method)]
        for direction in next(iter(some.values())).jaccard:
            shares = [one.share(direction) for one in some.values()]
            style = direction_style(direction) if direction in _COMPARED else {"color": BASELINE_COLOUR, "marker": "x"}
            at.plot(list(some), shares, **{"label": "control", **style})
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
