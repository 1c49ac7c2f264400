"""The arithmetic of gates: tables of what every set of groups is worth, and what they look like.

A table v of k groups is a tensor [..., 2^k]: entry s is the worth of the set whose members are the bits of s, and
entry 0 is 0. Any number of tables (of receivers, of resamples) is read at once.

    Harsanyi interactions      a(S) = sum over T in S of (-1)^(|S|-|T|) v(T)
    Ns effect      n_i  = v(all) - v(all without i)           Dn effect  d_i = v({i})
    gate index     gamma_i = (|n_i| - |d_i|) / (|n_i| + |d_i|)    1 AND, -1 OR, 0 ADDER
    partners       P(i, j) = sum over S with i and j of a(S) / (|S| - 1);    sum over j of P(i, j) = n_i - d_i

A table's *label* is the nearest template, both divided by the largest |v|, either sign: how far off a template is, is
the entry that it gets most wrong. An ADDER has no table of its own: it is wrong by how far v(S) is from the sum of what
the members of S are worth alone. Templates may leave groups out (`members` are those that take part).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

TOLERANCE = 0.25  # by which a template may be off, in shares of the largest |v|
ADDER, MIXED, UNDECIDED = "ADDER", "mixed", "undecided"
_TWICE = 1 / 3  # gate index at which one effect is twice the other


def all_groups(table: Tensor) -> int:
    return table.shape[-1].bit_length() - 1


def harsanyi_interactions(table: Tensor) -> Tensor:
    """What every set is worth beyond its subsets. [..., set]"""
    found = table.clone()
    sets = torch.arange(table.shape[-1])
    for group in range(all_groups(table)):
        with_group = sets[(sets >> group) & 1 == 1]
        found[..., with_group] -= found[..., with_group ^ (1 << group)]
    return found


def ns_effects(table: Tensor) -> Tensor:
    """What is lost if only one group goes. [..., group]"""
    everyone = table.shape[-1] - 1
    return table[..., everyone, None] - table[..., [everyone ^ (1 << i) for i in range(all_groups(table))]]


def dn_effects(table: Tensor) -> Tensor:
    """What each group brings alone. [..., group]"""
    return table[..., [1 << i for i in range(all_groups(table))]]


def gate_index(ns: Tensor, dn: Tensor, floor: float = 0.0) -> Tensor:
    """gamma; NaN where neither effect is above the floor."""
    n, d = ns.abs(), dn.abs()
    return torch.where(torch.maximum(n, d) > floor, (n - d) / (n + d), torch.nan)


def way_of_acting(index: float, low: float, high: float) -> str:
    """AND if a group's loss is more than twice what it brings alone, OR if less than half of it, ADDER between.

    By both ends of the interval of a gate index; undecided if they disagree, or there is no index.
    """
    ways = {"AND" if end > _TWICE else "OR" if end < -_TWICE else ADDER for end in (low, high)}
    return ways.pop() if len(ways) == 1 and not math.isnan(index) else UNDECIDED


def partners(table: Tensor) -> Tensor:
    """P(i, j), 0 for i = j. [..., group, group]"""
    count, shares = all_groups(table), harsanyi_interactions(table)
    found = table.new_zeros(*table.shape[:-1], count, count)
    for members in range(table.shape[-1]):
        inside = [i for i in range(count) if members >> i & 1]
        for i, j in itertools.permutations(inside, 2):
            found[..., i, j] += shares[..., members] / (len(inside) - 1)
    return found


def interaction_sets(count: int) -> list[int]:
    """The sets of two or more of `count` groups, as bits."""
    return [members for members in range(1 << count) if members.bit_count() > 1]


@dataclass(frozen=True)
class Template:
    """A pure gate: its name, who takes part, and its table of 0 and 1."""

    name: str
    members: tuple[int, ...]
    table: tuple[float, ...]


@cache
def templates(count: int) -> tuple[Template, ...]:
    """All pure gates of up to `count` groups."""
    found = []
    for size in range(2, count + 1):
        for members in itertools.combinations(range(count), size):
            counts = _present(count, members)
            found.append(_template("AND", members, [n == size for n in counts]))
            found.append(_template("OR", members, [n > 0 for n in counts]))
            found.append(_template("XOR-like", members, [n % 2 == 1 for n in counts]))
            found += [_template(f"{m} of {size}", members, [n >= m for n in counts]) for m in range(2, size)]
            found += _inhibiting(count, members)
    return tuple(found)


def _inhibiting(count: int, members: tuple[int, ...]) -> list[Template]:
    """One member silences what the others, any of them or all of them, would give."""
    found = []
    for one in members:
        others = tuple(member for member in members if member != one)
        silent, counts = _present(count, (one,)), _present(count, others)
        needed = {1, len(others)}
        tables = [[n >= m and not s for n, s in zip(counts, silent, strict=True)] for m in needed]
        found += [_template("inhibiting", members, table) for table in tables]
    return found


def _present(count: int, members: Sequence[int]) -> list[int]:
    """How many of the members each set has."""
    return [sum(bits >> member & 1 for member in members) for bits in range(1 << count)]


def _template(name: str, members: tuple[int, ...], table: Sequence[bool]) -> Template:
    return Template(name, members, tuple(map(float, table)))


def nearest(tables: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest template of each table, and how far off it is. [...] each; `len(templates)` means ADDER."""
    largest = tables.abs().amax(dim=-1, keepdim=True).clamp(min=1e-300)
    scaled = tables / largest
    count = all_groups(tables)
    known = torch.tensor([template.table for template in templates(count)], dtype=scaled.dtype)
    off = torch.minimum(_furthest(scaled, known), _furthest(scaled, -known))
    alone = torch.tensor([[float(bits >> i & 1) for i in range(count)] for bits in range(1 << count)])
    summed = (scaled - dn_effects(scaled) @ alone.to(scaled).T).abs().amax(dim=-1)
    distances = torch.cat([off, summed[..., None]], dim=-1)
    which = distances.argmin(dim=-1)
    return which, distances.gather(-1, which[..., None])[..., 0]


def _furthest(scaled: Tensor, known: Tensor) -> Tensor:
    return (scaled[..., None, :] - known).abs().amax(dim=-1)


@dataclass(frozen=True)
class Label:
    """What a table looks like, and which groups that is about."""

    name: str
    members: tuple[int, ...] = ()


def label(table: Tensor, resampled: Tensor, floor: float, confidence: float = 0.95) -> Label:
    """The template of a table [set] that `confidence` of its resamples [resample, set] have, too."""
    everyone = tuple(range(all_groups(table)))
    if float(table.abs().max()) <= floor:
        return Label(UNDECIDED, everyone)
    which = _kinds(table[None])
    same = (_kinds(resampled) == which).double().mean()
    if float(same) < confidence:
        return Label(UNDECIDED, everyone)
    known = templates(all_groups(table))
    place = int(which)
    if place < len(known):
        return Label(known[place].name, known[place].members)
    return Label(ADDER if place == len(known) else MIXED, everyone)


def _kinds(tables: Tensor) -> Tensor:
    """The nearest template of each table; one more than ADDER's number where none is near."""
    which, off = nearest(tables)
    return torch.where(off <= TOLERANCE, which, len(templates(all_groups(tables))) + 1)
