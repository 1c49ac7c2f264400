"""Cost: how long Ns, Dn and Ns+Dn searches take. The paper, in its text: Ns+Dn takes at most twice as long.

Times are of the processor, for the search of all sizes together, as they are in the circuits' provenance. They were
taken while other searches ran on the other cores, so single ones vary; a search that was interrupted counts from its
last checkpoint on.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gatewise.paper.contract import (
    DIRECTION_NAMES,
    DIRECTIONS,
    METHOD_NAMES,
    TASK_NAMES,
    Cell,
    Experiment,
    Judgement,
    Outcome,
    Table,
    Verdict,
    grid,
)
from gatewise.paper.experiments.statistics import Interval, bootstrap, mean_and_deviation, ratio, seeds_note
from gatewise.paper.figures import DIRECTION_COLOURS, legend_below, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.paper.lab import Lab

_TWICE = 2.1  # what still counts as twice, since times vary
Times = Mapping[tuple[str, str, str], Sequence[float]]  # seconds of each seed, by task, method, direction


def judge_twice(ratios: Sequence[Interval]) -> Judgement:
    """Whether Ns+Dn takes at most twice the time of Ns: by the ends of the intervals, where there are any."""
    if not ratios:
        return "cannot be judged"
    if all((r.value if r.high != r.high else r.high) <= _TWICE for r in ratios):
        return "holds"
    return "does not hold" if all((r.value if r.low != r.low else r.low) > _TWICE for r in ratios) else "holds partly"


def _run(lab: Lab) -> Outcome:
    methods, tasks = lab.preset.methods, lab.preset.tasks
    times: dict[tuple[str, str, str], list[float]] = {
        (task, method, direction): [
            lab.seconds(Cell(task, method, direction, seed)) for seed in range(lab.preset.seeds[method])
        ]
        for task in tasks
        for method in methods
        for direction in DIRECTIONS
    }
    rows: list[tuple[str | float, ...]] = [
        (
            METHOD_NAMES[method],
            TASK_NAMES[task],
            *(mean_and_deviation(times[task, method, direction]) for direction in DIRECTIONS),
            against(times, [task], method, ("ns",)).value,
            against(times, [task], method, ("ns", "dn")).value,
        )
        for method in methods
        for task in tasks
    ]
    verdicts = []
    for method in methods:
        to_ns, to_both = (against(times, tasks, method, some) for some in (("ns",), ("ns", "dn")))
        verdicts.append(
            Verdict(
                f"{METHOD_NAMES[method]}: searching by Ns+Dn takes at most twice as long as by Ns.",
                judge_twice([to_ns]),
                f"It takes {to_ns} times as long, and {to_both.value:.3g} times as long as Ns and Dn one after the "
                f"other; resampled are tasks and seeds. Up to {_TWICE} counts as twice.",
            )
        )
    seeds = seeds_note({m: lab.preset.seeds[m] for m in methods}, METHOD_NAMES)
    return Outcome(
        tables=[
            Table(
                "Seconds per search of all sizes",
                ("method", "task", *(DIRECTION_NAMES[d] for d in DIRECTIONS), "Ns+Dn : Ns", "Ns+Dn : (Ns and Dn)"),
                rows,
                f"Mean ± deviation over seeds ({seeds}), processor time of one thread while other searches ran. Ratios "
                "are those of sums over seeds.",
            )
        ],
        verdicts=verdicts,
        figures={"Seconds per search of all sizes; lines are deviations over seeds.": lambda: _figure(lab, times)},
        notes=["The paper states this in its text, without measurements."],
    )


def against(times: Times, tasks: Sequence[str], method: str, others: Sequence[str]) -> Interval:
    """Seconds of Ns+Dn over those of other directions together, with the interval over tasks and seeds."""
    units = [
        (both, sum(times[task, method, other][seed] for other in others))
        for task in tasks
        for seed, both in enumerate(times[task, method, "ns+dn"])
    ]
    return bootstrap(units, ratio)


def _figure(lab: Lab, times: Times) -> Figure:
    methods, tasks = lab.preset.methods, lab.preset.tasks
    drawn, axes = panels(1, len(methods), width=3.0)
    for at, method in zip(axes[0], methods, strict=True):
        for shift, direction in enumerate(DIRECTIONS):
            some = [times[task, method, direction] for task in tasks]
            at.bar(
                [place + 0.27 * (shift - 1) for place in range(len(tasks))],
                [statistics.fmean(seconds) for seconds in some],
                0.25,
                yerr=[statistics.stdev(seconds) if len(seconds) > 1 else 0 for seconds in some],
                error_kw={"linewidth": 0.8, "capsize": 2},
                color=DIRECTION_COLOURS[direction],
                label=DIRECTION_NAMES[direction],
            )
        at.set_xticks(range(len(tasks)), [TASK_NAMES[task] for task in tasks])
        at.set_ylim(bottom=0)
        at.grid(axis="x", visible=False)
        at.set_title(METHOD_NAMES[method])
    axes[0][0].set_ylabel("seconds")
    handles, labels = axes[0][0].get_legend_handles_labels()
    legend_below(drawn, handles, labels)
    return drawn


EXPERIMENT = Experiment(
    name="cost",
    title="Cost of searching in both directions",
    claim="Ns+Dn is the same search done twice, so it takes at most twice as long.",
    labels=("text on complexity",),
    run=_run,
    cells=lambda preset: grid(preset, seeds=preset.seeds),
)
