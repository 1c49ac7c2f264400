"""Completeness: what the model still does without the circuit (figcompleteness and its two tables)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise.reproduce.contract import METHOD_NAMES, Experiment, Outcome, Verdict, grid
from gatewise.reproduce.experiments.curves import COMPLETENESS, compare, figure, judge, measure, table
from gatewise.reproduce.published import COMPLETENESS_ACCURACY, COMPLETENESS_KL

if TYPE_CHECKING:
    from gatewise.reproduce.lab import Lab


def _run(lab: Lab) -> Outcome:
    curves = measure(lab, COMPLETENESS)
    methods = lab.preset.methods
    kl = compare(curves, "ns+dn", "ns", 0, methods)
    accuracy = compare(curves, "ns+dn", "ns", 1, methods)
    over_dn = compare(curves, "ns+dn", "dn", 0, methods)
    gaps = {m: compare(curves, "ns+dn", "ns", 0, [m]) for m in methods}
    means = {m: sum(gap.differences) / len(gap.differences) for m, gap in gaps.items()}
    widest = max(means, key=lambda method: means[method])
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
            "holds" if widest == "eap" and means["eap"] > 0 else "does not hold",
            "Mean gap in KL: " + ", ".join(f"{METHOD_NAMES[m]} {gap:+.3g}" for m, gap in means.items()) + ".",
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
        notes=["Accuracy is the share of examples whose right answer is more probable than the wrong one."],
    )


EXPERIMENT = Experiment(
    name="completeness",
    title="Completeness",
    claim="without the Ns+Dn circuit the model does the task noticeably worse than without the Ns circuit.",
    labels=("figcompleteness", "tabklcompleteness", "tabacccompleteness"),
    run=_run,
    cells=lambda preset: grid(preset, seeds=preset.seeds, measured=True),
)
