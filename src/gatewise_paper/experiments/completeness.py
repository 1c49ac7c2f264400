"""Completeness: what the model still does without the circuit (figcompleteness and its two tables).

G is the full graph, C a circuit, G\\C the graph without it, run by noising: the clean run, in which the circuit's edges
carry the corrupted run's outputs. Measured are KL(G\\C || G) and the accuracy of G\\C, on held-out pairs that are the
same for all seeds, for the circuits of all sizes, directions, methods and seeds. A seed's value is what one direction
has beyond another, mean over the judged sizes: those that were calibrated, or all of a preset without a calibration.
"""

from __future__ import annotations

from functools import partial

from gatewise_paper.claims import Claim, Ruling, rule, rules
from gatewise_paper.experiment import Experiment, Outcome
from gatewise_paper.experiments import curves
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured
from gatewise_paper.naming import METHOD_NAMES
from gatewise_paper.tables import printed

_NAME = "completeness"
_PAPER_KL = {"acdc": "1.03 against 0.81", "eap": "1.02 against 0.74", "edge-pruning": "1.13 against 1.08"}
_PAPER_KL_AGAINST_DN = {"acdc": "1.03 against 0.96", "eap": "1.02 against 0.96", "edge-pruning": "1.13 against 1.11"}
_PAPER_ACCURACY = {"acdc": "0.33 against 0.40", "eap": "0.26 against 0.39", "edge-pruning": "0.26 against 0.32"}
_AT = " (IOI, 1,000 edges)"


def _judge(lab: Lab, measured: Measured) -> Outcome:
    kl, accuracy = curves.read(measured, curves.COMPLETENESS), curves.read(measured, curves.TOP1)
    return Outcome(
        tables=curves.tables(lab, measured, curves.COMPLETENESS, "KL(G\\C || G), high is complete", "G\\C"),
        rulings=[*_rulings(lab, kl, accuracy), *_largest_for_eap(lab, kl)],
        paper=(printed("tabklcompleteness"), printed("tabacccompleteness")),
        figures={
            "Completeness: KL(G\\C || G) over circuit size, with 95 % intervals over seeds. High is "
            "complete.": curves.figure(lab, kl, "KL(G\\C || G)"),
            "Completeness: top-1 accuracy of G\\C over circuit size. Low is complete.": curves.figure(
                lab, accuracy, "accuracy of G\\C"
            ),
        },
        notes=["Verdicts are about the judged sizes: those that the calibration chose, where there is one."],
    )


def _rulings(lab: Lab, kl: curves.Curves, accuracy: curves.Curves) -> list[Ruling]:
    rulings: list[Ruling] = []
    for method in lab.preset.methods:
        sizes = lab.sizes.judged(_NAME, method)
        primary = Claim(
            "Removing the Ns+Dn circuit destroys more (KL of G\\C) than removing the Ns circuit of the same size.",
            "normalised KL(G\\C || G) of Ns+Dn less that of Ns",
            kl.differences("ns+dn", "ns", method, sizes, normalised=True),
            paper=_PAPER_KL[method] + _AT,
        )
        rulings += rules(
            METHOD_NAMES[method],
            primary,
            Claim(
                "The accuracy left without the Ns+Dn circuit is lower than without the Ns circuit.",
                "top-1 accuracy of G\\C of Ns less that of Ns+Dn",
                accuracy.differences("ns", "ns+dn", method, sizes),
                paper=_PAPER_ACCURACY[method] + _AT,
            ),
            Claim(
                "Ns+Dn is also more complete than Dn alone.",
                "normalised KL(G\\C || G) of Ns+Dn less that of Dn",
                kl.differences("ns+dn", "dn", method, sizes, normalised=True),
                paper=_PAPER_KL_AGAINST_DN[method] + _AT,
            ),
        )
        rulings += curves.variation_rulings(lab, kl, method, _NAME, primary, ("ns+dn", "ns"))
    return rulings


def _largest_for_eap(lab: Lab, kl: curves.Curves) -> list[Ruling]:
    """EAP against each other method, if the preset has it."""
    methods, rulings = lab.preset.methods, []
    for other in [method for method in methods if method != "eap" and "eap" in methods]:
        sizes = lab.sizes.judged(_NAME, "eap", other)
        eap, others = (kl.differences("ns+dn", "ns", method, sizes, normalised=True) for method in ("eap", other))
        # Seeds of two methods draw different pairs, so that pairing them is arbitrary; it leaves as many differences as
        # the method with fewer seeds has.
        claim = Claim(
            "The gap is largest for EAP, which finds no OR edge under Ns.",
            f"what Ns+Dn adds to the normalised KL with EAP, less what it adds with {METHOD_NAMES[other]}",
            {task: [a - b for a, b in zip(eap[task], others[task], strict=False)] for task in eap},
            paper=f"0.28 against {'0.22' if other == 'acdc' else '0.05'} nats{_AT}",
        )
        rulings.append(rule(claim, method=f"EAP, {METHOD_NAMES[other]}"))
    return rulings


EXPERIMENT = Experiment(
    name=_NAME,
    title="Completeness",
    claim="without the Ns+Dn circuit the model does the task noticeably worse than without the Ns circuit.",
    labels=("figcompleteness", "tabklcompleteness", "tabacccompleteness"),
    measurements=partial(curves.measurements, measure=_NAME),
    judge=_judge,
)
