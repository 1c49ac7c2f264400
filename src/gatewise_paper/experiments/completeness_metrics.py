"""Completeness metrics: sampled incompleteness D(C\\K || G\\K) against the new KL(G\\C || G) (tabmetrics).

The paper says "standard deviation" and five seeds of discovery, but not what its deviations are over. Three are told
apart: over single K of one circuit; over repeated draws of n K of one circuit (what sampling adds to the mean of n);
over circuits, each with one draw (what five seeds with one draw each show; the new metric has only this one).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gatewise.methods.base import SearchDirection
from gatewise_paper.claims import Claim, Ruling, rules
from gatewise_paper.experiment import Experiment, Measurement, Outcome, Search
from gatewise_paper.experiments.baselines import baseline_measurement, read_baselines
from gatewise_paper.experiments.curves import COMPLETENESS, Point, behaviour_measurements, read_values
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured, group, of_kind
from gatewise_paper.measures.incompleteness import SAMPLES, SampledColumn, incompleteness, sampled_columns
from gatewise_paper.naming import DIRECTION_NAMES, METHOD_NAMES, plus_minus, seeds_note, standard_deviation, task_name
from gatewise_paper.tables import Cell, Table, printed

_DIRECTIONS: tuple[SearchDirection, ...] = ("ns", "ns+dn")  # a method, and "ours" on top of it
_DRAWS = 3
_NAME = "completeness-metrics"


class SampledKey(NamedTuple):
    task: str
    size: int
    method: str
    direction: SearchDirection
    seed: int
    pairs: int
    draws: int


@dataclass(frozen=True)
class Line:
    """A method and direction at one size: the sampled metric by number of K, and the new one for each seed."""

    size: int
    method: str
    direction: str
    values: Tensor  # of the sampled metric: [seed, draw, K]
    new: Sequence[float]
    empty: float  # what the new metric is for the empty circuit

    @property
    def sampled(self) -> list[SampledColumn]:
        return sampled_columns(self.values)

    def __str__(self) -> str:
        return f"{METHOD_NAMES[self.method]} {DIRECTION_NAMES[self.direction]}"


def sampled(lab: Lab, key: SampledKey) -> list[list[float]]:
    """D(C\\K || G\\K) for the K of several draws: [draw][K]."""
    circuit = lab.circuits(key.task, key.method, key.direction, key.seed)[key.size]
    pairs, most = lab.held_out(key.task)[: key.pairs], SAMPLES[-1]
    values = incompleteness(lab.model, pairs, circuit, samples=most * key.draws, seed=key.seed)
    draws: list[list[float]] = values.reshape(key.draws, most).tolist()
    return draws


def _measurements(lab: Lab) -> Iterator[Measurement]:
    """On the first task: what is measured takes long."""
    task, seeds = lab.preset.tasks[0], lab.preset.seeds_for(_NAME)
    sizes = list(dict.fromkeys(lab.sizes.primary(measure, task) for measure in ("completeness", "faithfulness")))
    yield baseline_measurement(task)
    grid = lab.grid(tasks=[task], seeds=seeds)
    yield from behaviour_measurements(lab, "completeness", grid, directions=_DIRECTIONS, sizes=sizes)
    for size in sizes:
        for _, method, seed in lab.grid(tasks=[task], seeds=seeds):
            for direction in _DIRECTIONS:
                key = SampledKey(task, size, method, direction, seed, lab.preset.sampled_pairs, _DRAWS)
                yield Measurement(sampled, key, (Search(task, method, seed, (direction,)),))


def _judge(lab: Lab, measured: Measured) -> Outcome:
    task, new = lab.preset.tasks[0], read_values(measured, COMPLETENESS)
    _, empty = read_baselines(measured, COMPLETENESS)[task]
    lines = []
    for (size, method, direction), draws in group(of_kind(measured, SampledKey), "size", "method", "direction").items():
        values = torch.tensor(draws, dtype=torch.float64)
        lines.append(Line(size, method, direction, values, new[Point(task, method, direction, "", size)], empty))
    return Outcome(
        tables=[_table(lab, lines), _deviations(lab, lines)],
        rulings=[ruling for method in lab.preset.methods for ruling in _rulings(task, method, lines)],
        paper=(printed("tabmetrics"),),
        notes=[
            f"The sampled metric is measured on {min(lab.preset.sampled_pairs, lab.preset.held_out)} of the held-out "
            f"pairs, {_DRAWS} draws of {SAMPLES[-1]} K for each circuit; fewer K are the first of each draw. K is "
            "what 2 to 5 nodes of the circuit do in it.",
            "The two metrics are different quantities, as the paper says; the table of deviations also has them as "
            "shares of their means. Where the circuit's removal is already as bad as the corrupted run, the new "
            "metric cannot deviate whatever the circuits.",
        ],
    )


def _seeds(lab: Lab) -> str:
    return seeds_note(lab.preset.seeds_for(_NAME))


def _table(lab: Lab, lines: Sequence[Line]) -> Table:
    """The paper's layout; deviations over circuits."""
    rows: list[list[Cell]] = []
    for line in lines:
        by_samples = [plus_minus(column.mean, column.over_circuits) for column in line.sampled]
        new = plus_minus(statistics.fmean(line.new), standard_deviation(line.new))
        rows.append([line.size, str(line), *by_samples, new])
    return Table(
        f"{task_name(lab.preset.tasks[0])}: two metrics of completeness",
        ("edges", "method", *(f"{n} sampled K" for n in SAMPLES), "new metric"),
        rows,
        f"Mean ± standard deviation over circuits ({_seeds(lab)} seeds), each with a draw of its own. Low is complete "
        f"for the sampled metric, high for the new one (corrupted run: {lines[0].empty:.3g}).",
    )


def _deviations(lab: Lab, lines: Sequence[Line]) -> Table:
    rows: list[list[Cell]] = []
    for line in lines:
        *_, last = columns = line.sampled
        relative = last.over_circuits / last.mean if last.mean else math.nan
        new = standard_deviation(line.new) / statistics.fmean(line.new)
        over_draws = [column.over_draws for column in columns]
        rows.append([line.size, str(line), last.over_subsets, *over_draws, relative, new])
    shares = (f"circuits, {SAMPLES[-1]} K, share of mean", "circuits, new, share of mean")
    return Table(
        "What the standard deviation is over",
        ("edges", "method", "single K", *(f"draws of {n} K" for n in SAMPLES), *shares),
        rows,
        f"Standard deviations of the sampled metric, means over {_seeds(lab)} seeds; {_DRAWS} draws.",
    )


def _rulings(task: str, method: str, lines: Sequence[Line]) -> list[Ruling]:
    """A seed's value is a mean over sizes, and over directions where these are not compared."""
    both = [line for line in lines if line.method == method]
    alone, ours = ([line for line in both if line.direction == direction] for direction in _DIRECTIONS)

    def means(values: Sequence[Sequence[float]]) -> dict[str, list[float]]:
        return {task_name(task): [statistics.fmean(seed) for seed in zip(*values, strict=True)]}

    return rules(
        METHOD_NAMES[method],
        Claim(
            "The sampled metric deviates more over seeds than the new one.",
            f"distance of a seed from the mean of all with {SAMPLES[-1]} K, less that with the new metric, as a "
            "share of the KL between the runs",
            means([deviates_more(line) for line in both]),
            paper="0.6 to 0.7 with 30 K against 0.08 to 0.13",
        ),
        Claim(
            "The sampled metric deviates since K is sampled: less with more K.",
            f"standard deviation over draws for one circuit with {SAMPLES[0]} K less that with {SAMPLES[-1]}, as a "
            "share of their sum",
            means([falls(line) for line in both]),
            paper="1.5 to 1.8 with 5 K, 0.6 to 0.7 with 30",
        ),
        Claim(
            "By the sampled metric, Ns+Dn is more complete (lower) than the method alone.",
            f"D(C\\K || G\\K) with {SAMPLES[-1]} K of Ns less that of Ns+Dn, as a share of the KL between the runs",
            means([more_complete(*lines_of_size) for lines_of_size in zip(alone, ours, strict=True)]),
            paper="0.3 against 1.2 to 1.6",
        ),
    )


def deviates_more(line: Line) -> list[float]:
    """For each seed, how much farther from the mean it is by the sampled metric than by the new one; NaN for one."""
    old, new = line.values[:, 0].mean(dim=-1).tolist(), line.new  # one draw each
    if len(new) < 2 or not line.empty:
        return [math.nan] * len(new)
    middle, other = statistics.fmean(old), statistics.fmean(new)
    return [(abs(a - middle) - abs(b - other)) / line.empty for a, b in zip(old, new, strict=True)]


def falls(line: Line) -> list[float]:
    """For each seed, how much less its draws deviate with the most K than with the fewest."""
    less = []
    for draws in line.values:
        few, many = (float(draws[:, :count].mean(dim=-1).std()) for count in (SAMPLES[0], SAMPLES[-1]))
        less.append((few - many) / (few + many) if few + many else 0.0)
    return less


def more_complete(alone: Line, ours: Line) -> list[float]:
    """For each seed, how much lower the sampled metric is with Ns+Dn."""
    lower = alone.values.mean(dim=(1, 2)) - ours.values.mean(dim=(1, 2))
    values: list[float] = (lower / alone.empty).tolist()
    return values if alone.empty else [math.nan] * len(lower)


EXPERIMENT = Experiment(
    name=_NAME,
    title="Two metrics of completeness",
    claim="the older metric, sampled over subcircuits K, deviates much; the new one hardly.",
    labels=("tabmetrics",),
    measurements=_measurements,
    judge=_judge,
)
