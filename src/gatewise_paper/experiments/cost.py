"""Cost: how long Ns, Dn and Ns+Dn searches take. The paper, in its text: Ns+Dn takes at most twice as long.

Times are of the processor, in units of F, a plain forward of the same pairs in the same process. Of ACDC it is one
search at one tau, that which keeps as many edges as are asked for: how often the search for a tau has to try is not a
matter of the direction. Methods that share work between directions search each direction alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gatewise.methods import discover
from gatewise.tasks.pairs import Pairs
from gatewise_paper.claims import Between, Claim, Ruling, rules
from gatewise_paper.experiment import Experiment, Measured, Result, SeedKey, Table, group
from gatewise_paper.figures import DIRECTION_COLOURS, Figure, bars, filled
from gatewise_paper.lab import Lab
from gatewise_paper.naming import DIRECTION_NAMES, DIRECTIONS, METHOD_NAMES, mean_and_deviation, seeds_note, task_name

_NAME = "cost"
_FORWARDS = 5
Times = Mapping[tuple[str, str], Sequence[Mapping[str, Mapping[str, float]]]]  # of each seed, by direction


def seconds(lab: Lab, key: SeedKey) -> dict[str, dict[str, float]]:
    """Of one search at one size, by direction: processor seconds in units of F, and trials of ACDC."""
    size = _size(lab, key.method, key.task)
    forward = _forward(lab, lab.pairs(key.task, key.method, key.seed))
    found: dict[str, dict[str, float]] = {}
    for direction in DIRECTIONS:
        asked: dict[str, Any] = {"edges": size}
        if key.method == "acdc":
            trimmed = lab.circuits(key.task, key.method, direction, key.seed)[size]
            asked = {"threshold": trimmed.provenance["notes"]["tau"]}
        pairs = lab.pairs(key.task, key.method, key.seed)
        one = discover(lab.model, pairs, lab.method(key.method), direction, seed=key.seed, **asked).provenance
        trials = float(one["notes"].get("trials", math.nan)) if "notes" in one else math.nan
        found[direction] = {"F": one["time"]["cpu_seconds"] / forward, "trials": trials}
    return found


def _size(lab: Lab, method: str, task: str) -> int:
    """That of gates, or the largest if the method does not have it."""
    sizes = lab.sizes(method, task)
    return lab.gate_size(task) if lab.gate_size(task) in sizes else sizes[-1]


def _forward(lab: Lab, pairs: Pairs) -> float:
    """Processor seconds of a forward of the clean prompts by the model's own code: the middle of some."""
    times = []
    with torch.no_grad():
        for _ in range(_FORWARDS):
            started = time.process_time()
            lab.model.hf(input_ids=pairs.clean, use_cache=False)
            times.append(time.process_time() - started)
    return statistics.median(times)


def _judge(lab: Lab, measured: Measured) -> Result:
    times: Times = group(measured, "task", "method")
    seeds = seeds_note(lab.preset.seeds_for(_NAME), lab.preset.methods)
    rows: list[tuple[str | float, ...]] = [
        (
            METHOD_NAMES[method],
            task_name(task),
            _size(lab, method, task),
            *(mean_and_deviation([seed[direction]["F"] for seed in times[task, method]]) for direction in DIRECTIONS),
            *(
                mean_and_deviation([seed[direction]["trials"] for seed in times[task, method]])
                for direction in DIRECTIONS
            ),
            against(times[task, method], ("ns",)),
            against(times[task, method], ("ns", "dn")),
        )
        for method in lab.preset.methods
        for task in lab.preset.tasks
    ]
    return Result(
        tables=[
            Table(
                "Time of a search in units of F, and trials of ACDC",
                (
                    "method",
                    "task",
                    "edges",
                    *(f"{DIRECTION_NAMES[d]}, F" for d in DIRECTIONS),
                    *(f"{DIRECTION_NAMES[d]}, trials" for d in DIRECTIONS),
                    "Ns+Dn : Ns",
                    "Ns+Dn : (Ns and Dn)",
                ),
                rows,
                f"Mean ± deviation over seeds ({seeds}). F is a plain forward of the same pairs; CPU time of one "
                "thread while other searches ran. Ratios are those of sums over seeds.",
            )
        ],
        rulings=[ruling for method in lab.preset.methods for ruling in _rulings(lab, times, method)],
        figures={"Time of a search in units of F; lines are deviations over seeds.": lambda: _figure(lab, times)},
        notes=["The paper states this in its text, without measurements."],
    )


def _rulings(lab: Lab, times: Times, method: str) -> list[Ruling]:
    some = {task_name(task): [against([seed], ("ns",)) for seed in times[task, method]] for task in lab.preset.tasks}
    both = statistics.fmean(against(times[task, method], ("ns", "dn")) for task in lab.preset.tasks)
    return rules(
        METHOD_NAMES[method],
        Between(0, 2 + lab.preset.smallest_cost),
        Claim(
            "Searching by Ns+Dn takes at most twice as long as by Ns.",
            "time of Ns+Dn over that of Ns",
            some,
            paper="at most twice, in the text",
        ),
        besides=f"It takes {both:.3g} times as long as Ns and Dn one after the other.",
    )


def against(seeds: Sequence[Mapping[str, Mapping[str, float]]], others: Sequence[str]) -> float:
    """Time of Ns+Dn over that of other directions together."""
    return sum(seed["ns+dn"]["F"] for seed in seeds) / sum(seed[other]["F"] for seed in seeds for other in others)


def _figure(lab: Lab, times: Times) -> Figure:
    tasks = lab.preset.tasks

    def fill(at: Any, _: str, method: str) -> None:
        for shift, direction in enumerate(DIRECTIONS):
            some = [[seed[direction]["F"] for seed in times[task, method]] for task in tasks]
            errors = [statistics.stdev(values) if len(values) > 1 else 0 for values in some]
            style = {"color": DIRECTION_COLOURS[direction], "label": DIRECTION_NAMES[direction]}
            bars(at, shift, list(map(statistics.fmean, some)), errors, **style)
        at.set_xticks(range(len(tasks)), [task_name(task) for task in tasks])
        at.set_ylim(bottom=0)
        at.set_title(METHOD_NAMES[method])

    return filled([""], lab.preset.methods, fill, "F", width=3.0)


EXPERIMENT = Experiment(
    name=_NAME,
    title="Cost of searching in both directions",
    claim="Ns+Dn is the same search done twice, so it takes at most twice as long.",
    labels=("text on complexity",),
    measurements=lambda lab: lab.cells(seconds, SeedKey, DIRECTIONS, seeds=lab.preset.seeds_for(_NAME)),
    judge=_judge,
)
