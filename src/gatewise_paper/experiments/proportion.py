"""Proportion: how many edges of the Ns+Dn circuit are AND, OR and ADDER (figproportion), and how many are neither.

An edge of the Ns+Dn circuit is AND if only the Ns circuit of the same size has it, OR if only the Dn circuit, ADDER if
both, and outside if neither has. The union of the Ns and the Dn circuit says nothing about AND against OR: if both
have n edges, as many are in the one alone as in the other alone. Beside it: of which types tested gates are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gatewise.circuits.circuit import Circuit
from gatewise.gate_types import GATE_COLOURS, GATE_TYPES
from gatewise.gates.labels import Gates
from gatewise_paper.claims import Above, Between, Claim, Ruling, rule, rules
from gatewise_paper.experiment import Experiment, Measured, Measurement, Result, SeedKey, Table, group, of_kind
from gatewise_paper.figures import Figure, by_task_and_method, legend_below
from gatewise_paper.lab import Lab
from gatewise_paper.naming import DIRECTIONS, METHOD_NAMES, mean_and_deviation, seeds_note, task_name
from gatewise_paper.tested_gates import MIXED, TESTED, TwoGroups, by_type, tested_gates, tested_to_measure

KINDS = (*GATE_TYPES, "outside")
_COLOURS = {**GATE_COLOURS, "outside": "#CCCCCC"}
_EQUAL = 0.1  # how far from a third of the labelled edges each type may be to be nearly equal
Shares = Mapping[str, float]


def ring_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Four of the paper's six sizes (of its 100 to 5,000: 100, 500, 1,000 and 5,000), or all if there are fewer."""
    six = sorted(sizes)[-6:]
    if len(six) <= 4:
        return tuple(six)
    return tuple(six[round(i * (len(six) - 1) / 3)] for i in range(4))


def shares(joint: Circuit, gates: Gates) -> dict[str, float]:
    """What the Ns+Dn circuit is made of."""
    total = max(1, len(joint))
    found: dict[str, float] = {kind: len(joint & gates.by_type[kind]) / total for kind in GATE_TYPES}
    return {**found, "outside": len(joint - gates.sound) / total}


def measure(lab: Lab, key: SeedKey) -> list[dict[str, float]]:
    """Shares for each size."""
    joint = lab.circuits(key.task, key.method, "ns+dn", key.seed)
    sizes = lab.sizes(key.method, key.task)
    return [shares(joint[size], lab.gates(key.task, key.method, size, key.seed)) for size in sizes]


def shares_of_types(gates: Sequence[TwoGroups]) -> dict[str, float]:
    """Of which types gates are; those of mixed ways of acting stand outside."""
    total = max(1, len(gates))
    found: dict[str, float] = {kind: len(some) / total for kind, some in by_type(gates).items()}
    return {**found, "outside": sum(gate.type == MIXED for gate in gates) / total}


def _measurements(lab: Lab) -> Iterator[Measurement]:
    yield from tested_to_measure(lab, lab.preset.tested_tasks)
    yield from lab.cells(measure, SeedKey, DIRECTIONS)


def _judge(lab: Lab, measured: Measured) -> Result:
    seeds: dict[tuple[str, str], list[list[Shares]]] = group(of_kind(measured, SeedKey), "task", "method")
    tested = tested_gates(measured)
    note = (
        "Shares of the Ns+Dn circuit's edges, mean ± deviation over seeds "
        f"({seeds_note(lab.preset.seeds, lab.preset.methods)})."
    )
    rows: dict[str, list[list[str | int]]] = {}
    for (task, method), found in seeds.items():
        for size, some in zip(lab.sizes(method, task), zip(*found, strict=True), strict=True):
            cells = [mean_and_deviation([one[kind] for one in some]) for kind in KINDS]
            rows.setdefault(task, []).append([METHOD_NAMES[method], size, *cells])
    columns = ("method", "edges", *GATE_TYPES, "in neither circuit")
    return Result(
        [
            *(
                Table(f"{task_name(task)}: what the Ns+Dn circuit is made of", columns, rows[task], note)
                for task in rows
            ),
            *([_tested_table(lab, tested)] if tested else []),
        ],
        [*_rulings(lab, seeds), *([_tested_ruling(tested)] if tested else [])],
        figures={
            "Proportion of AND, OR and ADDER edges in the Ns+Dn circuit; grey: in neither the Ns nor the Dn circuit. "
            "From the inner to the outer ring, the sizes under each title.": lambda: _figure(lab, seeds)
        },
        notes=[
            "The types are read off Ns and Dn circuits of equal size, of which each alone has as many edges as the "
            "other alone: in their union there are exactly as many AND as OR edges, whatever the model. Only the Ns+Dn "
            "circuit, searched by itself, can have fewer OR edges; so that is what is shown here.",
        ],
    )


def _tested_table(lab: Lab, tested: Mapping[str, Sequence[Sequence[TwoGroups]]]) -> Table:
    rows = []
    for task, seeds in tested.items():
        some = [shares_of_types(gates) for gates in seeds if gates]
        cells = [mean_and_deviation([one[kind] for one in some]) for kind in KINDS]
        rows.append([task_name(task), mean_and_deviation([len(gates) for gates in seeds]), *cells])
    note = f"Mean ± deviation over {len(next(iter(tested.values())))} seeds, {lab.preset.gate_pairs} pairs each."
    return Table("Types of tested gates", ("task", "gates that stand", *GATE_TYPES, MIXED), rows, note)


def _tested_ruling(tested: Mapping[str, Sequence[Sequence[TwoGroups]]]) -> Ruling:
    claim = Claim(
        "The three types are about equally frequent.",
        "distance from equal thirds of the gates whose groups act alike",
        {
            task_name(task): [unequal(shares_of_types(gates)) if gates else math.nan for gates in seeds]
            for task, seeds in tested.items()
        },
        paper="a figure",
    )
    return rule(claim, Between(0, _EQUAL), method=TESTED, primary=True)


def unequal(some: Shares) -> float:
    """How far the type that is farthest from it is from a third of the labelled edges."""
    labelled = sum(some[kind] for kind in GATE_TYPES)
    return max(abs(some[kind] / labelled - 1 / 3) for kind in GATE_TYPES) if labelled else math.nan


def fewest_or(some: Shares) -> float:
    """By how much there are fewer OR edges than of any other type."""
    return min(some["AND"], some["ADDER"]) - some["OR"]


def _rulings(lab: Lab, seeds: Mapping[tuple[str, str], Sequence[Sequence[Shares]]]) -> list[Ruling]:
    smallest = lab.preset.smallest

    def by_seed(method: str, value: Callable[[Shares], float]) -> dict[str, list[float]]:
        return {
            task_name(task): [statistics.fmean(map(value, seed)) for seed in some]
            for (task, of), some in seeds.items()
            if of == method
        }

    rulings: list[Ruling] = []
    for method in lab.preset.methods:
        name = METHOD_NAMES[method]
        if method == "acdc":
            claim, what = "With ACDC the three types have nearly equal numbers of edges.", "distance from equal thirds"
            first = Claim(claim, what, by_seed(method, unequal), Between(0, _EQUAL), "a figure")
        else:
            claim, what = f"With {name} OR edges are the fewest by far.", "the smaller share of AND and ADDER less OR's"
            first = Claim(claim, what, by_seed(method, fewest_or), Above(smallest), "a figure")
        outside = Claim(
            "The Ns+Dn circuit consists of AND, OR and ADDER edges (implied: every edge of it is found by Ns or Dn).",
            "share of its edges that are in neither circuit of the same size",
            by_seed(method, lambda some: some["outside"]),
        )
        rulings += rules(name, Between(0, smallest), first, outside)
    return rulings


def _figure(lab: Lab, seeds: Mapping[tuple[str, str], Sequence[Sequence[Shares]]]) -> Figure:
    from matplotlib.patches import Patch

    def fill(at: Any, task: str, method: str) -> None:
        sizes = ring_sizes(lab.sizes(method, task))
        for place, size in enumerate(sizes):
            some = [seed[lab.sizes(method, task).index(size)] for seed in seeds[task, method]]
            at.pie(
                [statistics.fmean(one[kind] for one in some) for kind in KINDS],
                radius=0.4 + 0.6 * (place + 1) / len(sizes),
                colors=[_COLOURS[kind] for kind in KINDS],
                startangle=90,
                counterclock=False,
                wedgeprops={"width": 0.6 / len(sizes) - 0.02, "edgecolor": "white", "linewidth": 0.5},
            )
        at.set_title(f"{', '.join(f'{size:,}' for size in sizes)} edges")

    drawn = by_task_and_method(lab.preset.tasks, lab.preset.methods, fill, width=2.6, height=2.7)
    legend_below(drawn, [Patch(color=_COLOURS[kind]) for kind in KINDS], KINDS)
    return drawn


EXPERIMENT = Experiment(
    name="proportion",
    title="Proportion of the gate types",
    claim="with ACDC the three types have nearly the same number of edges; with EAP and Edge Pruning there are far "
    "fewer OR edges.",
    labels=("figproportion",),
    measurements=_measurements,
    judge=_judge,
)
