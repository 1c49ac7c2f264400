"""Completeness: what the model still does without the circuit (figcompleteness and its two tables)."""

from __future__ import annotations

from gatewise.paper.claims import Above, Ruling, rule, rules
from gatewise.paper.contract import Experiment, Measured, Result
from gatewise.paper.experiments.curves import COMPLETENESS, Curves, figure, read, tables, to_measure
from gatewise.paper.lab import Lab
from gatewise.paper.published import COMPLETENESS_ACCURACY, COMPLETENESS_KL
from gatewise.paper.words import METHOD_NAMES


def _judge(lab: Lab, measured: Measured) -> Result:
    kl, accuracy = read(lab, measured, COMPLETENESS)
    return Result(
        tables=[
            *tables(lab, kl, "KL(G\\C || G), high is complete"),
            *tables(lab, accuracy, "accuracy of G\\C, low is complete"),
        ],
        rulings=_rulings(lab, kl, accuracy),
        paper=(COMPLETENESS_KL, COMPLETENESS_ACCURACY),
        figures={
            "Completeness: KL(G\\C || G) over circuit size. High is complete.": figure(lab, kl, "KL(G\\C || G)"),
            "Completeness: accuracy of G\\C over circuit size. Low is complete.": figure(
                lab, accuracy, "accuracy of G\\C"
            ),
        },
        notes=["Accuracy is the share of examples whose right answer is more probable than the wrong one."],
    )


def _rulings(lab: Lab, kl: Curves, accuracy: Curves) -> list[Ruling]:
    preset, claimed = lab.preset, Above(lab.preset.smallest)
    found: list[Ruling] = []
    for method in preset.methods:
        sizes = lab.judged_sizes("completeness", method)
        found += rules(
            METHOD_NAMES[method],
            claimed,
            (
                "Removing the Ns+Dn circuit destroys more (KL of G\\C) than removing the Ns circuit of the same size.",
                "KL(G\\C || G) of Ns+Dn less that of Ns, as a share of the range",
                kl.differences("ns+dn", "ns", method, sizes, share=True),
            ),
            (
                "The accuracy left without the Ns+Dn circuit is lower than without the Ns circuit.",
                "accuracy of G\\C of Ns less that of Ns+Dn",
                accuracy.differences("ns", "ns+dn", method, sizes),
            ),
            (
                "Ns+Dn is also more complete than Dn alone.",
                "KL(G\\C || G) of Ns+Dn less that of Dn, as a share of the range",
                kl.differences("ns+dn", "dn", method, sizes, share=True),
            ),
        )
    for other in [m for m in preset.methods if m != "eap" and "eap" in preset.methods]:
        sizes = lab.judged_sizes("completeness", "eap", other)
        gaps = [kl.differences("ns+dn", "ns", method, sizes, share=True) for method in ("eap", other)]
        found.append(
            rule(
                "The gap is largest for EAP, which finds no OR edge under Ns.",
                f"what Ns+Dn adds to the KL with EAP, less what it adds with {METHOD_NAMES[other]}",
                {task: [a - b for a, b in zip(gaps[0][task], gaps[1][task], strict=False)] for task in gaps[0]},
                claimed,
                method=f"EAP, {METHOD_NAMES[other]}",
            )
        )
    return found


EXPERIMENT = Experiment(
    name="completeness",
    title="Completeness",
    claim="without the Ns+Dn circuit the model does the task noticeably worse than without the Ns circuit.",
    labels=("figcompleteness", "tabklcompleteness", "tabacccompleteness"),
    measurements=to_measure,
    judge=_judge,
)
