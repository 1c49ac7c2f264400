"""Ablating gates: one or two edges of each, as in the paper's first figure and the table in its appendix; or all.

For each gate of at least two edges, `repeats` times two of its edges i, j are drawn (an ordered pair, uniformly), and i
alone, j alone and both are removed from the full graph G. The change is D(G || G without them), in KL by noising. An
AND changes as much by one edge as by two, an OR hardly by one, an ADDER more by two.

The table has the effect of what is *kept*, 0 if neither is: D(G\\i,j) - D(G with what is kept of i, j). Mind that KL is
quadratic near G: a perfect adder keeps 75 % of its effect with one edge. Labels by test, which do not suffer from that,
are in `truth`.

A gate's *output contribution* is the change of KL when the whole gate is removed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gatewise.compute import Compute
from gatewise.engine.patching.edge_ablation import Removal, kl_changes
from gatewise.engine.setting import Data, Setting
from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_TYPES, GateType
from gatewise.gates.labels import Gate
from gatewise.models.model import Model


@dataclass(frozen=True, eq=False)
class TypeAblation:
    """What removing one and two edges of the gates of one type does to KL."""

    gates: tuple[Gate, ...]  # of at least two edges
    single: int  # gates of one edge, left out
    first: Tensor  # [gate, repeat], change by removing i
    second: Tensor  # [gate, repeat], change by removing j
    both: Tensor  # [gate, repeat], change by removing i and j

    @property
    def quartiles(self) -> tuple[list[float], list[float]]:
        """Smallest, first quartile, median, third quartile and largest change by removing one edge, and by two."""
        ends = torch.linspace(0, 1, 5, dtype=self.both.dtype)
        one_removed, two_removed = (values.flatten().quantile(ends).tolist() for values in (self.first, self.both))
        return one_removed, two_removed

    @property
    def kept_effects(self) -> dict[str, float]:
        """The row of the paper's appendix table: the mean effect of what is kept of two edges i and j."""
        effects = {"both": self.both, "first": self.both - self.second, "second": self.both - self.first}
        return {**{kept_edges: float(values.mean()) for kept_edges, values in effects.items()}, "neither": 0.0}

    def to_json(self) -> dict[str, Any]:
        """Boxes of both distributions and the row of the appendix table; None where there is no such gate."""
        one_removed, two_removed = self.quartiles if self.gates else (None, None)
        kept_effects = self.kept_effects if self.gates else None
        counts = {"gates": len(self.gates), "single": self.single}
        return {**counts, "one": one_removed, "two": two_removed, "kept": kept_effects}


def ablate_gates(
    model: Model, data: Data, gates: Iterable[Gate], *, repeats: int = 30, seed: int = 0, compute: Compute | None = None
) -> dict[GateType, TypeAblation]:
    """Remove one and two edges of every gate from the full graph.

    Args:
        model: The model.
        data: Pairs, a task or a setting to measure on.
        gates: Gates of the model's graph, such as `gw.Gates`. Those of one edge are left out.
        repeats: How often two edges of each gate are drawn.
        seed: Of the draws.
        compute: Where to run.

    Returns:
        The changes of KL by type of gate.

    Raises:
        GatewiseError: If there are no repeats.
    """
    if repeats < 1:
        raise GatewiseError(f"repeats is at least 1, got {repeats}.")
    everything = list(gates)
    wide = [gate for gate in everything if len(gate.edges) >= 2]
    draws = {gate: _draw(model, gate, repeats, seed) for gate in wide}
    removals = list(dict.fromkeys(removal for drawn in draws.values() for i, j in drawn for removal in _removals(i, j)))
    changes = kl_changes(Setting.of(model, data, compute=compute), None, removals, task="ablating gates").mean(dim=1)
    row = {removal: number for number, removal in enumerate(removals)}
    ablations = {}
    for kind in GATE_TYPES:
        of_kind = [gate for gate in wide if gate.type == kind]
        rows = [row[removal] for gate in of_kind for i, j in draws[gate] for removal in _removals(i, j)]
        values = changes[rows].reshape(len(of_kind), repeats, 3)  # [gate, repeat, i or j or both]
        single = sum(gate.type == kind and len(gate.edges) == 1 for gate in everything)
        ablations[kind] = TypeAblation(tuple(of_kind), single, *values.unbind(dim=-1))
    return ablations


def gate_effects(model: Model, data: Data, gates: Iterable[Gate], *, compute: Compute | None = None) -> list[float]:
    """Measure what removing each gate does to the output.

    Args:
        model: The model.
        data: Pairs, a task or a setting to measure on.
        gates: Gates of the model's graph.
        compute: Where to run.

    Returns:
        The change of KL for each gate, a mean over examples.
    """
    index = model.graph.index
    removals = [frozenset(index(edge) for edge in gate.edges) for gate in gates]
    changes = kl_changes(Setting.of(model, data, compute=compute), None, removals, task="contributions")
    effects: list[float] = changes.mean(dim=1).tolist()
    return effects


def _draw(model: Model, gate: Gate, repeats: int, seed: int) -> list[tuple[int, int]]:
    """Ordered pairs of a gate's edges, which do not depend on what other gates there are."""
    rng = random.Random(f"ablation/{gate.receiver}/{gate.type}/{seed}")
    edges = [model.graph.index(edge) for edge in gate.edges]
    return [(i, j) for i, j in (rng.sample(edges, 2) for _ in range(repeats))]


def _removals(i: int, j: int) -> tuple[Removal, Removal, Removal]:
    return frozenset((i,)), frozenset((j,)), frozenset((i, j))
