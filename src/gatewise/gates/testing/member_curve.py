"""How many of a receiver's edges it takes: the effect of m of k members, for every m.

Where members are alike, as those of a threshold or a saturating sum, single ones need not have partners, and every
grouping shows something else. The mean of v over random subsets of size m depends on no grouping: it rises evenly for
an ADDER, in one step for m of k, early for an OR and late for an AND.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine.patching.node_patching import Side
from gatewise.engine.setting import Data
from gatewise.errors import GatewiseError
from gatewise.gates.testing.candidates import read_groups
from gatewise.gates.testing.measurement import SIDES, gate_batches, measure_tables
from gatewise.models.model import Model
from gatewise.statistics import Interval, ratio_interval

DRAWS = 16  # subsets of each size, or all if there are fewer


@dataclass(frozen=True, eq=False)
class MemberCurve:
    """Normalised effect of m members, mean over subsets, for m from 0 to all."""

    receiver: str
    members: tuple[str, ...]
    rest: Side
    table: Tensor  # [size, example], in units of the logit difference
    total_effect: Tensor  # [example], clean minus corrupted logit difference

    @cached_property
    def effects(self) -> tuple[Interval, ...]:
        """Effects of 0, 1, ... all members, with their intervals over pairs."""
        return tuple(ratio_interval(row, self.total_effect.tolist()) for row in self.table.tolist())

    @property
    def needed(self) -> int:
        """Number of members at which the effect jumps most."""
        return max(range(1, len(self.effects)), key=lambda m: abs(self._step(m)))

    @property
    def sharpness(self) -> float:
        """Share of the largest step in the effect of all: 1 for a pure `m of k`, 1 / k for an ADDER."""
        return abs(self._step(self.needed) / self.effects[-1].value)

    def _step(self, m: int) -> float:
        return self.effects[m].value - self.effects[m - 1].value

    def __repr__(self) -> str:
        effects = ", ".join(f"{effect.value:.2f}" for effect in self.effects)
        return (
            f"<MemberCurve of {self.receiver}: {effects} for 0 to {len(self.members)} members; largest step at "
            f"{self.needed}, {self.sharpness:.0%} of all>"
        )


def member_curve(
    model: Model,
    data: Data,
    receiver: str,
    members: Sequence[str],
    *,
    rest: Side = "corrupted",
    circuit: Circuit | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    compute: Compute | None = None,
) -> MemberCurve:
    """Measure the effect of 0, 1, ... all of these edges (or ports) into one node together.

    Args:
        model: The model.
        data: Pairs, at least 8 of them, or a task, of which the held-out pairs are used.
        receiver: The node that the edges go into.
        members: Edges or ports, two or more.
        rest: What the node's other edges carry, "corrupted" or "clean" outputs.
        circuit: Measure within this circuit: edges outside it stay corrupted. By default the whole model.
        draws: Random subsets of each size, of which the mean is taken; all of them if there are fewer.
        seed: Of the subsets.
        compute: Where to run.

    Returns:
        The curve, with intervals over pairs.

    Raises:
        GatewiseError: Fewer than two members, members of another receiver, or pairs that the model does not tell apart.
    """
    if len(members) < 2 or draws < 1 or rest not in SIDES:
        raise GatewiseError(
            f"a curve needs two members or more, one draw or more, and rest 'corrupted' or 'clean'; got "
            f"{len(members)}, {draws} and {rest!r}."
        )
    batches = gate_batches(model, data, circuit, compute=compute)
    candidate = read_groups(model.graph, receiver, {member: member for member in members}, circuit)
    subsets = list(_subsets(len(members), draws, seed))
    rest_bit = 1 << len(members) if rest == "clean" else 0
    sets = [sum(1 << member for member in subset) | rest_bit for subset in subsets]
    (effects,), total = measure_tables(batches, [candidate], sets)
    sizes = torch.tensor([len(subset) for subset in subsets])
    of_size = (sizes == torch.arange(len(members) + 1)[:, None]).double()
    table = (of_size / of_size.sum(dim=1, keepdim=True)) @ effects  # [size, example]
    return MemberCurve(candidate.receiver, tuple(candidate.groups), rest, table - table[:1], total)


def _subsets(count: int, draws: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Subsets of every size, from none to all."""
    rng = random.Random(seed)
    for size in range(count + 1):
        if math.comb(count, size) <= draws:
            yield from itertools.combinations(range(count), size)
        else:
            yield from (tuple(rng.sample(range(count), size)) for _ in range(draws))
