"""What completeness, redundancy and faithfulness share: a measure of circuits over sizes, directions and methods."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from gatewise.evaluation import evaluations
from gatewise.methods.base import SearchDirection
from gatewise_paper.claims import Claim, Ruling, rule
from gatewise_paper.experiment import Measurement, Search, Variant
from gatewise_paper.experiments.baselines import EMPTY, FULL, Baselines, baseline_measurement, read_baselines
from gatewise_paper.figures import BASELINE_COLOUR, Figure, by_task_and_method, direction_style, errors, size_axis
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured, of_kind
from gatewise_paper.naming import (
    DIRECTION_NAMES,
    DIRECTIONS,
    METHOD_NAMES,
    mean_and_deviation,
    plain_task,
    seeds_note,
    task_name,
)
from gatewise_paper.seed_statistics import sign_flip_interval
from gatewise_paper.tables import Table, size_table

FAITHFULNESS = "kl_from_full"  # of the circuit: KL(G || C)
COMPLETENESS = "kl_to_full"  # of its complement: KL(G\\C || G)
TOP1 = "top_accuracy"
ACCURACIES = {
    TOP1: "top-1: the most probable token of all is correct, as the paper counts",
    "accuracy": "pairwise: correct is more probable than incorrect",
}
# What else each method is run with, to see whether a verdict depends on it: task (or "" for all) and variant
VARIATIONS: Mapping[str, Sequence[tuple[str, Variant]]] = {
    "acdc": (("", "untrimmed"),),
    "eap": (("", "connected"), ("gt:difference=probability", "")),
    "edge-pruning": (("", "connected"),),
}
_VARIANT_NAMES = {"connected": "connected circuits", "untrimmed": "circuits of a tau, untrimmed"}
_STEP = 1.02  # how far apart directions are drawn where there is one size, as a factor


class BehaviourKey(NamedTuple):
    """Of what circuits do by themselves (faithfulness), or what is left without them (completeness)."""

    task: str
    method: str
    direction: SearchDirection
    seed: int
    measure: str
    sizes: tuple[int, ...]
    variant: Variant = ""


class Point(NamedTuple):
    """Where a curve has a value for each seed."""

    task: str
    method: str
    direction: str
    variant: Variant
    size: int


def behaviours(lab: Lab, key: BehaviourKey) -> dict[str, Any]:
    """What the circuits of each size, or their complements, do on the held-out pairs; and their numbers of edges."""
    by_size = lab.circuits(key.task, key.method, key.direction, key.seed, key.variant)
    circuits = [by_size[size] for size in key.sizes]
    run = circuits if key.measure == "faithfulness" else [~circuit for circuit in circuits]
    behaviours_of = evaluations.behaviours(lab.setting(key.task), run)
    return {"circuits": list(map(asdict, behaviours_of)), "edges": list(map(len, circuits))}


def behaviour_measurements(
    lab: Lab,
    measure: str,
    grid: Iterator[tuple[str, str, int]],
    *,
    directions: Sequence[SearchDirection] = DIRECTIONS,
    variant: Variant = "",
    sizes: Sequence[int] | None = None,
) -> Iterator[Measurement]:
    """Behaviours of the circuits of a grid of tasks, methods and seeds; variations at judged sizes alone."""
    for task, method, seed in grid:
        is_variation = bool(variant) or task not in lab.preset.tasks
        measured = tuple(sizes or lab.sizes.measured(measure, method, task, only_judged=is_variation))
        for direction in directions:
            key = BehaviourKey(task, method, direction, seed, measure, measured, variant)
            yield Measurement(behaviours, key, (Search(task, method, seed, (direction,), variant),))


def measurements(lab: Lab, measure: str) -> Iterator[Measurement]:
    """Behaviours of all circuits of the preset, and of the variations."""
    yield from map(baseline_measurement, lab.preset.tasks)
    yield from behaviour_measurements(lab, measure, lab.grid())
    for method in lab.preset.methods:
        for task, variant in _variations(lab, method):
            yield from map(baseline_measurement, [task] if task else [])
            grid = lab.grid(tasks=[task] if task else None, methods=[method])
            yield from behaviour_measurements(lab, measure, grid, variant=variant)


def _variations(lab: Lab, method: str) -> list[tuple[str, Variant]]:
    """As far as the preset has the tasks."""
    known = VARIATIONS.get(method, ())
    return [(task, variant) for task, variant in known if not task or plain_task(task) in lab.preset.tasks]


@dataclass(frozen=True)
class Curves:
    """A measure, KL or accuracy, for each seed; and what it is for the full graph and for the empty circuit."""

    values: Mapping[Point, list[float]]
    baselines: Baselines

    def sizes(self, task: str, method: str) -> list[int]:
        """Of the preset's own circuits, ascending."""
        return sorted({at.size for at in self.values if (at.task, at.method, at.variant) == (task, method, "")})

    def differences(
        self,
        first: str,
        second: str,
        method: str,
        sizes: Mapping[str, Sequence[int]],
        *,
        variant: Variant = "",
        normalised: bool = False,
    ) -> dict[str, list[float]]:
        """The first direction minus the second, mean over sizes: for each task, one for each seed; NaN without sizes.

        normalised: by the range between the full graph and the empty circuit.
        """
        differences = {}
        for task, sizes_of_task in sizes.items():
            full, empty = self.baselines[task]
            scale = abs(empty - full) if normalised else 1.0
            if not sizes_of_task or not scale:
                count = max(len(seeds) for at, seeds in self.values.items() if at[:2] == (task, method))
                differences[task_name(task)] = [math.nan] * count
                continue
            by_size = []  # for each size, the difference of each seed
            for size in sizes_of_task:
                both = (self.values[Point(task, method, d, variant, size)] for d in (first, second))
                by_size.append([a - b for a, b in zip(*both, strict=True)])
            differences[task_name(task)] = [statistics.fmean(seed) / scale for seed in zip(*by_size, strict=True)]
        return differences


def read_values(measured: Measured, name: str, kind: type = BehaviourKey) -> dict[Point, list[float]]:
    """One measure of all behaviours, of keys of one kind."""
    values: dict[Point, list[float]] = {}
    for key, behaviour in of_kind(measured, kind).items():
        for size, of_circuit in zip(key.sizes, behaviour["circuits"], strict=True):
            at = Point(key.task, key.method, key.direction, getattr(key, "variant", ""), size)
            values.setdefault(at, []).append(float(of_circuit[name]["mean"]))
    return values


def read(measured: Measured, name: str) -> Curves:
    return Curves(read_values(measured, name), read_baselines(measured, name))


def variation_rulings(
    lab: Lab, curves: Curves, method: str, measure: str, claim: Claim, directions: tuple[str, str]
) -> list[Ruling]:
    """The same claim with the variations."""
    rulings = []
    for task, variant in _variations(lab, method):
        sizes = lab.sizes.judged(measure, method)
        if task:
            sizes = {task: sizes[plain_task(task)]}
        values = curves.differences(*directions, method, sizes, variant=variant, normalised=True)
        text = f"{claim.text} ({_VARIANT_NAMES.get(variant, task_name(task))})"
        rulings.append(rule(replace(claim, text=text, values=values), method=METHOD_NAMES[method]))
    return rulings


def tables(lab: Lab, measured: Measured, name: str, title: str, accuracy_of: str) -> list[Table]:
    """KL and both accuracies over sizes, and how many edges ACDC keeps at its tau."""
    made = size_tables(lab, read(measured, name), title)
    for accuracy, words in ACCURACIES.items():
        made += size_tables(lab, read(measured, accuracy), f"accuracy of {accuracy_of}, {words}")
    kept_edges: dict[tuple[str, str, int], list[int]] = {}
    for key, behaviour in of_kind(measured, BehaviourKey).items():
        if key.variant == "untrimmed":
            for size, edges in zip(key.sizes, behaviour["edges"], strict=True):
                kept_edges.setdefault((key.task, key.direction, size), []).append(edges)
    if kept_edges:
        rows = [
            (task_name(task), DIRECTION_NAMES[direction], size, statistics.fmean(edges), min(edges), max(edges))
            for (task, direction, size), edges in kept_edges.items()
        ]
        columns = ("task", "direction", "asked for", "kept, mean", "fewest", "most")
        note = "The tau is one that keeps as many edges as asked for, or up to a tenth more; or the nearest if none."
        made.append(Table("Edges that ACDC keeps at its tau", columns, rows, note))
    return made


def size_tables(lab: Lab, curves: Curves, title: str, end: str = f"{EMPTY} (corrupted run)") -> list[Table]:
    """The paper's layout, for each task: sizes down, methods and directions across; then the variants."""
    seeds = seeds_note(lab.preset.seeds_for())
    made = []
    for task, (full, empty) in curves.baselines.items():
        note = (
            f"Mean ± standard deviation over seeds ({seeds}), {lab.preset.held_out} held-out pairs. Whole model "
            f"{full:.3g}, {end} {empty:.3g}."
        )
        for suffix, of_variants in (("", False), (" (circuits chosen otherwise)", True)):
            columns: dict[str, dict[int, str]] = {}
            for at, values in curves.values.items():
                if at.task == task and bool(at.variant) == of_variants:
                    column = (
                        f"{METHOD_NAMES[at.method]} {DIRECTION_NAMES[at.direction]}{at.variant and f', {at.variant}'}"
                    )
                    columns.setdefault(column, {})[at.size] = mean_and_deviation(values)
            if columns:
                made.append(size_table(f"{task_name(task)}: {title}{suffix}", columns, note))
    return made


def figure(lab: Lab, curves: Curves, label: str, end: str = EMPTY) -> Callable[[], Figure]:
    """Panels: tasks down, methods across; a line for each direction, with its 95 % interval. end: of the range."""

    def fill(axes: Any, task: str, method: str) -> None:
        sizes = curves.sizes(task, method)
        for number, direction in enumerate(DIRECTIONS):
            seeds = [curves.values[Point(task, method, direction, "", size)] for size in sizes]
            means = list(map(statistics.fmean, seeds))
            positions = [size * _STEP ** (number - 1) for size in sizes] if len(sizes) == 1 else sizes
            lengths = errors(means, map(sign_flip_interval, seeds))
            axes.errorbar(positions, means, lengths, capsize=2, **direction_style(direction))
        draw_baselines(axes, curves.baselines[task], end)
        size_axis(axes, sizes)

    return lambda: by_task_and_method(lab.preset.tasks, lab.preset.methods, fill, label, sharey="row")


def draw_baselines(axes: Any, heights: tuple[float, float], end: str = EMPTY) -> None:
    """Lines for the full graph and for the end of the range."""
    for height, name, style in zip(heights, (FULL, end), "-:", strict=True):
        axes.axhline(height, color=BASELINE_COLOUR, linewidth=0.8, linestyle=style, label=name)
