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
from typing import Any, NamedTuple

import torch

from gatewise.methods.base import SearchDirection
from gatewise_paper.claims import Above, Claim, Ruling, rules
from gatewise_paper.experiment import Experiment, Measured, Measurement, Result, Table, group, of_kind
from gatewise_paper.experiments.curves import BehaviourKey, to_measure
from gatewise_paper.experiments.ends import ends_of, ends_to_measure
from gatewise_paper.figures import LINES, MARKERS, METHOD_COLOURS, Figure, filled
from gatewise_paper.lab import Lab
from gatewise_paper.measures.incompleteness import SAMPLES, SampledColumn, incompleteness, sampled_columns
from gatewise_paper.naming import DIRECTION_NAMES, METHOD_NAMES, deviation, plus_minus, seeds_note, task_name
from gatewise_paper.printed_numbers import METRICS

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
    values: torch.Tensor  # of the sampled metric: [seed, draw, K]
    new: tuple[float, ...]
    empty: float  # what the new metric is for the empty circuit

    @property
    def sampled(self) -> list[SampledColumn]:
        return sampled_columns(self.values)

    def sampled_by_seed(self, count: int) -> list[float]:
        """With so many K, one draw each."""
        return self.values[:, 0, :count].mean(dim=-1).tolist()

    def __str__(self) -> str:
        return f"{METHOD_NAMES[self.method]} {DIRECTION_NAMES[self.direction]}"


def sampled(lab: Lab, key: SampledKey) -> list[list[float]]:
    """D(C\\K || G\\K) for the K of several draws: [draw][K]."""
    circuit = lab.circuits(key.task, key.method, key.direction, key.seed)[key.size]
    held_out = lab.held_out(key.task)[: key.pairs]
    most = SAMPLES[-1]
    values = incompleteness(lab.model, held_out, circuit, samples=most * key.draws, seed=key.seed).values
    return values.reshape(key.draws, most).tolist()


def _measurements(lab: Lab) -> Iterator[Measurement]:
    task, seeds = lab.preset.tasks[0], lab.preset.seeds_for(_NAME)
    sizes = list(dict.fromkeys(lab.primary_size(measure, task) for measure in ("completeness", "faithfulness")))
    yield ends_to_measure(task)
    yield from to_measure(lab, "completeness", tasks=[task], directions=_DIRECTIONS, seeds=seeds, sizes=sizes)
    more: dict[str, Any] = {"tasks": [task], "seeds": seeds, "pairs": lab.preset.sampled_pairs, "draws": _DRAWS}
    for size in sizes:
        yield from lab.cells(sampled, SampledKey, _DIRECTIONS, apart=True, size=size, **more)


def _judge(lab: Lab, measured: Measured) -> Result:
    task = lab.preset.tasks[0]
    new = group(of_kind(measured, BehaviourKey), "method", "direction")
    sizes = next(iter(of_kind(measured, BehaviourKey))).sizes
    lines = []
    for (size, method, direction), draws in group(of_kind(measured, SampledKey), "size", "method", "direction").items():
        found, place = new[method, direction], sizes.index(size)
        complete = tuple(float(one["circuits"][place]["kl_to_full"]["mean"]) for one in found)
        _, empty = ends_of(measured, "kl_to_full")[task]
        lines.append(Line(size, method, direction, torch.tensor(draws, dtype=torch.float64), complete, empty))
    return Result(
        tables=[_table(lab, lines), _deviations(lab, lines)],
        rulings=_rulings(lab, lines),
        paper=(METRICS,),
        figures={
            f"Deviation of the sampled metric by the number of K on {task_name(task)}: over draws for one circuit "
            "(lines), beside that of the new metric over circuits (at the right).": lambda: _figure(lines)
        },
        notes=[
            f"The sampled metric is measured on {min(lab.preset.sampled_pairs, lab.preset.held_out)} of the held-out "
            f"pairs, {_DRAWS} draws of {SAMPLES[-1]} K for each circuit; fewer K are the first of each draw. K is "
            "what 2 to 5 nodes of the circuit do in it.",
            "The paper has one line for its own method; here each method has one with Ns (the method) and one with "
            "Ns+Dn (ours).",
            "The two metrics are different quantities, as the paper says; the table of deviations also has them as "
            "shares of their means. Where the circuit's removal is already as bad as the corrupted run, the new "
            "metric cannot deviate whatever the circuits.",
        ],
    )


def _table(lab: Lab, lines: Sequence[Line]) -> Table:
    """The paper's layout; deviations over circuits."""
    return Table(
        f"{task_name(lab.preset.tasks[0])}: two metrics of completeness",
        ("edges", "method", *(f"{n} sampled K" for n in SAMPLES), "new metric"),
        [
            (
                line.size,
                str(line),
                *(plus_minus(column.mean, column.over_circuits) for column in line.sampled),
                plus_minus(statistics.fmean(line.new), deviation(line.new)),
            )
            for line in lines
        ],
        f"Mean ± deviation over circuits ({_seeds(lab)} seeds), each with a draw of its own. Low is complete for the "
        f"sampled metric, high for the new one (corrupted run: {lines[0].empty:.3g}).",
    )


def _seeds(lab: Lab) -> str:
    return seeds_note(lab.preset.seeds_for(_NAME), lab.preset.methods)


def _deviations(lab: Lab, lines: Sequence[Line]) -> Table:
    rows: list[tuple[str | int | float, ...]] = []
    for line in lines:
        *_, last = columns = line.sampled
        draws = (column.over_draws for column in columns)
        relative = last.over_circuits / last.mean if last.mean else math.nan
        new = deviation(line.new) / statistics.fmean(line.new)
        rows.append((line.size, str(line), last.over_subsets, *draws, relative, new))
    shares = (f"circuits, {SAMPLES[-1]} K, share of mean", "circuits, new, share of mean")
    return Table(
        "What the deviation is over",
        ("edges", "method", "single K", *(f"draws of {n} K" for n in SAMPLES), *shares),
        rows,
        f"Deviations of the sampled metric, means over {_seeds(lab)} seeds; {_DRAWS} draws.",
    )


def _rulings(lab: Lab, lines: Sequence[Line]) -> list[Ruling]:
    rulings: list[Ruling] = []
    task = task_name(lab.preset.tasks[0])
    by_method: dict[str, dict[str, list[Line]]] = {}
    for line in lines:
        by_method.setdefault(line.method, {}).setdefault(line.direction, []).append(line)
    for method, (alone, ours) in ((method, found.values()) for method, found in by_method.items()):
        both = [*alone, *ours]
        rulings += rules(
            METHOD_NAMES[method],
            Above(lab.preset.smallest),
            Claim(
                "The sampled metric deviates more over seeds than the new one.",
                f"distance of a seed from the mean of all with {SAMPLES[-1]} K, less that with the new metric, as a "
                "share of the KL between the runs",
                {task: _mean_by_seed([deviates_more(line) for line in both])},
                paper="0.6 to 0.7 with 30 K against 0.08 to 0.13",
            ),
            Claim(
                "The sampled metric deviates since K is sampled: less with more K.",
                f"deviation over draws for one circuit with {SAMPLES[0]} K less that with {SAMPLES[-1]}, as a share of "
                "their sum",
                {task: _mean_by_seed([falls(line) for line in both])},
                paper="1.5 to 1.8 with 5 K, 0.6 to 0.7 with 30",
            ),
            Claim(
                "By the sampled metric, Ns+Dn is more complete (lower) than the method alone.",
                f"D(C\\K || G\\K) with {SAMPLES[-1]} K of Ns less that of Ns+Dn, as a share of the KL between the runs",
                {task: _mean_by_seed([more_complete(*pair) for pair in zip(alone, ours, strict=True)])},
                paper="0.3 against 1.2 to 1.6",
            ),
        )
    return rulings


def deviates_more(line: Line) -> list[float]:
    """For each seed, how much farther from the mean it is by the sampled metric than by the new one; NaN for one."""
    old, new = line.sampled_by_seed(SAMPLES[-1]), line.new
    if len(new) < 2 or not line.empty:
        return [math.nan] * len(new)
    middle, other = statistics.fmean(old), statistics.fmean(new)
    return [(abs(a - middle) - abs(b - other)) / line.empty for a, b in zip(old, new, strict=True)]


def falls(line: Line) -> list[float]:
    """For each seed, how much less its draws deviate with the most K than with the fewest."""
    found = []
    for draws in line.values:
        few, many = (float(draws[:, :count].mean(dim=-1).std()) for count in (SAMPLES[0], SAMPLES[-1]))
        found.append((few - many) / (few + many) if few + many else 0.0)
    return found


def more_complete(alone: Line, ours: Line) -> list[float]:
    """For each seed, how much lower the sampled metric is with Ns+Dn."""
    pairs = zip(alone.values.mean(dim=(1, 2)).tolist(), ours.values.mean(dim=(1, 2)).tolist(), strict=True)
    return [(one - other) / alone.empty if alone.empty else math.nan for one, other in pairs]


def _mean_by_seed(lines: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(seed) for seed in zip(*lines, strict=True)]


def _figure(lines: Sequence[Line]) -> Figure:
    sizes = list(dict.fromkeys(line.size for line in lines))

    def fill(at: Any, _: str, size: int) -> None:
        for line in (line for line in lines if line.size == size):
            style = {"color": METHOD_COLOURS[line.method], "marker": MARKERS[line.method], "markersize": 4}
            values = [column.over_draws for column in line.sampled]
            at.plot(range(len(SAMPLES)), values, linestyle=LINES[line.direction], label=str(line), **style)
            hollow = {} if line.direction == "ns+dn" else {"markerfacecolor": "white"}
            at.plot([len(SAMPLES)], [deviation(line.new)], linestyle="none", **{**style, **hollow})
        at.axvline(len(SAMPLES) - 0.5, color="black", linewidth=0.5)
        at.set_xticks(range(len(SAMPLES) + 1), [*map(str, SAMPLES), "new"])
        at.set_xlabel("sampled K")
        at.set_ylim(bottom=0)
        at.set_title(f"{size:,} edges")

    shape = {"width": 4.0 if len(sizes) > 1 else 6.0, "height": 3.4}
    return filled([""], sizes, fill, "deviation (nats)", legend_columns=3, **shape)


EXPERIMENT = Experiment(
    name=_NAME,
    title="Two metrics of completeness",
    claim="the older metric, sampled over subcircuits K, deviates much; the new one hardly.",
    labels=("tabmetrics",),
    measurements=_measurements,
    judge=_judge,
)
