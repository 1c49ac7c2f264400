"""Gates composed through the graph: a small program from switches of groups to the logit difference.

A receiver B of the program has the table of what sets of its groups are worth (`logic.interactions`), with Harsanyi
interactions a(S). A group that is switched off has level 0; one that is on has level 1 where what it reads is clean.
Then

    worth of B       =  sum over S of  a(S) x the product of the levels of its groups in S
    level of a group =  1 - sum over receivers A before it of  k x what the worth of A is short of its clean one

and the last receiver is `logits`, whose worth is the logit difference. k is measured by intervention: A puts out A(S)
for every set S, the other receivers of the program what they do anyway, and the level is the one that fits best what B
puts out, with every choice of its other groups clean. So what A does through nodes that are no part of the program is
A's. It is the mean of two measures, with the other receivers clean and with them switched off, as the gradient behind a
worth is.

*By reader*, a receiver has a table of its own for every group that reads it in place of one worth times k: more
numbers, as what K and V of a head do may be read by different heads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gatewise.engine.patching.node_patching import LOGITS, Batches, Receivers
from gatewise.gates.testing import harsanyi
from gatewise.gates.testing.candidates import REST, Candidate
from gatewise.gates.testing.gate_test import FLOOR

_Reader = tuple[int, int]  # a receiver and one of its groups, by their places
_Levels = dict[tuple[int, int], Tensor]  # (a, b) -> levels of b's groups beyond those with nothing of a [set, group]
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class ProgramStep:
    """One receiver of a program. Its groups are its groups and, if it has other edges, the rest."""

    receiver: str
    all_groups: tuple[str, ...]
    switches: int  # of the groups: all but the rest
    worth: Tensor  # [set of groups], Harsanyi interactions, in normalised effects
    given: Mapping[
        _Reader, Tensor
    ]  # [set of groups], Harsanyi interactions of the level that it gives to a later group


@dataclass(frozen=True, eq=False)
class Program:
    """From switches to the logit difference: call it with [row, switch] of bool. Its text can be read."""

    steps: tuple[ProgramStep, ...]  # the last is `logits`
    by_reader: bool

    @property
    def switches(self) -> tuple[str, ...]:
        """Receiver and group of every switch."""
        return tuple(f"{step.receiver} {name}" for step in self.steps for name in step.all_groups[: step.switches])

    @property
    def parameters(self) -> int:
        """Numbers in it that are not 0."""
        given = [terms for step in self.steps for terms in step.given.values()]
        if not self.by_reader:
            return self.table_parameters + len(given)
        return _count([*given, self.steps[-1].worth]) - (not self.steps[-1].switches)

    @property
    def table_parameters(self) -> int:
        """Those of them that are in the tables of receivers."""
        return _count([step.worth for step in self.steps if step.switches])

    def __call__(self, on: Tensor) -> Tensor:
        """The logit difference, as a share of its difference between the runs. [row]"""
        short = [torch.zeros(len(on), len(step.all_groups), dtype=torch.float64) for step in self.steps]
        for place, (step, switched) in enumerate(zip(self.steps, self._by_step(on), strict=True)):
            gone = _gone((1 - short[place]) * switched)
            for (reader, group), terms in step.given.items():
                short[reader][:, group] += gone @ terms
        logit_diff: Tensor = 1 - gone @ step.worth
        return logit_diff

    def added_up(self, on: Tensor) -> Tensor:
        """The same if no receiver read another: the sum of what all of them lose. [row]"""
        steps = zip(self.steps, self._by_step(on), strict=True)
        return 1 - torch.stack([_gone(switched) @ step.worth for step, switched in steps]).sum(dim=0)

    def _by_step(self, on: Tensor) -> Iterator[Tensor]:
        """Whether the groups of each step are on. [row, group]"""
        parts = on.double().split([step.switches for step in self.steps], dim=1)
        for step, part in zip(self.steps, parts, strict=True):
            yield torch.cat([part, part.new_ones(len(on), len(step.all_groups) - step.switches)], dim=1)

    def __str__(self) -> str:
        lines = []
        for step in self.steps:
            if step.switches:
                lines.append(f"{step.receiver} = {_sum(step, step.worth)}")
            largest = int(step.worth.abs().argmax())
            for (reader, group), terms in step.given.items():
                to = self.steps[reader]
                name = f"{to.all_groups[group]} of {to.receiver}" if to.switches else "logit_diff"
                factor = f"{float(terms[largest] / step.worth[largest]):.2f} {step.receiver}"
                lines.append(f"    {name} reads {_sum(step, terms) if self.by_reader else factor}")
        return "\n".join(lines)


class Programs(NamedTuple):
    """One measurement, three programs of it."""

    sums: Program  # a control: every receiver is the sum that is nearest to its table
    gates: Program
    by_reader: Program


def compose(on: Batches, gates: Sequence[Candidate], *, floor: float = FLOOR) -> Programs:
    """The programs of gates in the whole model, which are in the order of the graph, `logits` the last.

    floor: terms that move the worth of a receiver by less, as a normalised effect, are left out.
    """
    all_groups = [_Players.of(gate) for gate in gates]
    worths, levels = _measure(on, all_groups)
    sums = [_nearest_sum(one, worth) for one, worth in zip(all_groups, worths, strict=True)]
    made = ((sums, False), (worths, False), (worths, True))
    return Programs(*(_program(all_groups, some, levels, by_reader, floor) for some, by_reader in made))


def _program(
    all_groups: Sequence[_Players], worths: Sequence[Tensor], levels: _Levels, by_reader: bool, floor: float
) -> Program:
    steps = []
    for a, (one, worth) in enumerate(zip(all_groups, worths, strict=True)):
        own, lost, given = _above(floor, harsanyi.harsanyi_interactions(worth)), worth[-1] - worth, {}
        for b in range(a + 1, len(all_groups)):
            for group, table in enumerate(levels[a, b].T):  # [set of a]
                weight = float(all_groups[b].effects(worths[b], group).abs().max())
                k = (table[-1] - table) @ lost / lost.square().sum().clamp(min=_TINY)
                terms = harsanyi.harsanyi_interactions(table) if by_reader else k * own
                kept = _above(floor / max(weight, _TINY), terms)
                if bool(kept.any()):
                    given[b, group] = kept if by_reader else terms
        steps.append(ProgramStep(one.gate.receiver, one.names, len(one.gate.groups), own, given))
    return Program(tuple(steps), by_reader)


def _nearest_sum(one: _Players, worth: Tensor) -> Tensor:
    """The additive table that is nearest to a table, by least squares. [set]"""
    sets = torch.cat([one.sets, torch.ones_like(one.sets[:, :1])], dim=1).double()
    found: Tensor = sets @ (torch.linalg.pinv(sets) @ worth)
    return found - found[0]


class _Players(NamedTuple):
    """The groups of a receiver."""

    gate: Candidate
    names: tuple[str, ...]
    masks: Tensor  # [group, port, sender] of bool

    @classmethod
    def of(cls, gate: Candidate) -> _Players:
        rest = (REST,) if bool(gate.masks[-1].any()) else ()
        names = (*gate.groups, *rest)
        return cls(gate, names, gate.masks[: len(names)])

    @property
    def sets(self) -> Tensor:
        """Who is in each set. [set, group] of bool"""
        count = len(self.names)
        return torch.tensor([[bits >> i & 1 for i in range(count)] for bits in range(1 << count)], dtype=torch.bool)

    def beside(self, group: int) -> list[int]:
        """The sets that a group may join: those without it; the rest, which cannot be switched, is in all of them."""
        always = 1 << len(self.gate.groups) if REST in self.names and self.names[group] != REST else 0
        return [bits for bits in range(1 << len(self.names)) if not bits >> group & 1 and bits & always == always]

    def effects(self, worth: Tensor, group: int) -> Tensor:
        """What a group brings to each of these sets. worth: [set] -> [set beside it]"""
        sets = torch.tensor(self.beside(group))
        return worth[sets | 1 << group] - worth[sets]


def _measure(on: Batches, all_groups: Sequence[_Players]) -> tuple[list[Tensor], _Levels]:
    """Worth of all sets of every receiver [set], and what each gives to later ones."""
    total, sums = 0.0, dict[tuple[int, ...], Tensor]()
    for receivers in on:
        total += float(receivers.total_effect.sum())
        for key, values in _sums(receivers, all_groups):
            sums[key] = sums.get(key, torch.zeros_like(values)) + values
    worths = [(sums[b,] - sums[b,][0]) / total for b in range(len(all_groups))]
    levels = {}
    for a, b in itertools.combinations(range(len(all_groups)), 2):
        rows = []
        for group in range(len(all_groups[b].names)):
            effects = all_groups[b].effects(worths[b], group)
            start = worths[b][all_groups[b].beside(group)]
            brought = (sums[a, b, group] - sums[b,][0]) / total - start  # [set of a, set beside the group]
            rows.append(brought @ effects / effects.square().sum().clamp(min=_TINY))
        levels[a, b] = torch.stack(rows, dim=1) - torch.stack(rows, dim=1)[:1]
    return worths, levels


@torch.no_grad()
def _sums(receivers: Receivers, all_groups: Sequence[_Players]) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Of one batch, summed over its examples:

    (b,) -> worth of all sets of b [set]; (a, b, group) -> worth of b where that group reads what is there if a puts
    out what it does with each of its sets, beside each choice of b's other groups [set of a, set beside the group].
    """
    clean = [_carried(one, receivers.delta) for one in all_groups]
    for b, one in enumerate(all_groups):
        yield (b,), _worth(receivers, one, one.sets, clean[b])
    outputs = [_outputs(receivers, one) for one in all_groups[:-1]]
    sides = [
        [out[-1] for out in outputs],
        [out[one.beside(0)[0]] for out, one in zip(outputs, all_groups, strict=False)],
    ]
    for (a, out), others in itertools.product(enumerate(outputs), sides):
        found: dict[_Reader, list[Tensor]] = {}
        for told in out:
            everything = {sender: x for other in others for sender, x in other.items()} | told
            delta = receivers.run_with(everything) - receivers.runs.corrupted.outputs
            for b in range(a + 1, len(all_groups)):
                now, one = _carried(all_groups[b], delta), all_groups[b]
                for group in range(len(now)):
                    sets = one.sets[one.beside(group)]
                    joined = torch.nn.functional.one_hot(torch.tensor([group] * len(sets)), len(now))
                    rows = torch.cat([sets, joined], dim=1)
                    worth = _worth(receivers, one, rows, torch.cat([clean[b], now])) / len(sides)
                    found.setdefault((b, group), []).append(worth)
        for (b, group), rows_of_sets in found.items():
            yield (a, b, group), torch.stack(rows_of_sets)


def _carried(one: _Players, delta: Tensor) -> Tensor:
    """What the groups' edges bring above the corrupted run. [group, port, example, window, d]"""
    rows, which = one.masks.flatten(0, 1).unique(dim=0, return_inverse=True)  # whole ports all have the same senders
    found: Tensor = torch.tensordot(rows.to(delta), delta, dims=1)[which]
    return found.reshape(*one.masks.shape[:2], *delta.shape[1:])


def _worth(receivers: Receivers, one: _Players, rows: Tensor, carried: Tensor) -> Tensor:
    """What the receiver puts out if it reads these of what is carried. rows: [row, carried] -> [row] in float64"""
    index = -1 if one.gate.node == LOGITS else receivers.graph.sublayer_of_sender[one.gate.node] - 1
    inputs = receivers.base[index] + torch.tensordot(rows.to(carried), carried, dims=1).movedim(1, 0)
    return receivers.worth(one.gate.node, list(inputs), torch.ones(len(rows), dtype=torch.bool)).sum(dim=-1).cpu()


def _outputs(receivers: Receivers, one: _Players) -> list[dict[int, Tensor]]:
    """What the receiver, and those that a norm couples with it, write with each set clean, by sender."""
    clean = (one.sets[:, :, None, None] & one.masks).any(dim=1)
    found = receivers.outputs(one.gate.node, clean, torch.ones(len(clean), dtype=torch.bool))
    writers = receivers.model.siblings(one.gate.node)
    return [dict(zip(writers, found[:, bits], strict=True)) for bits in range(len(clean))]


def _gone(levels: Tensor) -> Tensor:
    """How far each set of groups is from being all there. [row, group] -> [row, set]"""
    return 1 - torch.stack([levels[:, members].prod(dim=1) for members in _members(levels.shape[1])], dim=1)


def _members(count: int) -> list[list[int]]:
    return [[i for i in range(count) if bits >> i & 1] for bits in range(1 << count)]


def _above(least: float, terms: Tensor) -> Tensor:
    return torch.where(terms.abs() < least, 0.0, terms)


def _count(terms: Sequence[Tensor]) -> int:
    return sum(int((one != 0).sum()) for one in terms)


def _sum(step: ProgramStep, terms: Tensor) -> str:
    """Terms as text: 0.38 V + 0.14 K V"""
    named = zip(_members(len(step.all_groups)), terms.tolist(), strict=True)
    parts = [f"{value:+.3f} {' '.join(step.all_groups[i] for i in members)}" for members, value in named if value]
    return " ".join(parts) or "0"
