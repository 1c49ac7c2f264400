"""Gate ablation: what removing one and two edges of a gate does (figrealmodel, and the table in its appendix).

`Ablating.repeats` times for each gate of at least two edges, one edge and then a second are removed from the full
graph, and the change of KL is measured. The number that tells the types apart is R: the change by one edge as a share
of the change by two, both summed over gates. An AND has 1, an OR 0, and an ADDER less than 1: KL grows with the square
of a small change, so that a perfect ADDER in the full graph has 0.25. Verdicts leave out gates whose two edges together
have no effect to speak of.

Gates are set differences, with ports as receivers and, beside it, with nodes, which is the paper's word; and tested
gates, of which whole groups of edges are removed in place of single ones: does the paper's figure appear there?
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gatewise.circuits.graph import Grouping
from gatewise.gate_types import GATE_COLOURS, GATE_TYPES, GateType
from gatewise.gates.labels import Gate, Gates
from gatewise_paper.claims import EFFECT_FLOOR, Between, Claim, Ruling, least, rules
from gatewise_paper.experiment import Experiment, Measurement, Outcome, Search
from gatewise_paper.experiments.baselines import baseline_measurement, effect_floors
from gatewise_paper.figures import Figure, filled, wide_axis
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured, group, of_kind
from gatewise_paper.measures.gate_ablation import ablate_gates, gate_effects
from gatewise_paper.naming import METHOD_NAMES, seeds_note, task_name
from gatewise_paper.seed_statistics import clustered_ratio
from gatewise_paper.tables import Cell, Table, printed
from gatewise_paper.tested_gates import TESTED, TwoGroups, by_type, read_tested, tested_measurements

_NAME = "gate-ablation"
_SAME = (0.75, 1.25)  # where R has to lie for one edge to change as much as two
_HARDLY = 0.1  # below which one edge changes hardly anything
_TO_CHOOSE = 4  # pairs to choose the gates with the largest effects on
_RECEIVERS: dict[Grouping, str] = {"port": "", "node": ", by node"}


class AblationKey(NamedTuple):
    task: str
    method: str
    seed: int
    size: int
    repeats: int
    by: Grouping
    gates: int | None  # of each type; None: all
    pairs: int
    start: int  # of the gate pairs, which choose the gates, see Preset.search_pairs


class Removals(NamedTuple):
    """Changes of KL of one gate: by one edge, by the other, by both, for each repeat."""

    receiver: str
    first: Sequence[float]
    second: Sequence[float]
    both: Sequence[float]


TypeRemovals = Mapping[GateType, Sequence[Removals]]


def measure(lab: Lab, key: AblationKey) -> dict[str, Any]:
    """All removals from the full graph, by type."""
    gates = lab.gates(key.task, key.method, key.size, key.seed, key.by)
    chosen = gates if key.gates is None else largest_gates(lab, key, gates)
    pairs = lab.held_out(key.task)[: key.pairs]
    removals: dict[str, Any] = {}
    for kind, ablation in ablate_gates(lab.model, pairs, chosen, repeats=key.repeats, seed=key.seed).items():
        changes = (values.tolist() for values in (ablation.first, ablation.second, ablation.both))
        receivers = [gate.receiver for gate in ablation.gates]
        removals[kind] = [list(row) for row in zip(receivers, *changes, strict=True)]
    return removals


def largest_gates(lab: Lab, key: AblationKey, gates: Gates) -> list[Gate]:
    """Of each type, those of at least two edges which change most when removed whole, on pairs of their own."""
    wide = [gate for gate in gates if len(gate.edges) >= 2]
    changes = gate_effects(lab.model, lab.gate_pairs(key.task, key.seed)[:_TO_CHOOSE], wide)
    strength = {gate: abs(change) for gate, change in zip(wide, changes, strict=True)}
    chosen: list[Gate] = []
    for kind in GATE_TYPES:
        strongest = sorted((gate for gate in wide if gate.type == kind), key=lambda gate: -strength[gate])[: key.gates]
        chosen += [gate for gate in wide if gate in strongest]
    return chosen


def _measurements(lab: Lab) -> Iterator[Measurement]:
    """On the first task: what is measured takes long."""
    preset, task = lab.preset, lab.preset.tasks[0]
    yield baseline_measurement(task)
    yield from tested_measurements(lab, [task])
    size, (repeats, gates, _) = lab.sizes.of_gates(task), preset.ablating
    pairs = preset.ablating.pairs_of(preset.held_out)
    for by in _RECEIVERS:
        for _, method, seed in lab.grid(tasks=[task], seeds=preset.seeds_for(_NAME)):
            key = AblationKey(task, method, seed, size, repeats, by, gates, pairs, preset.search_pairs)
            yield Measurement(measure, key, (Search(task, method, seed, ("ns", "dn")),))


def _judge(lab: Lab, measured: Measured) -> Outcome:
    task, preset = lab.preset.tasks[0], lab.preset
    seeds: dict[str, list[TypeRemovals]] = {}  # by what gates are of: a method, or tested
    for (method, by), of_seeds in group(of_kind(measured, AblationKey), "method", "by").items():
        seeds[f"{METHOD_NAMES[method]}{_RECEIVERS[by]}"] = list(map(_of_labels, of_seeds))
    seeds[TESTED] = list(map(_of_tests, read_tested(measured)[task]))
    together: dict[str, TypeRemovals] = {}
    for name, of_seeds in seeds.items():
        together[name] = {kind: [gate for seed in of_seeds for gate in seed[kind]] for kind in GATE_TYPES}
    floor, most = effect_floors(measured)[task], preset.ablating.gates
    chosen = (
        f"Of each type and seed the {most} gates are taken that change most when removed whole, on {_TO_CHOOSE} pairs."
    )
    return Outcome(
        tables=[_shares(lab, together, floor), _kept_effects(lab, together)],
        rulings=[ruling for name, of_seeds in seeds.items() for ruling in _rulings(task, name, of_seeds, floor)],
        paper=(printed("figrealmodel"),),
        figures={
            "Change of KL by removing one and two edges of a gate from the full graph, "
            f"{task_name(task)} (figrealmodel). Boxes are quartiles over gates and repeats, whiskers "
            "5 to 95 %; linear near 0, logarithmic beyond.": lambda: _figure(together)
        },
        notes=[
            f"Gates are set differences of Ns and Dn circuits of {lab.sizes.of_gates(task):,} edges each, where "
            "circuits do about half of the task. The paper does not say of how many edges its circuits are.",
            "Of tested gates, which have pairs of their own, an edge is a whole group of edges (a port, or edges with "
            "equal partners), and the type is how the groups act. They stand in the place of a method, and "
            f"are measured on all {preset.held_out} held-out pairs.",
            *([] if most is None else [chosen]),
            "KL grows with the square of a small change: one edge of a perfect ADDER makes a quarter of what both do.",
            f"Verdicts leave out gates whose two edges change less than {EFFECT_FLOOR:.0%} of the KL between the "
            f"runs, {floor:.3g} nats.",
        ],
    )


def _of_labels(seed: Mapping[GateType, Sequence[Any]]) -> TypeRemovals:
    return {kind: [Removals(*gate) for gate in seed[kind]] for kind in GATE_TYPES}


def _of_tests(seed: Sequence[TwoGroups]) -> TypeRemovals:
    return {kind: list(map(_whole, gates)) for kind, gates in by_type(seed).items()}


def _whole(gate: TwoGroups) -> Removals:
    """Groups in the place of edges, each of them once the first."""
    return Removals(gate.receiver, [gate.first, gate.second], [gate.second, gate.first], [gate.both] * 2)


def _about(lab: Lab) -> str:
    seeds, (repeats, gates, _) = seeds_note(lab.preset.seeds_for(_NAME)), lab.preset.ablating
    most = "" if gates is None else f"; at most {gates} of each type and seed"
    return (
        f"Gates of all seeds together ({seeds}{most}), {repeats} repeats each, measured on "
        f"{lab.preset.ablating.pairs_of(lab.preset.held_out)} held-out pairs."
    )


def _shares(lab: Lab, together: Mapping[str, TypeRemovals], floor: float) -> Table:
    rows: list[list[Cell]] = []
    for name, removals in together.items():
        for kind, gates in removals.items():
            r = clustered_ratio((gate.receiver, sum(gate.first), sum(gate.both)) for gate in gates)
            one_removed, two_removed = (_values(gates, which) for which in ("first", "both"))
            shown = f"{r.value:.2f} ({r.low:.2f} to {r.high:.2f})" if r.n > 1 else None
            strong = sum(has_effect(gate, floor) for gate in gates)
            rows.append([name, kind, len(gates), strong, r.n, _mean(one_removed), _mean(two_removed), shown])
    return Table(
        f"{task_name(lab.preset.tasks[0])}: change of KL by removing one and two edges of a gate",
        ("method", "type", "gates", "with an effect", "receivers", "one edge", "two edges", "R"),
        rows,
        f"{_about(lab)} Means; R is the sum of changes by one edge over that by two, with the 95 % interval of "
        f"a bootstrap over receivers.",
    )


def _kept_effects(lab: Lab, together: Mapping[str, TypeRemovals]) -> Table:
    """The appendix table: the effect of what is kept of two edges, which is what removing it too changes."""
    states = (("kept", "kept", ""), ("kept", "removed", "second"), ("removed", "kept", "first"))
    rows: list[list[Cell]] = []
    for name, removals in together.items():
        for first, second, removed in states:
            means = []
            for kind in GATE_TYPES:
                both = _values(removals[kind], "both")
                alone = _values(removals[kind], removed) if removed else [0.0] * len(both)
                means.append(_mean([b - a for a, b in zip(alone, both, strict=True)]))
            rows.append([name, first, second, *means])
        rows.append([name, "removed", "removed", *(0.0 if removals[kind] else math.nan for kind in GATE_TYPES)])
    return Table(
        f"{task_name(lab.preset.tasks[0])}: change of KL by state of two edges",
        ("method", "edge 1", "edge 2", *GATE_TYPES),
        rows,
        f"{_about(lab)} With neither edge it is 0 by definition.",
    )


def _values(gates: Sequence[Removals], which: str) -> list[float]:
    """Changes of all gates and repeats, by one of the fields of `Removals`."""
    return [change for gate in gates for change in getattr(gate, which)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def has_effect(gate: Removals, floor: float) -> bool:
    """Whether its two edges together change enough to be spoken of."""
    return abs(_mean(gate.both)) >= floor


def share_of_one(gates: Sequence[Removals], floor: float) -> float:
    """R of the gates that have an effect; NaN if none has."""
    strong = [gate for gate in gates if has_effect(gate, floor)]
    both = sum(sum(gate.both) for gate in strong)
    return sum(sum(gate.first) for gate in strong) / both if both else math.nan


def _rulings(task: str, gates: str, seeds: Sequence[TypeRemovals], floor: float) -> list[Ruling]:
    r = {kind: [share_of_one(seed[kind], floor) for seed in seeds] for kind in GATE_TYPES}
    steps = [least(a - b, b - c) for a, b, c in zip(r["AND"], r["ADDER"], r["OR"], strict=True)]
    at, removed = task_name(task), "group" if gates == TESTED else "edge"
    what = f"R, the change by one {removed} as a share of that by two"
    return rules(
        gates,
        Claim(
            f"The types differ, AND above ADDER above OR in the share of one {removed}.",
            "the smaller step from AND to ADDER to OR in R",
            {at: steps},
            paper="AND 0.92 to 0.96, ADDER 0.45 to 0.51, OR 0.04",
        ),
        Claim(
            f"Of AND gates, removing one {removed} changes as much as removing two.",
            what,
            {at: r["AND"]},
            Between(*_SAME),
            paper="0.92 to 0.96 (0.46 to 0.48 of 0.50 nats)",
        ),
        Claim(
            f"Of OR gates, removing one {removed} changes hardly anything.",
            what,
            {at: r["OR"]},
            Between(-_HARDLY, _HARDLY),
            paper="0.04 (0.01 of 0.28 nats)",
        ),
        Claim(
            f"Of ADDER gates, removing two {removed}s changes clearly more than removing one.",
            f"1 - R, the share of the change by two that one {removed} does not make",
            {at: [1 - value for value in r["ADDER"]]},
            paper="0.49 to 0.55 (0.32 to 0.36 of 0.65 nats)",
        ),
        primary=_RECEIVERS["node"] not in gates,
    )


def _figure(together: Mapping[str, TypeRemovals]) -> Figure:
    def fill(axes: Any, _: str, name: str) -> None:
        typical = [1.0]  # a change that is typical of the gates of each type
        for tick, (kind, gates) in enumerate(together[name].items()):
            for shift, which, alpha in ((-0.2, "first", 0.35), (0.2, "both", 0.9)):
                if gates:
                    axes.boxplot(
                        [_values(gates, which)],
                        positions=[tick + shift],
                        widths=0.32,
                        whis=(5, 95),
                        showfliers=False,
                        patch_artist=True,
                        boxprops={"facecolor": GATE_COLOURS[kind], "alpha": alpha, "linewidth": 0.6},
                        medianprops={"color": "black"},
                    )
            changes = list(map(abs, _values(gates, "both")))
            typical += [statistics.median(changes)] if any(changes) else []
            if not gates:
                axes.text(tick, 0, "no gate", ha="center", va="bottom", fontsize=8)
            below = {"va": "top", "transform": axes.get_xaxis_transform()}
            axes.text(tick, -0.13, kind, ha="center", color=GATE_COLOURS[kind], **below)
        wide_axis(axes, max(1e-9, min(typical)))
        axes.axhline(0, color="black", linewidth=0.5)
        axes.set_xticks([tick + shift for tick in range(3) for shift in (-0.2, 0.2)], ["1", "2"] * 3)
        axes.set_xlim(-0.6, 2.6)
        axes.set_title(name)
        axes.set_xlabel("groups removed" if name == TESTED else "edges removed", labelpad=16)

    names = [name for name in together if _RECEIVERS["node"] not in name]
    return filled([""], names, fill, "change of KL", width=3.4, height=3.0)


EXPERIMENT = Experiment(
    name=_NAME,
    title="Removing one or two edges of a gate",
    claim="removing one edge of an AND gate changes as much as removing two, one of an OR gate hardly anything, and "
    "two of an ADDER gate clearly more than one.",
    labels=("figrealmodel", "its appendix table"),
    measurements=_measurements,
    judge=_judge,
)
