"""Cost: how long Ns, Dn and Ns+Dn searches take. The paper, in its text: Ns+Dn takes at most twice as long.

Times are of the processor, for the search of all sizes together, as they are in the circuits' provenance. Methods that
share work between directions search once more, each direction alone. Other searches ran on the other cores, so single
times vary; a search that was interrupted counts from its last checkpoint on.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gatewise.methods.registry import methods
from gatewise.paper.claims import Between, Ruling, rule
from gatewise.paper.contract import Experiment, Measured, Measurement, Result, Search, Table, group
from gatewise.paper.experiments.words import mean_and_deviation, seeds_note
from gatewise.paper.figures import DIRECTION_COLOURS, bars, legend_below, panels
from gatewise.paper.names import DIRECTION_NAMES, DIRECTIONS, METHOD_NAMES, TASK_NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.paper.lab import Lab

_NAME = "cost"
Times = Mapping[tuple[str, str], Sequence[Mapping[str, float]]]  # by task and method; of each seed, by direction


class CostKey(NamedTuple):
    task: str
    method: str
    seed: int


def seconds(lab: Lab, key: CostKey) -> dict[str, float]:
    """Processor seconds that the searches took when they were done, by direction."""
    sizes, shared = lab.sizes(key.method), methods()[key.method].together
    found: dict[str, float] = {}
    for direction in DIRECTIONS:
        one = lab.search(key.task, key.method, (direction,), sizes, key.seed, store=not shared)[direction][0]
        found[direction] = float(one.provenance["time"]["processor_seconds"])
    return found


def _measurements(lab: Lab) -> Iterator[Measurement]:
    for about in lab.grid(seeds=lab.preset.seeds_for(_NAME)):
        yield Measurement(seconds, CostKey(*about), (Search(*about),))


def _judge(lab: Lab, measured: Measured) -> Result:
    times: Times = group(measured, "task", "method")
    seeds = seeds_note(lab.preset.seeds_for(_NAME), lab.preset.methods)
    rows: list[tuple[str | float, ...]] = [
        (
            METHOD_NAMES[method],
            TASK_NAMES[task],
            *(mean_and_deviation([seed[direction] for seed in times[task, method]]) for direction in DIRECTIONS),
            against(times[task, method], ("ns",)),
            against(times[task, method], ("ns", "dn")),
        )
        for method in lab.preset.methods
        for task in lab.preset.tasks
    ]
    return Result(
        tables=[
            Table(
                "Seconds per search of all sizes",
                ("method", "task", *(DIRECTION_NAMES[d] for d in DIRECTIONS), "Ns+Dn : Ns", "Ns+Dn : (Ns and Dn)"),
                rows,
                f"Mean ± deviation over seeds ({seeds}), processor time of one thread while other searches ran. Ratios "
                "are those of sums over seeds.",
            )
        ],
        rulings=[_ruling(lab, times, method) for method in lab.preset.methods],
        figures={"Seconds per search of all sizes; lines are deviations over seeds.": lambda: _figure(lab, times)},
        notes=["The paper states this in its text, without measurements."],
    )


def _ruling(lab: Lab, times: Times, method: str) -> Ruling:
    some = {TASK_NAMES[task]: [against([seed], ("ns",)) for seed in times[task, method]] for task in lab.preset.tasks}
    both = statistics.fmean(against(times[task, method], ("ns", "dn")) for task in lab.preset.tasks)
    return rule(
        "Searching by Ns+Dn takes at most twice as long as by Ns.",
        "time of Ns+Dn over that of Ns",
        some,
        Between(0, 2 + lab.preset.smallest_cost),
        method=METHOD_NAMES[method],
        primary=True,
        besides=f"It takes {both:.3g} times as long as Ns and Dn one after the other.",
    )


def against(seeds: Sequence[Mapping[str, float]], others: Sequence[str]) -> float:
    """Seconds of Ns+Dn over those of other directions together."""
    return sum(seed["ns+dn"] for seed in seeds) / sum(seed[other] for seed in seeds for other in others)


def _figure(lab: Lab, times: Times) -> Figure:
    methods, tasks = lab.preset.methods, lab.preset.tasks
    drawn, axes = panels(1, len(methods), width=3.0)
    for at, method in zip(axes[0], methods, strict=True):
        for shift, direction in enumerate(DIRECTIONS):
            some = [[seed[direction] for seed in times[task, method]] for task in tasks]
            errors = [statistics.stdev(values) if len(values) > 1 else 0 for values in some]
            style = {"color": DIRECTION_COLOURS[direction], "label": DIRECTION_NAMES[direction]}
            bars(at, shift, list(map(statistics.fmean, some)), errors, **style)
        at.set_xticks(range(len(tasks)), [TASK_NAMES[task] for task in tasks])
        at.set_ylim(bottom=0)
        at.set_title(METHOD_NAMES[method])
    axes[0][0].set_ylabel("seconds")
    handles, labels = axes[0][0].get_legend_handles_labels()
    legend_below(drawn, handles, labels)
    return drawn


EXPERIMENT = Experiment(
    name=_NAME,
    title="Cost of searching in both directions",
    claim="Ns+Dn is the same search done twice, so it takes at most twice as long.",
    labels=("text on complexity",),
    measurements=_measurements,
    judge=_judge,
)
