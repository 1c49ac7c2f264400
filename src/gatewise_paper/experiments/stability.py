"""Stability: how much circuits change with the seed, Ns against Ns+Dn (tabdifferencehamming).

What differs between seeds is told apart. *The search*: all seeds have the same pairs, and only ACDC's order differs (at
one tau) or Edge Pruning's first masks, which is the cause that the paper names; EAP has none. *The pairs*: each seed
has its own. Ns+Dn averages two searches, which makes anything steadier, so there are controls: EAP by Ns with twice the
pairs, and the mean of two masks that Edge Pruning trains by Ns.

The distance of two circuits is the number of edges that exactly one of them has; its mean is over all pairs of seeds.
Those are not independent, so what a seed adds to the mean is its jackknife pseudo-value: their standard deviation gives
the ± of a difference, and verdicts are about them.
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
from gatewise_paper.claims import Claim, Ruling, rule, rules
from gatewise_paper.experiment import Experiment, Measurement, Outcome, Search, Variant
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured
from gatewise_paper.naming import DIRECTION_NAMES, METHOD_NAMES, plus_minus, seeds_note, standard_deviation, task_name
from gatewise_paper.presets import Preset
from gatewise_paper.seed_statistics import pseudo_values
from gatewise_paper.tables import Table, printed, size_table

_NAME = "stability"
_PAPER = {"acdc": "21.8 ± 5.3", "eap": "4.7 ± 1.8", "edge-pruning": "89.6 ± 27.9"}
_COMPARED: tuple[SearchDirection, ...] = ("ns", "ns+dn")
_CONTROL = "control"  # in the place of a direction
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

    def __init__(self, overlaps: Mapping[str, Mapping[str, Any]], seeds: int, edges: Mapping[str, float]) -> None:
        """overlaps: by direction, see below. edges: how many the circuits have, in the mean over seeds."""
        self.seeds = seeds
        self._edges = edges
        self.jaccard = {direction: float(of_pairs["jaccard"]) for direction, of_pairs in overlaps.items()}
        self._distances = {}  # [seed, seed]
        firsts, seconds = torch.triu_indices(seeds, seeds, 1)
        for direction, of_pairs in overlaps.items():
            upper = torch.zeros(seeds, seeds, dtype=torch.float64)
            upper[firsts, seconds] = torch.tensor(of_pairs["hamming"], dtype=torch.float64)
            self._distances[direction] = upper + upper.T

    def mean(self, direction: str, seeds: Sequence[int] | None = None) -> float:
        """Mean distance over pairs of all seeds, or of these."""
        chosen = list(range(self.seeds) if seeds is None else seeds)
        return float(self._distances[direction][chosen][:, chosen].sum() / (len(chosen) * (len(chosen) - 1)))

    def share(self, direction: str, seeds: Sequence[int] | None = None) -> float:
        """The mean distance as a share of twice the circuits' size: 0 if all are equal, 1 if none share an edge."""
        return self.mean(direction, seeds) / max(1.0, 2 * self._edges[direction])

    def difference(self, seeds: Sequence[int] | None = None) -> float:
        """Ns minus Ns+Dn, in edges."""
        return self.mean("ns", seeds) - self.mean("ns+dn", seeds)

    def by_seed(self, statistic: Callable[[Sequence[int]], float] | None = None) -> list[float]:
        """What each seed adds to a statistic of all, or to the difference; NaN for fewer than three seeds."""
        if self.seeds < 3:
            return [math.nan] * self.seeds
        return pseudo_values(statistic or self.difference, self.seeds)

    def shares_by_seed(self, direction: str, less: str = "") -> list[float]:
        """What each seed adds to the share of a direction, less that of another."""
        if not less:
            return self.by_seed(lambda seeds: self.share(direction, seeds))
        return self.by_seed(lambda seeds: self.share(direction, seeds) - self.share(less, seeds))

    @property
    def error(self) -> float:
        """Standard error of the difference."""
        return standard_deviation(self.by_seed()) / math.sqrt(self.seeds)


Spreads = dict[tuple[str, str, Variant], dict[int, Spread]]  # by task, method and what differs; by size


def distances(lab: Lab, key: StabilityKey) -> dict[str, Any]:
    """How far apart the circuits of all seeds are: by direction, one for each size."""
    by_direction: dict[str, Any] = {}
    for direction in _directions(key.variant):
        seeds = [lab.circuits(key.task, key.method, direction, seed, key.variant) for seed in range(key.seeds)]
        by_direction[direction] = [overlaps([seed[size] for seed in seeds]) for size in seeds[0]]
    return by_direction


def overlaps(circuits: Sequence[Circuit]) -> dict[str, Any]:
    """Hamming distances of all pairs of circuits, and their mean Jaccard."""
    overlapping = overlap(circuits)
    return {"hamming": overlapping.hamming.tolist(), "jaccard": overlapping.mean_jaccard}


def _directions(variant: Variant) -> tuple[SearchDirection, ...]:
    return ("ns",) if variant in _CONTROLS.values() else _COMPARED


def _methods(preset: Preset) -> list[str]:
    """Those with seeds to compare."""
    return [method for method, seeds in preset.seeds_for(_NAME).items() if seeds > 1]


def _check(preset: Preset) -> None:
    if not _methods(preset):
        raise GatewiseError("stability compares the circuits of several seeds, and there is one; use --seeds 3 or so.")


def _measurements(lab: Lab) -> Iterator[Measurement]:
    seeds = lab.preset.seeds_for(_NAME)
    for task in lab.preset.tasks:
        for method in _methods(lab.preset):
            variants = dict.fromkeys((cause_of(method), "", _CONTROLS.get(method, "")))
            for variant in variants:
                directions = _directions(variant)
                searches = tuple(Search(task, method, seed, directions, variant) for seed in range(seeds[method]))
                yield Measurement(distances, StabilityKey(task, method, seeds[method], variant), searches)


def _judge(lab: Lab, measured: Measured) -> Outcome:
    spreads: Spreads = {}
    for key, of_sizes in measured.items():
        if key.variant in _CONTROLS.values():
            continue
        by_direction = dict(of_sizes)
        if key.variant == cause_of(key.method) and key.method in _CONTROLS:
            by_direction[_CONTROL] = measured[key._replace(variant=_CONTROLS[key.method])]["ns"]
        spreads[key.task, key.method, key.variant] = {
            size: Spread({d: distance[i] for d, distance in by_direction.items()}, key.seeds, _edges(lab, key, size))
            for i, size in enumerate(lab.sizes.of(key.method, key.task))
        }
    return Outcome(
        tables=[_differences(lab, spreads), *(_distances(lab, spreads, task) for task in lab.preset.tasks)],
        rulings=[
            *(ruling for method in _methods(lab.preset) for ruling in _rulings(lab, spreads, method)),
            *_more_random_than_eap(lab, spreads),
        ],
        paper=(printed("tabdifferencehamming"),),
        notes=[
            "The paper does not say what its deviations are over. A difference in edges grows with the size of the "
            "circuits by its scale alone; the verdicts have shares.",
            "Methods search on different numbers of pairs: compare directions of one method rather than methods.",
            "With one tau for all orders, ACDC's circuits are not all of the same size; shares are of their mean size.",
        ],
    )


def _edges(lab: Lab, key: StabilityKey, size: int) -> dict[str, float]:
    """How many edges the circuits have, by direction: as many as were asked for, unless a tau decides."""
    edges = dict.fromkeys((*_COMPARED, _CONTROL), float(size))
    if key.method == "acdc" and key.variant == "fixed pairs":
        for direction in _COMPARED:
            seeds = [lab.circuits(key.task, key.method, direction, seed, key.variant) for seed in range(key.seeds)]
            edges[direction] = statistics.fmean(len(seed[size]) for seed in seeds)
    return edges


def _differences(lab: Lab, spreads: Spreads) -> Table:
    """The paper's layout."""
    columns = {
        f"{task_name(task)} {METHOD_NAMES[method]}, {_CAUSES[variant]}": {
            size: plus_minus(spread.difference(), spread.error) for size, spread in by_size.items()
        }
        for (task, method, variant), by_size in spreads.items()
    }
    note = (
        "What differs between seeds stands after the method: the search alone, on fixed pairs (ACDC with one tau, "
        "untrimmed), or the pairs too. ± is "
        f"the jackknife's standard error over seeds. Positive: Ns is more random. Seeds: {_seeds(lab)}."
    )
    return size_table("Mean Hamming distance over seeds, Ns minus Ns+Dn", columns, note)


def _distances(lab: Lab, spreads: Spreads, task: str) -> Table:
    """The distances themselves, and Jaccard."""
    columns: dict[str, dict[int, str]] = {}
    for (name, method, variant), by_size in spreads.items():
        for size, spread in by_size.items() if name == task else ():
            for direction, jaccard in spread.jaccard.items():
                shown = f"Ns, {_CONTROLS[method]}" if direction == _CONTROL else DIRECTION_NAMES[direction]
                column = columns.setdefault(f"{METHOD_NAMES[method]} {shown}, {_CAUSES[variant]}", {})
                column[size] = f"{spread.mean(direction):.3g} ({jaccard:.2f})"
    note = f"Mean over pairs of seeds; shared edges as a share of all in brackets (Jaccard). Seeds: {_seeds(lab)}."
    return size_table(f"{task_name(task)}: Hamming distance (Jaccard)", columns, note)


def _seeds(lab: Lab) -> str:
    return seeds_note(lab.preset.seeds_for(_NAME, _methods(lab.preset)))


def _rulings(lab: Lab, spreads: Spreads, method: str) -> list[Ruling]:
    cause, control = cause_of(method), _CONTROLS.get(method)
    sizes = lab.sizes.judged(_NAME, method)

    def varies_less(text: str, variant: Variant, direction: str = "ns", paper: str = "") -> Claim:
        """A claim that Ns+Dn varies less than a direction."""
        compared = "Ns" if direction == "ns" else f"Ns with {control}"
        what = f"mean distance of {compared} less that of Ns+Dn, as a share of twice the size"
        values = {t: by_seed(spreads[t, method, variant], judged, direction, "ns+dn") for t, judged in sizes.items()}
        return Claim(text, what, {task_name(task): seeds for task, seeds in values.items()}, paper=paper)

    claims = [
        varies_less(
            f"Circuits found by Ns+Dn vary less with the {_CAUSES[cause]} than those found by Ns.",
            cause,
            paper=f"{_PAPER[method]} edges of 1,000 (IOI)",
        ),
        Claim(
            "The difference between Ns and Ns+Dn grows with the number of edges.",
            "rank correlation of size and difference in edges",
            {task_name(task): growth(spreads[task, method, cause]) for task in lab.preset.tasks},
            paper="0.4 to 510 edges for 100 to 5,000",
        ),
    ]
    if cause:
        claims.append(varies_less("Circuits found by Ns+Dn also vary less if each seed has its own pairs.", ""))
    if control:
        text = f"It is not that two searches are averaged: Ns+Dn also varies less than Ns with {control}."
        claims.append(varies_less(text, cause, _CONTROL))
    return rules(METHOD_NAMES[method], *claims)


def _more_random_than_eap(lab: Lab, spreads: Spreads) -> list[Ruling]:
    methods, rulings = _methods(lab.preset), []
    for method in [method for method in methods if method != "eap" and "eap" in methods]:
        values = {}
        for task, sizes in lab.sizes.judged(_NAME, method, "eap").items():
            of_method, of_eap = (by_seed(spreads[task, name, ""], sizes, "ns") for name in (method, "eap"))
            values[task_name(task)] = [a - b for a, b in zip(of_method, of_eap, strict=False)]
        claim = Claim(
            f"{METHOD_NAMES[method]} is more random than EAP.",
            "mean distance of its Ns circuits less that of EAP's, as a share of twice the size, pairs of each seed",
            values,
            paper=f"{_PAPER[method]} against {_PAPER['eap']} edges (differences of Ns and Ns+Dn)",
        )
        rulings.append(rule(claim, method=f"{METHOD_NAMES[method]}, EAP"))
    return rulings


def by_seed(spreads: Mapping[int, Spread], sizes: Sequence[int], direction: str, less: str = "") -> list[float]:
    """What each seed adds to the share of a direction, less that of another; mean over sizes."""
    shares = [spreads[size].shares_by_seed(direction, less) for size in sizes]
    return [statistics.fmean(seed) for seed in zip(*shares, strict=True)]


def growth(spreads: Mapping[int, Spread]) -> list[float]:
    """Rank correlation of the size and of what each seed adds to the difference; NaN for fewer than three sizes."""
    sizes = torch.tensor(list(spreads), dtype=torch.float64)
    correlations = []
    for differences in zip(*(spread.by_seed() for spread in spreads.values()), strict=True):
        known = len(sizes) > 2 and not math.isnan(differences[0])
        seed = torch.tensor(differences, dtype=torch.float64)
        correlations.append(rank_correlation(sizes, seed) if known else math.nan)
    return correlations


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
