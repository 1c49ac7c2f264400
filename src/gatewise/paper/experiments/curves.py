"""What completeness and faithfulness share: a measure of circuits over sizes, directions, methods and tasks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gatewise.evaluation import evaluate
from gatewise.methods.contract import SearchDirection
from gatewise.paper.contract import Measured, Measurement, Table, by_size
from gatewise.paper.figures import BASELINE_COLOUR, Figure, by_task_and_method, direction_style, size_axis
from gatewise.paper.lab import Lab
from gatewise.paper.words import (
    DIRECTION_NAMES,
    DIRECTIONS,
    METHOD_NAMES,
    TASK_NAMES,
    deviation,
    mean_and_deviation,
    seeds_note,
)

# Which part of an Evaluation, and which of its divergences
FAITHFULNESS = ("circuit", "kl_from_full")  # KL(G || C)
COMPLETENESS = ("complement", "kl_to_full")  # KL(G\\C || G)
At = tuple[str, str, str, int]  # task, method, direction, size


class BehaviourKey(NamedTuple):
    task: str
    method: str
    direction: SearchDirection
    seed: int


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
) -> Iterator[Measurement]:
    """Behaviours of the circuits of all seeds."""
    return lab.cells(behaviours, BehaviourKey, directions, apart=True, tasks=tasks, seeds=seeds)


@dataclass(frozen=True)
class Curves:
    """A measure, KL or accuracy, for each seed; and what it is for the full graph and for the empty circuit."""

    values: Mapping[At, list[float]]
    ends: Mapping[str, tuple[float, float]]  # by task

    def differences(
        self, one: str, other: str, method: str, sizes: Mapping[str, Sequence[int]], *, share: bool = False
    ) -> dict[str, list[float]]:
        """One direction minus another, mean over sizes: for each task, one for each seed.

        share: of the range between the full graph and the empty circuit.
        """
        found = {}
        for task, some in sizes.items():
            full, empty = self.ends[task]
            scale = abs(empty - full) if share else 1.0
            firsts, seconds = ([self.values[task, method, d, size] for size in some] for d in (one, other))
            seeds = [
                statistics.fmean(a - b for a, b in zip(first, second, strict=True))
                for first, second in zip(zip(*firsts, strict=True), zip(*seconds, strict=True), strict=True)
            ]
            found[TASK_NAMES[task]] = [seed / scale if scale else math.nan for seed in seeds]
        return found


def read(lab: Lab, measured: Measured, what: tuple[str, str]) -> tuple[Curves, Curves]:
    """KL and accuracy of one part, read off all circuits' behaviours."""
    part, divergence = what
    curves = []
    for name in (divergence, "accuracy"):
        values: dict[At, list[float]] = {}
        ends: dict[str, tuple[float, float]] = {}
        for key, found in measured.items():
            for size, one in zip(lab.sizes(key.method), found, strict=True):
                values.setdefault((*key[:3], size), []).append(float(one[part][name]["mean"]))
            ends[key.task] = (float(found[0]["full"][name]["mean"]), float(found[0]["empty"][name]["mean"]))
        curves.append(Curves(values, ends))
    return curves[0], curves[1]


def tables(lab: Lab, curves: Curves, title: str) -> list[Table]:
    """The paper's layout, for each task: sizes down, methods and directions across."""
    seeds = seeds_note(lab.preset.seeds, lab.preset.methods)
    found = []
    for task, (full, empty) in curves.ends.items():
        columns: dict[str, dict[int, str]] = {}
        for (of, method, direction, size), values in curves.values.items():
            if of == task:
                column = columns.setdefault(f"{METHOD_NAMES[method]} {DIRECTION_NAMES[direction]}", {})
                column[size] = mean_and_deviation(values)
        note = (
            f"Mean ± deviation over seeds ({seeds}). Whole model {full:.3g}, empty circuit (corrupted run) {empty:.3g}."
        )
        found.append(by_size(f"{TASK_NAMES[task]}: {title}", columns, note))
    return found


def figure(lab: Lab, curves: Curves, label: str) -> Callable[[], Figure]:
    """Panels: tasks down, methods across; a line for each direction."""

    def fill(at: Any, task: str, method: str) -> None:
        sizes = lab.sizes(method)
        for direction in DIRECTIONS:
            line = [curves.values[task, method, direction, size] for size in sizes]
            errors = [0.0 if math.isnan(deviation(seeds)) else deviation(seeds) for seeds in line]
            at.errorbar(sizes, list(map(statistics.fmean, line)), errors, capsize=2, **direction_style(direction))
        for end, name, style in zip(curves.ends[task], ("whole model", "empty circuit"), "-:", strict=True):
            at.axhline(end, color=BASELINE_COLOUR, linewidth=0.8, linestyle=style, label=name)
        size_axis(at, sizes)

    return lambda: by_task_and_method(lab.preset.tasks, lab.preset.methods, fill, label, sharey="row")
