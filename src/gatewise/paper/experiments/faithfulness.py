"""Faithfulness: what the circuit does by itself. figfaithfulnessaverage, figfaithfulness."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from gatewise.paper.claims import Above, Between, Ruling, rule
from gatewise.paper.contract import Experiment, Measured, Result
from gatewise.paper.experiments.curves import FAITHFULNESS, Curves, figure, read, tables, to_measure
from gatewise.paper.figures import direction_style, panels, size_axis
from gatewise.paper.names import DIRECTIONS, METHOD_NAMES, TASK_NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.paper.lab import Lab

_NAME = "faithfulness"


def _judge(lab: Lab, measured: Measured) -> Result:
    kl, accuracy = read(lab, measured, FAITHFULNESS)
    task = lab.preset.tasks[0]
    return Result(
        tables=[
            *tables(lab, kl, "KL(G || C), low is faithful"),
            *tables(lab, accuracy, "accuracy of C, high is faithful"),
        ],
        rulings=[ruling for method in lab.preset.methods for ruling in _rulings(lab, kl, method)],
        figures={
            f"Faithfulness on {TASK_NAMES[task]}, mean of the methods (figfaithfulnessaverage)": lambda: _average(
                lab, task, {"KL(G || C)": kl, "accuracy of C": accuracy}
            ),
            "Faithfulness: KL(G || C) over circuit size. Low is faithful.": figure(lab, kl, "KL(G || C)"),
            "Faithfulness: accuracy of the circuit over circuit size.": figure(lab, accuracy, "accuracy of C"),
        },
        notes=["The paper prints no numbers for faithfulness, only figures."],
    )


def _rulings(lab: Lab, kl: Curves, method: str) -> list[Ruling]:
    smallest, name = lab.preset.smallest, METHOD_NAMES[method]
    sizes = {task: lab.judged_sizes(_NAME, task, [method]) for task in lab.preset.tasks}
    less_faithful = rule(
        "Dn circuits are less faithful than Ns circuits.",
        "KL(G || C) of Dn less that of Ns, as a share of the range",
        kl.differences("dn", "ns", method, sizes, share=True),
        Above(smallest),
        method=name,
        primary=True,
    )
    claim, claimed = (
        ("With EAP, Ns is clearly less faithful than Ns+Dn.", Above(smallest))
        if method == "eap"
        else ("With ACDC and Edge Pruning, Ns+Dn is about as faithful as Ns.", Between(-smallest, smallest))
    )
    what = "KL(G || C) of Ns less that of Ns+Dn, as a share of the range"
    return [
        less_faithful,
        rule(claim, what, kl.differences("ns", "ns+dn", method, sizes, share=True), claimed, method=name),
    ]


def _average(lab: Lab, task: str, curves: dict[str, Curves]) -> Figure:
    sizes = lab.common_sizes
    drawn, axes = panels(1, 2)
    for at, (label, curve) in zip(axes[0], curves.items(), strict=True):
        for direction in DIRECTIONS:
            means = [
                statistics.fmean(statistics.fmean(curve.values[task, m, direction, size]) for m in lab.preset.methods)
                for size in sizes
            ]
            at.plot(sizes, means, **direction_style(direction))
        size_axis(at, sizes)
        at.set_ylabel(label)
    axes[0][0].legend()
    return drawn


EXPERIMENT = Experiment(
    name=_NAME,
    title="Faithfulness",
    claim="Ns+Dn circuits are about as faithful as Ns circuits, and both more than Dn circuits.",
    labels=("figfaithfulnessaverage", "figfaithfulness"),
    measurements=to_measure,
    judge=_judge,
)
