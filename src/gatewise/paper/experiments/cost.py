"""Cost: how long Ns, Dn and Ns+Dn searches take. The paper, in its text: Ns+Dn takes at most twice as long.

Times are of the processor, for the search of all sizes together, as they are in the circuits' provenance. Methods that
share work between directions search once more, each direction alone. Other searches ran on the other cores, so single
times vary; a search that was interrupted counts from its last checkpoint on.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gatewise.methods.registry import methods
from gatewise.paper.claims import Between, Ruling, rules
from gatewise.paper.contract import Experiment, Measured, Result, SeedKey, Table, group
from gatewise.paper.figures import DIRECTION_COLOURS, Figure, bars, filled
from gatewise.paper.lab import Lab
from gatewise.paper.words import DIRECTION_NAMES, DIRECTIONS, METHOD_NAMES, TASK_NAMES, mean_and_deviation, seeds_note

_NAME = "cost"
Times = Mapping[tuple[str, str], Sequence[Mapping[str, float]]]  # by task and method; of each seed, by direction


def seconds(lab: Lab, key: SeedKey) -> dict[str, float]:
    """Processor seconds that the searches took when they were done, by direction."""
    sizes, shared = lab.sizes(key.method), methods()[key.method].together
    found: dict[str, float] = {}
    for direction in DIRECTIONS:
        one = lab.search(key.task, key.method, (direction,), sizes, key.seed, store=not shared)[direction][0]
        found[direction] = float(one.provenance["time"]["processor_seconds"])
    return found


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
        rulings=[ruling for method in lab.preset.methods for ruling in _rulings(lab, times, method)],
        figures={"Seconds per search of all sizes; lines are deviations over seeds.": lambda: _figure(lab, times)},
        notes=["The paper states this in its text, without measurements."],
    )


def _rulings(lab: Lab, times: Times, method: str) -> list[Ruling]:
    some = {TASK_NAMES[task]: [against([seed], ("ns",)) for seed in times[task, method]] for task in lab.preset.tasks}
    both = statistics.fmean(against(times[task, method], ("ns", "dn")) for task in lab.preset.tasks)
    return rules(
        METHOD_NAMES[method],
        Between(0, 2 + lab.preset.smallest_cost),
        ("Searching by Ns+Dn takes at most twice as long as by Ns.", "time of Ns+Dn over that of Ns", some),
        besides=f"It takes {both:.3g} times as long as Ns and Dn one after the other.",
    )


def against(seeds: Sequence[Mapping[str, float]], others: Sequence[str]) -> float:
    """Seconds of Ns+Dn over those of other directions together."""
    return sum(seed["ns+dn"] for seed in seeds) / sum(seed[other] for seed in seeds for other in others)


def _figure(lab: Lab, times: Times) -> Figure:
    tasks = lab.preset.tasks

    def fill(at: Any, _: str, method: str) -> None:
        for shift, direction in enumerate(DIRECTIONS):
            some = [[seed[direction] for seed in times[task, method]] for task in tasks]
            errors = [statistics.stdev(values) if len(values) > 1 else 0 for values in some]
            style = {"color": DIRECTION_COLOURS[direction], "label": DIRECTION_NAMES[direction]}
            bars(at, shift, list(map(statistics.fmean, some)), errors, **style)
        at.set_xticks(range(len(tasks)), [TASK_NAMES[task] for task in tasks])
        at.set_ylim(bottom=0)
        at.set_title(METHOD_NAMES[method])

    return filled([""], lab.preset.methods, fill, "seconds", width=3.0)


EXPERIMENT = Experiment(
    name=_NAME,
    title="Cost of searching in both directions",
    claim="Ns+Dn is the same search done twice, so it takes at most twice as long.",
    labels=("text on complexity",),
    measurements=lambda lab: lab.cells(seconds, SeedKey, DIRECTIONS, seeds=lab.preset.seeds_for(_NAME)),
    judge=_judge,
)
