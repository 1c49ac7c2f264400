"""Redundancy: completeness once more, with all edges left in place that are costly alone (figcompleteness).

In a real model a few edges cost much of the task alone. Ns and Ns+Dn both have them, and without them the task is gone:
plain completeness tells small circuits apart, by which of these edges each has first, and large ones not at all. Here
those edges stay in place, and circuits are of the n best others. Sizes are those where that does neither nothing nor
everything there is to do: the range ends where all others are removed.

So larger circuits can be compared. Why one is more complete than another is not asked: Ns can lose by missing edges of
OR gates, and by spending edges on AND gates, of which one would do. Methods that rank all edges (EAP) can be asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from gatewise.evaluation import evaluations
from gatewise.methods.base import SearchDirection
from gatewise.methods.registry import methods
from gatewise_paper.bottlenecks import costly_edges, strongest_others
from gatewise_paper.claims import Above, Claim, Ruling, rules
from gatewise_paper.experiment import Experiment, Measured, Measurement, Result, Search, Table, of_kind
from gatewise_paper.experiments.curves import ACCURACIES, COMPLETENESS, Curves, figure, read, tables
from gatewise_paper.lab import Lab
from gatewise_paper.naming import DIRECTION_NAMES, DIRECTIONS, METHOD_NAMES, task_name
from gatewise_paper.presets import LeftOutError, Preset, plain_task
from gatewise_paper.size_calibration import REDUNDANCY, calibration_task

_END = "without all other edges"
_AT = "by the plain measure, IOI, 1,000 edges"


class CostlyKey(NamedTuple):
    """Of the edges that stay in place."""

    task: str
    method: str
    candidates: int  # the strongest edges by Ns and by Dn
    searched_on: int  # pairs of the calibration
    removed_on: int  # of these
    smallest: float  # share of the KL between the runs

    def __str__(self) -> str:
        return f"edges that alone cost {self.smallest:.0%} left in place"


class EndsKey(NamedTuple):
    task: str
    left: CostlyKey


class RedundancyKey(NamedTuple):
    task: str
    method: str
    direction: SearchDirection
    seed: int
    sizes: tuple[int, ...]
    left: CostlyKey


def left_in_place(lab: Lab, key: CostlyKey) -> dict[str, float]:
    """Edges that are costly alone, and what each costs."""
    pairs = calibration_task(lab, key.task).train[: key.searched_on]
    limits = {"candidates": key.candidates, "removed_on": key.removed_on, "smallest": key.smallest}
    return costly_edges(lab.model, pairs, key.method, **limits)  # type: ignore[arg-type]


def without_all(lab: Lab, key: EndsKey) -> dict[str, Any]:
    """The full graph, and what is left if all other edges are removed."""
    graph = lab.model.graph
    left = graph.circuit(list(lab.measure(_to_measure(key.left))))
    full, end = evaluations.behaviours(lab.setting(key.task), [graph.full(), left])
    return {"full": asdict(full), "end": asdict(end)}


def without(lab: Lab, key: RedundancyKey) -> dict[str, Any]:
    """What is left without circuits of each size of the others."""
    left = lab.measure(_to_measure(key.left))
    first, *_ = lab.circuits(key.task, key.method, key.direction, key.seed).values()  # all sizes have the same scores
    circuits = strongest_others(first, left, key.sizes)
    some = evaluations.behaviours(lab.setting(key.task), [~circuit for circuit in circuits])
    return {"circuits": list(map(asdict, some))}


def _to_measure(key: CostlyKey) -> Measurement:
    return Measurement(left_in_place, key)


def _left(preset: Preset, task: str, method: str) -> CostlyKey:
    pairs = preset.pairs[method]
    return CostlyKey(task, method, preset.candidates, pairs, preset.for_removals(pairs), preset.costly)


def _check(preset: Preset) -> None:
    if not _methods(preset):
        given = ", ".join(preset.methods)
        raise LeftOutError(f"redundancy needs a method that ranks all edges, such as eap; got {given}.")


def _methods(preset: Preset) -> tuple[str, ...]:
    return tuple(method for method in preset.methods if methods()[method].ranks_once)


def _measurements(lab: Lab) -> Iterator[Measurement]:
    preset = lab.preset
    for task in preset.tasks:
        for method in _methods(preset):
            left = _left(preset, task, method)
            yield _to_measure(left)
            yield Measurement(without_all, EndsKey(task, left))
    for task, method, seed in lab.grid(methods=_methods(preset)):
        sizes, left = _measured(lab, task, method), _left(preset, task, method)
        for direction in DIRECTIONS:
            key = RedundancyKey(task, method, direction, seed, sizes, left)
            yield Measurement(without, key, (Search(task, method, seed, (direction,)),), by_scores=True)


def _judged(lab: Lab, task: str, method: str) -> tuple[int, ...]:
    """Sizes that verdicts are about: those that were chosen beforehand, or all if none were to be chosen."""
    chosen = lab.preset.judged_sizes.get(REDUNDANCY, {})
    return tuple(chosen[plain_task(task)]) if plain_task(task) in chosen else lab.sizes(method, task)


def _measured(lab: Lab, task: str, method: str) -> tuple[int, ...]:
    return _judged(lab, task, method) or (lab.primary_size(REDUNDANCY, task),)


def _judge(lab: Lab, measured: Measured) -> Result:
    lab = lab.having(_methods(lab.preset))
    kl, accuracy = (_curves(measured, name) for name in (COMPLETENESS, "top_accuracy"))
    return Result(
        tables=[
            *tables(lab, kl, "KL(G\\C || G), the costly edges in place, high is complete", _END),
            *tables(lab, accuracy, f"accuracy of G\\C, the costly edges in place, {ACCURACIES['top_accuracy']}", _END),
            _left_table(lab, measured),
        ],
        rulings=[ruling for method in lab.preset.methods for ruling in _rulings(lab, kl, accuracy, method)],
        figures={
            "Completeness with the costly edges in place: KL(G\\C || G) over circuit size, with 95 % intervals over "
            "seeds. The dotted line is what removing all other edges does. High is complete.": figure(
                lab, kl, "KL(G\\C || G)", ends=("whole model", _END)
            )
        },
        notes=[
            "This experiment was added after plain completeness had been judged, so its claims are exploratory. Sizes, "
            "and which edges stay in place, were settled by the calibration before it was run.",
            "It does not say why a circuit is more complete: on synthetic models Ns+Dn is more complete than Ns with "
            "OR gates and without. Ns+Dn also averages two gradients, for which there is no control here.",
            "The edges that stay in place are the same for all seeds, and found on pairs of the calibration.",
        ],
    )


def _curves(measured: Measured, name: str) -> Curves:
    """The range of each task ends where all edges are removed but those that are left in place."""
    ends = {
        key.task: (float(one["full"][name]["mean"]), float(one["end"][name]["mean"]))
        for key, one in of_kind(measured, EndsKey).items()
    }
    return Curves(read(measured, name, RedundancyKey).values, ends)


def _left_table(lab: Lab, measured: Measured) -> Table:
    rows = [
        (METHOD_NAMES[key.method], task_name(key.task), len(found), ", ".join(f"{e} {c:.2f}" for e, c in found.items()))
        for key, found in of_kind(measured, CostlyKey).items()
    ]
    columns = ("method", "task", "edges", "which, and what each alone costs, as a share of the KL between the runs")
    preset = lab.preset
    note = (
        f"Of the {preset.candidates} strongest by Ns and by Dn, those whose removal alone costs {preset.costly:.0%} or "
        "more, on pairs of the calibration."
    )
    return Table("Edges that are costly alone, and stay in place", columns, rows, note)


def _rulings(lab: Lab, kl: Curves, accuracy: Curves, method: str) -> list[Ruling]:
    sizes = {task: _judged(lab, task, method) for task in lab.preset.tasks}

    def more(one: SearchDirection, other: SearchDirection, text: str, paper: str) -> Claim:
        compared = f"{DIRECTION_NAMES[one]} less that of {DIRECTION_NAMES[other]}"
        what = f"KL(G\\C || G) of {compared}, as a share of what removing all others does"
        return Claim(text, what, kl.differences(one, other, method, sizes, share=True), paper=f"{paper} {_AT}")

    return rules(
        METHOD_NAMES[method],
        Above(lab.preset.smallest),
        more(
            "ns+dn",
            "ns",
            "With the costly edges in place, removing the Ns+Dn circuit destroys more than removing the Ns circuit.",
            "1.02 against 0.74",
        ),
        Claim(
            "With the costly edges in place, the accuracy left without the Ns+Dn circuit is lower.",
            "accuracy of G\\C (arg-max) of Ns less that of Ns+Dn",
            accuracy.differences("ns", "ns+dn", method, sizes),
            paper=f"0.26 against 0.39 {_AT}",
        ),
        more("dn", "ns", "With the costly edges in place, Dn is more complete than Ns.", "0.96 against 0.74"),
        more("ns+dn", "dn", "With the costly edges in place, Ns+Dn is more complete than Dn.", "1.02 against 0.96"),
        primary=False,
    )


EXPERIMENT = Experiment(
    name=REDUNDANCY,
    title="Completeness, with edges left in place that are costly alone",
    claim="without the Ns+Dn circuit the model does the task noticeably worse than without the Ns circuit.",
    labels=("figcompleteness", "tabklcompleteness"),
    measurements=_measurements,
    judge=_judge,
    check=_check,
)
