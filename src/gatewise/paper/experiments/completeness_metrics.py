"""Completeness metrics: sampled incompleteness D(C\\K || G\\K) against the new KL(G\\C || G) (tabmetrics).

The paper says "standard deviation" and five seeds of discovery, but not what its deviations are over. Three are told
apart: over single K of one circuit; over repeated draws of n K of one circuit (what sampling adds to the mean of n);
over circuits, each with one draw (what five seeds with one draw each show; the new metric has only this one).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

from gatewise.evaluation import incompleteness_table
from gatewise.evaluation.knockouts import SAMPLES, SampledColumn
from gatewise.methods.contract import SearchDirection
from gatewise.paper.contract import (
    DIRECTION_NAMES,
    METHOD_NAMES,
    TASK_NAMES,
    Experiment,
    Job,
    Judgement,
    Outcome,
    Table,
    Verdict,
    grid,
)
from gatewise.paper.experiments.curves import Comparison, is_saturated, judge
from gatewise.paper.experiments.sizes import middle_size, small_size
from gatewise.paper.figures import LINES, MARKERS, METHOD_COLOURS, legend_below, panels
from gatewise.paper.published import METRICS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.paper.lab import Lab
    from gatewise.paper.presets import Preset

_DIRECTIONS: tuple[SearchDirection, ...] = ("ns", "ns+dn")  # a method, and "ours" on top of it
_DRAWS = 3


@dataclass(frozen=True)
class Line:
    """A method and direction at one size: the sampled metric by number of K, and the new one for each seed."""

    size: int
    method: str
    direction: str
    sampled: tuple[SampledColumn, ...]
    new: tuple[float, ...]
    empty: float  # what the new metric is for the empty circuit

    @property
    def new_deviation(self) -> float:
        return statistics.stdev(self.new) if len(self.new) > 1 else math.nan

    @property
    def saturated(self) -> bool:
        return is_saturated([statistics.fmean(self.new)], self.empty)


def measure_sampled(lab: Lab, size_name: str, method: str, direction: str) -> list[SampledColumn]:
    """The sampled metric of the circuits of all seeds, through the store."""
    task, size = lab.preset.tasks[0], _size(lab, size_name)
    held_out = lab.held_out(task)[: lab.preset.sampled_pairs]
    seeds = range(lab.preset.seeds[method])
    circuits = [lab.circuits(task, method, cast(SearchDirection, direction), seed)[size] for seed in seeds]
    asked = {
        "circuits": [circuit.fingerprint for circuit in circuits],
        "held_out": held_out.fingerprint,
        "samples": list(SAMPLES),
        "draws": _DRAWS,
    }

    def compute() -> list[dict[str, float]]:
        return [asdict(column) for column in incompleteness_table(lab.model, held_out, circuits, draws=_DRAWS)]

    return [SampledColumn(**column) for column in lab.remember("incompleteness", asked, compute)]


def judge_larger(lines: Sequence[Line]) -> tuple[Judgement, Comparison]:
    """Whether the sampled metric deviates more over seeds than the new one, where that is not saturated."""
    open_lines = [line for line in lines if not line.saturated]
    differences = [column.over_circuits - line.new_deviation for line in open_lines for column in line.sampled]
    known = Comparison(tuple(d for d in differences if not math.isnan(d)), len(lines) - len(open_lines))
    return judge(known, larger=True), known


def judge_falling(lines: Sequence[Line]) -> tuple[Judgement, Comparison]:
    """Whether the deviation over draws falls from the fewest K to the most."""
    known = Comparison(
        tuple(
            line.sampled[0].over_draws - line.sampled[-1].over_draws
            for line in lines
            if not math.isnan(line.sampled[0].over_draws)
        )
    )
    return judge(known, larger=True), known


def _run(lab: Lab) -> Outcome:
    task = lab.preset.tasks[0]
    lines = []
    for size_name, size in _sizes(lab).items():
        for method in lab.preset.methods:
            for direction in _DIRECTIONS:
                seeds = range(lab.preset.seeds[method])
                found = [lab.behaviours(task, method, direction, seed)[size] for seed in seeds]
                new = tuple(float(one["complement"]["kl_to_full"]["mean"]) for one in found)
                empty = float(found[0]["empty"]["kl_to_full"]["mean"])
                sampled = tuple(measure_sampled(lab, size_name, method, direction))
                lines.append(Line(size, method, direction, sampled, new, empty))
    return Outcome(
        tables=[_table(lab, lines), _deviations(lab, lines)],
        verdicts=_verdicts(lines),
        paper=(METRICS,),
        figures={
            f"Deviation of the sampled metric by the number of K on {TASK_NAMES[task]}: over draws for one circuit "
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
            "metric cannot deviate whatever the circuits, so those lines are left out of the comparison.",
        ],
    )


def _table(lab: Lab, lines: Sequence[Line]) -> Table:
    """The paper's layout; deviations over circuits."""
    rows: list[tuple[str | int | float, ...]] = [
        (
            line.size,
            _name(line),
            *(_pm(column.mean, column.over_circuits) for column in line.sampled),
            _pm(statistics.fmean(line.new), line.new_deviation) + (" (saturated)" if line.saturated else ""),
        )
        for line in lines
    ]
    return Table(
        f"{TASK_NAMES[lab.preset.tasks[0]]}: two metrics of completeness",
        ("edges", "method", *(f"{n} sampled K" for n in SAMPLES), "new metric"),
        rows,
        f"Mean ± deviation over circuits ({_seeds(lab)} seeds), each with a draw of its own. Low is complete for the "
        f"sampled metric, high for the new one (corrupted run: {lines[0].empty:.3g}).",
    )


def _deviations(lab: Lab, lines: Sequence[Line]) -> Table:
    last = SAMPLES[-1]
    rows: list[tuple[str | int | float, ...]] = [
        (
            line.size,
            _name(line),
            line.sampled[-1].over_subsets,
            *(column.over_draws for column in line.sampled),
            line.sampled[-1].over_circuits / line.sampled[-1].mean if line.sampled[-1].mean else math.nan,
            line.new_deviation / statistics.fmean(line.new),
        )
        for line in lines
    ]
    return Table(
        "What the deviation is over",
        (
            "edges",
            "method",
            "single K",
            *(f"draws of {n} K" for n in SAMPLES),
            f"circuits, {last} K, share of mean",
            "circuits, new, share of mean",
        ),
        rows,
        f"Deviations of the sampled metric, means over {_seeds(lab)} seeds; {_DRAWS} draws.",
    )


def _verdicts(lines: Sequence[Line]) -> list[Verdict]:
    larger, compared = judge_larger(lines)
    falling, fall = judge_falling(lines)
    ours = Comparison(
        tuple(
            both.sampled[-1].mean - ns.sampled[-1].mean
            for ns in lines
            for both in lines
            if (ns.direction, both.direction) == ("ns", "ns+dn") and (ns.method, ns.size) == (both.method, both.size)
        )
    )
    return [
        Verdict(
            "The sampled metric deviates more over seeds than the new one.",
            larger,
            f"Its deviation over circuits, against the new one's, is {compared} (cells: method, direction, size, "
            "number of K).",
        ),
        Verdict(
            "The sampled metric deviates since K is sampled: less with more K.",
            falling,
            f"The deviation over draws for one circuit with {SAMPLES[0]} K, against {SAMPLES[-1]}, is {fall}.",
        ),
        Verdict(
            "By the sampled metric, Ns+Dn is more complete (lower) than the method alone.",
            judge(ours, larger=False),
            f"D(C\\K || G\\K) with {SAMPLES[-1]} K of Ns+Dn against Ns is {ours}.",
        ),
    ]


def _figure(lines: Sequence[Line]) -> Figure:
    sizes = list(dict.fromkeys(line.size for line in lines))
    drawn, axes = panels(1, len(sizes), width=4.0 if len(sizes) > 1 else 6.0, height=3.4)
    for at, size in zip(axes[0], sizes, strict=True):
        for line in (line for line in lines if line.size == size):
            style = {"color": METHOD_COLOURS[line.method], "marker": MARKERS[line.method], "markersize": 4}
            places = list(range(len(SAMPLES)))
            values = [column.over_draws for column in line.sampled]
            at.plot(places, values, linestyle=LINES[line.direction], label=_name(line), **style)
            hollow = {} if line.direction == "ns+dn" else {"markerfacecolor": "white"}
            at.plot([len(SAMPLES)], [line.new_deviation], linestyle="none", **{**style, **hollow})
        at.axvline(len(SAMPLES) - 0.5, color="black", linewidth=0.5)
        at.set_xticks(range(len(SAMPLES) + 1), [*map(str, SAMPLES), "new"])
        at.set_xlabel("sampled K")
        at.set_ylim(bottom=0)
        at.set_title(f"{size:,} edges")
    axes[0][0].set_ylabel("deviation (nats)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    legend_below(drawn, handles, labels, columns=3)
    return drawn


def _name(line: Line) -> str:
    return f"{METHOD_NAMES[line.method]} {DIRECTION_NAMES[line.direction]}"


def _pm(mean: float, deviation: float) -> str:
    return f"{mean:.3g}" if math.isnan(deviation) else f"{mean:.3g} ± {deviation:.2g}"


def _seeds(lab: Lab) -> str:
    return ", ".join(f"{METHOD_NAMES[m]} {lab.preset.seeds[m]}" for m in lab.preset.methods)


def _sizes(lab: Lab) -> Mapping[str, int]:
    sizes = {"small": small_size(lab), "middle": middle_size(lab)}
    return sizes if sizes["small"] != sizes["middle"] else {"middle": sizes["middle"]}


def _size(lab: Lab, name: str) -> int:
    return {"small": small_size(lab), "middle": middle_size(lab)}[name]


def _jobs(preset: Preset) -> list[Job]:
    return [
        Job(measure_sampled, (size_name, method, direction))
        for size_name in ("small", "middle")
        for method in preset.methods
        for direction in _DIRECTIONS
    ]


EXPERIMENT = Experiment(
    name="completeness-metrics",
    title="Two metrics of completeness",
    claim="the older metric, sampled over subcircuits K, deviates much; the new one hardly.",
    labels=("tabmetrics",),
    run=_run,
    cells=lambda preset: grid(
        preset, tasks=preset.tasks[:1], directions=_DIRECTIONS, seeds=preset.seeds, measured=True
    ),
    jobs=_jobs,
)
