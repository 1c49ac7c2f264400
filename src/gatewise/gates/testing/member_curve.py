"""How many of a receiver's edges it takes: what m of k members are worth, for every m.

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
from gatewise.engine.patching.node_patching import Batches, Side
from gatewise.engine.setting import Data
from gatewise.errors import GatewiseError
from gatewise.gates.testing.candidates import read_groups
from gatewise.gates.testing.gate_test import checked_total, setting_of
from gatewise.models.model import Model
from gatewise.statistics import Interval, ratio_interval

DRAWS = 16  # subsets of each size, or all if there are fewer


@dataclass(frozen=True, eq=False)
class MemberCurve:
    """What m members are worth, mean over subsets, for m from 0 to all. Shares of the logit difference."""

    receiver: str
    members: tuple[str, ...]
    rest: Side
    table: Tensor  # [size, example], in units of the logit difference
    total: Tensor  # [example], difference of the logit difference between the two runs

    @cached_property
    def values(self) -> tuple[Interval, ...]:
        return tuple(ratio_interval(row, self.total.tolist()) for row in self.table.tolist())

    @property
    def needed(self) -> int:
        """The m of the largest step: m - 1 members do least of what m do."""
        return max(range(1, len(self.values)), key=lambda m: abs(self._step(m)))

    @property
    def sharpness(self) -> float:
        """Share of the largest step in what all are worth: 1 for a pure `m of k`, 1 / k for an ADDER."""
        return abs(self._step(self.needed) / self.values[-1].value)

    def _step(self, m: int) -> float:
        return self.values[m].value - self.values[m - 1].value

    def __repr__(self) -> str:
        worth = ", ".join(f"{one.value:.2f}" for one in self.values)
        return (
            f"<MemberCurve of {self.receiver}: {worth} for 0 to {len(self.members)} members; largest step at "
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
    """What 0, 1, ... all of these edges (or ports) into one node are worth together, its other edges on one side.

    draws: random subsets of each size, of which the mean is taken; all of them if there are fewer.
    """
    if len(members) < 2 or draws < 1 or rest not in ("corrupted", "clean"):
        raise GatewiseError(
            f"a curve needs two members or more, one draw or more, and rest 'corrupted' or 'clean'; got "
            f"{len(members)}, {draws} and {rest!r}."
        )
    setting = setting_of(model, data, circuit, compute=compute)
    gate = read_groups(setting.graph, receiver, {member: member for member in members}, circuit)
    chosen = list(_subsets(len(members), draws, seed))
    sets = torch.tensor([[i in some for i in range(len(members))] + [rest == "clean"] for some in chosen])
    clean = torch.stack([gate.masks[row].any(dim=0) for row in sets])
    of_size = torch.tensor([[len(some) == m for some in chosen] for m in range(len(members) + 1)]).double()
    mean = of_size / of_size.sum(dim=1, keepdim=True)
    parts, totals = [], []
    for receivers in Batches(setting, circuit):
        parts.append(mean @ receivers.values(gate.node, clean, sets[:, -1]).cpu())
        totals.append(receivers.total_effect.cpu())
    table, total = torch.cat(parts, dim=-1), checked_total(torch.cat(totals))
    return MemberCurve(gate.receiver, tuple(gate.groups), rest, table - table[:1], total)


def _subsets(count: int, draws: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Subsets of every size, from none to all."""
    rng = random.Random(seed)
    for size in range(count + 1):
        if math.comb(count, size) <= draws:
            yield from itertools.combinations(range(count), size)
        else:
            yield from (tuple(rng.sample(range(count), size)) for _ in range(draws))
