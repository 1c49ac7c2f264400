"""Faithfulness: what the circuit does by itself (figfaithfulnessaverage, figfaithfulness).

Measured are KL(G || C) and the accuracy of C on held-out pairs, for the circuits of all sizes, directions, methods and
seeds. A seed's value is what one direction has beyond another, mean over the sizes that were calibrated.
"""

from __future__ import annotations

import statistics
from functools import partial

from gatewise_paper.claims import SMALLEST_DIFFERENCE, Above, Between, Claim, Ruling, rules
from gatewise_paper.experiment import Experiment, Outcome
from gatewise_paper.experiments import curves
from gatewise_paper.experiments.curves import Curves, Point
from gatewise_paper.figures import Figure, direction_style, legend_below, panels, size_axis
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured
from gatewise_paper.naming import DIRECTIONS, METHOD_NAMES, task_name

_NAME = "faithfulness"


def _judge(lab: Lab, measured: Measured) -> Outcome:
    kl, accuracy, task = (
        curves.read(measured, curves.FAITHFULNESS),
        curves.read(measured, curves.TOP1),
        lab.preset.tasks[0],
    )
    return Outcome(
        tables=curves.tables(lab, measured, curves.FAITHFULNESS, "KL(G || C), low is faithful", "C"),
        rulings=[ruling for method in lab.preset.methods for ruling in _rulings(lab, kl, method)],
        figures={
            f"Faithfulness on {task_name(task)}, mean of the methods (figfaithfulnessaverage)": lambda: _average(
                lab, task, {"KL(G || C)": kl, "accuracy of C": accuracy}
            ),
            "Faithfulness: KL(G || C) over circuit size, with 95 % intervals over seeds. Low is "
            "faithful.": curves.figure(lab, kl, "KL(G || C)"),
            "Faithfulness: top-1 accuracy of the circuit over circuit size.": curves.figure(
                lab, accuracy, "accuracy of C"
            ),
        },
        notes=[
            "The paper prints no numbers for faithfulness, only figures.",
            "Verdicts are about the sizes that the calibration chose for faithfulness.",
        ],
    )


def _rulings(lab: Lab, kl: Curves, method: str) -> list[Ruling]:
    sizes = lab.sizes.judged(_NAME, method)
    less_faithful = Claim(
        "Dn circuits are less faithful than Ns circuits.",
        "normalised KL(G || C) of Dn less that of Ns",
        kl.differences("dn", "ns", method, sizes, normalised=True),
        paper="a figure",
    )
    text = "With EAP, Ns is clearly less faithful than Ns+Dn."
    claimed: Above | Between = Above()
    if method != "eap":
        text = "With ACDC and Edge Pruning, Ns+Dn is about as faithful as Ns."
        claimed = Between(-SMALLEST_DIFFERENCE, SMALLEST_DIFFERENCE)
    values = kl.differences("ns", "ns+dn", method, sizes, normalised=True)
    against_both = Claim(text, "normalised KL(G || C) of Ns less that of Ns+Dn", values, claimed, paper="a figure")
    return [
        *rules(METHOD_NAMES[method], less_faithful, against_both),
        *curves.variation_rulings(lab, kl, method, _NAME, less_faithful, ("dn", "ns")),
        *curves.variation_rulings(lab, kl, method, _NAME, against_both, ("ns", "ns+dn")),
    ]


def _average(lab: Lab, task: str, panels_of: dict[str, Curves]) -> Figure:
    methods = lab.preset.methods
    sizes = sorted(set.intersection(*(set(panels_of["KL(G || C)"].sizes(task, method)) for method in methods)))
    figure, grid = panels(1, 2)
    for axes, (label, curve) in zip(grid[0], panels_of.items(), strict=True):
        for direction in DIRECTIONS:
            means = []
            for size in sizes:
                seeds = [curve.values[Point(task, method, direction, "", size)] for method in methods]
                means.append(statistics.fmean(map(statistics.fmean, seeds)))
            axes.plot(sizes, means, **direction_style(direction))
        curves.draw_baselines(axes, curve.baselines[task])
        size_axis(axes, sizes)
        axes.set_ylabel(label)
    legend_below(figure, *grid[0][0].get_legend_handles_labels())
    return figure


EXPERIMENT = Experiment(
    name=_NAME,
    title="Faithfulness",
    claim="Ns+Dn circuits are about as faithful as Ns circuits, and both more than Dn circuits.",
    labels=("figfaithfulnessaverage", "figfaithfulness"),
    measurements=partial(curves.measurements, measure=_NAME),
    judge=_judge,
)
