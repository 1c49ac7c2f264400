"""Ablating one or two edges per gate: the paper's first figure, and the table in its appendix.

For each gate of at least two edges, `repeats` times two of its edges i, j are drawn (an ordered pair, uniformly), and i
alone and both are removed from H. The change is D(G || H without them) - D(G || H), in KL by noising. An AND changes as
much by one edge as by two, an OR hardly by one, an ADDER more by two.

The table has the effect of what is *kept*, 0 if neither is: D(H\\i,j) - D(H with what is kept of i, j). Mind that KL is
quadratic near G: with H the full graph, a perfect adder keeps 75 % of its effect with one edge. Labels by test, which
do not suffer from that, are in `truth`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine.patching.edge_ablation import Removal, kl_changes
from gatewise.engine.setting import Data, Setting
from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_TYPES, GateType
from gatewise.gates.labels import Gate, Gates
from gatewise.models.model import Model


@dataclass(frozen=True)
class KeptEffects:
    """Effect on KL of what is kept of two edges i and j, as a mean over draws. Neither kept: 0."""

    both: float
    first: float  # i remains, j is ablated
    second: float  # i is ablated, j remains
    neither: float = 0.0


@dataclass(frozen=True, eq=False)
class TypeAblation:
    """What removing one and two edges of the gates of one type does to KL."""

    type: GateType
    gates: tuple[Gate, ...]  # of at least two edges
    single: int  # gates of one edge, left out
    one: Tensor  # [gate, repeat], change by removing i
    other: Tensor  # [gate, repeat], change by removing j
    two: Tensor  # [gate, repeat], change by removing i and j

    def quartiles(self, removed: int) -> tuple[float, ...]:
        """Smallest, first quartile, median, third quartile and largest change by removing 1 or 2 edges."""
        values = {1: self.one, 2: self.two}[removed].flatten()
        if not len(values):
            return (math.nan,) * 5
        return tuple(values.quantile(torch.linspace(0, 1, 5, dtype=values.dtype)).tolist())

    def to_json(self) -> dict[str, Any]:
        """Boxes of both distributions and the row of the appendix table; None where there is no such gate."""
        boxes = {name: list(self.quartiles(n)) if self.gates else None for n, name in ((1, "one"), (2, "two"))}
        return {
            "gates": len(self.gates),
            "single": self.single,
            **boxes,
            "kept": asdict(self.kept) if self.gates else None,
        }

    @property
    def kept(self) -> KeptEffects:
        """The row of the paper's appendix table."""
        both, first, second = self.two, self.two - self.other, self.two - self.one
        return KeptEffects(*(float(values.mean()) for values in (both, first, second)))


@dataclass(frozen=True, eq=False)
class Ablations:
    """Changes of KL by removing one and two edges per gate, for each type."""

    by_type: Mapping[GateType, TypeAblation]
    repeats: int
    seed: int

    def __getitem__(self, kind: GateType) -> TypeAblation:
        return self.by_type[kind]

    def to_json(self) -> dict[str, Any]:
        by_type: dict[str, Any] = {kind: found.to_json() for kind, found in self.by_type.items()}
        return {**by_type, "repeats": self.repeats, "seed": self.seed}

    def __str__(self) -> str:
        """The figure's boxes (median and quartiles), then the appendix table."""
        lines = [f"{'':5} {'gates':>5} {'one edge removed':>26} {'two edges removed':>26}"]
        for kind, found in self.by_type.items():
            boxes = [f"{q[2]:+.2g} ({q[1]:+.2g} to {q[3]:+.2g})" for q in map(found.quartiles, (1, 2))]
            lines.append(f"{kind:5} {len(found.gates):5} {boxes[0]:>26} {boxes[1]:>26}")
        lines.append(f"{'kept':5} {'both':>9} {'first':>9} {'second':>9} {'neither':>9}")
        for kind, found in self.by_type.items():
            k = found.kept
            lines.append(f"{kind:5} {k.both:9.2g} {k.first:9.2g} {k.second:9.2g} {k.neither:9.2g}")
        return "\n".join(lines)


def ablate_gates(
    model: Model,
    data: Data,
    gates: Gates,
    *,
    circuit: Circuit | None = None,
    only: Sequence[Gate] | None = None,
    repeats: int = 30,
    seed: int = 0,
    compute: Compute | None = None,
) -> Ablations:
    """Remove one and two edges of every gate, or only of some, from H: the circuit or, as in the paper, the full graph.

    Gates of one edge are left out.
    """
    if repeats < 1:
        raise GatewiseError(f"repeats is at least 1, got {repeats}.")
    setting = Setting.of(model, data, compute=compute)
    chosen = [gate for gate in (gates if only is None else only) if len(gate.edges) >= 2]
    draws = [_draw(gates, gate, repeats, seed) for gate in chosen]
    removals = list(dict.fromkeys(some for drawn in draws for i, j in drawn for some in _removals(i, j)))
    changes = kl_changes(setting, circuit, removals, task="ablating gates").mean(dim=1)
    place = {removal: row for row, removal in enumerate(removals)}
    found = {}
    for kind in GATE_TYPES:
        mine = {gate: drawn for gate, drawn in zip(chosen, draws, strict=True) if gate.type == kind}
        rows = torch.tensor([[[place[some] for some in _removals(i, j)] for i, j in drawn] for drawn in mine.values()])
        values = changes[rows.reshape(len(mine), repeats, 3).long()]  # [gate, repeat, which]
        single = sum(gate.type == kind and len(gate.edges) == 1 for gate in gates)
        found[kind] = TypeAblation(kind, tuple(mine), single, *values.unbind(dim=-1))
    return Ablations(found, repeats, seed)


def _draw(gates: Gates, gate: Gate, repeats: int, seed: int) -> Sequence[tuple[int, int]]:
    """Ordered pairs of a gate's edges, which do not depend on what other gates there are."""
    rng = random.Random(f"ablation/{gate.receiver}/{gate.type}/{seed}")
    edges = [gates.graph.index(edge) for edge in gate.edges]
    return [(i, j) for i, j in (rng.sample(edges, 2) for _ in range(repeats))]


def _removals(i: int, j: int) -> tuple[Removal, Removal, Removal]:
    return frozenset((i,)), frozenset((j,)), frozenset((i, j))
