"""Faithfulness: what the circuit does by itself. figfaithfulnessaverage, figfaithfulness."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from gatewise.paper.contract import DIRECTION_NAMES, DIRECTIONS, TASK_NAMES, Experiment, Outcome, Verdict, grid
from gatewise.paper.experiments.curves import FAITHFULNESS, FEWEST, Curves, compare, figure, judge, measure, table
from gatewise.paper.figures import DIRECTION_COLOURS, LINES, MARKERS, panels, size_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.paper.lab import Lab


def _run(lab: Lab) -> Outcome:
    curves = measure(lab, FAITHFULNESS)
    methods = lab.preset.methods
    others = [m for m in methods if m != "eap"]
    dn = compare(curves, "dn", "ns", 0, methods)
    eap = compare(curves, "ns+dn", "ns", 0, ["eap"])
    rest = compare(curves, "ns+dn", "ns", 0, others)
    typical = statistics.median(abs(d) for d in dn.differences)
    near = sum(abs(d) < typical for d in rest.differences)
    verdicts = [
        Verdict(
            "Dn circuits are less faithful than Ns circuits.",
            judge(dn, larger=True),
            f"KL(G || C) of Dn against Ns is {dn}.",
        ),
        Verdict(
            "With EAP, Ns is clearly less faithful than Ns+Dn.",
            judge(eap, larger=False),
            f"KL(G || C) of EAP's Ns+Dn against its Ns is {eap}.",
        ),
        Verdict(
            "With ACDC and Edge Pruning, Ns+Dn is about as faithful as Ns.",
            "cannot be judged"
            if len(rest.differences) < FEWEST
            else "holds"
            if near >= 0.8 * len(rest.differences)
            else "holds partly"
            if near > 0.5 * len(rest.differences)
            else "does not hold",
            f"The difference is below the median difference of Dn and Ns ({typical:.2g} nats) in {near} of "
            f"{len(rest.differences)} cells; Ns+Dn is {rest}.",
        ),
    ]
    task = lab.preset.tasks[0]
    return Outcome(
        tables=[
            table(lab, curves, task, which, title)
            for which, title in ((0, "KL(G || C), low is faithful"), (1, "accuracy of C, high is faithful"))
            for task in lab.preset.tasks
        ],
        verdicts=verdicts,
        figures={
            f"Faithfulness on {TASK_NAMES[task]}, mean of the methods (figfaithfulnessaverage)": lambda: _average(
                lab, curves
            ),
            "Faithfulness: KL(G || C) over circuit size. Low is faithful.": figure(lab, curves, 0, "KL(G || C)"),
            "Faithfulness: accuracy of the circuit over circuit size.": figure(lab, curves, 1, "accuracy of C"),
        },
        notes=["The paper prints no numbers for faithfulness, only figures."],
    )


def _average(lab: Lab, curves: Curves) -> Figure:
    task, sizes = lab.preset.tasks[0], lab.common_sizes
    drawn, axes = panels(1, 2)
    for which, label in ((0, "KL(G || C)"), (1, "accuracy of C")):
        at = axes[0][which]
        for direction in DIRECTIONS:
            means = [
                statistics.fmean(curves.points[task, m, direction, size][which].mean for m in lab.preset.methods)
                for size in sizes
            ]
            style = {"color": DIRECTION_COLOURS[direction], "marker": MARKERS[direction], "linestyle": LINES[direction]}
            at.plot(sizes, means, label=DIRECTION_NAMES[direction], **style)
        size_axis(at, sizes)
        at.set_ylabel(label)
    axes[0][0].legend()
    return drawn


EXPERIMENT = Experiment(
    name="faithfulness",
    title="Faithfulness",
    claim="Ns+Dn circuits are about as faithful as Ns circuits, and both more than Dn circuits.",
    labels=("figfaithfulnessaverage", "figfaithfulness"),
    run=_run,
    cells=lambda preset: grid(preset, seeds=preset.seeds, measured=True),
)
