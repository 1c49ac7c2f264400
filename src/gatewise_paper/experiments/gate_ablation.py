"""Gate ablation: what removing one and two edges of a gate does (figrealmodel, and the table in its appendix).

`preset.repeats` times for each gate of at least two edges, one edge and then a second are removed from the full graph,
and the change of KL is measured. The number that tells the types apart is R: the change by one edge as a share of the
change by two, both summed over gates. An AND has 1, an OR 0, and an ADDER less than 1: KL grows with the square of
a small change, so that a perfect ADDER in the full graph has 0.25. Verdicts leave out gates whose two edges together
have no effect to speak of.

Gates are those of the split, with ports as receivers and, beside it, with nodes, which is the paper's word; and tested
gates, of which whole groups of edges are removed in place of single ones: does the paper's figure appear there?
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gatewise.circuits.graph import Grouping
from gatewise.gate_types import GATE_COLOURS, GATE_TYPES, GateType
from gatewise.gates.labels import Gate, Gates
from gatewise_paper.claims import Above, Between, Claim, Ruling, least, rules
from gatewise_paper.experiment import Experiment, Measured, Measurement, Result, Table, group, of_kind
from gatewise_paper.experiments.ends import ends_to_measure, floors
from gatewise_paper.figures import Figure, filled, wide_axis
from gatewise_paper.lab import Lab
from gatewise_paper.measures.contribution import gate_contributions
from gatewise_paper.measures.gate_ablation import ablate_gates
from gatewise_paper.naming import METHOD_NAMES, seeds_note, task_name
from gatewise_paper.printed_numbers import ABLATION
from gatewise_paper.seed_statistics import clustered_ratio
from gatewise_paper.tested_gates import TESTED, TwoGroups, by_type, tested_gates, tested_to_measure

_NAME = "gate-ablation"
_SAME = (0.75, 1.25)  # where R has to lie for one edge to change as much as two
_TO_CHOOSE = 4  # pairs to choose the gates with the largest effects on
_HARDLY = 0.1  # below which one edge changes hardly anything
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
    start: int  # of the gate pairs, which choose the gates, see Preset.pool


class Removals(NamedTuple):
    """Changes of KL of one gate: by one edge, by the other, by both, for each repeat."""

    receiver: str
    one: Sequence[float]
    other: Sequence[float]
    two: Sequence[float]


Found = Mapping[GateType, Sequence[Removals]]


def measure(lab: Lab, key: AblationKey) -> dict[str, Any]:
    """All removals from the full graph, by type."""
    gates = lab.gates(key.task, key.method, key.size, key.seed, key.by)
    pairs, only = lab.held_out(key.task)[: key.pairs], None if key.gates is None else largest_gates(lab, key, gates)
    found = ablate_gates(lab.model, pairs, gates, only=only, repeats=key.repeats, seed=key.seed)
    plain: dict[str, Any] = {}
    for kind in GATE_TYPES:
        receivers = [gate.receiver for gate in found[kind].gates]
        values = (getattr(found[kind], which).tolist() for which in ("one", "other", "two"))
        plain[kind] = [list(row) for row in zip(receivers, *values, strict=True)]
    return plain


def largest_gates(lab: Lab, key: AblationKey, gates: Gates) -> list[Gate]:
    """Of each type, those of at least two edges which change most when removed whole, on pairs of their own."""
    pairs = lab.gate_pairs(key.task, key.seed)[:_TO_CHOOSE]
    found = gate_contributions(lab.model, pairs, gates, smallest=2)
    chosen: list[Gate] = []
    for kind in GATE_TYPES:
        order = found[kind].effects.abs().argsort(descending=True, stable=True)[: key.gates].tolist()
        chosen += [found[kind].gates[place] for place in sorted(order)]
    return chosen


def _measurements(lab: Lab) -> Iterator[Measurement]:
    task = lab.preset.tasks[0]
    yield ends_to_measure(task)
    yield from tested_to_measure(lab, [task])
    more: dict[str, Any] = {"seeds": lab.preset.seeds_for(_NAME), "size": lab.gate_size, "repeats": lab.preset.repeats}
    more |= {"gates": lab.preset.removed_gates, "pairs": lab.preset.for_removals(lab.preset.held_out)}
    more["start"] = lab.preset.pool
    for by in _RECEIVERS:
        yield from lab.cells(measure, AblationKey, ("ns", "dn"), tasks=[task], by=by, **more)


def _judge(lab: Lab, measured: Measured) -> Result:
    seeds: dict[str, list[Found]] = {
        f"{METHOD_NAMES[method]}{_RECEIVERS[by]}": [
            {kind: [Removals(*gate) for gate in one[kind]] for kind in GATE_TYPES} for one in some
        ]
        for (method, by), some in group(of_kind(measured, AblationKey), "method", "by").items()
    }
    ((task, tested),) = tested_gates(measured).items()
    seeds[TESTED] = [{kind: list(map(_whole, some)) for kind, some in by_type(one).items()} for one in tested]
    together = {
        method: {kind: [gate for one in some for gate in one[kind]] for kind in GATE_TYPES}
        for method, some in seeds.items()
    }
    floor = floors(lab, measured)[task]
    return Result(
        tables=[_shares(lab, together, floor), _kept(lab, together)],
        rulings=[ruling for method, some in seeds.items() for ruling in _rulings(lab, task, method, some, floor)],
        paper=(ABLATION,),
        figures={
            "Change of KL by removing one and two edges of a gate from the full graph, "
            f"{task_name(task)} (figrealmodel). Boxes are quartiles over gates and repeats, whiskers "
            "5 to 95 %; linear near 0, logarithmic beyond.": lambda: _figure(together)
        },
        notes=[
            f"Gates are the plain split of Ns and Dn circuits of {lab.gate_size(task):,} edges each, where circuits do "
            "about half of the task. The paper does not say of how many edges its circuits are.",
            "Of tested gates, which have pairs of their own, an edge is a whole group of edges (a port, or edges with "
            "equal partners), and the type is how the groups act. They stand in the place of a method, and "
            f"are measured on all {lab.preset.held_out} held-out pairs.",
            *_chosen_note(lab),
            "Near the full model KL grows with the square of a change: for a perfect ADDER of two equal edges one edge "
            "changes KL by a quarter of what both do, not by half.",
            f"Verdicts leave out gates whose two edges change less than {lab.preset.floor:.0%} of the KL between the "
            f"runs, {floor:.3g} nats.",
        ],
    )


def _chosen_note(lab: Lab) -> list[str]:
    if lab.preset.removed_gates is None:
        return []
    return [
        f"Of each type and seed the {lab.preset.removed_gates} gates are taken that change most when they are removed "
        f"whole, on {_TO_CHOOSE} pairs of their own: verdicts are about gates with an effect."
    ]


def _whole(gate: TwoGroups) -> Removals:
    """Groups in the place of edges, each of them once the first."""
    return Removals(gate.receiver, [gate.one, gate.other], [gate.other, gate.one], [gate.both] * 2)


def _about(lab: Lab) -> str:
    seeds = seeds_note(lab.preset.seeds_for(_NAME), lab.preset.methods)
    most = "" if lab.preset.removed_gates is None else f"; at most {lab.preset.removed_gates} of each type and seed"
    return (
        f"Gates of all seeds together ({seeds}{most}), {lab.preset.repeats} repeats each, measured on "
        f"{lab.preset.for_removals(lab.preset.held_out)} held-out pairs."
    )


def _shares(lab: Lab, found: Mapping[str, Found], floor: float) -> Table:
    rows: list[list[str | int | float | None]] = []
    for method, kinds in found.items():
        for kind, gates in kinds.items():
            r = clustered_ratio((gate.receiver, sum(gate.one), sum(gate.two)) for gate in gates)
            one, two = (_mean([v for gate in gates for v in getattr(gate, which)]) for which in ("one", "two"))
            strong = sum(has_effect(gate, floor) for gate in gates)
            shown = f"{r.value:.2f} ({r.low:.2f} to {r.high:.2f})" if r.n > 1 else None
            rows.append([method, kind, len(gates), strong, r.n, one, two, shown])
    return Table(
        f"{task_name(lab.preset.tasks[0])}: change of KL by removing one and two edges of a gate",
        ("method", "type", "gates", "with an effect", "receivers", "one edge", "two edges", "R"),
        rows,
        f"{_about(lab)} Means; R is the sum of changes by one edge over that by two, with the 95 % interval of "
        f"a bootstrap over receivers.",
    )


def _kept(lab: Lab, found: Mapping[str, Found]) -> Table:
    """The appendix table: the effect of what is kept of two edges."""
    states: tuple[tuple[str, str, Callable[[Removals], Sequence[float]]], ...] = (
        ("kept", "kept", lambda gate: gate.two),
        ("kept", "removed", lambda gate: _minus(gate.two, gate.other)),
        ("removed", "kept", lambda gate: _minus(gate.two, gate.one)),
        ("removed", "removed", lambda gate: [0.0] * len(gate.two)),
    )
    return Table(
        f"{task_name(lab.preset.tasks[0])}: change of KL by state of two edges",
        ("method", "edge 1", "edge 2", *GATE_TYPES),
        [
            [
                method,
                one,
                other,
                *(_mean([v for g in kinds[kind] for v in value(g)]) for kind in GATE_TYPES),
            ]
            for method, kinds in found.items()
            for one, other, value in states
        ],
        f"{_about(lab)} With neither edge it is 0 by definition.",
    )


def has_effect(gate: Removals, floor: float) -> bool:
    """Whether its two edges together change enough to be spoken of."""
    return abs(_mean(gate.two)) >= floor


def share_of_one(gates: Sequence[Removals], floor: float) -> float:
    """R of the gates that have an effect; NaN if none has."""
    strong = [gate for gate in gates if has_effect(gate, floor)]
    two = sum(sum(gate.two) for gate in strong)
    return sum(sum(gate.one) for gate in strong) / two if two else math.nan


def _rulings(lab: Lab, task: str, gates: str, seeds: Sequence[Found], floor: float) -> list[Ruling]:
    r = {kind: [share_of_one(seed[kind], floor) for seed in seeds] for kind in GATE_TYPES}
    ordered = [
        least(one - between, between - other) for one, between, other in zip(r["AND"], r["ADDER"], r["OR"], strict=True)
    ]
    at, removed = task_name(task), "group" if gates == TESTED else "edge"
    what = f"R, the change by one {removed} as a share of that by two"
    return rules(
        gates,
        Above(lab.preset.smallest),
        Claim(
            f"The types differ, AND above ADDER above OR in the share of one {removed}.",
            "the smaller step from AND to ADDER to OR in R",
            {at: ordered},
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


def _figure(found: Mapping[str, Found]) -> Figure:
    def fill(at: Any, _: str, method: str) -> None:
        kinds = found[method]
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
            below = {"va": "top", "transform": at.get_xaxis_transform()}
            at.text(place, -0.13, kind, ha="center", color=GATE_COLOURS[kind], **below)
        wide_axis(at, _smallest(kinds))
        at.axhline(0, color="black", linewidth=0.5)
        places = [place + shift for place in range(3) for shift in (-0.2, 0.2)]
        at.set_xticks(places, ["1", "2"] * 3)
        at.set_xlim(-0.6, 2.6)
        at.set_title(method)
        at.set_xlabel("groups removed" if method == TESTED else "edges removed", labelpad=16)

    shown = [name for name in found if _RECEIVERS["node"] not in name]
    return filled([""], shown, fill, "change of KL", width=3.4, height=3.0)


def _smallest(kinds: Found) -> float:
    """A change that is typical of the gates that change least."""
    changes = ([abs(v) for gate in gates for v in gate.two] for gates in kinds.values())
    return max(1e-9, min((statistics.median(values) for values in changes if any(values)), default=1.0))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _minus(some: Sequence[float], others: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(some, others, strict=True)]


EXPERIMENT = Experiment(
    name=_NAME,
    title="Removing one or two edges of a gate",
    claim="removing one edge of an AND gate changes as much as removing two, one of an OR gate hardly anything, and "
    "two of an ADDER gate clearly more than one.",
    labels=("figrealmodel", "its appendix table"),
    measurements=_measurements,
    judge=_judge,
)
