"""Redundancy: completeness once more, with all bottleneck edges left in place (figcompleteness).

In a real model a few edges alone cost much of the task. Ns and Ns+Dn both have them, and without them the task is gone:
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
from gatewise_paper.bottlenecks import BOTTLENECK, CANDIDATES, best_of_others, find_bottlenecks
from gatewise_paper.claims import Claim, Ruling, rules
from gatewise_paper.experiment import Experiment, Measurement, Outcome, Search
from gatewise_paper.experiments import curves
from gatewise_paper.experiments.baselines import read_baselines
from gatewise_paper.experiments.curves import ACCURACIES, COMPLETENESS, TOP1, Curves
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured, of_kind
from gatewise_paper.naming import DIRECTION_NAMES, DIRECTIONS, METHOD_NAMES, task_name
from gatewise_paper.presets import LeftOutError, Preset
from gatewise_paper.size_calibration import REDUNDANCY, calibration_task
from gatewise_paper.tables import Table

_END = "without all other edges"
_AT = "by the plain measure, IOI, 1,000 edges"


class BottleneckKey(NamedTuple):
    """Of the edges that stay in place."""

    task: str
    method: str
    candidates: int  # the strongest edges by Ns and by Dn
    searched_on: int  # pairs of the calibration
    removed_on: int  # of these
    smallest: float  # normalised effect


class RangeKey(NamedTuple):
    task: str
    left: BottleneckKey


class RedundancyKey(NamedTuple):
    task: str
    method: str
    direction: SearchDirection
    seed: int
    sizes: tuple[int, ...]
    left: BottleneckKey


def bottlenecks(lab: Lab, key: BottleneckKey) -> dict[str, float]:
    """The task's bottleneck edges, with their normalised effects."""
    pairs = calibration_task(lab, key.task).train[: key.searched_on]
    limits = {"removed_on": key.removed_on, "candidates": key.candidates}
    return find_bottlenecks(lab.model, pairs, key.method, smallest=key.smallest, **limits)


def ends_of_range(lab: Lab, key: RangeKey) -> dict[str, Any]:
    """The full graph, and what is left if all edges but the bottlenecks are removed."""
    graph = lab.model.graph
    left = graph.circuit(list(lab.measure(Measurement(bottlenecks, key.left))))
    full, end = evaluations.behaviours(lab.setting(key.task), [graph.full(), left])
    return {"full": asdict(full), "empty": asdict(end)}


def behaviours_without(lab: Lab, key: RedundancyKey) -> dict[str, Any]:
    """What is left without circuits of each size of the other edges."""
    left = lab.measure(Measurement(bottlenecks, key.left))
    ranked, *_ = lab.circuits(key.task, key.method, key.direction, key.seed).values()  # all sizes have the same scores
    circuits = best_of_others(ranked, left, key.sizes)
    complements = evaluations.behaviours(lab.setting(key.task), [~circuit for circuit in circuits])
    return {"circuits": list(map(asdict, complements))}


def _bottleneck_key(preset: Preset, task: str, method: str) -> BottleneckKey:
    pairs = preset.setups[method].pairs
    return BottleneckKey(task, method, CANDIDATES, pairs, preset.ablating.pairs_of(pairs), BOTTLENECK)


def _methods(preset: Preset) -> tuple[str, ...]:
    return tuple(method for method in preset.methods if methods()[method].ranks_once)


def _check(preset: Preset) -> None:
    if not _methods(preset):
        given = ", ".join(preset.methods)
        raise LeftOutError(f"redundancy needs a method that ranks all edges, such as eap; got {given}.")


def _measurements(lab: Lab) -> Iterator[Measurement]:
    for task in lab.preset.tasks:
        for method in _methods(lab.preset):
            left = _bottleneck_key(lab.preset, task, method)
            yield Measurement(bottlenecks, left)
            yield Measurement(ends_of_range, RangeKey(task, left))
    for task, method, seed in lab.grid(methods=_methods(lab.preset)):
        sizes = _judged(lab, task, method) or (lab.sizes.primary(REDUNDANCY, task),)
        left = _bottleneck_key(lab.preset, task, method)
        for direction in DIRECTIONS:
            key = RedundancyKey(task, method, direction, seed, sizes, left)
            search = Search(task, method, seed, (direction,))
            yield Measurement(behaviours_without, key, (search,), by_scores=True)


def _judged(lab: Lab, task: str, method: str) -> tuple[int, ...]:
    """Sizes that verdicts are about: those that were chosen beforehand, or all if none were to be chosen."""
    chosen = lab.sizes.chosen(REDUNDANCY, task)
    return lab.sizes.of(method, task) if chosen is None else tuple(chosen["judged"])


def _judge(lab: Lab, measured: Measured) -> Outcome:
    lab = lab.with_methods(_methods(lab.preset))
    kl, accuracy = (
        Curves(curves.read_values(measured, name, RedundancyKey), read_baselines(measured, name, RangeKey))
        for name in (COMPLETENESS, TOP1)
    )
    return Outcome(
        tables=[
            *curves.size_tables(lab, kl, "KL(G\\C || G), the bottleneck edges in place, high is complete", _END),
            *curves.size_tables(
                lab, accuracy, f"accuracy of G\\C, the bottleneck edges in place, {ACCURACIES[TOP1]}", _END
            ),
            _bottleneck_table(measured),
        ],
        rulings=[ruling for method in lab.preset.methods for ruling in _rulings(lab, kl, accuracy, method)],
        figures={
            "Completeness with the bottleneck edges in place: KL(G\\C || G) over circuit size, with 95 % intervals "
            "over seeds. The dotted line is what removing all other edges does. High is complete.": curves.figure(
                lab, kl, "KL(G\\C || G)", _END
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


def _bottleneck_table(measured: Measured) -> Table:
    rows = []
    for key, effects in of_kind(measured, BottleneckKey).items():
        edges = ", ".join(f"{edge} {effect:.2f}" for edge, effect in effects.items())
        rows.append((METHOD_NAMES[key.method], task_name(key.task), len(effects), edges))
    columns = ("method", "task", "edges", "which, with the normalised effect of each")
    note = (
        f"Of the {CANDIDATES} strongest by Ns and by Dn, those whose removal alone changes KL by {BOTTLENECK:.0%} or "
        "more of the KL between the runs, on pairs of the calibration."
    )
    return Table("Bottleneck edges, which stay in place", columns, rows, note)


def _rulings(lab: Lab, kl: Curves, accuracy: Curves, method: str) -> list[Ruling]:
    sizes = {task: _judged(lab, task, method) for task in lab.preset.tasks}

    def more_complete(first: SearchDirection, second: SearchDirection, text: str, paper: str) -> Claim:
        compared = f"{DIRECTION_NAMES[first]} less that of {DIRECTION_NAMES[second]}"
        what = f"KL(G\\C || G) of {compared}, as a share of what removing all others does"
        values = kl.differences(first, second, method, sizes, normalised=True)
        return Claim(f"With the bottleneck edges in place, {text}", what, values, paper=f"{paper} {_AT}")

    return rules(
        METHOD_NAMES[method],
        more_complete(
            "ns+dn", "ns", "removing the Ns+Dn circuit destroys more than removing the Ns circuit.", "1.02 against 0.74"
        ),
        Claim(
            "With the bottleneck edges in place, the accuracy left without the Ns+Dn circuit is lower.",
            "top-1 accuracy of G\\C of Ns less that of Ns+Dn",
            accuracy.differences("ns", "ns+dn", method, sizes),
            paper=f"0.26 against 0.39 {_AT}",
        ),
        more_complete("dn", "ns", "Dn is more complete than Ns.", "0.96 against 0.74"),
        more_complete("ns+dn", "dn", "Ns+Dn is more complete than Dn.", "1.02 against 0.96"),
        primary=False,
    )


EXPERIMENT = Experiment(
    name=REDUNDANCY,
    title="Completeness, with the bottleneck edges left in place",
    claim="without the Ns+Dn circuit the model does the task noticeably worse than without the Ns circuit.",
    labels=("figcompleteness", "tabklcompleteness"),
    measurements=_measurements,
    judge=_judge,
    check=_check,
)
