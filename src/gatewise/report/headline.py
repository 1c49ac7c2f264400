"""What came out, in sentences: how faithful, how complete, which gates, how far to trust it, what to do next.

The terminal and the page print the same sentences, made here and in `evaluation/verdicts.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatewise.evaluation import verdicts
from gatewise.evaluation.verdicts import Remark, downgraded, level_of
from gatewise.gate_types import FOUND_BY, GATE_TYPES, SPLIT

if TYPE_CHECKING:
    from gatewise.report.investigation import Report

AGREEMENT_GOOD, AGREEMENT_POOR = 0.8, 0.5
OVERLAP_GOOD, OVERLAP_POOR = 0.7, 0.4
CORRELATION_GOOD, CORRELATION_POOR = 0.8, 0.5


@dataclass(frozen=True)
class NextStep:
    """What is worth doing: why, and what another investigation would differ in; nothing if it is done by hand."""

    why: str
    changes: Mapping[str, Any]  # of the task (`examples`) or of `make_report`


def doubts(found: Report) -> list[Remark]:
    """What has to be said before anything else, because it makes all numbers doubtful."""
    return verdicts.doubts(found.curves["ns|dn"][-1], found.problems)


def headline(found: Report) -> str:
    """The whole in one line; what makes it doubtful before all numbers."""
    against, best = doubts(found), found.curves["ns|dn"][-1]
    if against:
        return against[0].text
    faithful, complete, _ = facts(found)
    return f"{best.edges:,} of {best.graph_edges:,} edges; faithful: {faithful.answer}; complete: {complete.answer}"


def facts(found: Report) -> list[Remark]:
    """The three questions with numbers for answers: faithful, complete, which gates."""
    curve = found.curves["ns|dn"]
    return _judged(found, [verdicts.faithful(curve[-1]), verdicts.complete(curve), _gates(found)])


def trust(found: Report) -> list[Remark]:
    """Everything else that speaks for or against the result, the warnings first."""
    chance = verdicts.against_chance(found.curves["ns|dn"][-1])
    given = [chance, _agreement(found), _stability(found), _calibration(found), _dangling(found)]
    order = ("warning", "note", "good")
    listed = _judged(found, [remark for remark in given if remark is not None])
    return sorted(listed, key=lambda remark: order.index(remark.level))


def next_steps(found: Report) -> list[NextStep]:
    """What the numbers suggest, the simplest first. None asks for what was just done."""
    edges, steps = found.sizes[-1], []
    if verdicts.faithful(found.curves["ns|dn"][-1]).level != "good" and edges * 2 <= found.graph.n_edges:
        steps.append(NextStep("a larger circuit keeps more of the task", {"edges": edges * 2}))
    if not found.directed:
        steps.append(NextStep("search in both directions, for gates", {"method": "eap"}))
    elif not found.all_gates:
        steps.append(NextStep("test every gate, not only the strongest", {"all_gates": True}))
    if found.stability and min(found.stability.values()) < OVERLAP_GOOD:
        if found.used_up:
            steps.append(NextStep("all pairs of the file are in use: write more, they make the circuit steadier", {}))
        else:
            pairs = int(found.gates.ns.provenance["examples"])
            steps.append(NextStep("more pairs make the circuit steadier", {"examples": pairs * 4}))
    if found.calibration and min(one.rank_correlation for one in found.calibration.values()) < CORRELATION_GOOD:
        exact = {"method": "acdc", "edges": min(edges, 100), "sizes": None}
        steps.append(NextStep("search with exact effects instead of estimates (slow)", exact))
    return steps


def _judged(found: Report, remarks: list[Remark]) -> list[Remark]:
    return downgraded(remarks) if doubts(found) else remarks


def _gates(found: Report) -> Remark:
    if not found.directed:
        text = (
            f"{found.gates.ns.provenance.get('method')} integrates between the two runs and has no direction, so there "
            f"are no gates to split or test. Use eap, acdc or edge-pruning for gates."
        )
        return Remark("note", "Which gates?", text, "none")
    by = [f"{len(found.gates.by_type[SPLIT[kind]]):,} by {name}" for kind, name in FOUND_BY.items()]
    text, tested = f"Edges found: {', '.join(by)}.", found.interactions
    if tested is None:
        return Remark("note", "Which gates?", f"{text} How groups of them act together was not tested.")
    labels = Counter(one.label for one in tested).most_common()
    said = f"{len(tested)} of {len(tested.tested)} tests of groups stand"
    said += f" ({', '.join(f'{count} {label}' for label, count in labels)})." if labels else "."
    if tested.significant:
        first = tested.significant[0]
        names, size = first.strongest_interaction
        said += f" The largest: {' with '.join(sorted(names))} of {first.receiver}, {size.value:+.2f} of the "
        said += f"logit difference beyond their parts ({size.low:.2f} to {size.high:.2f})."
    return Remark(
        "note", "Which gates?", f"{said} {text}", f"{len(tested):,} tested gate{'s' if len(tested) != 1 else ''}"
    )


def _agreement(found: Report) -> Remark | None:
    if not found.directed:
        return None
    agreement = found.agreement
    if not found.testable:
        text = f"Norms of {found.model} couple the queries of a layer's heads, so that no edge can be changed alone. "
        return Remark("note", "Labels not tested", text + "Truth tables and exact effects are left out.")
    if agreement.edges == 0:
        text = "No port of the circuit receives two edges that reach the logits, so there is nothing to test."
        return Remark("note", "Labels not tested", text)
    text = f"Of {agreement.edges:,} edges tested two at a time in one port, {agreement.share:.0%} act as the split says"
    shares = [f"{kind} {agreement.of_type(kind):.0%}" for kind in GATE_TYPES if agreement.table[kind]]
    text += f" ({', '.join(shares)})."
    worst = min(agreement.of_type(kind) for kind in GATE_TYPES if agreement.table[kind])
    if worst < AGREEMENT_POOR:
        text += " Read AND, OR and ADDER as which direction found an edge, not as how it computes: single edges "
        text += "seldom bend a receiver, and what groups of them do is under tested gates."
    return Remark(level_of(worst, AGREEMENT_GOOD, AGREEMENT_POOR), "Labels", text)


def _stability(found: Report) -> Remark | None:
    if found.stability is None:
        return None
    worst = min(found.stability.values())
    listed = ", ".join(f"{name} {share:.0%}" for name, share in found.stability.items())
    text = f"Two halves of the pairs find circuits that share this much of their edges: {listed}."
    if worst < OVERLAP_POOR:
        text += " Single edges may be accidents of the prompts; give more examples."
    return Remark(level_of(worst, OVERLAP_GOOD, OVERLAP_POOR), "Stability", text)


def _calibration(found: Report) -> Remark | None:
    if found.calibration is None:
        return None
    worst = min(one.rank_correlation for one in found.calibration.values())
    listed = ", ".join(f"{name} {one.rank_correlation:.2f}" for name, one in found.calibration.items())
    count = min(len(one.exact) for one in found.calibration.values())
    text = f"Rank correlation of the scores with exact effects, for {count} edges of each circuit: {listed}."
    if worst < CORRELATION_POOR:
        text += " The scores are rough estimates; exact search (method acdc) is slower and sure."
    return Remark(level_of(worst, CORRELATION_GOOD, CORRELATION_POOR), "Scores", text)


def _dangling(found: Report) -> Remark | None:
    circuit = found.gates.sound
    on_path = len(circuit.connected())
    if on_path == len(circuit):
        return None
    share = on_path / max(1, len(circuit))
    text = f"{len(circuit) - on_path:,} of {len(circuit):,} edges lie on no path from the input to the logits."
    return Remark(level_of(share, 0.9, 0.5), "Loose ends", text)
