"""What came out, in sentences: how faithful, how complete, which gates, how far to trust it, what to do next.

The terminal and the page print the same sentences, made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gatewise.gate_types import GATE_TYPES

if TYPE_CHECKING:
    from gatewise.evaluation import Evaluation
    from gatewise.report.investigation import Investigation

Level = Literal["good", "note", "warning"]

AGREEMENT_GOOD, AGREEMENT_POOR = 0.8, 0.5
OVERLAP_GOOD, OVERLAP_POOR = 0.7, 0.4
CORRELATION_GOOD, CORRELATION_POOR = 0.8, 0.5


@dataclass(frozen=True)
class Remark:
    """One sentence or two under a heading, and whether it is reassuring."""

    level: Level
    title: str
    text: str


@dataclass(frozen=True)
class NextStep:
    """Another investigation that is worth it: why, and with what it differs from this one."""

    why: str
    changes: Mapping[str, Any]  # of the task (`examples`) or of `investigate`


def headline(found: Investigation) -> str:
    """The whole in one line."""
    best = found.curves["ns|dn"][-1]
    return (
        f"{best.edges:,} of {best.graph_edges:,} edges keep {best.recovered_margin:.0%} of the margin; "
        f"removing them takes {best.destroyed:.0%} of what corruption takes"
    )


def facts(found: Investigation) -> list[Remark]:
    """The three questions with numbers for answers: faithful, complete, which gates."""
    union, joint = found.curves["ns|dn"][-1], found.curves["ns+dn"][-1]
    return [_faithful(union, joint), _complete(union, joint), _gates(found)]


def trust(found: Investigation) -> list[Remark]:
    """Everything that speaks for or against the result, the warnings first."""
    given = [_beats_random(found), _agreement(found), _stability(found), _calibration(found), _dangling(found)]
    listed = [verdict for verdict in given if verdict is not None]
    listed += [Remark("warning", "Task", f"{problem[0].upper()}{problem[1:]}") for problem in found.problems]
    order = ("warning", "note", "good")
    return sorted(listed, key=lambda verdict: order.index(verdict.level))


def next_steps(found: Investigation) -> list[NextStep]:
    """What the numbers suggest, the simplest first."""
    edges, steps = len(found.gates.ns), []
    if found.curves["ns|dn"][-1].recovered_margin < 0.8 and edges * 2 <= found.graph.n_edges:
        steps.append(NextStep("a larger circuit keeps more of the task", {"edges": edges * 2}))
    if not found.all_gates:
        steps.append(NextStep("test every gate, not only the strongest", {"all_gates": True}))
    if found.stability and min(found.stability.values()) < OVERLAP_GOOD:
        pairs = int(found.gates.ns.provenance["examples"])
        steps.append(NextStep("more pairs make the circuit steadier", {"examples": pairs * 4}))
    if found.calibration and min(one.rank_correlation for one in found.calibration.values()) < CORRELATION_GOOD:
        exact = {"method": "acdc", "edges": min(edges, 100), "sizes": None}
        steps.append(NextStep("search with exact effects instead of estimates (slow)", exact))
    return steps


def _faithful(union: Evaluation, joint: Evaluation) -> Remark:
    level: Level = "good" if union.recovered_margin >= 0.8 else "note" if union.recovered_margin >= 0.4 else "warning"
    return Remark(
        level,
        "How faithful?",
        f"Alone, the circuit keeps {union.recovered_margin:.0%} of the margin between right and wrong answers "
        f"(KL to the model {union.faithfulness} of {union.empty.kl_from_full.mean:.3f} nats). "
        f"The ns+dn circuit of {joint.edges:,} edges keeps {joint.recovered_margin:.0%}.",
    )


def _complete(union: Evaluation, joint: Evaluation) -> Remark:
    level: Level = "good" if union.destroyed >= 0.8 else "note" if union.destroyed >= 0.4 else "warning"
    return Remark(
        level,
        "How complete?",
        f"Without the circuit the model is {union.destroyed:.0%} as far from itself as on corrupted prompts "
        f"(KL {union.completeness} of {union.empty.kl_to_full.mean:.3f} nats). Without the ns+dn circuit: "
        f"{joint.destroyed:.0%}.",
    )


def _gates(found: Investigation) -> Remark:
    counts = {kind: sum(gate.type == kind for gate in found.gates) for kind in GATE_TYPES}
    listed = ", ".join(
        f"{len(found.gates.by_type[kind]):,} {kind} edges in {counts[kind]:,} gates" for kind in GATE_TYPES
    )
    text = f"{listed}, by what noising and denoising found."
    agreement = found.agreement
    if agreement.edges:
        shares = ", ".join(f"{kind} {agreement.of_type(kind):.0%}" for kind in GATE_TYPES if agreement.table[kind])
        text += f" Labels that truth tables confirm, of {agreement.edges:,} tested: {shares}."
    return Remark("note", "Which gates?", text)


def _beats_random(found: Investigation) -> Remark | None:
    union = found.curves["ns|dn"][-1]
    if union.random_circuit is None:
        return None
    span = union.full.margin.mean - union.empty.margin.mean
    random = (union.random_circuit.margin.mean - union.empty.margin.mean) / span if span else float("nan")
    better = union.recovered_margin > random
    return Remark(
        "good" if better else "warning",
        "Against chance",
        f"Random circuits of {union.edges:,} edges keep {random:.0%} of the margin; this one keeps "
        f"{union.recovered_margin:.0%}.",
    )


def _agreement(found: Investigation) -> Remark | None:
    agreement = found.agreement
    if agreement.edges == 0:
        text = "No port of the circuit receives two edges that reach the logits, so there is nothing to test."
        return Remark("note", "Labels not tested", text)
    text = f"Truth tables confirm {agreement.share:.0%} of the {agreement.edges:,} labels tested"
    shares = [f"{kind} {agreement.of_type(kind):.0%}" for kind in GATE_TYPES if agreement.table[kind]]
    text += f" ({', '.join(shares)})."
    worst = min(agreement.of_type(kind) for kind in GATE_TYPES if agreement.table[kind])
    if worst < AGREEMENT_POOR:
        text += " Read AND, OR and ADDER as which direction found an edge, not as how it computes."
    return Remark(_level(worst, AGREEMENT_GOOD, AGREEMENT_POOR), "Labels", text)


def _stability(found: Investigation) -> Remark | None:
    if found.stability is None:
        return None
    worst = min(found.stability.values())
    listed = ", ".join(f"{name} {share:.0%}" for name, share in found.stability.items())
    text = f"Two halves of the pairs find circuits that share this much of their edges: {listed}."
    if worst < OVERLAP_POOR:
        text += " Single edges may be accidents of the prompts; give more examples."
    return Remark(_level(worst, OVERLAP_GOOD, OVERLAP_POOR), "Stability", text)


def _calibration(found: Investigation) -> Remark | None:
    if found.calibration is None:
        return None
    worst = min(one.rank_correlation for one in found.calibration.values())
    listed = ", ".join(f"{name} {one.rank_correlation:.2f}" for name, one in found.calibration.items())
    count = min(len(one.exact) for one in found.calibration.values())
    text = f"Rank correlation of the scores with exact effects, for {count} edges of each circuit: {listed}."
    if worst < CORRELATION_POOR:
        text += " The scores are rough estimates; exact search (method acdc) is slower and sure."
    return Remark(_level(worst, CORRELATION_GOOD, CORRELATION_POOR), "Scores", text)


def _dangling(found: Investigation) -> Remark | None:
    circuit = found.gates.sound
    on_path = len(circuit.connected())
    if on_path == len(circuit):
        return None
    share = on_path / max(1, len(circuit))
    text = f"{len(circuit) - on_path:,} of {len(circuit):,} edges lie on no path from the input to the logits."
    return Remark(_level(share, 0.9, 0.5), "Loose ends", text)


def _level(value: float, good: float, poor: float) -> Level:
    return "good" if value >= good else "note" if value >= poor else "warning"
