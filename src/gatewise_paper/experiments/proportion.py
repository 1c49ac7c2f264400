"""Proportion: how many edges of the Ns+Dn circuit are AND, OR and ADDER (figproportion), and how many are neither.

An edge of the Ns+Dn circuit is AND if only the Ns circuit of the same size has it, OR if only the Dn circuit, ADDER if
both, and outside if neither has. The union of the Ns and the Dn circuit says nothing about AND against OR: if both
have n edges, as many are in the one alone as in the other alone. Beside it: of which types tested gates are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gatewise.circuits.circuit import Circuit
from gatewise.gate_types import GATE_COLOURS, GATE_TYPES
from gatewise.gates.labels import Gates
from gatewise_paper.claims import SMALLEST_DIFFERENCE, Above, Between, Claim, Ruling, rule, rules
from gatewise_paper.experiment import Experiment, Measurement, Outcome, Search, SeedKey
from gatewise_paper.figures import Figure, by_task_and_method, legend_below
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured, Seeds, group, of_kind, values_by_task
from gatewise_paper.naming import DIRECTIONS, METHOD_NAMES, mean_and_deviation, seeds_note, task_name
from gatewise_paper.tables import Cell, Table
from gatewise_paper.tested_gates import MIXED, TESTED, TestedSeeds, TwoGroups, by_type, read_tested, tested_measurements

KINDS = (*GATE_TYPES, "outside")
_COLOURS = {**GATE_COLOURS, "outside": "#CCCCCC"}
_EQUAL = 0.1  # how far from a third of the labelled edges each type may be to be nearly equal
Shares = Mapping[str, float]  # by KINDS


def shares(joint: Circuit, gates: Gates) -> dict[str, float]:
    """What the Ns+Dn circuit is made of."""
    total = max(1, len(joint))
    labelled: dict[str, float] = {kind: len(joint & gates.by_type[kind]) / total for kind in GATE_TYPES}
    return {**labelled, "outside": len(joint - gates.sound) / total}


def measure(lab: Lab, key: SeedKey) -> list[dict[str, float]]:
    """Shares for each size."""
    joint = lab.circuits(key.task, key.method, "ns+dn", key.seed)
    return [shares(circuit, lab.gates(key.task, key.method, size, key.seed)) for size, circuit in joint.items()]


def shares_of_types(gates: Sequence[TwoGroups]) -> dict[str, float]:
    """Of which types gates are; those of mixed ways of acting stand outside."""
    total = max(1, len(gates))
    typed: dict[str, float] = {kind: len(of_kind) / total for kind, of_kind in by_type(gates).items()}
    return {**typed, "outside": sum(gate.type == MIXED for gate in gates) / total}


def _measurements(lab: Lab) -> Iterator[Measurement]:
    yield from tested_measurements(lab, lab.preset.tested_tasks)
    for task, method, seed in lab.grid():
        yield Measurement(measure, SeedKey(task, method, seed), (Search(task, method, seed, DIRECTIONS),))


def _judge(lab: Lab, measured: Measured) -> Outcome:
    seeds: Seeds[Sequence[Shares]] = group(of_kind(measured, SeedKey), "task", "method")
    tested = read_tested(measured)
    tables = [_table(lab, task, seeds) for task in lab.preset.tasks]
    rulings = [ruling for method in lab.preset.methods for ruling in _rulings(method, seeds)]
    if tested:
        tables.append(_tested_table(lab, tested))
        rulings.append(_tested_ruling(tested))
    return Outcome(
        tables,
        rulings,
        figures={
            "Proportion of AND, OR and ADDER edges in the Ns+Dn circuit; grey: in neither the Ns nor the Dn circuit. "
            "From the inner to the outer ring, the sizes under each title.": lambda: _figure(lab, seeds)
        },
        notes=[
            "The types are read off Ns and Dn circuits of equal size, of which each alone has as many edges as the "
            "other alone: in their union there are exactly as many AND as OR edges, whatever the model. Only the Ns+Dn "
            "circuit, searched by itself, can have fewer OR edges; so that is what is shown here."
        ],
    )


def _table(lab: Lab, task: str, seeds: Seeds[Sequence[Shares]]) -> Table:
    rows: list[list[Cell]] = []
    for method in lab.preset.methods:
        for size, of_size in zip(lab.sizes.of(method, task), zip(*seeds[task, method], strict=True), strict=True):
            rows.append([METHOD_NAMES[method], size, *_means(of_size)])
    seeds_of = seeds_note(lab.preset.seeds_for())
    note = f"Shares of the Ns+Dn circuit's edges, mean ± standard deviation over seeds ({seeds_of})."
    columns = ("method", "edges", *GATE_TYPES, "in neither circuit")
    return Table(f"{task_name(task)}: what the Ns+Dn circuit is made of", columns, rows, note)


def _means(seeds: Sequence[Shares]) -> list[str]:
    return [mean_and_deviation([seed[kind] for seed in seeds]) for kind in KINDS]


def _tested_table(lab: Lab, tested: Mapping[str, TestedSeeds]) -> Table:
    rows = []
    for task, seeds in tested.items():
        of_types = [shares_of_types(gates) for gates in seeds if gates]
        rows.append([task_name(task), mean_and_deviation([len(gates) for gates in seeds]), *_means(of_types)])
    testing = lab.preset.testing
    note = f"Mean ± standard deviation over {testing.seeds} seeds, {testing.pairs} pairs each."
    return Table("Types of tested gates", ("task", "significant gates", *GATE_TYPES, MIXED), rows, note)


def _tested_ruling(tested: Mapping[str, TestedSeeds]) -> Ruling:
    claim = Claim(
        "The three types are about equally frequent.",
        "distance from equal thirds of the gates whose groups act alike",
        {
            task_name(task): [unequal(shares_of_types(gates)) if gates else math.nan for gates in seeds]
            for task, seeds in tested.items()
        },
        Between(0, _EQUAL),
        paper="a figure",
    )
    return rule(claim, method=TESTED, primary=True)


def unequal(by_kind: Shares) -> float:
    """How far the type that is farthest from it is from a third of the labelled edges."""
    labelled = sum(by_kind[kind] for kind in GATE_TYPES)
    return max(abs(by_kind[kind] / labelled - 1 / 3) for kind in GATE_TYPES) if labelled else math.nan


def fewest_or(by_kind: Shares) -> float:
    """By how much there are fewer OR edges than of any other type."""
    return min(by_kind["AND"], by_kind["ADDER"]) - by_kind["OR"]


def _rulings(method: str, seeds: Seeds[Sequence[Shares]]) -> list[Ruling]:
    """A seed's value is a mean over sizes."""
    name = METHOD_NAMES[method]
    distances = values_by_task(seeds, method, lambda _, sizes: statistics.fmean(map(unequal, sizes)))
    fewer = values_by_task(seeds, method, lambda _, sizes: statistics.fmean(map(fewest_or, sizes)))
    outside = values_by_task(seeds, method, lambda _, sizes: statistics.fmean(size["outside"] for size in sizes))
    if method == "acdc":
        text, what = "With ACDC the three types have nearly equal numbers of edges.", "distance from equal thirds"
        first = Claim(text, what, distances, Between(0, _EQUAL), "a figure")
    else:
        text, what = f"With {name} OR edges are the fewest by far.", "the smaller share of AND and ADDER less OR's"
        first = Claim(text, what, fewer, Above(), "a figure")
    implied = Claim(
        "The Ns+Dn circuit consists of AND, OR and ADDER edges (implied: every edge of it is found by Ns or Dn).",
        "share of its edges that are in neither circuit of the same size",
        outside,
        Between(0, SMALLEST_DIFFERENCE),
    )
    return rules(name, first, implied)


def ring_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Four of the paper's six sizes (of its 100 to 5,000: 100, 500, 1,000 and 5,000), or all if there are fewer."""
    six = sorted(sizes)[-6:]
    if len(six) <= 4:
        return tuple(six)
    return tuple(six[round(i * (len(six) - 1) / 3)] for i in range(4))


def _figure(lab: Lab, seeds: Seeds[Sequence[Shares]]) -> Figure:
    from matplotlib.patches import Patch

    def fill(axes: Any, task: str, method: str) -> None:
        sizes = lab.sizes.of(method, task)
        rings = ring_sizes(sizes)
        for ring, size in enumerate(rings, start=1):
            of_size = [seed[sizes.index(size)] for seed in seeds[task, method]]
            axes.pie(
                [statistics.fmean(seed[kind] for seed in of_size) for kind in KINDS],
                radius=0.4 + 0.6 * ring / len(rings),
                colors=[_COLOURS[kind] for kind in KINDS],
                startangle=90,
                counterclock=False,
                wedgeprops={"width": 0.6 / len(rings) - 0.02, "edgecolor": "white", "linewidth": 0.5},
            )
        axes.set_title(f"{', '.join(f'{size:,}' for size in rings)} edges")

    figure = by_task_and_method(lab.preset.tasks, lab.preset.methods, fill, width=2.6, height=2.7)
    legend_below(figure, [Patch(color=_COLOURS[kind]) for kind in KINDS], KINDS)
    return figure


EXPERIMENT = Experiment(
    name="proportion",
    title="Proportion of the gate types",
    claim="with ACDC the three types have nearly the same number of edges; with EAP and Edge Pruning there are far "
    "fewer OR edges.",
    labels=("figproportion",),
    measurements=_measurements,
    judge=_judge,
)
