"""Faithfulness: what the circuit does by itself. figfaithfulnessaverage, figfaithfulness."""

from __future__ import annotations

import statistics

from gatewise.paper.claims import Above, Between, Ruling, rules
from gatewise.paper.contract import Experiment, Measured, Result
from gatewise.paper.experiments.curves import FAITHFULNESS, Curves, figure, read, tables, to_measure
from gatewise.paper.figures import Figure, direction_style, panels, size_axis
from gatewise.paper.lab import Lab
from gatewise.paper.words import DIRECTIONS, METHOD_NAMES, TASK_NAMES


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
    smallest, sizes = lab.preset.smallest, lab.judged_sizes("faithfulness", method)
    less_faithful = (
        "Dn circuits are less faithful than Ns circuits.",
        "KL(G || C) of Dn less that of Ns, as a share of the range",
        kl.differences("dn", "ns", method, sizes, share=True),
    )
    claim, claimed = (
        ("With EAP, Ns is clearly less faithful than Ns+Dn.", Above(smallest))
        if method == "eap"
        else ("With ACDC and Edge Pruning, Ns+Dn is about as faithful as Ns.", Between(-smallest, smallest))
    )
    what = "KL(G || C) of Ns less that of Ns+Dn, as a share of the range"
    against_both = (claim, what, kl.differences("ns", "ns+dn", method, sizes, share=True), claimed)
    return rules(METHOD_NAMES[method], Above(smallest), less_faithful, against_both)


def _average(lab: Lab, task: str, curves: dict[str, Curves]) -> Figure:
    sizes, methods = lab.common_sizes(), lab.preset.methods
    drawn, axes = panels(1, 2)
    for at, (label, curve) in zip(axes[0], curves.items(), strict=True):
        for d in DIRECTIONS:
            means = [statistics.fmean(statistics.fmean(curve.values[task, m, d, n]) for m in methods) for n in sizes]
            at.plot(sizes, means, **direction_style(d))
        size_axis(at, sizes)
        at.set_ylabel(label)
    axes[0][0].legend()
    return drawn


EXPERIMENT = Experiment(
    name="faithfulness",
    title="Faithfulness",
    claim="Ns+Dn circuits are about as faithful as Ns circuits, and both more than Dn circuits.",
    labels=("figfaithfulnessaverage", "figfaithfulness"),
    measurements=to_measure,
    judge=_judge,
)
