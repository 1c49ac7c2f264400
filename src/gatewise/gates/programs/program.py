"""Gates composed through the graph: a small program from switches of groups to the logit difference.

The program has a step for each receiver B, from the input to `logits`, which is the last. The operands of B are its
groups, each with a switch s (1 on, 0 off), and the rest of its edges, which is always on. An operand i has a *level*
l_i: 1 where everything it reads is clean, 0 where it is off. With a_B(S) the Harsanyi interactions of B's table,

    effect of B          v_B = sum over S of  a_B(S) x product over i in S of l_i
    level of operand i   l_i = s_i x (1 - sum over receivers A before B of  k_Ai x (v_A(clean) - v_A))

and the effect of `logits` is the logit difference, 0 on the corrupted run and 1 on the clean one: so the product is an
AND of operands, a negative interaction an OR, and k_Ai says how much of operand i is lost with the effect of A. *By
reader*, A has terms of its own for every operand that reads it, in place of one effect times k,

    level of operand i   l_i = s_i x (1 - sum over A, S of  b_Ai(S) x (1 - product over j in S of l_j))

which takes more parameters: what K and V of a head do may be read by different heads.

All parameters are measured, none is fitted to runs of subsets. For k and b, A puts out A(S) for every set S of its
operands, the other receivers of the program what they do anyway, and nodes outside the program what they then do (so
what A does through them is A's). The level of operand i is the one that fits best what B puts out, with every choice of
its other operands clean. It is the mean of two measurements, with the other receivers clean and with them switched
off, as the gradient behind an effect is the mean of that of both runs.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gatewise.devices import fetched, on_device
from gatewise.engine.patching.node_patching import LOGITS, NodePatching, PatchedBatches
from gatewise.gates.testing.candidates import REST, Candidate
from gatewise.gates.testing.gate_test import FLOOR
from gatewise.gates.testing.harsanyi import interactions, membership

OperandIndex = tuple[int, int]  # index of a step, and of one of its operands
_Levels = dict[tuple[int, int], Tensor]  # (a, b) -> levels of b's operands by sets of a, 0 for none [set, operand]
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class ProgramStep:
    """One receiver of a program. Tensors are Harsanyi interactions [set of operands], 0 where they are left out."""

    receiver: str
    operands: tuple[str, ...]  # names of the groups, and `rest` if it has other edges
    switches: int  # number of operands that can be switched off: the groups
    terms: Tensor  # a: of its normalised effect
    given: Mapping[
        OperandIndex, Tensor
    ]  # k x a, or b by reader: of the level that it gives to an operand of a later step


@dataclass(frozen=True, eq=False)
class Program:
    """From switches to the logit difference. Call it with switches; print it to read it."""

    steps: tuple[ProgramStep, ...]  # the last is `logits`
    by_reader: bool

    @property
    def switches(self) -> tuple[str, ...]:
        """Receiver and group of every switch."""
        return tuple(f"{step.receiver} {name}" for step in self.steps for name in step.operands[: step.switches])

    @property
    def parameters(self) -> int:
        """Number of terms and factors that are not 0."""
        given = [terms for step in self.steps for terms in step.given.values()]
        if not self.by_reader:
            return self.table_parameters + len(given)  # one k for each reader
        last = self.steps[-1]
        # The logits' only term is 1 if they have no groups: no parameter.
        return _count_terms([*given, last.terms]) - (not last.switches)

    @property
    def table_parameters(self) -> int:
        """Number of terms in the tables of receivers."""
        return _count_terms([step.terms for step in self.steps if step.switches])

    def __call__(self, on: Tensor) -> Tensor:
        """Predict the normalised logit difference.

        Args:
            on: Which groups are on. [row, switch] of bool

        Returns:
            0 for the corrupted run, 1 for the clean one. [row] in float64
        """
        lost_levels = [torch.zeros(len(on), len(step.operands), dtype=torch.float64) for step in self.steps]
        lost_effect = torch.zeros(len(on), dtype=torch.float64)
        for step, lost, switches in zip(self.steps, lost_levels, self._switches_by_step(on), strict=True):
            missing = _missing_products((1 - lost) * switches)
            for (reader, operand), terms in step.given.items():
                lost_levels[reader][:, operand] += missing @ terms
            lost_effect = missing @ step.terms
        return 1 - lost_effect  # of the last step, the logits

    def added_up(self, on: Tensor) -> Tensor:
        """Predict the same as if no receiver read another: the sum of what all of them lose.

        Args:
            on: Which groups are on. [row, switch] of bool

        Returns:
            Normalised logit differences. [row] in float64
        """
        steps = zip(self.steps, self._switches_by_step(on), strict=True)
        return 1 - torch.stack([_missing_products(switches) @ step.terms for step, switches in steps]).sum(dim=0)

    def _switches_by_step(self, on: Tensor) -> Iterator[Tensor]:
        """Whether the operands of each step are on; the rest always is. [row, operand]"""
        parts = on.double().split([step.switches for step in self.steps], dim=1)
        for step, part in zip(self.steps, parts, strict=True):
            yield torch.cat([part, part.new_ones(len(on), len(step.operands) - step.switches)], dim=1)

    def __str__(self) -> str:
        lines = []
        for step in self.steps:
            if step.switches:
                lines.append(f"{step.receiver} = {_terms_text(step, step.terms)}")
            largest = int(step.terms.abs().argmax())
            for (reader, operand), terms in step.given.items():
                to = self.steps[reader]
                name = f"{to.operands[operand]} of {to.receiver}" if to.switches else "logit_diff"
                factor = f"{float(terms[largest] / step.terms[largest]):.2f} {step.receiver}"
                lines.append(f"    {name} reads {_terms_text(step, terms) if self.by_reader else factor}")
        return "\n".join(lines)


class Programs(NamedTuple):
    """Three programs of one measurement."""

    sums: Program  # a control: every receiver is the sum that is nearest to its table
    gates: Program
    by_reader: Program


def compose(batches: PatchedBatches, candidates: Sequence[Candidate], *, floor: float = FLOOR) -> Programs:
    """Compose gates of the whole model to programs.

    Args:
        batches: The pairs on which everything is measured.
        candidates: Receivers with their groups, in the order of the graph, `logits` the last.
        floor: Terms that move the effect of a receiver by less, as a normalised effect, are left out.

    Returns:
        The programs.
    """
    receivers = [_Receiver.of(candidate) for candidate in candidates]
    tables, levels = _measure(batches, receivers)
    sums = [_nearest_sum(table) for table in tables]
    return Programs(
        _program(receivers, sums, levels, floor, by_reader=False),
        _program(receivers, tables, levels, floor, by_reader=False),
        _program(receivers, tables, levels, floor, by_reader=True),
    )


class _Receiver(NamedTuple):
    """A receiver, and its operands."""

    candidate: Candidate
    operands: tuple[str, ...]
    masks: Tensor  # [operand, port, sender] of bool

    @classmethod
    def of(cls, candidate: Candidate) -> _Receiver:
        has_rest = bool(candidate.masks[-1].any())
        operands = (*candidate.groups, REST) if has_rest else tuple(candidate.groups)
        return cls(candidate, operands, candidate.masks[: len(operands)])

    @property
    def node(self) -> int:
        return self.candidate.node

    @property
    def all_off(self) -> int:
        """The set of operands that are left if all groups are off, as bits: the rest, if there is one."""
        return sum(1 << i for i, name in enumerate(self.operands) if name == REST)

    def beside(self, operand: int) -> list[int]:
        """The sets that an operand may join: those without it, and with the rest, which cannot be switched off."""
        always = self.all_off & ~(1 << operand)
        sets = range(1 << len(self.operands))
        return [bits for bits in sets if not bits >> operand & 1 and bits & always == always]

    def effects_of(self, operand: int, table: Tensor) -> Tensor:
        """What an operand adds to the effect of each set beside it. table: [set] -> [set beside it]"""
        sets = torch.tensor(self.beside(operand))
        return table[sets | 1 << operand] - table[sets]


def _program(
    receivers: Sequence[_Receiver], tables: Sequence[Tensor], levels: _Levels, floor: float, *, by_reader: bool
) -> Program:
    steps = []
    for a, (receiver, table) in enumerate(zip(receivers, tables, strict=True)):
        terms, lost_effect = _above(floor, interactions(table)), table[-1] - table
        given = {}
        for b in range(a + 1, len(receivers)):
            for operand, level in enumerate(levels[a, b].T):  # [set of a]
                # k by least squares over the sets of a: lost level = k x lost effect.
                k = (level[-1] - level) @ lost_effect / lost_effect.square().sum().clamp(min=_TINY)
                level_terms = interactions(level) if by_reader else k * terms
                # A term counts by what it moves in the reader, so the floor is divided by the operand's largest effect.
                largest = float(receivers[b].effects_of(operand, tables[b]).abs().max())
                large = _above(floor / max(largest, _TINY), level_terms)
                if bool(large.any()):
                    given[b, operand] = large if by_reader else level_terms
        switches = len(receiver.candidate.groups)
        steps.append(ProgramStep(receiver.candidate.receiver, receiver.operands, switches, terms, given))
    return Program(tuple(steps), by_reader)


def _nearest_sum(table: Tensor) -> Tensor:
    """The additive table that is nearest to a table, by least squares. [set]"""
    sets = membership(table.shape[-1].bit_length() - 1).double()
    sets = torch.cat([sets, torch.ones_like(sets[:, :1])], dim=1)
    fitted: Tensor = sets @ (torch.linalg.pinv(sets) @ table)
    return fitted - fitted[0]


def _measure(batches: PatchedBatches, receivers: Sequence[_Receiver]) -> tuple[list[Tensor], _Levels]:
    """Normalised effects of all sets of every receiver [set], and the levels that each gives to later ones."""
    total, sums = 0.0, dict[tuple[int, ...], Tensor]()
    for batch in batches:
        total += batch.summed_effect
        keys, measured = zip(*_batch_effects(batch, receivers), strict=True)
        for key, effects in zip(keys, fetched(measured), strict=True):
            sums[key] = sums[key] + effects.double() if key in sums else effects.double()
    tables = [(sums[b,] - sums[b,][0]) / total for b in range(len(receivers))]
    levels = {}
    for a, b in itertools.combinations(range(len(receivers)), 2):
        columns = []
        for operand in range(len(receivers[b].operands)):
            clean = receivers[b].effects_of(operand, tables[b])  # [set beside it]
            effects = (sums[a, b, operand] - sums[b,][0]) / total - tables[b][receivers[b].beside(operand)]
            # The level by least squares: what the operand adds now is the level times what it adds if it is clean.
            columns.append(effects @ clean / clean.square().sum().clamp(min=_TINY))  # [set of a]
        by_set = torch.stack(columns, dim=1)
        levels[a, b] = by_set - by_set[:1]
    return tables, levels


@torch.no_grad()
def _batch_effects(batch: NodePatching, receivers: Sequence[_Receiver]) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Effects on one batch, summed over its pairs, by what they are about.

    (b,) -> of receiver b with each set of its operands clean [set]
    (a, b, operand) -> of receiver b, with that operand reading what is there if receiver a puts out what it does with
    each of its sets, beside each choice of b's other operands [set of a, set beside the operand]
    """
    clean = [_carried(receiver, batch.delta) for receiver in receivers]
    for b, receiver in enumerate(receivers):
        yield (b,), _effect(batch, receiver, membership(len(receiver.operands)), clean[b])
    outputs = [_outputs(batch, receiver) for receiver in receivers[:-1]]  # of each set; logits put out nothing
    all_on = [by_set[-1] for by_set in outputs]
    all_off = [by_set[receiver.all_off] for by_set, receiver in zip(outputs, receivers, strict=False)]
    for (a, by_set), others in itertools.product(enumerate(outputs), (all_on, all_off)):
        effects: dict[OperandIndex, list[Tensor]] = defaultdict(list)
        for output in by_set:
            fixed = {sender: x for other in others for sender, x in other.items()} | output
            delta = batch.run_with(fixed) - batch.runs.corrupted.outputs
            for b in range(a + 1, len(receivers)):
                now = _carried(receivers[b], delta)
                for operand in range(len(now)):
                    sets = membership(len(now))[receivers[b].beside(operand)]
                    rows = torch.cat([sets, torch.ones_like(sets[:, :1])], dim=1)
                    carried = torch.cat([clean[b], now[operand, None]])
                    effects[b, operand].append(_effect(batch, receivers[b], rows, carried) / 2)
        for reader, rows_of_sets in effects.items():
            yield (a, *reader), torch.stack(rows_of_sets)


def _carried(receiver: _Receiver, delta: Tensor) -> Tensor:
    """What the edges of each operand bring above the corrupted run. [operand, port, example, window, d]"""
    # Whole ports all have the same senders: equal rows are summed once.
    rows, which = receiver.masks.flatten(0, 1).unique(dim=0, return_inverse=True)
    sums: Tensor = torch.tensordot(on_device(rows, delta.device, delta.dtype), delta, dims=1)
    sums = sums[on_device(which, delta.device)]
    return sums.reshape(*receiver.masks.shape[:2], *delta.shape[1:])


def _effect(batch: NodePatching, receiver: _Receiver, rows: Tensor, carried: Tensor) -> Tensor:
    """Effect of the receiver if it reads these of what is carried. rows: [row, carried] -> [row]"""
    index = -1 if receiver.node == LOGITS else batch.graph.sublayer_of_sender[receiver.node] - 1
    chosen = on_device(rows, carried.device, carried.dtype)
    inputs = batch.base[index] + torch.tensordot(chosen, carried, dims=1).movedim(1, 0)
    return batch.worth(receiver.node, list(inputs), torch.ones(len(rows), dtype=torch.bool)).sum(dim=-1)


def _outputs(batch: NodePatching, receiver: _Receiver) -> list[dict[int, Tensor]]:
    """What the receiver, and those that a norm couples with it, write with each set clean, by sender."""
    clean = (membership(len(receiver.operands))[:, :, None, None] & receiver.masks).any(dim=1)
    written = batch.outputs(receiver.node, clean, torch.ones(len(clean), dtype=torch.bool))
    writers = batch.model.siblings(receiver.node)
    return [dict(zip(writers, written[:, bits], strict=True)) for bits in range(len(clean))]


def _missing_products(levels: Tensor) -> Tensor:
    """1 - product of the levels of each set's operands. [row, operand] -> [row, set]"""
    members = membership(levels.shape[1])
    return 1 - torch.stack([levels[:, inside].prod(dim=1) for inside in members], dim=1)


def _above(least: float, terms: Tensor) -> Tensor:
    return torch.where(terms.abs() < least, 0.0, terms)


def _count_terms(tensors: Sequence[Tensor]) -> int:
    return sum(int((terms != 0).sum()) for terms in tensors)


def _terms_text(step: ProgramStep, terms: Tensor) -> str:
    """Terms as text: +0.380 V +0.140 K V"""
    parts = []
    for value, inside in zip(terms.tolist(), membership(len(step.operands)).tolist(), strict=True):
        if value:
            names = [name for name, member in zip(step.operands, inside, strict=True) if member]
            parts.append(f"{value:+.3f} {' '.join(names)}")
    return " ".join(parts) or "0"
