"""Output contribution of gates, as in the paper's appendix.

The *gate effect* is the change of KL when the whole gate is removed from H: D(G || H\\gate) - D(G || H), by noising.
The *edge effect* is the gate effect divided equally among the gate's edges; its mean is over edges, so it is the sum of
the gate effects over the number of edges. Gates, not edges, are what standard errors count, since edges of one gate
share one measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine.patching.edge_ablation import kl_changes
from gatewise.engine.setting import Data, Setting
from gatewise.gate_types import GATE_TYPES, GateType
from gatewise.gates.labels import Gate, Gates
from gatewise.models.model import Model


@dataclass(frozen=True, eq=False)
class TypeContribution:
    """Effects of all gates of one type."""

    type: GateType
    gates: tuple[Gate, ...]
    effects: Tensor  # [gate], change of KL by removing the whole gate

    @property
    def _sizes(self) -> Tensor:
        return torch.tensor([len(gate.edges) for gate in self.gates], dtype=torch.float64)

    @property
    def edges(self) -> int:
        return sum(len(gate.edges) for gate in self.gates)

    @property
    def exact_effects(self) -> Tensor:
        """For each gate what each of its edges is given. [gate]"""
        return self.effects / self._sizes

    @property
    def gate_mean(self) -> float:
        return float(self.effects.mean())

    @property
    def gate_error(self) -> float:
        """Standard error of the mean over gates."""
        return _error(self.effects - self.effects.mean())

    @property
    def edge_mean(self) -> float:
        return float(self.effects.sum() / self._sizes.sum())

    @property
    def edge_error(self) -> float:
        """Standard error of the mean over edges, a ratio of two sums over gates."""
        return _error((self.effects - self.edge_mean * self._sizes) / self._sizes.mean())


@dataclass(frozen=True, eq=False)
class Contributions:
    """Gate and edge effects of each type."""

    by_type: Mapping[GateType, TypeContribution]

    def __getitem__(self, kind: GateType) -> TypeContribution:
        return self.by_type[kind]

    def __str__(self) -> str:
        lines = [f"{'':5} {'gates':>5} {'edges':>5} {'gate effect':>17} {'edge effect':>17}"]
        for kind, found in self.by_type.items():
            gate = f"{found.gate_mean:+.3g}±{found.gate_error:.2g}"
            edge = f"{found.edge_mean:+.3g}±{found.edge_error:.2g}"
            lines.append(f"{kind:5} {len(found.gates):5} {found.edges:5} {gate:>17} {edge:>17}")
        return "\n".join(lines)


def gate_contributions(
    model: Model,
    data: Data,
    gates: Gates,
    *,
    circuit: Circuit | None = None,
    only: Sequence[Gate] | None = None,
    smallest: int = 1,
    compute: Compute | None = None,
) -> Contributions:
    """Effects of all gates of at least `smallest` edges on H: the circuit or, as in the paper, the full graph.

    only: of some of the gates.
    """
    chosen = [gate for gate in (gates if only is None else only) if len(gate.edges) >= smallest]
    removals = [frozenset(gates.graph.index(edge) for edge in gate.edges) for gate in chosen]
    setting = Setting.of(model, data, compute=compute)
    changes = kl_changes(setting, circuit, removals, task="contributions").mean(dim=1)
    found = {}
    for kind in GATE_TYPES:
        rows = [row for row, gate in enumerate(chosen) if gate.type == kind]
        found[kind] = TypeContribution(kind, tuple(chosen[row] for row in rows), changes[rows])
    return Contributions(found)


def _error(away: Tensor) -> float:
    """Standard error of a mean, from what each of its members is away from it."""
    count = len(away)
    return math.sqrt(float(away.square().sum()) / (count - 1) / count) if count > 1 else math.nan
