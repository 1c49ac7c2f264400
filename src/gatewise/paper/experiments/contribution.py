"""Contribution: what whole gates of each type, and their edges, do to the output (figoutputcontribution).

The gate effect is the change of KL by removing the gate from the full graph; the edge effect is that divided equally
among its edges.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatewise.gate_types import GATE_COLOURS, GATE_TYPES, GateType
from gatewise.logic.contribution import gate_contributions
from gatewise.logic.gates import Gates
from gatewise.paper.contract import (
    METHOD_NAMES,
    TASK_NAMES,
    Experiment,
    Job,
    Judgement,
    Outcome,
    Table,
    Verdict,
    grid,
)
from gatewise.paper.experiments.curves import FEWEST, Comparison, judge
from gatewise.paper.experiments.sizes import middle_size
from gatewise.paper.experiments.statistics import Interval, bootstrap, clusters, ratio, seeds_note
from gatewise.paper.figures import legend_below, panels, wide_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.paper.lab import Lab
    from gatewise.paper.presets import Preset

_SIMILAR = 2.0  # the factor within which two effects are similar


@dataclass(frozen=True)
class Effect:
    """What removing one gate does."""

    receiver: str
    edges: int
    change: float


Effects = Mapping[tuple[str, str, GateType], Sequence[Effect]]  # by task, method, type


def gate_effect(effects: Sequence[Effect]) -> Interval:
    """The mean over gates, and its interval over receivers."""
    return bootstrap(clusters([(e.receiver, e.change, 1) for e in effects]), ratio)


def edge_effect(effects: Sequence[Effect]) -> Interval:
    """The mean over edges, each with its part of its gate's effect, and its interval over receivers."""
    return bootstrap(clusters([(e.receiver, e.change, e.edges) for e in effects]), ratio)


def judge_similar(pairs: Sequence[tuple[float, float]]) -> tuple[Judgement, int]:
    """Whether the two numbers of most pairs are within a factor of two, and of how many."""
    near = sum(min(a, b) > 0 and max(a, b) <= _SIMILAR * min(a, b) for a, b in pairs)
    if len(pairs) < FEWEST:
        return "cannot be judged", near
    share = near / len(pairs)
    return ("holds" if share >= 0.8 else "holds partly" if share > 0.5 else "does not hold"), near


def measure_effects(lab: Lab, task: str, method: str, seed: int) -> dict[GateType, list[Effect]]:
    """Effects of all gates for one task, method and seed, through the store."""
    gates = lab.gates(task, method, middle_size(lab), seed)
    asked = {
        "ns": gates.ns.fingerprint,
        "dn": gates.dn.fingerprint,
        "held_out": lab.held_out(task).fingerprint,
    }
    found = lab.remember("contribution", asked, lambda: _remove(lab, task, gates))
    return {kind: [Effect(*gate) for gate in found[kind]] for kind in GATE_TYPES}


def _remove(lab: Lab, task: str, gates: Gates) -> dict[str, Any]:
    found = gate_contributions(lab.model, lab.held_out(task), gates)
    return {
        kind: [
            [gate.receiver, len(gate.edges), change]
            for gate, change in zip(found[kind].gates, found[kind].effects.tolist(), strict=True)
        ]
        for kind in GATE_TYPES
    }


def _run(lab: Lab) -> Outcome:
    effects: dict[tuple[str, str, GateType], list[Effect]] = {}
    for task in lab.preset.tasks:
        for method in lab.preset.methods:
            seeds = [measure_effects(lab, task, method, seed) for seed in range(lab.preset.seeds[method])]
            for kind in GATE_TYPES:
                effects[task, method, kind] = [effect for seed in seeds for effect in seed[kind]]
    gate = {at: gate_effect(some) for at, some in effects.items()}
    edge = {at: edge_effect(some) for at, some in effects.items()}
    return Outcome(
        tables=[_table(lab, effects, gate, edge)],
        verdicts=_verdicts(lab, gate, edge),
        figures={
            "Contribution of gates and of their edges to the output: change of KL by removing them from the full "
            "graph. Bars are means, lines 95 % intervals of a bootstrap over receivers; linear near 0, "
            "logarithmic beyond.": lambda: _figure(lab, gate, edge)
        },
        notes=[
            f"Gates, of one edge or more, are the plain split of Ns and Dn circuits of {middle_size(lab):,} edges "
            "each. The paper prints no numbers, only a figure, and does not say of how many edges its circuits are.",
            "An ADDER edge is one that both directions rank among their strongest, so part of a larger effect is there "
            "by selection.",
        ],
    )


def _table(
    lab: Lab,
    effects: Effects,
    gate: Mapping[tuple[str, str, GateType], Interval],
    edge: Mapping[tuple[str, str, GateType], Interval],
) -> Table:
    rows = [
        (
            TASK_NAMES[task],
            METHOD_NAMES[method],
            kind,
            len(some),
            sum(effect.edges for effect in some),
            _shown(gate[task, method, kind]),
            _shown(edge[task, method, kind]),
        )
        for (task, method, kind), some in effects.items()
    ]
    seeds = seeds_note({m: lab.preset.seeds[m] for m in lab.preset.methods}, METHOD_NAMES)
    return Table(
        "Gate and edge effects, change of KL",
        ("task", "method", "type", "gates", "edges", "gate effect", "edge effect"),
        rows,
        f"Gates of all seeds together ({seeds}), measured on {lab.preset.held_out} held-out pairs; in brackets 95 % "
        "intervals of a bootstrap over receivers.",
    )


def _shown(interval: Interval) -> str | None:
    if math.isnan(interval.value):
        return None
    return f"{interval.value:.3g} ({interval.low:.2g} to {interval.high:.2g})"


def _verdicts(
    lab: Lab,
    gate: Mapping[tuple[str, str, GateType], Interval],
    edge: Mapping[tuple[str, str, GateType], Interval],
) -> list[Verdict]:
    tasks, methods = lab.preset.tasks, lab.preset.methods
    verdicts = []
    for name, by in (("gate", gate), ("edge", edge)):
        adder, similar = [], []
        for task in tasks:
            for method in methods:
                one, other, both = (by[task, method, kind].value for kind in GATE_TYPES)
                adder += [both - value for value in (one, other) if not math.isnan(both - value)]
                if not math.isnan(one + other):
                    similar.append((one, other))
        comparison = Comparison(tuple(adder))
        judgement, near = judge_similar(similar)
        factors = [max(a, b) / min(a, b) for a, b in similar if min(a, b) > 0]
        verdicts += [
            Verdict(
                f"ADDER gates have the largest {name} effect.",
                judge(comparison, larger=True),
                f"The {name} effect of ADDER, against AND and against OR for each task and method, is {comparison}.",
            ),
            Verdict(
                f"AND and OR gates have similar {name} effects.",
                judgement,
                f"They are within a factor of {_SIMILAR:.0f} for {near} of {len(similar)} pairs of task and method"
                + (f"; the median factor is {statistics.median(factors):.2g}." if factors else "."),
            ),
        ]
    for method in [m for m in methods if m != "acdc" and "acdc" in methods]:
        differences = [
            by[task, method, kind].value - by[task, "acdc", kind].value
            for by in (gate, edge)
            for task in tasks
            for kind in GATE_TYPES
        ]
        comparison = Comparison(tuple(d for d in differences if not math.isnan(d)))
        verdicts.append(
            Verdict(
                f"Gate and edge effects are higher with {METHOD_NAMES[method]} than with ACDC.",
                judge(comparison, larger=True),
                f"Over tasks, types and both effects, the mean effect is {comparison}.",
            )
        )
    return verdicts


def _figure(
    lab: Lab,
    gate: Mapping[tuple[str, str, GateType], Interval],
    edge: Mapping[tuple[str, str, GateType], Interval],
) -> Figure:
    tasks, methods = lab.preset.tasks, lab.preset.methods
    drawn, axes = panels(2, len(tasks), width=3.2, height=2.5)
    for row, (name, by) in enumerate((("gate", gate), ("edge", edge))):
        for column, task in enumerate(tasks):
            at = axes[row][column]
            for shift, kind in enumerate(GATE_TYPES):
                some = [by[task, method, kind] for method in methods]
                at.bar(
                    [place + 0.27 * (shift - 1) for place in range(len(methods))],
                    [0 if math.isnan(one.value) else one.value for one in some],
                    0.25,
                    yerr=[
                        [0 if math.isnan(one.low) else max(0, one.value - one.low) for one in some],
                        [0 if math.isnan(one.high) else max(0, one.high - one.value) for one in some],
                    ],
                    error_kw={"linewidth": 0.8, "capsize": 2},
                    color=GATE_COLOURS[kind],
                    label=kind,
                )
            largest = max(
                (abs(i.value) for (t, _, _), i in by.items() if t == task and i.value == i.value), default=1.0
            )
            wide_axis(at, max(1e-9, 1e-5 * largest))  # types differ by orders of magnitude
            at.axhline(0, color="black", linewidth=0.5)
            at.set_xticks(range(len(methods)), [METHOD_NAMES[m] for m in methods])
            at.grid(axis="x", visible=False)
            at.set_title(f"{name} effect, {TASK_NAMES[task]}")
        axes[row][0].set_ylabel("change of KL")
    handles, labels = axes[0][0].get_legend_handles_labels()
    legend_below(drawn, handles, labels)
    return drawn


def _jobs(preset: Preset) -> list[Job]:
    return [
        Job(measure_effects, (task, method, seed))
        for task in preset.tasks
        for method in preset.methods
        for seed in range(preset.seeds[method])
    ]


EXPERIMENT = Experiment(
    name="contribution",
    title="Contribution of gates to the output",
    claim="ADDER gates contribute most, AND and OR gates about alike; effects are higher with Edge Pruning and EAP "
    "than with ACDC.",
    labels=("figoutputcontribution",),
    run=_run,
    cells=lambda preset: grid(preset, seeds=preset.seeds),
    jobs=_jobs,
)
