"""Gate ablation: what removing one and two edges of a gate does (figrealmodel, and the table in its appendix).

`preset.repeats` times for each gate of at least two edges, one edge and then a second are removed from the full graph,
and the change of KL is measured. The number that tells the types apart is R: the change by one edge as a share of the
change by two, both summed over gates. An AND has 1, an OR 0, and an ADDER less than 1: KL grows with the square of
a small change, so that a perfect ADDER in the full graph has 0.25.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatewise.gate_types import GATE_COLOURS, GATE_TYPES, GateType
from gatewise.logic.ablation import ablate_gates
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
from gatewise.paper.experiments.curves import Comparison, judge
from gatewise.paper.experiments.sizes import middle_size
from gatewise.paper.experiments.statistics import Interval, bootstrap, clusters, ratio
from gatewise.paper.figures import panels, wide_axis
from gatewise.paper.published import ABLATION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.paper.lab import Lab
    from gatewise.paper.presets import Preset

_SAME = (0.75, 1.25)  # where R has to lie for one edge to change as much as two
_HARDLY = 0.1  # below which one edge changes hardly anything
_FEWEST = 4  # receivers that a verdict needs
_TYPES_BY_R: tuple[GateType, ...] = ("AND", "ADDER", "OR")


@dataclass(frozen=True)
class Removals:
    """Changes of KL of one gate: by one edge, by the other, by both, for each repeat."""

    receiver: str
    one: Sequence[float]
    other: Sequence[float]
    two: Sequence[float]


Found = Mapping[GateType, Sequence[Removals]]


def share_of_one(gates: Sequence[Removals]) -> Interval:
    """R with its interval, over receivers: gates of one receiver, found by several seeds, are drawn together."""
    return bootstrap(clusters([(gate.receiver, sum(gate.one), sum(gate.two)) for gate in gates]), ratio)


def judge_same(r: Interval) -> Judgement:
    """AND: one edge changes as much as two."""
    if _unknown(r):
        return "cannot be judged"
    low, high = _SAME
    if low <= r.low and r.high <= high:
        return "holds"
    return "holds partly" if low <= r.value <= high else "does not hold"


def judge_hardly(r: Interval) -> Judgement:
    """OR: one edge changes hardly anything."""
    if _unknown(r):
        return "cannot be judged"
    if r.high <= _HARDLY and r.low >= -_HARDLY:
        return "holds"
    return "holds partly" if abs(r.value) <= _HARDLY else "does not hold"


def judge_order(by_type: Mapping[GateType, Interval]) -> Judgement:
    """R of AND is above that of ADDER, and that above OR's: apart by their intervals, or only by their values."""
    one, two, three = (by_type[kind] for kind in _TYPES_BY_R)
    if any(map(_unknown, (one, two, three))):
        return "cannot be judged"
    if one.low > two.high and two.low > three.high:
        return "holds"
    return "holds partly" if one.value > two.value > three.value else "does not hold"


def _unknown(r: Interval) -> bool:
    return r.n < _FEWEST or math.isnan(r.low)


def measure_gates(lab: Lab, method: str, seed: int) -> dict[GateType, list[Removals]]:
    """All removals from the full graph for one method and seed, through the store."""
    task, size = lab.preset.tasks[0], middle_size(lab)
    gates = lab.gates(task, method, size, seed)
    asked = {
        "ns": gates.ns.fingerprint,
        "dn": gates.dn.fingerprint,
        "held_out": lab.held_out(task).fingerprint,
        "repeats": lab.preset.repeats,
        "seed": seed,
    }
    found = lab.remember("gate ablation", asked, lambda: _ablate(lab, task, gates, seed))
    return {kind: [Removals(*gate) for gate in found[kind]] for kind in GATE_TYPES}


def _ablate(lab: Lab, task: str, gates: Gates, seed: int) -> dict[str, Any]:
    found = ablate_gates(lab.model, lab.held_out(task), gates, repeats=lab.preset.repeats, seed=seed)
    plain: dict[str, Any] = {}
    for kind in GATE_TYPES:
        receivers = [gate.receiver for gate in gates if gate.type == kind and len(gate.edges) >= 2]
        values = (getattr(found[kind], which).tolist() for which in ("one", "other", "two"))
        plain[kind] = [list(row) for row in zip(receivers, *values, strict=True)]
    return plain


def _run(lab: Lab) -> Outcome:
    methods = lab.preset.methods
    found: dict[str, Found] = {}
    for method in methods:
        seeds = [measure_gates(lab, method, seed) for seed in range(lab.preset.seeds[method])]
        found[method] = {kind: [gate for seed in seeds for gate in seed[kind]] for kind in GATE_TYPES}
    return Outcome(
        tables=[_shares(lab, found), _kept(lab, found)],
        verdicts=_verdicts(found),
        paper=(ABLATION,),
        figures={
            "Change of KL by removing one and two edges of a gate from the full graph, "
            f"{TASK_NAMES[lab.preset.tasks[0]]} (figrealmodel). Boxes are quartiles over gates and repeats, whiskers "
            "5 to 95 %; linear near 0, logarithmic beyond.": lambda: _figure(found)
        },
        notes=[
            f"Gates are the plain split of Ns and Dn circuits of {middle_size(lab):,} edges each. The paper does not "
            "say of how many edges its circuits are.",
            "Near the full model KL grows with the square of a change: for a perfect ADDER of two equal edges one edge "
            "changes KL by a quarter of what both do, not by half.",
        ],
    )


def _about(lab: Lab) -> str:
    seeds = ", ".join(f"{METHOD_NAMES[m]} {lab.preset.seeds[m]}" for m in lab.preset.methods)
    return (
        f"Gates of all seeds together ({seeds}), {lab.preset.repeats} repeats each, measured on "
        f"{lab.preset.held_out} held-out pairs."
    )


def _shares(lab: Lab, found: Mapping[str, Found]) -> Table:
    rows: list[list[str | int | float | None]] = []
    for method, kinds in found.items():
        for kind in GATE_TYPES:
            gates = kinds[kind]
            receivers = len({gate.receiver for gate in gates})
            one, two = (_mean([v for gate in gates for v in getattr(gate, which)]) for which in ("one", "two"))
            r = share_of_one(gates)
            shown = f"{r.value:.2f} ({r.low:.2f} to {r.high:.2f})" if not _unknown(r) else None
            rows.append([METHOD_NAMES[method], kind, len(gates), receivers, one, two, shown])
    return Table(
        f"{TASK_NAMES[lab.preset.tasks[0]]}: change of KL by removing one and two edges of a gate",
        ("method", "type", "gates", "receivers", "one edge", "two edges", "R"),
        rows,
        f"{_about(lab)} Means; R is the sum of changes by one edge over that by two, with the 95 % interval of "
        f"a bootstrap over receivers.",
    )


def _kept(lab: Lab, found: Mapping[str, Found]) -> Table:
    """The appendix table: the effect of what is kept of two edges."""
    rows: list[list[str | float | None]] = []
    for method, kinds in found.items():
        for states, value in (
            (("kept", "kept"), lambda gate: gate.two),
            (("kept", "removed"), lambda gate: _minus(gate.two, gate.other)),
            (("removed", "kept"), lambda gate: _minus(gate.two, gate.one)),
            (("removed", "removed"), lambda gate: [0.0] * len(gate.two)),
        ):
            means = [_mean([v for gate in kinds[kind] for v in value(gate)]) for kind in GATE_TYPES]
            rows.append([METHOD_NAMES[method], *states, *means])
    return Table(
        f"{TASK_NAMES[lab.preset.tasks[0]]}: change of KL by state of two edges",
        ("method", "edge 1", "edge 2", *GATE_TYPES),
        rows,
        f"{_about(lab)} With neither edge it is 0 by definition.",
    )


def _verdicts(found: Mapping[str, Found]) -> list[Verdict]:
    verdicts = []
    for method, kinds in found.items():
        name, r = METHOD_NAMES[method], {kind: share_of_one(kinds[kind]) for kind in GATE_TYPES}
        adders = Comparison(tuple(_mean(g.two) - _mean(g.one) for g in kinds["ADDER"]))
        verdicts += [
            Verdict(
                f"{name}: of AND gates, removing one edge changes as much as removing two.",
                judge_same(r["AND"]),
                f"One edge has R = {r['AND']} of the change by two; {_SAME[0]} to {_SAME[1]} counts as the same. "
                "n: receivers.",
            ),
            Verdict(
                f"{name}: of OR gates, removing one edge changes hardly anything.",
                judge_hardly(r["OR"]),
                f"One edge has R = {r['OR']} of the change by two; up to {_HARDLY} counts as hardly anything. "
                "n: receivers.",
            ),
            Verdict(
                f"{name}: of ADDER gates, removing two edges changes clearly more than removing one.",
                judge(adders, larger=True),
                f"R = {r['ADDER']}; the mean change by two edges is {adders} (cells: gates).",
            ),
            Verdict(
                f"{name}: so the types differ, AND above ADDER above OR in the share of one edge.",
                judge_order(r),
                ", ".join(f"{kind} {r[kind].value:.2f}" for kind in _TYPES_BY_R) + ".",
            ),
        ]
    return verdicts


def _figure(found: Mapping[str, Found]) -> Figure:
    drawn, axes = panels(1, len(found), width=3.4, height=3.0)
    for at, (method, kinds) in zip(axes[0], found.items(), strict=True):
        for place, kind in enumerate(GATE_TYPES):
            for shift, which, alpha in ((-0.2, "one", 0.35), (0.2, "two", 0.9)):
                values = [v for gate in kinds[kind] for v in getattr(gate, which)]
                if not values:
                    continue
                at.boxplot(
                    [values],
                    positions=[place + shift],
                    widths=0.32,
                    whis=(5, 95),
                    showfliers=False,
                    patch_artist=True,
                    boxprops={"facecolor": GATE_COLOURS[kind], "alpha": alpha, "linewidth": 0.6},
                    medianprops={"color": "black"},
                )
            if not kinds[kind]:
                at.text(place, 0, "no gate", ha="center", va="bottom", fontsize=8)
        wide_axis(at, _smallest(kinds))
        at.axhline(0, color="black", linewidth=0.5)
        places = [place + shift for place in range(3) for shift in (-0.2, 0.2)]
        at.set_xticks(places, ["1", "2"] * 3)
        at.set_xlim(-0.6, 2.6)
        for place, kind in enumerate(GATE_TYPES):
            at.text(
                place, -0.13, kind, ha="center", va="top", transform=at.get_xaxis_transform(), color=GATE_COLOURS[kind]
            )
        at.set_title(METHOD_NAMES[method])
        at.set_xlabel("edges removed", labelpad=16)
    axes[0][0].set_ylabel("change of KL")
    return drawn


def _smallest(kinds: Found) -> float:
    """A change that is typical of the gates that change least."""
    changes = ([abs(v) for gate in gates for v in gate.two] for gates in kinds.values())
    return max(1e-9, min((statistics.median(values) for values in changes if values), default=1.0))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _minus(some: Sequence[float], others: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(some, others, strict=True)]


def _jobs(preset: Preset) -> list[Job]:
    return [Job(measure_gates, (method, seed)) for method in preset.methods for seed in range(preset.seeds[method])]


EXPERIMENT = Experiment(
    name="gate-ablation",
    title="Removing one or two edges of a gate",
    claim="removing one edge of an AND gate changes as much as removing two, one of an OR gate hardly anything, and "
    "two of an ADDER gate clearly more than one.",
    labels=("figrealmodel", "its appendix table"),
    run=_run,
    cells=lambda preset: grid(preset, tasks=preset.tasks[:1], seeds=preset.seeds),
    jobs=_jobs,
)
