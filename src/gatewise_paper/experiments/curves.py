"""What completeness and faithfulness share: a measure of circuits over sizes, directions, methods and tasks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from gatewise.evaluation import evaluations
from gatewise.methods.base import SearchDirection
from gatewise_paper.claims import Above, Claim, Ruling, rule
from gatewise_paper.experiment import Measured, Measurement, Search, Table, Variant, by_size, of_kind
from gatewise_paper.experiments.ends import ends_of, ends_to_measure
from gatewise_paper.figures import BASELINE_COLOUR, Figure, by_task_and_method, direction_style, errors, size_axis
from gatewise_paper.lab import Lab
from gatewise_paper.naming import (
    DIRECTION_NAMES,
    DIRECTIONS,
    METHOD_NAMES,
    mean_and_deviation,
    seeds_note,
    task_name,
)
from gatewise_paper.presets import plain_task
from gatewise_paper.seed_statistics import sign_flip_interval

FAITHFULNESS = "kl_from_full"  # of the circuit: KL(G || C)
COMPLETENESS = "kl_to_full"  # of its complement: KL(G\\C || G)
ACCURACIES = {
    "top_accuracy": "the most probable token of all is right, as the paper counts",
    "accuracy": "right is more probable than wrong",
}
PROBABILITY_LOGIT_DIFF = "gt:difference=probability"
# What else each method is run with, to see whether a verdict depends on it: task (or "" for all) and variant
BESIDE: Mapping[str, Sequence[tuple[str, Variant]]] = {
    "acdc": (("", "untrimmed"),),
    "eap": (("", "connected"), (PROBABILITY_LOGIT_DIFF, "")),
    "edge-pruning": (("", "connected"),),
}
_STEP = 1.02  # how far apart directions are drawn where there is one size, as a factor
At = tuple[str, str, str, Variant, int]  # task, method, direction, variant, size


class BehaviourKey(NamedTuple):
    """Of what circuits do by themselves (faithfulness), or what is left without them (completeness)."""

    task: str
    method: str
    direction: SearchDirection
    seed: int
    measure: str
    sizes: tuple[int, ...]
    variant: Variant = ""


def behaviours(lab: Lab, key: BehaviourKey) -> dict[str, Any]:
    """What the circuits of each size, or their complements, do on the held-out pairs; and their numbers of edges."""
    found = lab.circuits(key.task, key.method, key.direction, key.seed, key.variant)
    circuits = [found[size] for size in key.sizes]
    run = circuits if key.measure == "faithfulness" else [~circuit for circuit in circuits]
    some = evaluations.behaviours(lab.setting(key.task), run)
    return {"circuits": list(map(asdict, some)), "edges": list(map(len, circuits))}


def to_measure(
    lab: Lab,
    measure: str,
    *,
    tasks: Sequence[str] | None = None,
    directions: Sequence[SearchDirection] = DIRECTIONS,
    seeds: Mapping[str, int] | None = None,
    variant: Variant = "",
    methods: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
) -> Iterator[Measurement]:
    """Behaviours of the circuits of all seeds; what stands beside a preset's own circuits, at judged sizes alone."""
    for task, method, seed in lab.grid(tasks=tasks, methods=methods, seeds=seeds):
        beside_it = bool(variant) or task not in lab.preset.tasks
        some = tuple(sizes or lab.measured_sizes(measure, method, task, judged=beside_it))
        for direction in directions:
            key = BehaviourKey(task, method, direction, seed, measure, some, variant)
            yield Measurement(behaviours, key, (Search(task, method, seed, (direction,), variant),))


def all_to_measure(lab: Lab, measure: str) -> Iterator[Measurement]:
    """Those of the preset, and what stands beside them."""
    yield from map(ends_to_measure, lab.preset.tasks)
    yield from to_measure(lab, measure)
    for method in lab.preset.methods:
        for task, variant in beside(lab, method):
            yield from map(ends_to_measure, [task] if task else [])
            yield from to_measure(lab, measure, tasks=[task] if task else None, methods=[method], variant=variant)


def beside(lab: Lab, method: str) -> list[tuple[str, Variant]]:
    """As far as the preset has the tasks."""
    return [(t, v) for t, v in BESIDE.get(method, ()) if not t or plain_task(t) in lab.preset.tasks]


@dataclass(frozen=True)
class Curves:
    """A measure, KL or accuracy, for each seed; and what it is for the full graph and for the empty circuit."""

    values: Mapping[At, list[float]]
    ends: Mapping[str, tuple[float, float]]  # by task

    def sizes(self, task: str, method: str) -> list[int]:
        """Of the preset's own circuits, ascending."""
        return sorted({at[4] for at in self.values if at[:2] == (task, method) and not at[3]})

    def differences(
        self,
        one: str,
        other: str,
        method: str,
        sizes: Mapping[str, Sequence[int]],
        *,
        share: bool = False,
        of: tuple[str, Variant] = ("", ""),
    ) -> dict[str, list[float]]:
        """One direction minus another, mean over sizes: for each task, one for each seed; NaN without sizes.

        share: of the range between the full graph and the empty circuit. of: a task in place of those of the sizes,
        and a variant.
        """
        found = {}
        only, variant = of
        for task, some in sizes.items():
            if only and plain_task(only) != task:
                continue
            name = only or task
            full, empty = self.ends[name]
            scale = abs(empty - full) if share else 1.0
            count = max(len(seeds) for at, seeds in self.values.items() if at[:2] == (name, method))
            if not some or not scale:
                found[task_name(name)] = [math.nan] * count
                continue
            firsts, seconds = ([self.values[name, method, d, variant, size] for size in some] for d in (one, other))
            seeds = [
                statistics.fmean(a - b for a, b in zip(first, second, strict=True))
                for first, second in zip(zip(*firsts, strict=True), zip(*seconds, strict=True), strict=True)
            ]
            found[task_name(name)] = [seed / scale for seed in seeds]
        return found


def read(measured: Measured, name: str, kind: type = BehaviourKey) -> Curves:
    """One measure of all behaviours, of keys of some kind."""
    values: dict[At, list[float]] = {}
    for key, found in of_kind(measured, kind).items():
        for size, one in zip(key.sizes, found["circuits"], strict=True):
            at: At = (key.task, key.method, key.direction, getattr(key, "variant", ""), size)
            values.setdefault(at, []).append(float(one[name]["mean"]))
    return Curves(values, ends_of(measured, name))


def rulings_beside(
    lab: Lab, curves: Curves, method: str, measure: str, claim: Claim, pair: tuple[str, str]
) -> list[Ruling]:
    """The same claim with what stands beside the preset's own circuits."""
    sizes = lab.judged_sizes(measure, method)
    found = []
    for task, variant in beside(lab, method):
        values = curves.differences(*pair, method, sizes, share=True, of=(task, variant))
        text = f"{claim.text} ({_said(task, variant)})"
        one = Claim(text, claim.what, values, claim.claimed, claim.paper)
        found.append(rule(one, Above(lab.preset.smallest), method=METHOD_NAMES[method]))
    return found


def _said(task: str, variant: Variant) -> str:
    return {"connected": "connected circuits", "untrimmed": "circuits of a tau, untrimmed"}.get(
        variant, task_name(task)
    )


def edges_table(measured: Measured) -> Table | None:
    """How many edges ACDC keeps at its tau."""
    sizes: dict[tuple[str, str, int], list[int]] = {}
    for key, found in of_kind(measured, BehaviourKey).items():
        for size, edges in zip(key.sizes, found["edges"], strict=True):
            if key.variant == "untrimmed":
                sizes.setdefault((key.task, key.direction, size), []).append(edges)
    rows = [
        (task_name(task), DIRECTION_NAMES[direction], size, statistics.fmean(some), min(some), max(some))
        for (task, direction, size), some in sizes.items()
    ]
    note = "The tau is one that keeps as many edges as asked for, or up to a tenth more; or the nearest if none does."
    columns = ("task", "direction", "asked for", "kept, mean", "fewest", "most")
    return Table("Edges that ACDC keeps at its tau", columns, rows, note) if rows else None


def tables(lab: Lab, curves: Curves, title: str, end: str = "empty circuit (corrupted run)") -> list[Table]:
    """The paper's layout, for each task: sizes down, methods and directions across; then what stands beside them."""
    seeds = seeds_note(lab.preset.seeds, lab.preset.methods)
    found = []
    for task, (full, empty) in curves.ends.items():
        for variants in (("",), ("connected", "untrimmed")):
            columns: dict[str, dict[int, str]] = {}
            for (of, method, direction, variant, size), values in curves.values.items():
                if of == task and variant in variants:
                    name = f"{METHOD_NAMES[method]} {DIRECTION_NAMES[direction]}{variant and f', {variant}'}"
                    columns.setdefault(name, {})[size] = mean_and_deviation(values)
            ends = f"Whole model {full:.3g}, {end} {empty:.3g}."
            note = f"Mean ± deviation over seeds ({seeds}), {lab.preset.held_out} held-out pairs. {ends}"
            what = "" if variants == ("",) else " (circuits chosen otherwise)"
            if columns:
                found.append(by_size(f"{task_name(task)}: {title}{what}", columns, note))
    return found


def figure(
    lab: Lab, curves: Curves, label: str, ends: Sequence[str] = ("whole model", "empty circuit")
) -> Callable[[], Figure]:
    """Panels: tasks down, methods across; a line for each direction, with its 95 % interval. ends: their names."""

    def fill(at: Any, task: str, method: str) -> None:
        sizes = curves.sizes(task, method)
        for place, direction in enumerate(DIRECTIONS):
            line = [curves.values[task, method, direction, "", size] for size in sizes]
            means = list(map(statistics.fmean, line))
            look = direction_style(direction)
            places = [size * _STEP ** (place - 1) for size in sizes] if len(sizes) == 1 else sizes
            at.errorbar(places, means, errors(means, map(sign_flip_interval, line)), capsize=2, **look)
        for end, name, style in zip(curves.ends[task], ends, "-:", strict=True):
            at.axhline(end, color=BASELINE_COLOUR, linewidth=0.8, linestyle=style, label=name)
        size_axis(at, sizes)

    return lambda: by_task_and_method(lab.preset.tasks, lab.preset.methods, fill, label, sharey="row")
