"""Completeness: what the model still does without the circuit (figcompleteness and its two tables)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gatewise.paper.contract import METHOD_NAMES, Experiment, Judgement, Outcome, Verdict, grid
from gatewise.paper.experiments.curves import (
    COMPLETENESS,
    FEWEST,
    SATURATED,
    Comparison,
    compare,
    figure,
    judge,
    measure,
    table,
)
from gatewise.paper.published import COMPLETENESS_ACCURACY, COMPLETENESS_KL

if TYPE_CHECKING:
    from gatewise.paper.lab import Lab


def _run(lab: Lab) -> Outcome:
    curves = measure(lab, COMPLETENESS)
    methods = lab.preset.methods
    kl = compare(curves, "ns+dn", "ns", 0, methods, unsaturated=True)
    accuracy = compare(curves, "ns+dn", "ns", 1, methods, unsaturated=True)
    over_dn = compare(curves, "ns+dn", "dn", 0, methods, unsaturated=True)
    gaps = {m: compare(curves, "ns+dn", "ns", 0, [m], unsaturated=True) for m in methods}
    verdicts = [
        Verdict(
            "Removing the Ns+Dn circuit destroys more (KL of G\\C) than removing the Ns circuit of the same size.",
            judge(kl, larger=True),
            f"KL(G\\C || G) of Ns+Dn is {kl}.",
        ),
        Verdict(
            "The accuracy left without the Ns+Dn circuit is lower than without the Ns circuit.",
            judge(accuracy, larger=False),
            f"Accuracy of G\\C of Ns+Dn is {accuracy}.",
        ),
        Verdict(
            "The gap is largest for EAP, which finds no OR edge under Ns.",
            judge_widest(gaps),
            "Mean gap in KL: "
            + ", ".join(f"{METHOD_NAMES[m]} {g.mean:+.3g} (n = {len(g.differences)})" for m, g in gaps.items())
            + ".",
        ),
        Verdict(
            "Ns+Dn is also more complete than Dn alone.",
            judge(over_dn, larger=True),
            f"KL(G\\C || G) of Ns+Dn against Dn is {over_dn}.",
        ),
    ]
    tables = [
        table(lab, curves, task, which, title)
        for which, title in ((0, "KL(G\\C || G), high is complete"), (1, "accuracy of G\\C, low is complete"))
        for task in lab.preset.tasks
    ]
    return Outcome(
        tables=tables,
        verdicts=verdicts,
        paper=(COMPLETENESS_KL, COMPLETENESS_ACCURACY),
        figures={
            "Completeness: KL(G\\C || G) over circuit size. High is complete.": figure(lab, curves, 0, "KL(G\\C || G)"),
            "Completeness: accuracy of G\\C over circuit size. Low is complete.": figure(
                lab, curves, 1, "accuracy of G\\C"
            ),
        },
        notes=[
            "Accuracy is the share of examples whose right answer is more probable than the wrong one.",
            "A cell is a task, a method and a size, with means over seeds. It is saturated, and left out of the "
            f"verdicts, if without either circuit the KL is within {SATURATED:.0%} of that of the corrupted run: "
            f"nothing is left that one could destroy more than the other. With fewer than {FEWEST} cells left, a claim "
            "cannot be judged.",
        ],
    )


def judge_widest(gaps: Mapping[str, Comparison]) -> Judgement:
    """Whether EAP's gap is positive and the widest, by its mean over the cells that are not saturated."""
    if "eap" not in gaps or len(gaps) < 2 or any(not gap.differences for gap in gaps.values()):
        return "cannot be judged"
    if gaps["eap"].mean > 0 and all(gaps["eap"].mean >= gap.mean for gap in gaps.values()):
        return "holds" if judge(gaps["eap"], larger=True) == "holds" else "holds partly"
    return "does not hold"


EXPERIMENT = Experiment(
    name="completeness",
    title="Completeness",
    claim="without the Ns+Dn circuit the model does the task noticeably worse than without the Ns circuit.",
    labels=("figcompleteness", "tabklcompleteness", "tabacccompleteness"),
    run=_run,
    cells=lambda preset: grid(preset, seeds=preset.seeds, measured=True),
)
