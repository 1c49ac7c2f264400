"""Completeness: what the model still does without the circuit (figcompleteness and its two tables)."""

from __future__ import annotations

from functools import partial

from gatewise_paper.claims import Above, Claim, Ruling, rule, rules
from gatewise_paper.experiment import Experiment, Measured, Result
from gatewise_paper.experiments.curves import (
    ACCURACIES,
    COMPLETENESS,
    Curves,
    all_to_measure,
    edges_table,
    figure,
    read,
    rulings_beside,
    tables,
)
from gatewise_paper.lab import Lab
from gatewise_paper.naming import METHOD_NAMES
from gatewise_paper.printed_numbers import COMPLETENESS_ACCURACY, COMPLETENESS_KL

_NAME = "completeness"
_PAPER_KL = {"acdc": "1.03 against 0.81", "eap": "1.02 against 0.74", "edge-pruning": "1.13 against 1.08"}
_PAPER_DN = {"acdc": "1.03 against 0.96", "eap": "1.02 against 0.96", "edge-pruning": "1.13 against 1.11"}
_PAPER_ACCURACY = {"acdc": "0.33 against 0.40", "eap": "0.26 against 0.39", "edge-pruning": "0.26 against 0.32"}
_AT = " (IOI, 1,000 edges)"


def _judge(lab: Lab, measured: Measured) -> Result:
    kl = read(measured, COMPLETENESS)
    accuracy = {name: read(measured, name) for name in ACCURACIES}
    kept = edges_table(measured)
    return Result(
        tables=[
            *tables(lab, kl, "KL(G\\C || G), high is complete"),
            *(t for name, said in ACCURACIES.items() for t in tables(lab, accuracy[name], f"accuracy of G\\C, {said}")),
            *([kept] if kept else []),
        ],
        rulings=_rulings(lab, kl, accuracy["top_accuracy"]),
        paper=(COMPLETENESS_KL, COMPLETENESS_ACCURACY),
        figures={
            "Completeness: KL(G\\C || G) over circuit size, with 95 % intervals over seeds. High is complete.": figure(
                lab, kl, "KL(G\\C || G)"
            ),
            "Completeness: accuracy of G\\C (the most probable token of all is right) over circuit size. Low is "
            "complete.": figure(lab, accuracy["top_accuracy"], "accuracy of G\\C"),
        },
        notes=["Verdicts are about the sizes that the calibration chose for completeness."],
    )


def _rulings(lab: Lab, kl: Curves, accuracy: Curves) -> list[Ruling]:
    preset, claimed = lab.preset, Above(lab.preset.smallest)
    found: list[Ruling] = []
    for method in preset.methods:
        sizes = lab.judged_sizes(_NAME, method)
        first = Claim(
            "Removing the Ns+Dn circuit destroys more (KL of G\\C) than removing the Ns circuit of the same size.",
            "KL(G\\C || G) of Ns+Dn less that of Ns, as a share of the range",
            kl.differences("ns+dn", "ns", method, sizes, share=True),
            paper=_PAPER_KL[method] + _AT,
        )
        found += rules(
            METHOD_NAMES[method],
            claimed,
            first,
            Claim(
                "The accuracy left without the Ns+Dn circuit is lower than without the Ns circuit.",
                "accuracy of G\\C (arg-max) of Ns less that of Ns+Dn",
                accuracy.differences("ns", "ns+dn", method, sizes),
                paper=_PAPER_ACCURACY[method] + _AT,
            ),
            Claim(
                "Ns+Dn is also more complete than Dn alone.",
                "KL(G\\C || G) of Ns+Dn less that of Dn, as a share of the range",
                kl.differences("ns+dn", "dn", method, sizes, share=True),
                paper=_PAPER_DN[method] + _AT,
            ),
        )
        found += rulings_beside(lab, kl, method, _NAME, first, ("ns+dn", "ns"))
    for other in [m for m in preset.methods if m != "eap" and "eap" in preset.methods]:
        sizes = lab.judged_sizes(_NAME, "eap", other)
        gaps = [kl.differences("ns+dn", "ns", method, sizes, share=True) for method in ("eap", other)]
        claim = Claim(
            "The gap is largest for EAP, which finds no OR edge under Ns.",
            f"what Ns+Dn adds to the KL with EAP, less what it adds with {METHOD_NAMES[other]}",
            {task: [a - b for a, b in zip(gaps[0][task], gaps[1][task], strict=False)] for task in gaps[0]},
            paper=f"0.28 against {'0.22' if other == 'acdc' else '0.05'} nats{_AT}",
        )
        found.append(rule(claim, claimed, method=f"EAP, {METHOD_NAMES[other]}"))
    return found


EXPERIMENT = Experiment(
    name=_NAME,
    title="Completeness",
    claim="without the Ns+Dn circuit the model does the task noticeably worse than without the Ns circuit.",
    labels=("figcompleteness", "tabklcompleteness", "tabacccompleteness"),
    measurements=partial(all_to_measure, measure=_NAME),
    judge=_judge,
)
