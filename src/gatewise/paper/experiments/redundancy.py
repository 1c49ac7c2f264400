"""Redundancy: completeness among edges that can be done without, where OR gates are (figcompleteness, asked again).

In a real model a few edges are indispensable alone. A circuit that has them destroys everything, of which it has them
all the same by Ns and by Dn; so completeness as the paper measures it tells circuits of a few edges apart, by which of
those edges stands first, and no others. But the reason that the paper gives is OR gates: Ns misses edges that can stand
in for each other. No edge of an OR gate is indispensable. So here all edges that are indispensable alone stay in place,
circuits are of the n best of the others, and the sizes are those where that is neither nothing nor everything.

The experiment was added after the plain one had been run, and everything in it was settled before it was run itself.
Methods that rank all edges (EAP) can be asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from gatewise.errors import GatewiseError
from gatewise.evaluation import evaluations
from gatewise.methods.contract import SearchDirection
from gatewise.methods.registry import methods
from gatewise.paper.calibration import REDUNDANCY, calibration_task
from gatewise.paper.claims import Above, Claim, Ruling, rules
from gatewise.paper.contract import Experiment, Measured, Measurement, Result, Search, Table, of_kind
from gatewise.paper.experiments.curves import ACCURACIES, COMPLETENESS, Curves, figure, read, tables
from gatewise.paper.experiments.ends import ends_to_measure
from gatewise.paper.indispensable import indispensable_for, strongest_others
from gatewise.paper.lab import Lab
from gatewise.paper.presets import Preset
from gatewise.paper.words import DIRECTIONS, METHOD_NAMES, task_name

_AT = "of the plain measure, IOI, 1,000 edges"


class IndispensableKey(NamedTuple):
    task: str
    method: str
    candidates: int  # the strongest edges by Ns and by Dn
    pairs: int  # of a seed of their own
    smallest: float  # share of the KL between the runs

    def __str__(self) -> str:
        return f"without those that alone cost {self.smallest:.0%}"


class RedundancyKey(NamedTuple):
    task: str
    method: str
    direction: SearchDirection
    seed: int
    sizes: tuple[int, ...]
    left: IndispensableKey  # edges that stay in place


def left_in_place(lab: Lab, key: IndispensableKey) -> dict[str, float]:
    """Edges that are indispensable alone, and what each costs; on pairs that no experiment has otherwise."""
    pairs = calibration_task(lab, key.task).train
    return indispensable_for(
        lab.model, pairs, key.method, candidates=key.candidates, removed_on=key.pairs, smallest=key.smallest
    )


def without(lab: Lab, key: RedundancyKey) -> dict[str, Any]:
    """What is left without circuits of each size, with the indispensable edges in place."""
    left = lab.measure(_to_measure(key.left))
    first, *_ = lab.circuits(key.task, key.method, key.direction, key.seed).values()  # all sizes have the same scores
    circuits = strongest_others(first, left, key.sizes)
    some = evaluations.behaviours(lab.setting(key.task), [~circuit for circuit in circuits])
    return {"circuits": list(map(asdict, some)), "edges": list(key.sizes)}


def _to_measure(key: IndispensableKey) -> Measurement:
    return Measurement(left_in_place, key)


def _left(preset: Preset, task: str, method: str) -> IndispensableKey:
    return IndispensableKey(task, method, preset.candidates, preset.for_removals(preset.pairs[method]), preset.trunk)


def _methods(preset: Preset) -> tuple[str, ...]:
    return tuple(method for method in preset.methods if methods()[method].ranks_once)


def _check(preset: Preset) -> None:
    if not _methods(preset):
        given = ", ".join(preset.methods)
        raise GatewiseError(f"redundancy needs a method that ranks all edges, such as eap; got {given}.")


def _measurements(lab: Lab) -> Iterator[Measurement]:
    for task in lab.preset.tasks:
        yield ends_to_measure(task)
        for method in _methods(lab.preset):
            yield _to_measure(_left(lab.preset, task, method))
    for task, method, seed in lab.grid(methods=_methods(lab.preset)):
        left, sizes = _left(lab.preset, task, method), _sizes(lab, task, method)
        for direction in DIRECTIONS:
            key = RedundancyKey(task, method, direction, seed, sizes, left)
            yield Measurement(without, key, (Search(task, method, seed, (direction,)),))


def _sizes(lab: Lab, task: str, method: str) -> tuple[int, ...]:
    """Those that were chosen beforehand; without a calibration all."""
    return tuple(lab.preset.judged_sizes.get(REDUNDANCY, {}).get(task, ())) or lab.sizes(method, task)


def _judge(lab: Lab, measured: Measured) -> Result:
    own = copy(lab)
    own.preset = replace(lab.preset, methods=_methods(lab.preset))
    kl, accuracy = (read(measured, name, RedundancyKey) for name in (COMPLETENESS, "top_accuracy"))
    said = "circuits of the edges that can be done without"
    return Result(
        tables=[
            *tables(own, kl, f"KL(G\\C || G), {said}; high is complete"),
            *tables(own, accuracy, f"accuracy of G\\C ({ACCURACIES['top_accuracy']}), {said}"),
            _left_table(own, measured),
        ],
        rulings=[ruling for method in own.preset.methods for ruling in _rulings(own, kl, accuracy, method)],
        figures={
            "Completeness among edges that can be done without: KL(G\\C || G) over circuit size, with 95 % intervals "
            "over seeds; what is indispensable alone stays in place. High is complete.": figure(
                own, kl, "KL(G\\C || G)"
            )
        },
        notes=[
            "Everything but the indispensable edges removed need not be the corrupted run: those edges still carry "
            "what their senders read from the clean run, so that curves may end below the line of the empty circuit.",
        ],
    )


def _left_table(lab: Lab, measured: Measured) -> Table:
    rows = [
        (METHOD_NAMES[key.method], task_name(key.task), len(found), ", ".join(f"{e} {c:.2f}" for e, c in found.items()))
        for key, found in of_kind(measured, IndispensableKey).items()
    ]
    columns = ("method", "task", "edges", "which, and what each alone costs, as a share of the KL between the runs")
    preset = lab.preset
    note = (
        f"Of the {preset.candidates} strongest by Ns and by Dn, those whose removal alone costs {preset.trunk:.0%} or "
        "more, on pairs of the calibration."
    )
    return Table("Edges that are indispensable alone, and stay in place", columns, rows, note)


def _rulings(lab: Lab, kl: Curves, accuracy: Curves, method: str) -> list[Ruling]:
    sizes = {task: _sizes(lab, task, method) for task in lab.preset.tasks}

    def destroyed(one: SearchDirection, other: SearchDirection) -> dict[str, list[float]]:
        return kl.differences(one, other, method, sizes, share=True)

    what = "KL(G\\C || G) of {} less that of {}, as a share of the range, the indispensable in place"
    return rules(
        METHOD_NAMES[method],
        Above(lab.preset.smallest),
        Claim(
            "Among edges that can be done without, removing the Ns+Dn circuit destroys more than removing that of Ns.",
            what.format("Ns+Dn", "Ns"),
            destroyed("ns+dn", "ns"),
            paper=f"1.02 against 0.74 {_AT}",
        ),
        Claim(
            "Among edges that can be done without, the accuracy left without the Ns+Dn circuit is lower.",
            "accuracy of G\\C (arg-max) of Ns less that of Ns+Dn, the indispensable in place",
            accuracy.differences("ns", "ns+dn", method, sizes),
            paper=f"0.26 against 0.39 {_AT}",
        ),
        Claim(
            "Among edges that can be done without, Dn is more complete than Ns.",
            what.format("Dn", "Ns"),
            destroyed("dn", "ns"),
            paper=f"0.96 against 0.74 {_AT}",
        ),
        Claim(
            "Among edges that can be done without, Ns+Dn is more complete than Dn.",
            what.format("Ns+Dn", "Dn"),
            destroyed("ns+dn", "dn"),
            paper=f"1.02 against 0.96 {_AT}",
        ),
    )


EXPERIMENT = Experiment(
    name=REDUNDANCY,
    title="Completeness among edges that can be done without",
    claim="Ns is incomplete since it misses edges of OR gates, none of which is indispensable alone.",
    labels=("figcompleteness", "tabklcompleteness"),
    measurements=_measurements,
    judge=_judge,
    check=_check,
)
