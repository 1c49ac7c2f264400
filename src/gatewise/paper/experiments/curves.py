"""What completeness and faithfulness share: a measure of circuits over sizes, directions, methods and tasks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gatewise.evaluation import evaluate
from gatewise.methods.contract import SearchDirection
from gatewise.paper.claims import Above, Claim, Ruling, rule
from gatewise.paper.contract import Measured, Measurement, Table, Variant, by_size
from gatewise.paper.figures import BASELINE_COLOUR, Figure, by_task_and_method, direction_style, errors, size_axis
from gatewise.paper.lab import Lab
from gatewise.paper.presets import plain_task
from gatewise.paper.words import (
    DIRECTION_NAMES,
    DIRECTIONS,
    METHOD_NAMES,
    mean_and_deviation,
    seeds_note,
    task_name,
)
from gatewise.statistics import sign_flip_interval

# Which part of an Evaluation, and which of its divergences
FAITHFULNESS = ("circuit", "kl_from_full")  # KL(G || C)
COMPLETENESS = ("complement", "kl_to_full")  # KL(G\\C || G)
ACCURACIES = {
    "top_accuracy": "the most probable token of all is right, as the paper counts",
    "accuracy": "right is more probable than wrong",
}
PROBABILITY_MARGIN = "gt:margin=probability"
# What else each method is run with, to see whether a verdict depends on it: task (or "" for all) and variant
BESIDE: Mapping[str, Sequence[tuple[str, Variant]]] = {
    "acdc": (("", "untrimmed"),),
    "eap": (("", "connected"), (PROBABILITY_MARGIN, "")),
    "edge-pruning": (("", "connected"),),
}
At = tuple[str, str, str, Variant, int]  # task, method, direction, variant, size


class BehaviourKey(NamedTuple):
    task: str
    method: str
    direction: SearchDirection
    seed: int
    variant: Variant = ""


def behaviours(lab: Lab, key: BehaviourKey) -> list[dict[str, Any]]:
    """What the circuits of each size and their complements do on the held-out pairs: evaluations."""
    circuits = lab.circuits(*key)
    return evaluate(lab.model, lab.held_out(key.task), list(circuits.values()), random_circuits=0).to_json()


def to_measure(
    lab: Lab,
    *,
    tasks: Sequence[str] | None = None,
    directions: Sequence[SearchDirection] = DIRECTIONS,
    seeds: Mapping[str, int] | None = None,
    variant: Variant = "",
    methods: Sequence[str] | None = None,
) -> Iterator[Measurement]:
    """Behaviours of the circuits of all seeds."""
    some = {"tasks": tasks, "methods": methods, "seeds": seeds}
    return lab.cells(behaviours, BehaviourKey, directions, apart=True, variant=variant, **some)


def all_to_measure(lab: Lab) -> Iterator[Measurement]:
    """Those of the preset, and what stands beside them."""
    yield from to_measure(lab)
    for method in lab.preset.methods:
        for task, variant in beside(lab, method):
            yield from to_measure(lab, tasks=[task] if task else None, methods=[method], variant=variant)


def beside(lab: Lab, method: str) -> list[tuple[str, Variant]]:
    """As far as the preset has the tasks."""
    return [(t, v) for t, v in BESIDE.get(method, ()) if not t or plain_task(t) in lab.preset.tasks]


@dataclass(frozen=True)
class Curves:
    """A measure, KL or accuracy, for each seed; and what it is for the full graph and for the empty circuit."""

    values: Mapping[At, list[float]]
    ends: Mapping[str, tuple[float, float]]  # by task

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


def read(lab: Lab, measured: Measured, part: str, measure: str) -> Curves:
    """A measure of one part of all circuits' behaviours."""
    values: dict[At, list[float]] = {}
    ends: dict[str, tuple[float, float]] = {}
    for key, found in measured.items():
        for size, one in zip(lab.sizes(key.method, key.task), found, strict=True):
            at = (key.task, key.method, key.direction, key.variant, size)
            values.setdefault(at, []).append(float(one[part][measure]["mean"]))
        ends[key.task] = (float(found[0]["full"][measure]["mean"]), float(found[0]["empty"][measure]["mean"]))
    return Curves(values, ends)


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


def edges_table(lab: Lab, measured: Measured) -> Table | None:
    """How many edges ACDC keeps at its tau."""
    sizes: dict[tuple[str, str, int], list[int]] = {}
    for key, found in measured.items():
        for size, one in zip(lab.sizes(key.method, key.task), found, strict=True):
            if key.variant == "untrimmed":
                sizes.setdefault((key.task, key.direction, size), []).append(one["edges"])
    rows = [
        (task_name(task), DIRECTION_NAMES[direction], size, statistics.fmean(some), min(some), max(some))
        for (task, direction, size), some in sizes.items()
    ]
    note = "The tau is one that keeps as many edges as asked for, or up to a tenth more; or the nearest if none does."
    columns = ("task", "direction", "asked for", "kept, mean", "fewest", "most")
    return Table("Edges that ACDC keeps at its tau", columns, rows, note) if rows else None


def tables(lab: Lab, curves: Curves, title: str) -> list[Table]:
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
            ends = f"Whole model {full:.3g}, empty circuit (corrupted run) {empty:.3g}."
            note = f"Mean ± deviation over seeds ({seeds}), {lab.preset.held_out} held-out pairs. {ends}"
            what = "" if variants == ("",) else " (circuits chosen otherwise)"
            if columns:
                found.append(by_size(f"{task_name(task)}: {title}{what}", columns, note))
    return found


def figure(lab: Lab, curves: Curves, label: str) -> Callable[[], Figure]:
    """Panels: tasks down, methods across; a line for each direction, with its 95 % interval."""

    def fill(at: Any, task: str, method: str) -> None:
        sizes = lab.sizes(method, task)
        for direction in DIRECTIONS:
            line = [curves.values[task, method, direction, "", size] for size in sizes]
            means = list(map(statistics.fmean, line))
            at.errorbar(
                sizes, means, errors(means, map(sign_flip_interval, line)), capsize=2, **direction_style(direction)
            )
        for end, name, style in zip(curves.ends[task], ("whole model", "empty circuit"), "-:", strict=True):
            at.axhline(end, color=BASELINE_COLOUR, linewidth=0.8, linestyle=style, label=name)
        size_axis(at, sizes)

    return lambda: by_task_and_method(lab.preset.tasks, lab.preset.methods, fill, label, sharey="row")
