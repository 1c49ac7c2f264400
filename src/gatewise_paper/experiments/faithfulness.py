"""Faithfulness: what the circuit does by itself. figfaithfulnessaverage, figfaithfulness."""

from __future__ import annotations

import statistics
from functools import partial

from gatewise_paper.claims import Above, Between, Claim, Ruling, rules
from gatewise_paper.experiment import Experiment, Measured, Result
from gatewise_paper.experiments.curves import (
    ACCURACIES,
    FAITHFULNESS,
    Curves,
    all_to_measure,
    edges_table,
    figure,
    read,
    rulings_beside,
    tables,
)
from gatewise_paper.figures import BASELINE_COLOUR, Figure, direction_style, legend_below, panels, size_axis
from gatewise_paper.lab import Lab
from gatewise_paper.naming import DIRECTIONS, METHOD_NAMES, task_name

_NAME = "faithfulness"


def _judge(lab: Lab, measured: Measured) -> Result:
    kl = read(measured, FAITHFULNESS)
    accuracy = {name: read(measured, name) for name in ACCURACIES}
    top, task, kept = accuracy["top_accuracy"], lab.preset.tasks[0], edges_table(measured)
    return Result(
        tables=[
            *tables(lab, kl, "KL(G || C), low is faithful"),
            *(t for name, said in ACCURACIES.items() for t in tables(lab, accuracy[name], f"accuracy of C, {said}")),
            *([kept] if kept else []),
        ],
        rulings=[ruling for method in lab.preset.methods for ruling in _rulings(lab, kl, method)],
        figures={
            f"Faithfulness on {task_name(task)}, mean of the methods (figfaithfulnessaverage)": lambda: _average(
                lab, task, {"KL(G || C)": kl, "accuracy of C": top}
            ),
            "Faithfulness: KL(G || C) over circuit size, with 95 % intervals over seeds. Low is faithful.": figure(
                lab, kl, "KL(G || C)"
            ),
            "Faithfulness: accuracy of the circuit (the most probable token of all is right) over circuit "
            "size.": figure(lab, top, "accuracy of C"),
        },
        notes=[
            "The paper prints no numbers for faithfulness, only figures.",
            "Verdicts are about the sizes that the calibration chose for faithfulness.",
        ],
    )


def _rulings(lab: Lab, kl: Curves, method: str) -> list[Ruling]:
    smallest, sizes = lab.preset.smallest, lab.judged_sizes(_NAME, method)
    less_faithful = Claim(
        "Dn circuits are less faithful than Ns circuits.",
        "KL(G || C) of Dn less that of Ns, as a share of the range",
        kl.differences("dn", "ns", method, sizes, share=True),
        paper="a figure",
    )
    claim, claimed = (
        ("With EAP, Ns is clearly less faithful than Ns+Dn.", Above(smallest))
        if method == "eap"
        else ("With ACDC and Edge Pruning, Ns+Dn is about as faithful as Ns.", Between(-smallest, smallest))
    )
    what = "KL(G || C) of Ns less that of Ns+Dn, as a share of the range"
    values = kl.differences("ns", "ns+dn", method, sizes, share=True)
    against_both = Claim(claim, what, values, claimed, paper="a figure")
    return [
        *rules(METHOD_NAMES[method], Above(smallest), less_faithful, against_both),
        *rulings_beside(lab, kl, method, _NAME, less_faithful, ("dn", "ns")),
        *rulings_beside(lab, kl, method, _NAME, against_both, ("ns", "ns+dn")),
    ]


def _average(lab: Lab, task: str, curves: dict[str, Curves]) -> Figure:
    methods = lab.preset.methods
    sizes = sorted(set.intersection(*(set(curves["KL(G || C)"].sizes(task, m)) for m in methods)))
    drawn, axes = panels(1, 2)
    for at, (label, curve) in zip(axes[0], curves.items(), strict=True):
        for d in DIRECTIONS:
            means = [
                statistics.fmean(statistics.fmean(curve.values[task, m, d, "", n]) for m in methods) for n in sizes
            ]
            at.plot(sizes, means, **direction_style(d))
        for end, name, style in zip(curve.ends[task], ("whole model", "empty circuit"), "-:", strict=True):
            at.axhline(end, color=BASELINE_COLOUR, linewidth=0.8, linestyle=style, label=name)
        size_axis(at, sizes)
        at.set_ylabel(label)
    legend_below(drawn, *axes[0][0].get_legend_handles_labels())
    return drawn


EXPERIMENT = Experiment(
    name=_NAME,
    title="Faithfulness",
    claim="Ns+Dn circuits are about as faithful as Ns circuits, and both more than Dn circuits.",
    labels=("figfaithfulnessaverage", "figfaithfulness"),
    measurements=partial(all_to_measure, measure=_NAME),
    judge=_judge,
)
