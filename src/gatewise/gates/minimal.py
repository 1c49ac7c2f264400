"""Minimal circuits, from the paper's Corollary 1, and what they lose when they are run.

Smallest faithful circuit: all AND edges, all ADDER edges, one edge of each OR gate. Smallest complete circuit: all OR
edges, all ADDER edges, one edge of each AND gate. The corollary takes a receiver's edges of one type to be one gate;
of two OR gates into one port, which labels cannot tell apart, one would be lost, and `check_minimal` shows such losses.

Of *tested* gates, whose members are groups, tables say the same for every label: faithful needs the groups that do what
all of them do, complete those without which nothing is left; of several such choices the one with fewest edges.

Completeness KL(G\\C || G) is blunt: where C has the last edges before the logits, G\\C is the corrupted run whatever
else C has. So each gate is also checked alone: its loss is what the edges that were dropped do without the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine.forward.sparse import SparseEngine
from gatewise.engine.patching.edge_ablation import NOTHING, Removal, kl_changes
from gatewise.engine.patching.kl_screening import divergence_between
from gatewise.engine.setting import Data, Setting
from gatewise.errors import GatewiseError
from gatewise.gate_types import GateType
from gatewise.gates.labels import Gates, GroupGate
from gatewise.gates.testing.gate_test import FLOOR
from gatewise.models.model import Model

Aim = Literal["faithful", "complete"]
LabelSource = Mapping[str, str] | Literal["tested"] | None  # edge -> label; of gates of groups; or those of the split
Keep = Literal["strongest", "first"]
_LOST = 0.1  # of what all groups of a tested gate do together that may be lost, or left
_THINNED: dict[Aim, GateType] = {"faithful": "OR", "complete": "AND"}  # the type of which one edge per gate is enough


def minimal_circuit(gates: Gates, aim: Aim, labels: LabelSource = None, *, keep: Keep = "strongest") -> Circuit:
    """The smallest faithful or complete part of the sound circuit.

    labels: edge -> label, as `labels_by_test` gives them; "tested": the gates of groups in `gates.tested`; default:
    those of the split. Edges without one of the three labels, or in no tested gate, stay. keep: which edge of an OR or
    AND gate stays: the one with the largest |score| in the direction that finds such gates (OR: dn, AND: ns), or the
    first in the graph's order, as also if there are no scores.
    """
    if aim not in _THINNED or keep not in ("strongest", "first"):
        raise GatewiseError(
            f"a minimal circuit is 'faithful' or 'complete' and keeps the 'strongest' or the 'first' edge of a gate, "
            f"got {aim!r} and {keep!r}."
        )
    mask = gates.sound.mask.clone()
    for thin in _thin_gates(gates, aim, labels, keep):
        mask[list(thin.dropped)] = False
    return Circuit(gates.graph, mask)


@dataclass(frozen=True)
class _ThinGate:
    """A gate of which one edge, or some groups of edges, are kept."""

    kept: Removal
    dropped: Removal


def _thin_gates(gates: Gates, aim: Aim, labels: LabelSource, keep: Keep) -> list[_ThinGate]:
    if isinstance(labels, str):
        return _thin_groups(gates, aim, labels)
    kind = _THINNED[aim]
    scores = (gates.dn if kind == "OR" else gates.ns).scores
    strength = [] if scores is None or keep == "first" else scores.abs().tolist()
    found = []
    for edges in gates.graph.by_receiver(_labelled(gates, kind, labels), gates.grouping).values():
        kept = max(edges, key=strength.__getitem__) if strength else edges[0]
        if len(edges) >= 2:
            found.append(_ThinGate(frozenset([kept]), frozenset(edges) - {kept}))
    return found


def _thin_groups(gates: Gates, aim: Aim, labels: str) -> list[_ThinGate]:
    """Tested gates of which some groups are enough; of those that share edges, the strongest decides."""
    if labels != "tested" or not gates.tested:
        raise GatewiseError(
            f"labels is a mapping of edges to labels, or 'tested' if gates have tested ones, such as those of "
            f"gates.with_tested(gw.test_gates(...)); got {labels!r} and {len(gates.tested)} tested gates."
        )
    found = []
    used = frozenset((~gates.sound.mask).nonzero().flatten().tolist())
    for gate in gates.tested:
        groups = [frozenset(map(gates.graph.index, edges)) for edges in gate.groups.values()]
        every = NOTHING.union(*groups)
        if used & every:
            continue
        used |= every
        kept = NOTHING.union(*(group for group, stays in zip(groups, _enough(gate, aim), strict=True) if stays))
        if kept < every:
            found.append(_ThinGate(kept, every - kept))
    return found


def _enough(gate: GroupGate, aim: Aim) -> list[bool]:
    """The groups with fewest edges that do what all do, or without which nothing is left; all other edges clean."""
    sizes = [len(edges) for edges in gate.groups.values()]
    everyone = (1 << len(sizes)) - 1
    alone, *_ = with_rest = gate.values[everyone + 1 :]
    worth = [value - alone for value in with_rest]
    if abs(worth[everyone]) <= FLOOR:
        return [True] * len(sizes)

    def fits(chosen: int) -> bool:
        missed = worth[everyone] - worth[chosen] if aim == "faithful" else worth[everyone ^ chosen]
        return abs(missed) <= _LOST * abs(worth[everyone])

    def edges(chosen: int) -> int:
        return sum(size for i, size in enumerate(sizes) if chosen >> i & 1)

    best = min(filter(fits, range(everyone + 1)), key=edges)
    return [bool(best >> i & 1) for i in range(len(sizes))]


def _labelled(gates: Gates, kind: GateType, labels: Mapping[str, str] | None) -> list[int]:
    """Edges with this label, in the graph's order."""
    if labels is None:
        return gates.by_type[kind].indices
    found = {gates.graph.index(edge): label for edge, label in labels.items()}
    outside = [edge for edge in found if not bool(gates.sound.mask[edge])]
    if outside:
        raise GatewiseError(
            f"{len(outside)} of the labelled edges are not in the sound circuit, for example "
            f"{gates.graph.edges[outside[0]]}. Test the labels on gates.sound."
        )
    return sorted(edge for edge, label in found.items() if label == kind)


@dataclass(frozen=True)
class Quality:
    """How faithful and how complete a circuit is, as means over examples, by noising."""

    edges: int
    faithfulness: float  # KL(G || C): low is good
    completeness: float  # KL(G\\C || G): high is good


@dataclass(frozen=True, eq=False)
class MinimalCheck:
    """A minimal circuit beside the sound circuit that it was made from."""

    aim: Aim
    circuit: Circuit
    sound: Quality
    minimal: Quality
    gate_losses: tuple[float, ...]  # KL that each gate with dropped edges loses by itself: 0 for a true gate

    @property
    def edges_saved(self) -> int:
        return self.sound.edges - self.minimal.edges

    @property
    def kl_lost(self) -> float:
        """How much worse the minimal circuit is at its aim; negative if it is better."""
        if self.aim == "faithful":
            return self.minimal.faithfulness - self.sound.faithfulness
        return self.sound.completeness - self.minimal.completeness

    def __str__(self) -> str:
        m, s = self.minimal, self.sound
        return (
            f"smallest {self.aim} circuit: {m.edges} of {s.edges} edges, {self.edges_saved} saved, KL lost "
            f"{self.kl_lost:+.2g} (faithfulness {s.faithfulness:.4g} -> {m.faithfulness:.4g}, "
            f"completeness {s.completeness:.4g} -> {m.completeness:.4g}); largest loss of one of "
            f"{len(self.gate_losses)} gates {max(self.gate_losses, default=0.0):+.2g}"
        )


def check_minimal(
    model: Model,
    data: Data,
    gates: Gates,
    labels: LabelSource = None,
    *,
    keep: Keep = "strongest",
    compute: Compute | None = None,
) -> tuple[MinimalCheck, MinimalCheck]:
    """Run the smallest faithful and the smallest complete circuit: edges saved, and KL lost, by each."""
    setting = Setting.of(model, data, compute=compute)
    aims: tuple[Aim, Aim] = ("faithful", "complete")
    circuits = [minimal_circuit(gates, aim, labels, keep=keep) for aim in aims]
    sound, *minimal = _qualities(setting, [gates.sound, *circuits])
    checks = []
    for aim, circuit, quality in zip(aims, circuits, minimal, strict=True):
        losses = _gate_losses(setting, gates, aim, _thin_gates(gates, aim, labels, keep))
        checks.append(MinimalCheck(aim, circuit, sound, quality, losses))
    return checks[0], checks[1]


def _gate_losses(setting: Setting, gates: Gates, aim: Aim, thin: Sequence[_ThinGate]) -> tuple[float, ...]:
    """Faithful: D(G || sound without what was dropped) - D(G || sound), gate by gate.

    Complete: D(G || G without the gate) - D(G || G without its kept edge).
    """
    if aim == "faithful":
        losses = kl_changes(setting, gates.sound, [gate.dropped for gate in thin])
    else:
        whole, kept = [gate.kept | gate.dropped for gate in thin], [gate.kept for gate in thin]
        without = kl_changes(setting, None, [*whole, *kept])
        losses = without[: len(thin)] - without[len(thin) :]
    return tuple(losses.mean(dim=1).tolist())


def _qualities(setting: Setting, circuits: list[Circuit]) -> list[Quality]:
    setting.check_circuits(circuits)
    model = setting.model
    sums = torch.zeros(2, len(circuits), dtype=torch.float64)
    for batch in setting.batches():
        engine = SparseEngine(model, setting.intervention(batch))
        full, inside, outside = (
            torch.stack([engine.residual(circuit) for circuit in some])
            for some in ([model.graph.full()], circuits, [~circuit for circuit in circuits])
        )
        full = full.expand_as(inside)
        kl = [divergence_between(model, p, q) for p, q in ((full, inside), (outside, full))]
        sums += torch.stack(kl).sum(dim=-1)
    faithful, complete = (sums / len(setting)).tolist()
    return [Quality(len(c), f, k) for c, f, k in zip(circuits, faithful, complete, strict=True)]
