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
from gatewise.gates.labels import Gates, GroupGate, LabelSource
from gatewise.gates.testing.gate_test import FLOOR
from gatewise.gates.testing.harsanyi import membership
from gatewise.models.model import Model

Aim = Literal["faithful", "complete"]
_LOST = 0.1  # share of the joint effect of a tested gate's groups that may be lost, or left
_THINNED: dict[Aim, GateType] = {"faithful": "OR", "complete": "AND"}  # the type of which one edge per gate is enough


def minimal_circuit(gates: Gates, aim: Aim, labels: LabelSource = None) -> Circuit:
    """Drop from the sound circuit what the aim does not need.

    Of an OR or AND gate the edge stays that has the largest |score| in the direction that finds such gates (OR: dn,
    AND: ns), or without scores the first in the graph's order. Edges without one of the three labels, or in no tested
    gate, stay.

    Args:
        gates: The gates.
        aim: "faithful" or "complete".
        labels: Edge -> label, as `labels_by_test` gives them; "tested" for the gates of groups in `gates.tested`; by
            default the set-difference labels.

    Returns:
        The smallest part of the sound circuit.
    """
    if aim not in _THINNED:
        raise GatewiseError(f"a minimal circuit is 'faithful' or 'complete', got {aim!r}.")
    mask = gates.sound.mask.clone()
    for thinned in _thinned_gates(gates, aim, labels):
        mask[list(thinned.dropped)] = False
    return Circuit(gates.graph, mask)


@dataclass(frozen=True)
class _ThinnedGate:
    """A gate of which one edge, or some groups of edges, stay."""

    staying: Removal
    dropped: Removal


def _thinned_gates(gates: Gates, aim: Aim, labels: LabelSource) -> list[_ThinnedGate]:
    if isinstance(labels, str):
        return _thinned_groups(gates, aim, labels)
    kind = _THINNED[aim]
    scores = (gates.dn if kind == "OR" else gates.ns).scores
    strength = torch.zeros(gates.graph.n_edges) if scores is None else scores.abs()
    thinned = []
    for edges in gates.graph.by_receiver(_edges_of_type(gates, kind, labels), gates.grouping).values():
        strongest = max(edges, key=lambda edge: float(strength[edge]))
        if len(edges) >= 2:
            thinned.append(_ThinnedGate(frozenset([strongest]), frozenset(edges) - {strongest}))
    return thinned


def _thinned_groups(gates: Gates, aim: Aim, labels: str) -> list[_ThinnedGate]:
    """Tested gates of which some groups are enough; of those that share edges, the strongest decides."""
    if labels != "tested" or not gates.tested:
        raise GatewiseError(
            f"labels is a mapping of edges to labels, or 'tested' if gates have tested ones, such as those of "
            f"gates.with_tested(gw.test_gates(...)); got {labels!r} and {len(gates.tested)} tested gates."
        )
    thinned = []
    used = frozenset((~gates.sound.mask).nonzero().flatten().tolist())
    for gate in gates.tested:
        groups = [frozenset(map(gates.graph.index, edges)) for edges in gate.groups.values()]
        edges = NOTHING.union(*groups)
        if used & edges:
            continue
        used |= edges
        staying = NOTHING.union(*(group for group, stays in zip(groups, _enough(gate, aim), strict=True) if stays))
        if staying < edges:
            thinned.append(_ThinnedGate(staying, edges - staying))
    return thinned


def _enough(gate: GroupGate, aim: Aim) -> list[bool]:
    """Which groups are enough, with fewest edges, all other edges of the receiver being clean.

    Faithful: the effect of these alone is that of all. Complete: without these, nothing of the effect is left.
    """
    count = len(gate.groups)
    sets = membership(count)  # [set, group]
    with_rest = torch.tensor(gate.values, dtype=torch.float64)[1 << count :]
    effects = with_rest - with_rest[0]
    if float(effects[-1].abs()) <= FLOOR:
        return [True] * count
    missed = effects[-1] - effects if aim == "faithful" else effects.flip(0)  # flipped: the effect of the complement
    fits = missed.abs() <= _LOST * effects[-1].abs()
    edges = sets.double() @ torch.tensor([len(edges) for edges in gate.groups.values()], dtype=torch.float64)
    best = min(fits.nonzero().flatten().tolist(), key=lambda bits: float(edges[bits]))
    chosen: list[bool] = sets[best].tolist()
    return chosen


def _edges_of_type(gates: Gates, kind: GateType, labels: Mapping[str, str] | None) -> list[int]:
    """Edges with this label, in the graph's order."""
    if labels is None:
        return gates.by_type[kind].indices
    by_index = {gates.graph.index(edge): label for edge, label in labels.items()}
    outside = [edge for edge in by_index if not bool(gates.sound.mask[edge])]
    if outside:
        raise GatewiseError(
            f"{len(outside)} of the labelled edges are not in the sound circuit, for example "
            f"{gates.graph.edges[outside[0]]}. Test the labels on gates.sound."
        )
    return sorted(edge for edge, label in by_index.items() if label == kind)


@dataclass(frozen=True)
class Quality:
    """How faithful and how complete a circuit is, as means over examples, by noising."""

    edges: int
    faithfulness: float  # KL(G || C): low is good
    completeness: float  # KL(G\\C || G): high is good


@dataclass(frozen=True, eq=False, repr=False)
class MinimalCheck:
    """A minimal circuit beside the sound circuit that it was made from."""

    aim: Aim
    circuit: Circuit
    sound: Quality
    minimal: Quality
    gate_losses: tuple[float, ...]  # KL that each thinned gate loses by itself: 0 for a true gate

    @property
    def edges_saved(self) -> int:
        """Edges that the minimal circuit has less."""
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

    def __repr__(self) -> str:
        return f"<{self}>"


def check_minimal(
    model: Model, data: Data, gates: Gates, labels: LabelSource = None, *, compute: Compute | None = None
) -> tuple[MinimalCheck, MinimalCheck]:
    """Run the smallest faithful and the smallest complete circuit.

    Args:
        model: The model.
        data: Pairs, or a task, of which the held-out pairs are used.
        gates: The gates.
        labels: As for `minimal_circuit`.
        compute: Where to run.

    Returns:
        For the faithful and for the complete circuit, the edges that it saves and the KL that it loses.

    Raises:
        GatewiseError: Gates of another model, labelled edges outside the sound circuit, or no tested gates.
    """
    setting = Setting.of(model, data, "test", compute=compute)
    aims: tuple[Aim, Aim] = ("faithful", "complete")
    circuits = [minimal_circuit(gates, aim, labels) for aim in aims]
    sound, *minimal = _qualities(setting, [gates.sound, *circuits])
    checks = []
    for aim, circuit, quality in zip(aims, circuits, minimal, strict=True):
        losses = _gate_losses(setting, gates, aim, _thinned_gates(gates, aim, labels))
        checks.append(MinimalCheck(aim, circuit, sound, quality, losses))
    return checks[0], checks[1]


def _gate_losses(setting: Setting, gates: Gates, aim: Aim, thinned: Sequence[_ThinnedGate]) -> tuple[float, ...]:
    """Faithful: D(G || sound without what was dropped) - D(G || sound), gate by gate.

    Complete: D(G || G without the gate) - D(G || G without its staying edges).
    """
    if aim == "faithful":
        losses = kl_changes(setting, gates.sound, [gate.dropped for gate in thinned])
    else:
        whole, staying = [gate.staying | gate.dropped for gate in thinned], [gate.staying for gate in thinned]
        without = kl_changes(setting, None, [*whole, *staying])
        losses = without[: len(thinned)] - without[len(thinned) :]
    return tuple(losses.mean(dim=1).tolist())


def _qualities(setting: Setting, circuits: Sequence[Circuit]) -> list[Quality]:
    """Faithfulness and completeness of each circuit."""
    setting.check_circuits(circuits)
    model = setting.model
    sums = torch.zeros(2, len(circuits), dtype=torch.float64)
    for batch in setting.batches():
        engine = SparseEngine(model, setting.intervention(batch))
        inside = torch.stack([engine.residual(circuit) for circuit in circuits])  # [circuit, example, d]
        outside = torch.stack([engine.residual(~circuit) for circuit in circuits])
        full = engine.residual(model.graph.full()).expand_as(inside)
        divergences = [divergence_between(model, full, inside), divergence_between(model, outside, full)]
        sums += torch.stack(divergences).sum(dim=-1)
    faithfulness, completeness = (sums / len(setting)).tolist()
    return list(map(Quality, map(len, circuits), faithfulness, completeness))
