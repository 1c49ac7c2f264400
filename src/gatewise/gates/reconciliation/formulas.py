"""A task as a formula over edges: which nodes still carry what they carry in the whole model once edges are removed.

One definition for all that follows. A node that no edge of the task goes into is *alive*, since the edges that the task
does not know stay in the model. Any other node is a receiver. What goes into it adds up: an edge counts if it is kept
and its sender is alive, an AND gate if all of its edges count, an OR gate if one does, each with its share of the
receiver's effect, a whole number. A tested gate gives the worth of every set of its groups instead, whatever shape it
has: `m of k`, XOR-like and inhibiting ones are taken as they are. For a task to *keep*, a receiver is alive if at least
`share` of its effect is there, and the task works if `logits` is. For a task to *remove*, a receiver is dead if at
least `share` of its effect is lost, and the task is gone if `logits` is. With share 1 that is Corollary 1: all AND and
ADDER edges and one of each OR gate; all OR and ADDER edges and one of each AND gate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_SIGNS, GATE_TYPES
from gatewise.gates.labels import Gates, GroupGate
from gatewise.gates.testing.harsanyi import TOLERANCE

LabelsBy = Literal["split", "tested"]
_UNITS = 40  # into which a receiver's effect is divided, or one for each of its parts, if those are more
_ROUNDING = 1e-9
REST = "the rest"


@dataclass(frozen=True)
class Part:
    """What adds to a receiver: one edge, or an AND or OR gate of several."""

    type: str  # "edge", "AND" or "OR"
    edges: tuple[int, ...]
    share: int  # negative if it works against the others

    def counts(self, there: Collection[int]) -> bool:
        """Whether it is there, if these edges count."""
        found = (edge in there for edge in self.edges)
        return any(found) if self.type == "OR" else all(found)


@dataclass(frozen=True)
class Sum:
    """Parts that add up; `total` is what they sum to in the whole model, and at `bar` they are enough."""

    parts: tuple[Part, ...]
    total: int
    bar: int

    def worth(self, there: Collection[int]) -> int:
        return sum(part.share for part in self.parts if part.counts(there))

    def level(self, there: Collection[int]) -> float:
        return self.worth(there) / self.total

    def holds(self, there: Collection[int]) -> bool:
        return self.worth(there) >= self.bar

    @property
    def edges(self) -> Iterator[int]:
        return (edge for part in self.parts for edge in part.edges)

    @property
    def monotone(self) -> bool:
        return all(part.share > 0 for part in self.parts)


@dataclass(frozen=True)
class GateTable:
    """A tested gate: groups of edges, and what every set of them is worth; 1 is what all have in the whole model."""

    label: str
    groups: Mapping[str, Sum]
    levels: tuple[float, ...]
    enough: tuple[bool, ...]

    def _row(self, there: Collection[int]) -> int:
        return sum(1 << i for i, group in enumerate(self.groups.values()) if group.holds(there))

    def level(self, there: Collection[int]) -> float:
        return self.levels[self._row(there)]

    def holds(self, there: Collection[int]) -> bool:
        return self.enough[self._row(there)]

    @property
    def edges(self) -> Iterator[int]:
        return (edge for group in self.groups.values() for edge in group.edges)

    @property
    def monotone(self) -> bool:
        rows = [(row, row | 1 << i) for row in range(len(self.enough)) for i in range(len(self.groups))]
        rising = all(self.enough[more] or not self.enough[less] for less, more in rows)
        return rising and all(group.monotone for group in self.groups.values())


Receiver = Sum | GateTable


class TaskFormula:
    """A task's gates as a formula, for keeping the task or for removing it."""

    def __init__(self, gates: Gates, name: str, *, keep: bool, share: float, by: LabelsBy = "split") -> None:
        if by == "tested" and not gates.tested:
            raise GatewiseError(
                f"the gates of {name} were not tested, or none stands: find them with `gatewise gates --test --out`, "
                f"or gates.with_tested(gw.find_interactions(...)), or ask by='split'."
            )
        self.name, self.keep, self.share, self.graph = name, keep, share, gates.graph
        self.sender = [self.graph.senders[i] for i in self.graph.edge_sender.tolist()]
        self.receivers: dict[str, Receiver] = {}
        self._build(gates, by)
        self.whole = self.levels(())

    def levels(self, removed: Collection[int]) -> dict[str, float]:
        """The share of its effect that each receiver has left without these edges."""
        return {node: level for node, (level, _) in self._states(removed).items()}

    def alive(self, removed: Collection[int]) -> dict[str, bool]:
        """Whether each receiver is alive without these edges; the task works if `logits` is."""
        return {node: alive for node, (_, alive) in self._states(removed).items()}

    def _states(self, removed: Collection[int]) -> dict[str, tuple[float, bool]]:
        found: dict[str, tuple[float, bool]] = {}
        gone = set(removed)
        for node, receiver in self.receivers.items():
            there = {e for e in receiver.edges if e not in gone and found.get(self.sender[e], (1.0, True))[1]}
            found[node] = receiver.level(there), receiver.holds(there)
        return found

    @property
    def monotone(self) -> bool:
        """Whether removing more never brings anything back."""
        return all(receiver.monotone for receiver in self.receivers.values())

    def words(self, node: str, part: Part | None = None) -> str:
        """What the task asks of a receiver, or of one gate into it."""
        receiver = self.receivers[node]
        if part is not None:
            what = f" {GATE_SIGNS[part.type]} ".join(self.sender[edge] for edge in part.edges)
            return f"{self.name}: {part.type} into {node}: {_short(what)}"
        if isinstance(receiver, GateTable):
            return f"{self.name}: {node} is {receiver.label} of {', '.join(receiver.groups)}"
        parts = sorted(receiver.parts, key=lambda part: -abs(part.share))
        what = (
            "".join(f" {'-' if part.share < 0 else '+'} {self._part(part)}" for part in parts)
            .removeprefix(" +")
            .strip()
        )
        if len(receiver.parts) == 1:
            return f"{self.name}: {node} comes from {_short(what.strip('()'))}"
        needs = f"needs {self.share:.0%} of" if self.keep else f"is lost without {self.share:.0%} of"
        return f"{self.name}: {node} {needs} {_short(what)}"

    def _part(self, part: Part) -> str:
        senders = [self.sender[edge] for edge in part.edges]
        return senders[0] if len(senders) == 1 else f"({f' {GATE_SIGNS[part.type]} '.join(senders)})"

    def _build(self, gates: Gates, by: LabelsBy) -> None:
        """Receivers from the input to the output, of those that lead to the logits."""
        weights = _weights(gates)
        parts = _split_parts(gates, weights) if by == "split" else _single_edges(gates, weights)
        tested = {gate.receiver: gate for gate in reversed(gates.tested)} if by == "tested" else {}
        needed = {"logits"}
        for node in reversed(self.graph.nodes):
            if node in needed:
                needed |= {self.sender[edge] for part, _ in parts.get(node, ()) for edge in part.edges}
        silent: set[str] = set()  # receivers that say nothing in the whole model
        for node in self.graph.nodes:
            if node not in parts or node not in needed:
                continue
            there = {e for part, _ in parts[node] for e in part.edges if self.sender[e] not in silent}
            receiver = self._table(tested[node], weights, parts[node], there) if node in tested else None
            self.receivers[node] = receiver or self._sum(parts[node], there)
            if not self.receivers[node].holds(there):
                silent.add(node)
        if "logits" not in self.receivers:
            raise GatewiseError(f"no edge of {self.name} goes into the logits, so its gates do not say what it needs.")

    def _sum(self, weighed: Sequence[tuple[Part, float]], there: Collection[int]) -> Sum:
        shares = _whole_numbers([weight for _, weight in weighed])
        parts = tuple(replace(part, share=n) for (part, _), n in zip(weighed, shares, strict=True) if n)
        total = sum(part.share for part in parts if part.counts(there))
        if total <= 0:  # it says nothing in the whole model
            total = sum(part.share for part in parts if part.share > 0)
        if self.keep:
            return Sum(parts, total, math.ceil(self.share * total - _ROUNDING))
        return Sum(parts, total, math.floor((1 - self.share) * total + _ROUNDING) + 1)

    def _table(
        self, gate: GroupGate, weights: Sequence[float], into: Sequence[tuple[Part, float]], there: Collection[int]
    ) -> GateTable:
        """The rest of the receiver's edges is one more group if the task has some of them; else it stays."""
        index = {edge: weight for part, weight in into for edge in part.edges}
        named = {name: [self.graph.index(edge) for edge in edges] for name, edges in gate.groups.items()}
        inside = {edge for edges in named.values() for edge in edges}
        rest = [edge for edge in index if edge not in inside]
        values = gate.values if rest else gate.values[len(gate.values) // 2 :]
        if rest:
            named[REST] = rest
        groups = {
            n: self._sum([(Part("edge", (e,), 1), weights[e]) for e in edges], there) for n, edges in named.items()
        }
        row = sum(1 << i for i, group in enumerate(groups.values()) if group.holds(there))
        largest = max(values, key=abs)
        whole = values[row] if abs(values[row]) > TOLERANCE * abs(largest) else largest
        levels = tuple(value / whole for value in values)
        enough = [v >= self.share - _ROUNDING if self.keep else v > 1 - self.share + _ROUNDING for v in levels]
        return GateTable(gate.label, groups, levels, tuple(enough))


def _weights(gates: Gates) -> list[float]:
    """What every edge is worth: mean of its two scores, or 1 where a search left none."""
    if gates.ns.scores is None or gates.dn.scores is None:
        return [1.0] * gates.graph.n_edges
    return torch.stack([gates.ns.scores, gates.dn.scores]).double().mean(dim=0).tolist()


def _single_edges(gates: Gates, weights: Sequence[float]) -> dict[str, list[tuple[Part, float]]]:
    found: dict[str, list[tuple[Part, float]]] = {}
    for node, edges in gates.graph.by_receiver(gates.sound.indices, "node").items():
        found[node] = [(Part("edge", (edge,), 1), weights[edge]) for edge in edges]
    return found


def _split_parts(gates: Gates, weights: Sequence[float]) -> dict[str, list[tuple[Part, float]]]:
    """AND and OR gates of the split, worth what each of their edges is in the direction that found it; other edges."""
    graph = gates.graph
    found: dict[str, list[tuple[Part, float]]] = {}
    gated: set[int] = set()
    for kind, circuit in ((kind, gates.by_type[kind]) for kind in GATE_TYPES if kind != "ADDER"):
        scores = (gates.ns if kind == "AND" else gates.dn).scores
        for edges in graph.by_receiver(circuit.indices, gates.grouping).values():
            if len(edges) > 1:
                gated |= set(edges)
                worth = 1.0 if scores is None else float(scores[edges].double().mean())
                node = graph.port_node[int(graph.edge_port[edges[0]])]
                found.setdefault(node, []).append((Part(kind, tuple(edges), 1), worth))
    for node, parts in _single_edges(gates, weights).items():
        found.setdefault(node, []).extend(one for one in parts if one[0].edges[0] not in gated)
    return found


def _whole_numbers(weights: Sequence[float]) -> list[int]:
    """Shares as whole numbers, as small as they can be; their sum is positive."""
    size, units = sum(map(abs, weights)), max(_UNITS, len(weights))
    scale = 1.0 if size <= units and all(weight.is_integer() for weight in weights) else units / size
    found = [round(weight * scale) for weight in weights]
    if sum(found) == 0:  # they cancel out: only their sizes say anything
        found = [abs(one) for one in found] if any(found) else [1] * len(found)
    sign = 1 if sum(found) > 0 else -1
    divisor = sign * (math.gcd(*found) or 1)
    return [one // divisor for one in found]


def _short(text: str, width: int = 120) -> str:
    return text if len(text) <= width else text[: width - 4] + " ..."
