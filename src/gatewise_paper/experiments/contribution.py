"""Contribution: what whole gates of each type, and their edges, do to the output (figoutputcontribution).

The gate effect is the change of KL by removing the gate from the full graph; the edge effect is that divided equally
among its edges. Effects of types and methods differ by orders of magnitude, so verdicts compare by factors: the
difference of two mean effects as a share of their sum. Tested gates, of which both groups are removed, stand in the
place of one more method.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gatewise.gate_types import GATE_COLOURS, GATE_TYPES, GateType
from gatewise.gates.labels import Gate, Gates
from gatewise.statistics import Interval
from gatewise_paper.claims import EFFECT_FLOOR, Between, Claim, Ruling, relative, rule, rules
from gatewise_paper.experiment import Experiment, Measurement, Outcome, Search
from gatewise_paper.experiments.baselines import baseline_measurement, effect_floors
from gatewise_paper.figures import Figure, bars, errors, filled, wide_axis
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured, Seeds, group, of_kind, values_by_task
from gatewise_paper.measures.gate_ablation import gate_effects
from gatewise_paper.naming import METHOD_NAMES, seeds_note, task_name
from gatewise_paper.seed_statistics import clustered_ratio
from gatewise_paper.tables import Cell, Table
from gatewise_paper.tested_gates import TESTED, TwoGroups, by_type, read_tested, tested_measurements

_NAME = "contribution"
_SIMILAR = 2.0  # the factor within which two effects are similar
_SHARE = "as a share of their sum"


class ContributionKey(NamedTuple):
    task: str
    method: str
    seed: int
    size: int
    gates: int | None  # of each type; None: all
    pairs: int


class Effect(NamedTuple):
    """What removing one gate does."""

    receiver: str
    edges: int
    change: float


TypeEffects = Mapping[GateType, Sequence[Effect]]  # of one seed
Weight = Callable[[Effect], int]
WEIGHTS: dict[str, Weight] = {"gate": lambda effect: 1, "edge": lambda effect: effect.edges}  # what a mean is over
Means = Mapping[str, Mapping[tuple[str, str, GateType], Interval]]  # by weight; by task, method and type


def measure(lab: Lab, key: ContributionKey) -> dict[str, Any]:
    """Effects of all gates, or of those that are drawn, by type."""
    gates = drawn_gates(lab.gates(key.task, key.method, key.size, key.seed), key.gates, key.seed)
    changes = gate_effects(lab.model, lab.held_out(key.task)[: key.pairs], gates)
    effects: dict[str, Any] = {kind: [] for kind in GATE_TYPES}
    for gate, change in zip(gates, changes, strict=True):
        effects[gate.type].append([gate.receiver, len(gate.edges), change])
    return effects


def drawn_gates(gates: Gates, most: int | None, seed: int) -> list[Gate]:
    """At most so many of each type, drawn at random; in order."""
    chosen: set[Gate] = set()
    for kind in GATE_TYPES:
        alike = [gate for gate in gates if gate.type == kind]
        number = len(alike) if most is None else min(most, len(alike))
        chosen.update(random.Random(f"contribution/{kind}/{seed}").sample(alike, number))
    return [gate for gate in gates if gate in chosen]


def _measurements(lab: Lab) -> Iterator[Measurement]:
    preset = lab.preset
    yield from map(baseline_measurement, preset.tasks)
    yield from tested_measurements(lab, preset.tested_tasks)
    pairs = preset.ablating.pairs_of(preset.held_out)
    for task, method, seed in lab.grid(seeds=preset.seeds_for(_NAME)):
        key = ContributionKey(task, method, seed, lab.sizes.of_gates(task), preset.ablating.gates, pairs)
        yield Measurement(measure, key, (Search(task, method, seed, ("ns", "dn")),))


def _judge(lab: Lab, measured: Measured) -> Outcome:
    seeds: dict[tuple[str, str], list[TypeEffects]] = {}
    for at, effects in group(of_kind(measured, ContributionKey), "task", "method").items():
        seeds[at] = list(map(_of_labels, effects))
    for task, tested in read_tested(measured).items():
        seeds[task, TESTED] = list(map(_of_tests, tested))
    together: dict[tuple[str, str, GateType], list[Effect]] = {}
    for (task, method), of_seeds in seeds.items():
        for kind in GATE_TYPES:
            together[task, method, kind] = [effect for seed in of_seeds for effect in seed[kind]]
    means = {
        name: {at: mean_effect(effects, weight) for at, effects in together.items()} for name, weight in WEIGHTS.items()
    }
    of_drawn = "" if lab.preset.ablating.gates is None else "drawn "
    sizes = ", ".join(f"{lab.sizes.of_gates(task):,} edges on {task_name(task)}" for task in lab.preset.tasks)
    return Outcome(
        tables=[_table(lab, together, means)],
        rulings=_rulings(lab, seeds, effect_floors(measured)),
        figures={
            "Contribution of gates and of their edges to the output: change of KL by removing them from the full "
            "graph. Bars are means, lines 95 % intervals of a bootstrap over receivers; linear near 0, "
            "logarithmic beyond.": lambda: _figure(lab, means)
        },
        notes=[
            f"Gates, of one edge or more, are set differences of Ns and Dn circuits of {sizes}. The paper prints no "
            "numbers, only a figure, and does not say of how many edges its circuits are.",
            "An ADDER edge is one that both directions rank among their strongest, so part of a larger effect is there "
            "by selection.",
            f"In verdicts a seed has no value where the changes by all {of_drawn}gates of each of the compared types "
            f"sum up to less than {EFFECT_FLOOR:.0%} of the KL between the runs.",
        ],
    )


def _of_labels(seed: Mapping[GateType, Sequence[Any]]) -> TypeEffects:
    return {kind: [Effect(*gate) for gate in seed[kind]] for kind in GATE_TYPES}


def _of_tests(seed: Sequence[TwoGroups]) -> TypeEffects:
    """Both groups in the place of a gate."""
    return {kind: [Effect(g.receiver, g.edges, g.both) for g in gates] for kind, gates in by_type(seed).items()}


def mean_effect(effects: Sequence[Effect], weight: Weight) -> Interval:
    """The mean over gates or over edges, and its interval over receivers."""
    return clustered_ratio((effect.receiver, effect.change, weight(effect)) for effect in effects)


def _table(lab: Lab, together: Mapping[tuple[str, str, GateType], Sequence[Effect]], means: Means) -> Table:
    rows: list[list[Cell]] = []
    for at, effects in together.items():
        task, method, kind = at
        counts = len(effects), sum(effect.edges for effect in effects)
        shown = (_shown(means[name][at]) for name in WEIGHTS)
        rows.append([task_name(task), METHOD_NAMES.get(method, method), kind, *counts, *shown])
    most, pairs = lab.preset.ablating.gates, lab.preset.ablating.pairs_of(lab.preset.held_out)
    drawn = "" if most is None else f"; at most {most} gates of each type and seed, drawn at random"
    return Table(
        "Gate and edge effects, change of KL",
        ("task", "method", "type", "gates", "edges", "gate effect", "edge effect"),
        rows,
        f"Gates of all seeds together ({seeds_note(lab.preset.seeds_for(_NAME))}{drawn}), measured on {pairs} held-out "
        "pairs; in brackets 95 % intervals of a bootstrap over receivers.",
    )


def _shown(interval: Interval) -> str | None:
    if math.isnan(interval.value):
        return None
    return f"{interval.value:.3g} ({interval.low:.2g} to {interval.high:.2g})"


def compared(effects: Sequence[Effect], others: Sequence[Sequence[Effect]], weight: Weight, floor: float) -> float:
    """By which factor the first mean effect is above the largest of the others, from -1 to 1.

    NaN if one has no gate, or if none of them has an effect: their gates' sum is below the floor.
    """
    everything = (effects, *others)
    if not all(everything) or max(abs(sum(e.change for e in gates)) for gates in everything) < floor:
        return math.nan
    first, *rest = (sum(e.change for e in gates) / sum(map(weight, gates)) for gates in everything)
    return relative(first, max(rest))


def _rulings(lab: Lab, seeds: Seeds[TypeEffects], floor: Mapping[str, float]) -> list[Ruling]:
    methods, rulings = lab.preset.methods, list[Ruling]()
    for method in (*methods, *([TESTED] if lab.preset.tested_tasks else [])):
        claims = [claim for name in WEIGHTS for claim in _claims(seeds, floor, method, name)]
        rulings += rules(METHOD_NAMES.get(method, method), *claims)
    for method in [method for method in methods if method != "acdc" and "acdc" in methods]:
        values = {}
        for task in lab.preset.tasks:
            both = zip(seeds[task, method], seeds[task, "acdc"], strict=False)
            values[task_name(task)] = [
                compared(_all_types(seed), [_all_types(acdc)], WEIGHTS["gate"], floor[task]) for seed, acdc in both
            ]
        claim = Claim(
            f"Gate and edge effects are higher with {METHOD_NAMES[method]} than with ACDC.",
            f"mean gate effect over all types less that with ACDC, {_SHARE}",
            values,
            paper="a figure",
        )
        rulings.append(rule(claim, method=f"{METHOD_NAMES[method]}, ACDC"))
    return rulings


def _claims(seeds: Seeds[TypeEffects], floor: Mapping[str, float], method: str, name: str) -> list[Claim]:
    """About the effects of gates, or of edges."""
    weight, similar = WEIGHTS[name], (_SIMILAR - 1) / (_SIMILAR + 1)
    return [
        Claim(
            f"ADDER gates have the largest {name} effect.",
            f"mean {name} effect of ADDER less the larger of AND and OR, {_SHARE}",
            values_by_task(
                seeds,
                method,
                lambda task, seed: compared(seed["ADDER"], [seed["AND"], seed["OR"]], weight, floor[task]),
            ),
            paper="a figure",
        ),
        Claim(
            f"AND and OR gates have similar {name} effects.",
            f"mean {name} effect of AND less that of OR, {_SHARE}; a factor of {_SIMILAR:g} is {similar:.2f}",
            values_by_task(seeds, method, lambda task, seed: compared(seed["AND"], [seed["OR"]], weight, floor[task])),
            Between(-similar, similar),
            paper="a figure",
        ),
    ]


def _all_types(effects: TypeEffects) -> list[Effect]:
    return [effect for kind in GATE_TYPES for effect in effects[kind]]


def _figure(lab: Lab, means: Means) -> Figure:
    def fill(axes: Any, name: str, task: str) -> None:
        methods = [*lab.preset.methods, *([TESTED] if task in lab.preset.tested_tasks else [])]
        largest = 0.0
        for shift, kind in enumerate(GATE_TYPES):
            intervals = [means[name][task, method, kind] for method in methods]
            values = [0.0 if math.isnan(interval.value) else interval.value for interval in intervals]
            bars(axes, shift, values, errors(values, intervals), color=GATE_COLOURS[kind], label=kind)
            largest = max(largest, *map(abs, values))
        wide_axis(axes, max(1e-9, 1e-5 * (largest or 1.0)))  # types differ by orders of magnitude
        axes.axhline(0, color="black", linewidth=0.5)
        ticks = [METHOD_NAMES.get(method, "tested").replace(" ", "\n") for method in methods]
        axes.set_xticks(range(len(methods)), ticks)
        axes.set_title(f"{name} effect, {task_name(task)}")

    return filled(list(means), lab.preset.tasks, fill, "change of KL", width=3.2, height=2.5)


EXPERIMENT = Experiment(
    name=_NAME,
    title="Contribution of gates to the output",
    claim="ADDER gates contribute most, AND and OR gates about alike; effects are higher with Edge Pruning and EAP "
    "than with ACDC.",
    labels=("figoutputcontribution",),
    measurements=_measurements,
    judge=_judge,
)
