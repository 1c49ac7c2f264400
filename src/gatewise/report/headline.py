"""What came out, in sentences: how faithful, how complete, which gates, how far to trust it, what to do next.

The terminal and the page print the same sentences, made here and in `evaluation/verdicts.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gatewise.evaluation import verdicts
from gatewise.evaluation.evaluation_table import kept_share
from gatewise.evaluation.verdicts import Remark, downgraded, level_of
from gatewise.gate_types import FOUND_BY, GATE_TYPES, SPLIT

if TYPE_CHECKING:
    from gatewise.engine.runs.activations import Direction
    from gatewise.report.report import Report
    from gatewise.report.trust import Calibration

AGREEMENT_GOOD, AGREEMENT_POOR = 0.8, 0.5
OVERLAP_GOOD, OVERLAP_POOR = 0.7, 0.4
CORRELATION_GOOD, CORRELATION_POOR = 0.8, 0.5
_HIGH = 0.85  # faithfulness to ask for next
RISES = 0.02  # of the logit difference, that a size of twice the edges has to keep more
AGAINST = 0.02  # normalised effect below minus which a node works against the task
_OTHER_METHOD = "ranking"
# What is drawn and measured, as people read it: the union holds what either direction found; the joint circuit comes
# from one search that adds both effects up.
CIRCUIT_NAMES = {"ns|dn": "union", "ns": "noising", "dn": "denoising", "ns+dn": "joint"}


@dataclass(frozen=True)
class NextStep:
    """What is worth doing: why, and what another report would differ in; nothing if it is done by hand."""

    why: str
    changes: Mapping[str, Any]  # of the task (`examples`) or of `make_report`

    @property
    def arguments(self) -> str:
        """The changes as they are written in Python."""
        return ", ".join(f"{name}={value!r}" for name, value in self.changes.items())


def doubts(report: Report) -> list[Remark]:
    """What has to be said before anything else, because it makes all numbers doubtful."""
    return verdicts.doubts(report.evaluation, report.problems)


def headline(report: Report) -> str:
    """The whole in one line; what makes it doubtful before all numbers."""
    against, union = doubts(report), report.evaluation
    if against:
        return against[0].text
    faithful, complete, _ = facts(report)
    drawn = "" if report.drawn is None else f"; the {report.drawn.edges:,} drawn keep {kept_share(report.drawn)}"
    counts = f"{union.edges:,} of {union.graph_edges:,} edges"
    return f"{counts}; faithful: {faithful.answer}; complete: {complete.answer}{drawn}"


def facts(report: Report) -> list[Remark]:
    """The three questions with numbers for answers: faithful, complete, which gates."""
    faithful = verdicts.faithful(report.evaluation)
    if report.drawn is not None:
        drawn = (
            f" The {report.drawn.edges:,} drawn edges alone keep {kept_share(report.drawn)} of the logit difference."
        )
        faithful = replace(faithful, text=faithful.text + drawn)
    remarks = [faithful, verdicts.complete(report.curves["ns|dn"]), _gates(report)]
    return downgraded(remarks) if doubts(report) else remarks


def trust(report: Report) -> list[Remark]:
    """Everything else that speaks for or against the result, the warnings first."""
    chance = verdicts.against_chance(report.evaluation)
    optional = [chance, _size(report), _agreement(report), _seeds(report), _stability(report)]
    optional += [_calibration(report), _falling(report), _against(report), _dangling(report)]
    remarks = [remark for remark in optional if remark is not None]
    order = ("warning", "note", "good")
    return sorted(downgraded(remarks) if doubts(report) else remarks, key=lambda remark: order.index(remark.level))


def next_steps(report: Report) -> list[NextStep]:
    """What the numbers suggest, the simplest first. None asks for what was just done."""
    edges, steps, choice = report.sizes[-1], [], report.choice
    if choice is not None and choice.edges is not None:
        if choice.faithfulness < _HIGH:
            steps.append(NextStep("see what it takes to keep more of the task", {"faithfulness": _HIGH}))
    elif choice is not None or verdicts.faithful(report.evaluation).level != "good":
        steps += _by_curve(report)
    if not report.directed:
        steps.append(NextStep("search in both directions, for gates", {"method": "eap"}))
    elif report.testable and not report.all_gates:
        steps.append(NextStep("test every gate, not only the strongest", {"all_gates": True}))
    if report.seeded and report.directed and report.gates.seed_overlap is None:
        steps.append(NextStep("label only the edges on which two seeds agree", {"seeds": 2}))
    if report.stability and min(report.stability.values()) < OVERLAP_GOOD:
        if report.used_up:
            steps.append(NextStep("all pairs of the file are in use: write more, they make the circuit steadier", {}))
        else:
            pairs = int(report.gates.ns.provenance["examples"])
            steps.append(NextStep("more pairs make the circuit steadier", {"examples": pairs * 4}))
    worst = _worst_correlation(report.calibration or {})
    if worst is not None and worst < CORRELATION_GOOD:
        exact = {"method": "acdc", "edges": min(edges, 100), "sizes": None}
        exact |= {} if choice is None else {"faithfulness": None}
        steps.append(NextStep("search with exact effects instead of estimates (slow)", exact))
    return steps


def _by_curve(report: Report) -> list[NextStep]:
    """More edges where the measured curve still rises or there is none, another search where it does not."""
    curve, all_edges = report.curves["ns|dn"], report.graph.n_edges
    edges = report.sizes[-1] if report.choice is None else report.choice.most_edges
    larger = {"edges": min(edges * 2, all_edges)} if edges < all_edges else None
    if larger and not curve[-1].on_path:
        return [NextStep("no edge lies on a path to the logits: allow more edges", larger)]
    if larger and len(curve) < 2:
        return [NextStep("one size was measured: see whether a larger circuit keeps more", larger)]
    if len(curve) > 1:
        before, last = curve[-2], curve[-1]
        measured = f"{before.edges:,} edges keep {kept_share(before)}, {last.edges:,} keep {kept_share(last)}"
        if last.recovered_logit_diff - before.recovered_logit_diff > RISES:
            why = f"the curve still rises ({measured}): a larger circuit may keep more"
            return [NextStep(why, larger)] if larger else []
        if report.gates.ns.provenance.get("method") != _OTHER_METHOD:
            return [
                NextStep(f"more edges do not help ({measured}): search by another method", {"method": _OTHER_METHOD})
            ]
    return []


def _falling(report: Report) -> Remark | None:
    """A smaller circuit that keeps clearly more than a larger one: edges work against each other."""
    for name, curve in report.curves.items():
        for i, smaller in enumerate(curve):
            for larger in curve[i + 1 :]:
                if smaller.logit_diff_interval.low > larger.logit_diff_interval.high:
                    text = (
                        f"The {CIRCUIT_NAMES[name]} curve falls: {smaller.edges:,} edges keep {kept_share(smaller)} of "
                        f"the logit difference, {larger.edges:,} keep {kept_share(larger)}. Edges that come later work "
                        f"against the task in the circuit; neither size alone says what the circuit is."
                    )
                    return Remark("warning", "Falling curve", text)
    return None


def _against(report: Report) -> Remark | None:
    """Nodes whose clean output lowers the logit difference."""
    against = sorted((effect, name) for name, effect in report.nodes.effect.items() if effect < -AGAINST)
    if not against:
        return None
    listed = ", ".join(f"{name} {effect:+.0%}" for effect, name in against[:3])
    others = f" and {len(against) - 3} more" if len(against) > 3 else ""
    text = f"Their clean output lowers the logit difference, to first order on the shown prompts: {listed}{others}."
    return Remark("note", "Nodes against the task", text)


def _gates(report: Report) -> Remark:
    title = "Which gates?"
    if not report.directed:
        text = (
            f"{report.gates.ns.provenance.get('method')} integrates between the two runs and has no direction, so "
            f"there are no gates to label or test. Use eap, acdc or edge-pruning for gates."
        )
        return Remark("note", title, text, "none")
    by = [f"{len(report.gates.by_type[SPLIT[kind]]):,} by {name}" for kind, name in FOUND_BY.items()]
    edges, tests = f"Edges found: {', '.join(by)}.", report.gate_tests
    if tests is None:
        return Remark("note", title, f"{edges} How groups of them act together was not tested.")
    counts = [f"{count} {label}" for label, count in Counter(gate.label for gate in tests).most_common()]
    text = f"{len(tests)} of {len(tests.tested)} tests of groups are significant"
    text += f" ({', '.join(counts)})." if counts else "."
    if tests.significant:
        names, size = tests.significant[0].strongest_interaction
        text += (
            f" The largest interaction: {' with '.join(sorted(names))} of {tests.significant[0].receiver}, normalised "
        )
        text += f"effect {size.value:+.2f} beyond the sum of their parts ({size.low:.2f} to {size.high:.2f})."
    pure = sum(gate.label in GATE_TYPES for gate in tests)
    answer = f"{len(tests):,} significant interaction{'' if len(tests) == 1 else 's'}"
    answer += f", {pure or 'none'} a pure gate" if len(tests) else ""
    return Remark("note", title, f"{text} {edges}", answer)


def _agreement(report: Report) -> Remark | None:
    if not report.directed:
        return None
    agreement = report.agreement
    if not report.testable:
        text = f"Norms of {report.model} couple the queries of a layer's heads, so that no edge can be patched alone. "
        return Remark("note", "Labels not tested", text + "Truth tables and exact effects are left out.")
    if agreement.edges == 0:
        text = "No input of the circuit receives two edges that reach the logits, so there is nothing to test."
        return Remark("note", "Labels not tested", text)
    shares = {kind: agreement.of_type(kind) for kind in GATE_TYPES if agreement.table[kind]}
    listed = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items())
    text = (
        f"Of {agreement.edges:,} edges tested two at a time in one input, {agreement.share:.0%} act as their "
        f"set-difference labels say ({listed})."
    )
    worst = min(shares.values())
    if worst < AGREEMENT_POOR:
        text += " Read AND, OR and ADDER as which direction found an edge, not as how it computes: single edges "
        text += "seldom interact at a receiver, and what groups of them do is under tested gates."
    return Remark(level_of(worst, AGREEMENT_GOOD, AGREEMENT_POOR), "Labels", text)


def _size(report: Report) -> Remark | None:
    if report.choice is None:
        return None
    text = f"Chosen by faithfulness: {report.choice}."
    return Remark("good" if report.choice.edges is not None else "warning", "Size", text)


def _seeds(report: Report) -> Remark | None:
    overlap = report.gates.seed_overlap
    if overlap is None:
        if not report.seeded or not report.directed:
            return None
        text = "One training for each direction: which of them found an edge may be noise of the seed, not a label."
        return Remark("warning", "Seeds", text)
    unlabelled = len(report.gates.unlabelled)
    text = f"{overlap} {unlabelled:,} of {len(report.gates.sound):,} edges have none."
    return Remark("note" if overlap.beyond_noise else "warning", "Seeds", text)


def _stability(report: Report) -> Remark | None:
    if report.stability is None:
        return None
    worst = min(report.stability.values())
    listed = ", ".join(f"{name} {share:.0%}" for name, share in report.stability.items())
    text = f"Two halves of the pairs find circuits that share this much of their edges: {listed}."
    if worst < OVERLAP_POOR:
        text += " Single edges may be accidents of the prompts; give more examples."
    return Remark(level_of(worst, OVERLAP_GOOD, OVERLAP_POOR), "Stability", text)


def _calibration(report: Report) -> Remark | None:
    worst = _worst_correlation(report.calibration or {})
    if worst is None or report.calibration is None:
        return None
    listed = ", ".join(f"{name} {part.rank_correlation:.2f}" for name, part in report.calibration.items())
    count = min(len(part.exact) for part in report.calibration.values())
    text = (
        f"Rank correlation of the scores with exact effects in the whole model, for the {count} edges drawn: {listed}."
    )
    if worst < CORRELATION_POOR:
        text += " The scores are rough estimates; exact search (method acdc) is slower and sure."
    return Remark(level_of(worst, CORRELATION_GOOD, CORRELATION_POOR), "Scores", text)


def _worst_correlation(calibration: Mapping[Direction, Calibration]) -> float | None:
    known = [part.rank_correlation for part in calibration.values() if part.rank_correlation is not None]
    return min(known, default=None)


def _dangling(report: Report) -> Remark | None:
    circuit = report.gates.sound
    on_path = len(circuit.connected())
    if on_path == len(circuit):
        return None
    text = f"{len(circuit) - on_path:,} of {len(circuit):,} edges lie on no path from the input to the logits."
    return Remark(level_of(on_path / len(circuit), 0.9, 0.5), "Loose ends", text)
