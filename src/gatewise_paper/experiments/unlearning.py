"""Unlearning: remove a circuit from the model; is the behaviour gone, and is the rest still there? (tabunlearning)

Circuits are searched on pairs of what is to be forgotten and removed (G-C, by patching); accuracy is measured on
held-out pairs of the same kind and on what is to be kept. `unlearning_data` says what these are.

Some edges are the *trunk*: without one of them no task works, such as that from the input into the first MLP. Removing
them forgets everything. They are named, and everything is measured a second time with the trunk left in place, so that
what is specific to the behaviour shows. An edge is of the trunk if removing it alone costs a share of the KL between
the runs in every task, on the pairs that searches use.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gatewise.engine import run_circuits
from gatewise.engine.setting import Setting
from gatewise.methods.base import SearchDirection
from gatewise_paper.bottlenecks import costly_alone
from gatewise_paper.claims import Above, Between, Claim, Ruling, rules
from gatewise_paper.experiment import Experiment, Measured, Measurement, Result, Search, Table, of_kind
from gatewise_paper.experiments.ends import ends_of, ends_to_measure
from gatewise_paper.figures import BASELINE_COLOUR, LINES, Figure, filled, legend_below, size_axis
from gatewise_paper.lab import Lab
from gatewise_paper.naming import DIRECTION_NAMES, METHOD_NAMES, mean_and_deviation, seeds_note, task_name
from gatewise_paper.presets import FORGET, Preset
from gatewise_paper.printed_numbers import UNLEARNING
from gatewise_paper.unlearning_data import FILES, check_data, to_forget, to_keep

_DIRECTIONS: tuple[SearchDirection, ...] = ("ns", "ns+dn")
_GONE = 0.8  # of the way from the whole model to the corrupted run: then a behaviour counts as gone
_CANDIDATES = 200  # edges of a circuit that may be of the trunk, the strongest
_KEPT = 0.1  # accuracy that may be lost of what is to be kept
_ENDS = {"whole model": "-", "corrupted run": ":"}
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
_READINGS = {"top_accuracy": "the most probable token is right", "accuracy": "right is more probable than wrong"}
_TOP = "top_accuracy"  # the paper's


class TrunkKey(NamedTuple):
    task: str  # that the circuits are of
    method: str
    direction: SearchDirection
    seed: int
    tasks: tuple[str, ...]
    smallest: float  # share of the KL between the runs
    pairs: int  # of each task


class UnlearningKey(NamedTuple):
    task: str  # that is measured
    method: str
    direction: SearchDirection
    seed: int
    left: TrunkKey | None  # the trunk that is left in place, if it is


Accuracies = Mapping[str, Sequence[float]]  # by reading, for each size
Seeds = Mapping[tuple[str, str, str, bool], Sequence[Accuracies]]
"""By method, direction, what is measured, and whether the trunk is left in place."""


@dataclass(frozen=True)
class _Found:
    without: Seeds
    ends: Mapping[str, Mapping[str, tuple[float, float]]]
    """By reading and by what is measured: accuracy of the whole model, and of the corrupted run."""


def accuracies_without(lab: Lab, key: UnlearningKey) -> dict[str, list[float]]:
    """Of the model without the circuits of each size that were found to forget."""
    circuits, setting = lab.circuits(FORGET, key.method, key.direction, key.seed), lab.setting(key.task)
    left = lab.model.graph.circuit(list(lab.measure(_to_measure(key.left))) if key.left else [])
    logits = run_circuits(lab.model, setting, [~(circuit - left) for circuit in circuits.values()])
    readings = {"top_accuracy": setting.pairs.top1_accuracy, "accuracy": setting.pairs.pairwise_accuracy}
    return {reading: measure(logits).double().mean(dim=-1).tolist() for reading, measure in readings.items()}


def trunk(lab: Lab, key: TrunkKey) -> dict[str, list[float]]:
    """Of a circuit's strongest edges those whose removal alone costs every task enough, and what it costs.

    In shares of the KL between the runs. Edges that do not cost one task enough are not asked of the next.
    """
    *_, largest = lab.circuits(FORGET, key.method, key.direction, key.seed).values()
    costs: dict[str, list[float]] = {edge: [] for edge in largest.top(_CANDIDATES)}
    for task in key.tasks:
        setting = Setting.of(lab.model, lab.pairs(task, "eap", key.seed)[: key.pairs])
        found = costly_alone(setting, list(costs), key.smallest)
        costs = {edge: [*costs[edge], one] for edge, one in found.items()}
    return costs


def _trunk_of(preset: Preset, method: str, direction: SearchDirection, seed: int) -> TrunkKey:
    pairs = preset.for_removals(preset.pairs["eap"])
    return TrunkKey(FORGET, method, direction, seed, preset.tasks, preset.costly, pairs)


def _to_measure(key: TrunkKey) -> Measurement:
    return Measurement(trunk, key, (Search(FORGET, key.method, key.seed, (key.direction,)),))


def _methods(preset: Preset) -> list[str]:
    """The paper's two, as far as the preset has them."""
    return [m for m in ("eap", "edge-pruning") if m in preset.methods] or list(preset.methods)


def _seeds(lab: Lab) -> dict[str, int]:
    """As many as there are pairs for, each with its own."""
    pairs, preset = lab.available_pairs(FORGET), lab.preset
    seeds = preset.seeds_for("unlearning")
    return {m: max(1, min(seeds[m], pairs // preset.pairs[m])) for m in _methods(preset)}


def _measurements(lab: Lab) -> Iterator[Measurement]:
    """What is measured on the same pairs stands together, so that their runs are done once."""
    circuits = [
        (method, direction, seed)
        for _, method, seed in lab.grid(tasks=[FORGET], methods=_methods(lab.preset), seeds=_seeds(lab))
        for direction in _DIRECTIONS
    ]
    for one in circuits:
        yield _to_measure(_trunk_of(lab.preset, *one))
    for measured in _sets(lab):
        yield ends_to_measure(measured)
        for method, direction, seed in circuits:
            searches = (Search(FORGET, method, seed, (direction,)),)
            for left in (None, _trunk_of(lab.preset, method, direction, seed)):
                key = UnlearningKey(measured, method, direction, seed, left)
                yield Measurement(accuracies_without, key, searches)


def _judge(lab: Lab, measured: Measured) -> Result:
    without: dict[Any, list[Accuracies]] = {}
    for key, one in of_kind(measured, UnlearningKey).items():
        without.setdefault((key.method, key.direction, key.task, key.left is not None), []).append(one)
    found = _Found(
        without,
        {reading: ends_of(measured, reading) for reading in _READINGS},
    )
    what = to_forget(lab.preset)
    return Result(
        tables=[*(_table(lab, found, reading) for reading in _READINGS), _trunk_table(lab, measured)],
        rulings=[ruling for method in _methods(lab.preset) for ruling in _rulings(lab, found, method)],
        paper=(UNLEARNING,),
        figures={
            f"Accuracy (the most probable token is right) without the circuit. To be forgotten: {what}.": lambda: (
                _figure(lab, found)
            )
        },
        notes=[
            f"To be forgotten: {what}; pairs: {', '.join(f'unlearning/{FILES[n]}' for n in FILES if n in _sets(lab))}.",
            "Every set is ablated with its own corrupted prompts. The paper names neither sizes nor what its accuracy "
            "is; its own code counts an answer as right if it is the most probable of all tokens.",
            "The paper's table does not say with which method “ours” was found; here Ns+Dn stands beside Ns for each.",
        ],
    )


def _sets(lab: Lab) -> dict[str, str]:
    """What is measured, with titles."""
    return {FORGET: "to be forgotten", **{name: f"kept: {title}" for name, title in to_keep(lab.preset).items()}}


def _label(method: str, direction: str, left: bool) -> str:
    name = f"{DIRECTION_NAMES[direction]}{', ours' if direction == 'ns+dn' else ''}"
    return f"{METHOD_NAMES[method]} ({name}{', trunk left in place' if left else ''})"


def _trunk_table(lab: Lab, measured: Measured) -> Table:
    """The edges of the trunk, and in how many of the circuits they are."""
    every = of_kind(measured, TrunkKey).values()
    costs: dict[str, list[Sequence[float]]] = {}
    for some in every:
        for edge, shares in some.items():
            costs.setdefault(edge, []).append(shares)
    rows: list[list[Any]] = [
        [edge, len(some), *(statistics.fmean(one) for one in zip(*some, strict=True))]
        for edge, some in sorted(costs.items(), key=lambda item: -len(item[1]))
    ] or [["none", 0, *[None] * len(lab.preset.tasks)]]
    pairs = lab.preset.for_removals(lab.preset.pairs["eap"])
    note = (
        f"Removing one of them alone costs every task at least {lab.preset.costly:.0%} of the KL between the runs, on "
        f"{pairs} pairs; the {_CANDIDATES} strongest edges of each circuit were asked. Of "
        f"{len(every)} circuits (all methods, directions and seeds)."
    )
    columns = ("edge", "circuits that have it", *(f"costs {task_name(task)}" for task in lab.preset.tasks))
    return Table("The trunk", columns, rows, note)


def _table(lab: Lab, found: _Found, reading: str) -> Table:
    sets = _sets(lab)
    full, empty = zip(*(found.ends[reading][name] for name in sets), strict=True)
    rows: list[list[str | int | float | None]] = [
        ["whole model", 0, *full],
        ["corrupted run", lab.model.graph.n_edges, *empty],
    ]
    circuits = dict.fromkeys((method, direction, left) for method, direction, _, left in found.without)
    for method, direction, left in circuits:
        for place, size in enumerate(lab.sizes(method, FORGET)):
            cells = [[seed[reading][place] for seed in found.without[method, direction, name, left]] for name in sets]
            rows.append([_label(method, direction, left), size, *map(mean_and_deviation, cells)])
    counts = seeds_note(_seeds(lab), _methods(lab.preset))
    columns = ("circuit removed", "edges removed", *sets.values())
    note = f"Mean ± deviation over seeds ({counts})."
    return Table(f"Accuracy of G-C: {_READINGS[reading]}", columns, rows, note)


def _rulings(lab: Lab, found: _Found, method: str) -> list[Ruling]:
    ends = found.ends[_TOP]
    claims: list[Claim] = []
    for left in (False, True):
        alone, ours = (found.without[method, direction, FORGET, left] for direction in _DIRECTIONS)
        kept = {name: found.without[method, "ns+dn", name, left] for name in to_keep(lab.preset)}
        losses = [
            largest_loss(one[_TOP], ends[FORGET], [(ends[name][0], seeds[seed][_TOP]) for name, seeds in kept.items()])
            for seed, one in enumerate(ours)
        ]
        said = " (the trunk left in place)" if left else ""
        claims += [
            Claim(
                "Without the Ns+Dn circuit the model does less of what it is to forget than without the Ns circuit"
                f"{said}.",
                "accuracy on what is to be forgotten without the Ns circuit less that without Ns+Dn, mean over sizes",
                {"": [_mean(one) - _mean(other) for one, other in zip(alone, ours, strict=True)]},
                paper=f"0.13 against {'0.31' if method == 'edge-pruning' else '0.29'}",
            ),
            Claim(
                "A complete circuit pinpoints what is to be forgotten: the rest stays (the paper names this as a "
                f"potential{said.replace(' (', '; ').rstrip(')')}).",
                "the largest loss of accuracy elsewhere, with the smallest Ns+Dn circuit whose removal takes "
                f"{_GONE:.0%} of the behaviour",
                {"": losses},
                Between(-math.inf, _KEPT),
                paper="not measured",
            ),
        ]
    besides = f"With the whole model it is {ends[FORGET][0]:.2f}."
    return rules(METHOD_NAMES[method], Above(lab.preset.smallest), *claims, besides=besides)


def _mean(one: Accuracies) -> float:
    return statistics.fmean(one[_TOP])


def largest_loss(
    forgotten: Sequence[float], ends: tuple[float, float], kept: Sequence[tuple[float, Sequence[float]]]
) -> float:
    """Elsewhere, at the smallest size at which the behaviour is gone; NaN if there is none, or nothing to lose.

    ends: accuracy of the whole model and of the corrupted run. kept: that of the whole model, and without each size.
    """
    full, empty = ends
    target = full - _GONE * (full - empty)
    place = next((i for i, left in enumerate(forgotten) if left <= target), None)
    if place is None or not kept or full <= empty:
        return math.nan
    return float(max(whole - without[place] for whole, without in kept))


def _figure(lab: Lab, found: _Found) -> Figure:
    from matplotlib.lines import Line2D

    sets = dict(zip(_sets(lab).items(), _COLOURS, strict=False))

    def fill(at: Any, _: str, method: str) -> None:
        sizes = lab.sizes(method, FORGET)
        for direction in _DIRECTIONS:
            for (name, _title), colour in sets.items():
                seeds = [seed[_TOP] for seed in found.without[method, direction, name, False]]
                means = [statistics.fmean(values) for values in zip(*seeds, strict=True)]
                width = 2.2 if name == FORGET else 1.2
                at.plot(sizes, means, color=colour, linestyle=LINES[direction], marker=".", linewidth=width)
        for end, style in zip(found.ends[_TOP][FORGET], _ENDS.values(), strict=True):
            at.axhline(end, color=BASELINE_COLOUR, linewidth=0.8, linestyle=style)
        size_axis(at, sizes)
        at.set_xlabel("edges removed")
        at.set_ylim(-0.03, 1.03)
        at.set_title(METHOD_NAMES[method])

    methods = _methods(lab.preset)
    width = 4.2 if len(methods) > 1 else 6.4  # room for the legend
    figure = filled([""], methods, fill, "accuracy of G-C", width=width, height=3.9, sharey=True)
    looks: dict[str, dict[str, Any]] = {title: {"color": colour, "marker": "."} for (_, title), colour in sets.items()}
    looks |= {DIRECTION_NAMES[d]: {"color": "#333333", "linestyle": LINES[d]} for d in _DIRECTIONS}
    looks |= {f"to be forgotten, {end}": {"color": BASELINE_COLOUR, "linestyle": style} for end, style in _ENDS.items()}
    legend_below(figure, [Line2D([], [], **look) for look in looks.values()], list(looks))
    return figure


EXPERIMENT = Experiment(
    name="unlearning",
    title="Unlearning",
    claim="accuracy of G-C falls lower with the Ns+Dn circuit (13 %) than with EAP's (29 %) or Edge Pruning's (31 %).",
    labels=("tabunlearning",),
    measurements=_measurements,
    judge=_judge,
    check=check_data,
)
