"""The arithmetic of gates: what a table of effects says about the operands behind it.

The *operands* of a gate are groups of edges into its receiver, and maybe the rest of the receiver's edges. A *table* of
k operands is a tensor [..., 2^k]: entry S, read as bits, is the normalised effect v(S) of the receiver with exactly the
operands of S clean, so that entry 0 is 0. Leading dimensions hold any number of tables (of receivers, of resamples).

    interaction     a(S) = sum over T in S of (-1)^(|S|-|T|) v(T)       Harsanyi's dividend: the Möbius transform of v
    Ns effect       n_i = v(all) - v(all without i)                     lost if only operand i is noised
    Dn effect       d_i = v({i})                                        restored if only operand i is denoised
    gate index      gamma_i = (|n_i| - |d_i|) / (|n_i| + |d_i|)         1 AND, -1 OR, 0 ADDER
    partner share   P(i, j) = sum over S with i and j of a(S) / (|S| - 1)      sum over j of P(i, j) = n_i - d_i

A table's *label* is the nearest template, both divided by the largest |v|, of either sign; the distance to a template
is the error at the entry that it gets most wrong. An ADDER has no table of its own: its error is how far v(S) is from
the sum of the Dn effects of the members of S. Templates may leave operands out (`members` are those that take part).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

TOLERANCE = 0.25  # error at which a template still fits, as a share of the largest |v|
ADDER, MIXED, UNDECIDED = "ADDER", "mixed", "undecided"
_TWICE = 1 / 3  # gate index at which one effect is twice the other: (2 - 1) / (2 + 1)
_TINY = 1e-300


def operand_count(table: Tensor) -> int:
    """Number of operands of a table of 2^k entries."""
    return table.shape[-1].bit_length() - 1


def bits_of(sets: Sequence[int], count: int) -> Tensor:
    """Which of `count` operands each set has. [set, operand] of bool"""
    return torch.tensor([[bits >> i & 1 for i in range(count)] for bits in sets], dtype=torch.bool)


@cache
def membership(count: int) -> Tensor:
    """The same of all sets, in the order of a table. [set, operand] of bool"""
    return bits_of(range(1 << count), count)


def subsets(members: Sequence[int]) -> list[int]:
    """All sets of these operands as bits, the empty one first."""
    sets = [0]
    for member in members:
        sets += [bits | 1 << member for bits in sets]
    return sets


def interactions(table: Tensor) -> Tensor:
    """Harsanyi interactions: the effect of every set beyond that of its subsets. [..., set]"""
    transformed = table.clone()
    sets = torch.arange(table.shape[-1])
    # The fast Möbius transform: one operand after another, subtract the entry without it from the entry with it.
    for operand in range(operand_count(table)):
        with_operand = sets[(sets >> operand) & 1 == 1]
        transformed[..., with_operand] -= transformed[..., with_operand ^ (1 << operand)]
    return transformed


def ns_effects(table: Tensor) -> Tensor:
    """Effect that is lost if only one operand is noised. [..., operand]"""
    everyone = table.shape[-1] - 1
    return table[..., everyone, None] - table[..., [everyone ^ (1 << i) for i in range(operand_count(table))]]


def dn_effects(table: Tensor) -> Tensor:
    """Effect of each operand alone. [..., operand]"""
    return table[..., [1 << i for i in range(operand_count(table))]]


def gate_index(ns: Tensor, dn: Tensor, floor: float = 0.0) -> Tensor:
    """Gate index gamma from Ns and Dn effects; NaN where neither is above the floor. Shape of both"""
    n, d = ns.abs(), dn.abs()
    return torch.where(torch.maximum(n, d) > floor, (n - d) / (n + d), torch.nan)


def index_label(index: float, low: float, high: float) -> str:
    """Label one operand by the interval of its gate index.

    AND if its Ns effect is more than twice its Dn effect at both ends of the interval, OR if less than half of it,
    ADDER between; undecided if the ends disagree, or if there is no index.
    """
    labels = {"AND" if end > _TWICE else "OR" if end < -_TWICE else ADDER for end in (low, high)}
    return labels.pop() if len(labels) == 1 and not math.isnan(index) else UNDECIDED


def partner_shares(table: Tensor) -> Tensor:
    """P(i, j): the part of n_i - d_i that operand i has by operand j; 0 for i = j. [..., operand, operand]"""
    count, values = operand_count(table), interactions(table)
    shares = table.new_zeros(*table.shape[:-1], count, count)
    for bits in interaction_sets(count):
        members = [i for i in range(count) if bits >> i & 1]
        for i, j in itertools.permutations(members, 2):
            shares[..., i, j] += values[..., bits] / (len(members) - 1)
    return shares


def interaction_sets(count: int) -> list[int]:
    """The sets of two or more of `count` operands, as bits."""
    return [bits for bits in range(1 << count) if bits.bit_count() > 1]


@dataclass(frozen=True)
class Label:
    """What a table looks like, and which operands take part in that."""

    name: str
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Template(Label):
    """A pure gate, with its table of 0 and 1."""

    table: tuple[float, ...] = ()


@cache
def templates(count: int) -> tuple[Template, ...]:
    """All pure gates of two to `count` operands."""
    gates = []
    for size in range(2, count + 1):
        for members in itertools.combinations(range(count), size):
            present = _members_present(count, members)
            gates.append(_template("AND", members, present == size))
            gates.append(_template("OR", members, present > 0))
            gates.append(_template("XOR-like", members, present % 2 == 1))
            gates += [_template(f"{m} of {size}", members, present >= m) for m in range(2, size)]
            gates += _inhibiting(count, members)
    return tuple(gates)


def _inhibiting(count: int, members: tuple[int, ...]) -> list[Template]:
    """One member silences what the others would give: any of them, or all of them together."""
    gates = []
    for inhibitor in members:
        others = [member for member in members if member != inhibitor]
        silent, present = membership(count)[:, inhibitor], _members_present(count, others)
        gates += [_template("inhibiting", members, (present >= needed) & ~silent) for needed in {1, len(others)}]
    return gates


def _members_present(count: int, members: Sequence[int]) -> Tensor:
    """How many of the members each set has. [set]"""
    return membership(count)[:, list(members)].sum(dim=1)


def _template(name: str, members: tuple[int, ...], table: Tensor) -> Template:
    return Template(name, members, tuple(table.double().tolist()))


def label(table: Tensor, resampled: Tensor, floor: float, confidence: float = 0.95) -> Label:
    """Label a table [set] by its template, if `confidence` of its resamples [resample, set] have the same one."""
    everyone = tuple(range(operand_count(table)))
    undecided = Label(UNDECIDED, everyone)
    if float(table.abs().max()) <= floor:
        return undecided
    nearest = int(_nearest_template(table))
    agreement = (_nearest_template(resampled) == nearest).double().mean()
    if float(agreement) < confidence:
        return undecided
    pure = templates(operand_count(table))
    if nearest < len(pure):
        return Label(pure[nearest].name, pure[nearest].members)
    return Label(ADDER if nearest == len(pure) else MIXED, everyone)


def _nearest_template(tables: Tensor) -> Tensor:
    """Index of each table's template: one beyond the last for ADDER, two beyond where none fits. [...]"""
    scaled = tables / tables.abs().amax(dim=-1, keepdim=True).clamp(min=_TINY)
    count = operand_count(tables)
    pure = torch.tensor([template.table for template in templates(count)], dtype=scaled.dtype)
    additive = dn_effects(scaled) @ membership(count).to(scaled).T
    # A gate may lower the logit difference as well as raise it, so templates count with either sign.
    errors = torch.minimum(_largest_error(scaled, pure), _largest_error(scaled, -pure))
    errors = torch.cat([errors, (scaled - additive).abs().amax(dim=-1, keepdim=True)], dim=-1)
    return torch.where(errors.amin(dim=-1) <= TOLERANCE, errors.argmin(dim=-1), errors.shape[-1])


def _largest_error(scaled: Tensor, pure: Tensor) -> Tensor:
    """[..., set], [template, set] -> [..., template]"""
    return (scaled[..., None, :] - pure).abs().amax(dim=-1)
