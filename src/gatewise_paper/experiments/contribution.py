"""Contribution: what whole gates of each type, and their edges, do to the output (figoutputcontribution).

The gate effect is the change of KL by removing the gate from the full graph; the edge effect is that divided equally
among its edges. GateEffects of types and methods differ by orders of magnitude, so verdicts compare by factors: the
difference of two effects as a share of their sum. Tested gates, of which both groups are removed, stand in the place of
one more method.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gatewise.gate_types import GATE_COLOURS, GATE_TYPES, GateType
from gatewise.gates.labels import Gate, Gates
from gatewise.statistics import Interval
from gatewise_paper.claims import Above, Between, Claim, Ruling, relative, rule, rules
from gatewise_paper.experiment import Experiment, Measured, Measurement, Result, Table, group, of_kind
from gatewise_paper.experiments.ends import ends_to_measure, floors
from gatewise_paper.figures import Figure, bars, errors, filled, wide_axis
from gatewise_paper.lab import Lab
from gatewise_paper.measures.contribution import gate_contributions
from gatewise_paper.naming import METHOD_NAMES, seeds_note, task_name
from gatewise_paper.seed_statistics import clustered_ratio
from gatewise_paper.tested_gates import TESTED, by_type, tested_gates, tested_to_measure

_NAME = "contribution"
_SIMILAR = 2.0  # the factor within which two effects are similar
_COMPARISONS: tuple[tuple[GateType, tuple[GateType, ...]], ...] = (("ADDER", ("AND", "OR")), ("AND", ("OR",)))


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


GateEffects = Mapping[GateType, Sequence[Effect]]
Weight = Callable[[Effect], int]
WEIGHTS: dict[str, Weight] = {"gate": lambda effect: 1, "edge": lambda effect: effect.edges}  # what a mean is over


def mean_effect(effects: Sequence[Effect], weight: Weight) -> Interval:
    """The mean over gates or over edges, and its interval over receivers."""
    return clustered_ratio((effect.receiver, effect.change, weight(effect)) for effect in effects)


def measure(lab: Lab, key: ContributionKey) -> dict[str, Any]:
    """GateEffects of all gates, or of those that are drawn, by type."""
    gates = lab.gates(key.task, key.method, key.size, key.seed)
    found = gate_contributions(
        lab.model, lab.held_out(key.task)[: key.pairs], gates, only=drawn_gates(gates, key.gates, key.seed)
    )
    return {
        kind: [
            [gate.receiver, len(gate.edges), change]
            for gate, change in zip(found[kind].gates, found[kind].effects.tolist(), strict=True)
        ]
        for kind in GATE_TYPES
    }


def drawn_gates(gates: Gates, most: int | None, seed: int) -> list[Gate]:
    """At most so many of each type, drawn at random; in order."""
    chosen: set[Gate] = set()
    for kind in GATE_TYPES:
        alike = [gate for gate in gates if gate.type == kind]
        number = len(alike) if most is None else min(most, len(alike))
        chosen.update(random.Random(f"contribution/{kind}/{seed}").sample(alike, number))
    return [gate for gate in gates if gate in chosen]


def _measurements(lab: Lab) -> Iterator[Measurement]:
    yield from map(ends_to_measure, lab.preset.tasks)
    yield from tested_to_measure(lab, lab.preset.tested_tasks)
    preset = lab.preset
    more: dict[str, Any] = {"gates": preset.removed_gates, "pairs": preset.for_removals(preset.held_out)}
    seeds = preset.seeds_for(_NAME)
    yield from lab.cells(measure, ContributionKey, ("ns", "dn"), size=lab.gate_size, seeds=seeds, **more)


def _judge(lab: Lab, measured: Measured) -> Result:
    seeds: dict[tuple[str, str], list[GateEffects]] = {
        at: [{kind: [Effect(*gate) for gate in one[kind]] for kind in GATE_TYPES} for one in some]
        for at, some in group(of_kind(measured, ContributionKey), "task", "method").items()
    }
    for task, tested in tested_gates(measured).items():
        seeds[task, TESTED] = [
            {kind: [Effect(g.receiver, g.edges, g.both) for g in some] for kind, some in by_type(one).items()}
            for one in tested
        ]
    together = {
        (*at, kind): [effect for one in some for effect in one[kind]]
        for at, some in seeds.items()
        for kind in GATE_TYPES
    }
    means = {name: {at: mean_effect(some, weight) for at, some in together.items()} for name, weight in WEIGHTS.items()}
    rows = [
        (
            task_name(task),
            METHOD_NAMES.get(method, method),
            kind,
            len(some),
            sum(effect.edges for effect in some),
            *(_shown(means[name][task, method, kind]) for name in WEIGHTS),
        )
        for (task, method, kind), some in together.items()
    ]
    most = lab.preset.removed_gates
    drawn = "" if most is None else f"; at most {most} gates of each type and seed, drawn at random"
    pairs = lab.preset.for_removals(lab.preset.held_out)
    return Result(
        tables=[
            Table(
                "Gate and edge effects, change of KL",
                ("task", "method", "type", "gates", "edges", "gate effect", "edge effect"),
                rows,
                f"Gates of all seeds together ({seeds_note(lab.preset.seeds_for(_NAME), lab.preset.methods)}"
                f"{drawn}), measured on {pairs} held-out pairs; in brackets 95 % intervals of a bootstrap over "
                "receivers.",
            )
        ],
        rulings=_rulings(lab, seeds, floors(lab, measured)),
        figures={
            "Contribution of gates and of their edges to the output: change of KL by removing them from the full "
            "graph. Bars are means, lines 95 % intervals of a bootstrap over receivers; linear near 0, "
            "logarithmic beyond.": lambda: _figure(lab, means)
        },
        notes=[
            "Gates, of one edge or more, are the plain split of Ns and Dn circuits of "
            f"{', '.join(f'{lab.gate_size(task):,} edges on {task_name(task)}' for task in lab.preset.tasks)}. "
            "The paper prints no numbers, only a figure, and does not say of how many edges its circuits are.",
            "An ADDER edge is one that both directions rank among their strongest, so part of a larger effect is there "
            "by selection.",
            f"In verdicts a seed has no value where the changes by all {'' if most is None else 'drawn '}gates of each "
            "of the compared types sum up to less "
            f"than {lab.preset.floor:.0%} of the KL between the runs.",
        ],
    )


def _shown(interval: Interval) -> str | None:
    if math.isnan(interval.value):
        return None
    return f"{interval.value:.3g} ({interval.low:.2g} to {interval.high:.2g})"


def compared(one: Sequence[Effect], others: Sequence[Sequence[Effect]], weight: Weight, floor: float) -> float:
    """By which factor the first mean effect is above the largest of the others, from -1 to 1.

    NaN if one has no gate, or if none of them has an effect: their gates' sum is below the floor.
    """
    every = (one, *others)
    if not all(every) or max(abs(sum(effect.change for effect in some)) for some in every) < floor:
        return math.nan
    first, *rest = (sum(e.change for e in some) / sum(map(weight, some)) for some in every)
    return relative(first, max(rest))


def _rulings(
    lab: Lab, seeds: Mapping[tuple[str, str], Sequence[GateEffects]], floor: Mapping[str, float]
) -> list[Ruling]:
    tasks, methods = lab.preset.tasks, lab.preset.methods
    claimed, similar = Above(lab.preset.smallest), (_SIMILAR - 1) / (_SIMILAR + 1)
    what = "as a share of their sum"
    rulings: list[Ruling] = []
    for method in (*methods, *([TESTED] if lab.preset.tested_tasks else [])):
        claims: list[Claim] = []
        for name, weight in WEIGHTS.items():
            largest, alike = (
                {
                    task_name(task): [
                        compared(seed[kind], [seed[other] for other in others], weight, floor[task])
                        for seed in seeds[task, method]
                    ]
                    for task in tasks
                    if (task, method) in seeds
                }
                for kind, others in _COMPARISONS
            )
            claims += [
                Claim(
                    f"ADDER gates have the largest {name} effect.",
                    f"mean {name} effect of ADDER less the larger of AND and OR, {what}",
                    largest,
                    paper="a figure",
                ),
                Claim(
                    f"AND and OR gates have similar {name} effects.",
                    f"mean {name} effect of AND less that of OR, {what}; a factor of {_SIMILAR:g} is {similar:.2f}",
                    alike,
                    Between(-similar, similar),
                    paper="a figure",
                ),
            ]
        rulings += rules(METHOD_NAMES.get(method, method), claimed, *claims)
    for method in [m for m in methods if m != "acdc" and "acdc" in methods]:
        values = {
            task_name(task): [
                compared(_all(mine), [_all(acdc)], WEIGHTS["gate"], floor[task])
                for mine, acdc in zip(seeds[task, method], seeds[task, "acdc"], strict=False)
            ]
            for task in tasks
        }
        claim = Claim(
            f"Gate and edge effects are higher with {METHOD_NAMES[method]} than with ACDC.",
            f"mean gate effect over all types less that with ACDC, {what}",
            values,
            paper="a figure",
        )
        rulings.append(rule(claim, claimed, method=f"{METHOD_NAMES[method]}, ACDC"))
    return rulings


def _all(effects: GateEffects) -> list[Effect]:
    return [effect for kind in GATE_TYPES for effect in effects[kind]]


def _figure(lab: Lab, means: Mapping[str, Mapping[tuple[str, str, GateType], Interval]]) -> Figure:
    def fill(at: Any, name: str, task: str) -> None:
        methods = [*lab.preset.methods, *([TESTED] if task in lab.preset.tested_tasks else [])]
        for shift, kind in enumerate(GATE_TYPES):
            some = [means[name][task, method, kind] for method in methods]
            values = [0 if math.isnan(one.value) else one.value for one in some]
            bars(at, shift, values, errors(values, some), color=GATE_COLOURS[kind], label=kind)
        known = [abs(i.value) for (t, _, _), i in means[name].items() if t == task and not math.isnan(i.value)]
        wide_axis(at, max(1e-9, 1e-5 * max(known, default=1.0)))  # types differ by orders of magnitude
        at.axhline(0, color="black", linewidth=0.5)
        at.set_xticks(
            range(len(methods)), [METHOD_NAMES.get(method, "tested").replace(" ", "\n") for method in methods]
        )
        at.set_title(f"{name} effect, {task_name(task)}")

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
