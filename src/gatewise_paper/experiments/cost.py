"""Cost: how long Ns, Dn and Ns+Dn searches take. The paper, in its text: Ns+Dn takes at most twice as long.

Times are CPU times, in units of F, a plain forward of the same pairs in the same process. Of ACDC it is one search at
one tau, that which keeps as many edges as are asked for: how often the search for a tau has to try is not a matter of
the direction. Methods that share work between directions search each direction alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from gatewise.methods import discover
from gatewise.tasks.pairs import Pairs
from gatewise_paper.claims import Between, Claim, Ruling, rules
from gatewise_paper.experiment import Experiment, Measurement, Outcome, Search, SeedKey
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured, Seeds, group, values_by_task
from gatewise_paper.naming import DIRECTION_NAMES, DIRECTIONS, METHOD_NAMES, mean_and_deviation, seeds_note, task_name
from gatewise_paper.tables import Cell, Table

SMALLEST_COST = 0.1  # differences of ratios of times that do not matter
_NAME = "cost"
_FORWARDS = 5
Times = Mapping[str, Mapping[str, float]]  # by direction: "F" and "trials"


def seconds(lab: Lab, key: SeedKey) -> dict[str, dict[str, float]]:
    """Of one search at one size, by direction: CPU seconds in units of F, and trials of ACDC."""
    size, pairs = _size(lab, key.method, key.task), lab.pairs(key.task, key.method, key.seed)
    forward = _forward(lab, pairs)
    times: dict[str, dict[str, float]] = {}
    for direction in DIRECTIONS:
        options: dict[str, Any] = {"edges": size}
        if key.method == "acdc":
            trimmed = lab.circuits(key.task, key.method, direction, key.seed)[size]
            options = {"threshold": trimmed.provenance["notes"]["tau"]}
        record = discover(lab.model, pairs, lab.method(key.method), direction, seed=key.seed, **options).provenance
        trials = record.get("notes", {}).get("trials", math.nan)
        times[direction] = {"F": record["time"]["cpu_seconds"] / forward, "trials": float(trials)}
    return times


def _size(lab: Lab, method: str, task: str) -> int:
    """That of gates, or the largest if the method does not have it."""
    sizes, of_gates = lab.sizes.of(method, task), lab.sizes.of_gates(task)
    return of_gates if of_gates in sizes else sizes[-1]


def _forward(lab: Lab, pairs: Pairs) -> float:
    """CPU seconds of a forward of the clean prompts by the model's own code: the median of several."""
    times = []
    with torch.no_grad():
        for _ in range(_FORWARDS):
            started = time.process_time()
            lab.model.hf(input_ids=pairs.clean, use_cache=False)
            times.append(time.process_time() - started)
    return statistics.median(times)


def _measurements(lab: Lab) -> Iterator[Measurement]:
    for task, method, seed in lab.grid(seeds=lab.preset.seeds_for(_NAME)):
        yield Measurement(seconds, SeedKey(task, method, seed), (Search(task, method, seed, DIRECTIONS),))


def _judge(lab: Lab, measured: Measured) -> Outcome:
    times: Seeds[Times] = group(measured, "task", "method")
    return Outcome(
        tables=[_table(lab, times)],
        rulings=[ruling for method in lab.preset.methods for ruling in _rulings(times, method)],
        notes=["The paper states this in its text, without measurements."],
    )


def _table(lab: Lab, times: Seeds[Times]) -> Table:
    rows: list[list[Cell]] = []
    for method in lab.preset.methods:
        for task in lab.preset.tasks:
            seeds = times[task, method]
            row: list[Cell] = [METHOD_NAMES[method], task_name(task), _size(lab, method, task)]
            for unit in ("F", "trials"):
                row += [mean_and_deviation([seed[direction][unit] for seed in seeds]) for direction in DIRECTIONS]
            rows.append([*row, against(seeds, ("ns",)), against(seeds, ("ns", "dn"))])
    units = [f"{DIRECTION_NAMES[direction]}, {unit}" for unit in ("F", "trials") for direction in DIRECTIONS]
    columns = ("method", "task", "edges", *units, "Ns+Dn : Ns", "Ns+Dn : (Ns and Dn)")
    note = (
        f"Mean ± standard deviation over seeds ({seeds_note(lab.preset.seeds_for(_NAME))}). F is a plain forward of "
        "the same pairs; CPU time of one thread while other searches ran. Ratios are those of sums over seeds."
    )
    return Table("Time of a search in units of F, and trials of ACDC", columns, rows, note)


def _rulings(times: Seeds[Times], method: str) -> list[Ruling]:
    one_by_one = [against(seeds, ("ns", "dn")) for (_, name), seeds in times.items() if name == method]
    claim = Claim(
        "Searching by Ns+Dn takes at most twice as long as by Ns.",
        "time of Ns+Dn over that of Ns",
        values_by_task(times, method, lambda _, seed: against([seed], ("ns",))),
        Between(0, 2 + SMALLEST_COST),
        paper="at most twice, in the text",
    )
    besides = f"It takes {statistics.fmean(one_by_one):.3g} times as long as Ns and Dn one after the other."
    return rules(METHOD_NAMES[method], claim, besides=besides)


def against(seeds: Sequence[Times], others: Sequence[str]) -> float:
    """Time of Ns+Dn over that of other directions together."""
    return sum(seed["ns+dn"]["F"] for seed in seeds) / sum(seed[other]["F"] for seed in seeds for other in others)


EXPERIMENT = Experiment(
    name=_NAME,
    title="Cost of searching in both directions",
    claim="Ns+Dn is the same search done twice, so it takes at most twice as long.",
    labels=("text on complexity",),
    measurements=_measurements,
    judge=_judge,
)
