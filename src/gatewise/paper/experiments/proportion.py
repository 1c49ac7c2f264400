"""Proportion: how many edges of the Ns+Dn circuit are AND, OR and ADDER (figproportion), and how many are neither.

An edge of the Ns+Dn circuit is AND if only the Ns circuit of the same size has it, OR if only the Dn circuit, ADDER if
both, and outside if neither has. The union of the Ns and the Dn circuit says nothing about AND against OR: if both
have n edges, as many are in the one alone as in the other alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gatewise.gate_types import GATE_COLOURS, GATE_TYPES
from gatewise.logic.gates import Gates
from gatewise.paper.contract import METHOD_NAMES, TASK_NAMES, Experiment, Judgement, Outcome, Table, Verdict, grid
from gatewise.paper.experiments.curves import Comparison, judge
from gatewise.paper.experiments.statistics import mean_and_deviation, seeds_note
from gatewise.paper.figures import legend_below, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.paper.lab import Lab

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


def shares(gates: Gates) -> dict[str, float]:
    """What the Ns+Dn circuit is made of."""
    assert gates.joint is not None
    total = max(1, len(gates.joint))
    found: dict[str, float] = {kind: len(gates.joint & gates.by_type[kind]) / total for kind in GATE_TYPES}
    return {**found, "outside": len(gates.joint - gates.sound) / total}


def nearly_equal(some: Shares) -> bool:
    """Whether each type has about a third of the labelled edges."""
    labelled = sum(some[kind] for kind in GATE_TYPES)
    return labelled > 0 and all(abs(some[kind] / labelled - 1 / 3) <= _EQUAL for kind in GATE_TYPES)


def judge_equal(cells: Sequence[Shares]) -> tuple[Judgement, int]:
    """Whether types are nearly equal in most cells, and in how many."""
    equal = sum(map(nearly_equal, cells))
    if len(cells) < 3:
        return "cannot be judged", equal
    share = equal / len(cells)
    return ("holds" if share >= 0.8 else "holds partly" if share > 0.5 else "does not hold"), equal


def _run(lab: Lab) -> Outcome:
    methods, tasks = lab.preset.methods, lab.preset.tasks
    found: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    for task in tasks:
        for method in methods:
            seeds = range(lab.preset.seeds[method])
            for size in lab.sizes(method):
                found[task, method, size] = [shares(lab.gates(task, method, size, seed)) for seed in seeds]
    means: dict[tuple[str, str, int], Shares] = {
        cell: {kind: statistics.fmean(one[kind] for one in some) for kind in KINDS} for cell, some in found.items()
    }
    seeds_of = {m: lab.preset.seeds[m] for m in methods}
    note = f"Shares of the Ns+Dn circuit's edges, mean ± deviation over seeds ({seeds_note(seeds_of, METHOD_NAMES)})."
    tables = [
        Table(
            f"{TASK_NAMES[task]}: what the Ns+Dn circuit is made of",
            ("method", "edges", *GATE_TYPES, "in neither circuit"),
            [
                (METHOD_NAMES[m], size, *(mean_and_deviation([s[k] for s in found[task, m, size]]) for k in KINDS))
                for m in methods
                for size in lab.sizes(m)
            ],
            note,
        )
        for task in tasks
    ]
    figures = {
        "Proportion of AND, OR and ADDER edges in the Ns+Dn circuit; grey: in neither the Ns nor the Dn circuit. From "
        "the inner to the outer ring, the sizes under each title.": lambda: _figure(lab, means)
    }
    return Outcome(
        tables,
        _verdicts(lab, means),
        figures=figures,
        notes=[
            "The types are read off Ns and Dn circuits of equal size, of which each alone has as many edges as the "
            "other alone: in their union there are exactly as many AND as OR edges, whatever the model. Only the Ns+Dn "
            "circuit, searched by itself, can have fewer OR edges; so that is what is shown here.",
        ],
    )


def _verdicts(lab: Lab, means: Mapping[tuple[str, str, int], Shares]) -> list[Verdict]:
    methods = lab.preset.methods
    verdicts = []
    if "acdc" in methods:
        judgement, equal = judge_equal(cells := [s for (_, m, _), s in means.items() if m == "acdc"])
        average = {kind: statistics.fmean(cell[kind] for cell in cells) for kind in GATE_TYPES}
        verdicts.append(
            Verdict(
                "With ACDC the three types have nearly equal numbers of edges.",
                judgement,
                f"Each type has a third of the labelled edges, give or take {_EQUAL:.0%} of them, in {equal} of "
                f"{len(cells)} cells; on average {', '.join(f'{k} {s:.0%}' for k, s in average.items())}.",
            )
        )
    for method in [m for m in methods if m != "acdc"]:
        fewer = Comparison(tuple(s["OR"] - s["AND"] for (_, m, _), s in means.items() if m == method))
        least = sum(s["OR"] < min(s["AND"], s["ADDER"]) for (_, m, _), s in means.items() if m == method)
        verdicts.append(
            Verdict(
                f"With {METHOD_NAMES[method]} OR edges are the fewest by far.",
                judge(Comparison(tuple(-d for d in fewer.differences)), larger=True)
                if least > 0.5 * len(fewer.differences)
                else "does not hold"
                if len(fewer.differences) >= 4
                else "cannot be judged",
                f"The share of OR against that of AND is {fewer}; OR is the smallest of the three in {least}.",
            )
        )
    outside = {m: statistics.fmean(s["outside"] for (_, n, _), s in means.items() if n == m) for m in methods}
    largest = max(s["outside"] for s in means.values())
    verdicts.append(
        Verdict(
            "The Ns+Dn circuit consists of AND, OR and ADDER edges (implied: every edge of it is found by Ns or Dn).",
            "holds" if largest <= 0.01 else "holds partly" if max(outside.values()) <= 0.1 else "does not hold",
            "Edges of the Ns+Dn circuit that are in neither circuit of the same size, on average: "
            + ", ".join(f"{METHOD_NAMES[m]} {share:.1%}" for m, share in outside.items())
            + f"; at most {largest:.1%}.",
        )
    )
    return verdicts


def _figure(lab: Lab, means: Mapping[tuple[str, str, int], Shares]) -> Figure:
    from matplotlib.patches import Patch

    methods, tasks = lab.preset.methods, lab.preset.tasks
    drawn, axes = panels(len(tasks), len(methods), width=2.6, height=2.7)
    for row, task in enumerate(tasks):
        for column, method in enumerate(methods):
            at, sizes = axes[row][column], ring_sizes(lab.sizes(method))
            for place, size in enumerate(sizes):
                at.pie(
                    [means[task, method, size][kind] for kind in KINDS],
                    radius=0.4 + 0.6 * (place + 1) / len(sizes),
                    colors=[_COLOURS[kind] for kind in KINDS],
                    startangle=90,
                    counterclock=False,
                    wedgeprops={"width": 0.6 / len(sizes) - 0.02, "edgecolor": "white", "linewidth": 0.5},
                )
            at.set_title(
                f"{METHOD_NAMES[method]}, {TASK_NAMES[task]}\n{', '.join(f'{size:,}' for size in sizes)} edges",
                fontsize=9,
            )
    legend_below(drawn, [Patch(color=_COLOURS[kind]) for kind in KINDS], KINDS)
    return drawn


EXPERIMENT = Experiment(
    name="proportion",
    title="Proportion of the gate types",
    claim="with ACDC the three types have nearly the same number of edges; with EAP and Edge Pruning there are far "
    "fewer OR edges.",
    labels=("figproportion",),
    run=_run,
    cells=lambda preset: grid(preset, seeds=preset.seeds),
)
