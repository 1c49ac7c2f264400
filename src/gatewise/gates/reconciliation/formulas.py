"""A task as a formula over edges: which nodes still carry what they carry in the whole model once edges are removed.

One definition for all that follows. A node that no edge of the task goes into is *alive*, since the edges that the task
does not know stay in the model. Any other node is a receiver. What goes into it adds up: an edge counts if it is kept
and its sender is alive, an AND gate if all of its edges count, an OR gate if one does, each with its share of the
receiver's effect, a whole number. A tested gate gives the effect of every set of its groups instead, whatever shape it
has: `m of k`, XOR-like and inhibiting ones are taken as they are. For a task to *keep*, a receiver is alive if at least
`share` of its effect is there, and the task works if `logits` is. For a task to *remove*, a receiver is dead if at
least `share` of its effect is lost, and the task is gone if `logits` is. With share 1 that is Corollary 1: all AND and
ADDER edges and one of each OR gate; all OR and ADDER edges and one of each AND gate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_SIGNS, GateType
from gatewise.gates.labels import Gates, GroupGate
from gatewise.gates.testing.harsanyi import TOLERANCE

LabelsBy = Literal["split", "tested"]
_UNITS = 40  # into which a receiver's effect is divided, or one for each of its terms, if those are more
_ROUNDING = 1e-9
_REST = "the rest"


@dataclass(frozen=True)
class Term:
    """What adds to a receiver: a single edge, or an AND or OR gate of several."""

    kind: str  # "edge", "AND" or "OR"
    edges: tuple[int, ...]
    weight: int  # negative if it works against the others

    def counts(self, present: Collection[int]) -> bool:
        """Whether it contributes if these edges are there."""
        states = (edge in present for edge in self.edges)
        return any(states) if self.kind == "OR" else all(states)


@dataclass(frozen=True)
class WeightedSum:
    """Terms that add up: to `total` in the whole model; from `threshold` on the receiver is alive."""

    terms: tuple[Term, ...]
    total: int
    threshold: int

    def _weight(self, present: Collection[int]) -> int:
        return sum(term.weight for term in self.terms if term.counts(present))

    def level(self, present: Collection[int]) -> float:
        """The fraction of its effect that is left with these edges."""
        return self._weight(present) / self.total

    def holds(self, present: Collection[int]) -> bool:
        """Whether these edges are enough."""
        return self._weight(present) >= self.threshold

    @property
    def edges(self) -> Iterator[int]:
        return (edge for term in self.terms for edge in term.edges)

    @property
    def monotone(self) -> bool:
        """Whether removing more edges never brings it back."""
        return all(term.weight > 0 for term in self.terms)


@dataclass(frozen=True)
class GateTable:
    """A tested gate: groups of edges, and the effect of every set of them as a fraction of the whole model's."""

    label: str
    groups: Mapping[str, WeightedSum]
    levels: tuple[float, ...]  # by the bits of a set
    enough: tuple[bool, ...]

    def _row(self, present: Collection[int]) -> int:
        return sum(1 << i for i, group in enumerate(self.groups.values()) if group.holds(present))

    def level(self, present: Collection[int]) -> float:
        """The fraction of its effect that is left with these edges."""
        return self.levels[self._row(present)]

    def holds(self, present: Collection[int]) -> bool:
        """Whether these edges are enough."""
        return self.enough[self._row(present)]

    @property
    def edges(self) -> Iterator[int]:
        return (edge for group in self.groups.values() for edge in group.edges)

    @property
    def monotone(self) -> bool:
        """Whether removing more edges never brings it back."""
        for row, enough in enumerate(self.enough):
            larger = [row | 1 << i for i in range(len(self.groups))]
            if enough and not all(self.enough[superset] for superset in larger):
                return False
        return all(group.monotone for group in self.groups.values())


Receiver = WeightedSum | GateTable


class _Input(NamedTuple):
    """A term before its weight is rounded."""

    kind: str
    edges: tuple[int, ...]
    weight: float


class TaskFormula:
    """A task's gates as a formula, for keeping the task or for removing it."""

    def __init__(self, gates: Gates, name: str, *, keep: bool, share: float, by: LabelsBy = "split") -> None:
        if by == "tested" and not gates.tested:
            raise GatewiseError(
                f"the gates of {name} were not tested, or none is significant: find them with "
                f"`gatewise gates --test --out`, or gates.with_tested(gw.test_gates(...)), or ask by='split'."
            )
        self.name, self.keep, self.share, self.graph = name, keep, share, gates.graph
        self.sender = [self.graph.senders[i] for i in self.graph.edge_sender.tolist()]  # of every edge
        self.receivers = self._build(gates, by)

    def levels(self, removed: Collection[int]) -> dict[str, float]:
        """The fraction of its effect that each receiver has left without these edges."""
        return {node: level for node, (level, _) in self._states(removed).items()}

    def alive(self, removed: Collection[int]) -> dict[str, bool]:
        """Whether each receiver is alive without these edges; the task works if `logits` is."""
        return {node: alive for node, (_, alive) in self._states(removed).items()}

    def _states(self, removed: Collection[int]) -> dict[str, tuple[float, bool]]:
        states: dict[str, tuple[float, bool]] = {}
        gone, dead = set(removed), set[str]()
        for node, receiver in self.receivers.items():
            present = {edge for edge in receiver.edges if edge not in gone and self.sender[edge] not in dead}
            states[node] = receiver.level(present), receiver.holds(present)
            if not receiver.holds(present):
                dead.add(node)
        return states

    @property
    def monotone(self) -> bool:
        """Whether removing more never brings anything back."""
        return all(receiver.monotone for receiver in self.receivers.values())

    def describe(self, node: str, term: Term | None = None) -> str:
        """Say in words what the task asks of a receiver, or of one gate into it."""
        receiver = self.receivers[node]
        if term is not None:
            return f"{self.name}: {term.kind} into {node}: {_shortened(self._senders(term))}"
        if isinstance(receiver, GateTable):
            return f"{self.name}: {node} is {receiver.label} of {', '.join(receiver.groups)}"
        if len(receiver.terms) == 1:
            return f"{self.name}: {node} comes from {_shortened(self._senders(receiver.terms[0]))}"
        formula = ""
        for part in sorted(receiver.terms, key=lambda part: -abs(part.weight)):
            senders = self._senders(part)
            formula += f" {'-' if part.weight < 0 else '+'} {senders if len(part.edges) == 1 else f'({senders})'}"
        needs = f"needs {self.share:.0%} of" if self.keep else f"is lost without {self.share:.0%} of"
        return f"{self.name}: {node} {needs} {_shortened(formula.removeprefix(' +').strip())}"

    def _senders(self, term: Term) -> str:
        return f" {GATE_SIGNS.get(term.kind, '')} ".join(self.sender[edge] for edge in term.edges)

    def _build(self, gates: Gates, by: LabelsBy) -> dict[str, Receiver]:
        """Receivers from the input to the output, of those that lead to the logits."""
        weights = _edge_weights(gates)
        inputs = _labelled_inputs(gates, weights) if by == "split" else _single_edges(gates, weights)
        tested = {gate.receiver: gate for gate in reversed(gates.tested)} if by == "tested" else {}
        edges_into = {node: [edge for entry in into for edge in entry.edges] for node, into in inputs.items()}
        needed = {"logits"}
        for node in reversed(self.graph.nodes):
            if node in needed:
                needed |= {self.sender[edge] for edge in edges_into.get(node, ())}
        receivers: dict[str, Receiver] = {}
        silent: set[str] = set()  # receivers that are not alive even in the whole model
        for node in self.graph.nodes:
            if node not in inputs or node not in needed:
                continue
            present = {edge for edge in edges_into[node] if self.sender[edge] not in silent}
            if node in tested:
                receivers[node] = self._table(tested[node], weights, edges_into[node], present)
            else:
                receivers[node] = self._sum(inputs[node], present)
            if not receivers[node].holds(present):
                silent.add(node)
        if "logits" not in receivers:
            raise GatewiseError(f"no edge of {self.name} goes into the logits, so its gates do not say what it needs.")
        return receivers

    def _sum(self, inputs: Sequence[_Input], present: Collection[int]) -> WeightedSum:
        rounded = _whole_numbers([entry.weight for entry in inputs])
        terms = tuple(Term(entry.kind, entry.edges, n) for entry, n in zip(inputs, rounded, strict=True) if n)
        total = sum(term.weight for term in terms if term.counts(present))
        if total <= 0:  # it is silent in the whole model
            total = sum(term.weight for term in terms if term.weight > 0)
        if self.keep:
            return WeightedSum(terms, total, math.ceil(self.share * total - _ROUNDING))
        return WeightedSum(terms, total, math.floor((1 - self.share) * total + _ROUNDING) + 1)

    def _table(
        self, gate: GroupGate, weights: Sequence[float], edges_into: Sequence[int], present: Collection[int]
    ) -> GateTable:
        """A tested gate's table; the rest of the receiver's edges is a group of its own if the task has some."""
        members = {name: [self.graph.index(edge) for edge in edges] for name, edges in gate.groups.items()}
        inside = {edge for edges in members.values() for edge in edges}
        rest = [edge for edge in edges_into if edge not in inside]
        values = gate.values
        if rest:
            members[_REST] = rest
        else:
            values = values[len(values) // 2 :]  # the rows with the rest clean, which stays in the model
        groups = {
            name: self._sum([_Input("edge", (edge,), weights[edge]) for edge in edges], present)
            for name, edges in members.items()
        }
        whole_row = sum(1 << i for i, group in enumerate(groups.values()) if group.holds(present))
        largest = max(values, key=abs)
        whole = values[whole_row] if abs(values[whole_row]) > TOLERANCE * abs(largest) else largest
        levels = tuple(value / whole for value in values)
        if self.keep:
            enough = tuple(level >= self.share - _ROUNDING for level in levels)
        else:
            enough = tuple(level > 1 - self.share + _ROUNDING for level in levels)
        return GateTable(gate.label, groups, levels, enough)


def _edge_weights(gates: Gates) -> list[float]:
    """What every edge counts for: the mean of its two scores, or 1 where a search left none."""
    if gates.ns.scores is None or gates.dn.scores is None:
        return [1.0] * gates.graph.n_edges
    return torch.stack([gates.ns.scores, gates.dn.scores]).double().mean(dim=0).tolist()


def _single_edges(gates: Gates, weights: Sequence[float]) -> dict[str, list[_Input]]:
    by_node = gates.graph.by_receiver(gates.sound.indices, "node")
    return {node: [_Input("edge", (edge,), weights[edge]) for edge in edges] for node, edges in by_node.items()}


def _labelled_inputs(gates: Gates, weights: Sequence[float]) -> dict[str, list[_Input]]:
    """Labelled AND and OR gates, each with its edges' mean score in the direction that found them; other edges."""
    graph = gates.graph
    inputs: dict[str, list[_Input]] = {}
    gated: set[int] = set()
    finders: dict[GateType, Circuit] = {"AND": gates.ns, "OR": gates.dn}
    for kind, finder in finders.items():
        for edges in graph.by_receiver(gates.by_type[kind].indices, gates.grouping).values():
            if len(edges) > 1:
                gated |= set(edges)
                weight = 1.0 if finder.scores is None else float(finder.scores[edges].double().mean())
                node = graph.port_node[int(graph.edge_port[edges[0]])]
                inputs.setdefault(node, []).append(_Input(kind, tuple(edges), weight))
    for node, singles in _single_edges(gates, weights).items():
        inputs.setdefault(node, []).extend(single for single in singles if single.edges[0] not in gated)
    return inputs


def _whole_numbers(weights: Sequence[float]) -> list[int]:
    """Weights rounded to whole numbers, as small as they can be; their sum is positive."""
    size, units = sum(map(abs, weights)), max(_UNITS, len(weights))
    scale = 1.0 if size <= units and all(weight.is_integer() for weight in weights) else units / size
    rounded = [round(weight * scale) for weight in weights]
    if sum(rounded) == 0:  # they cancel out: only their sizes say anything
        rounded = [abs(number) for number in rounded] if any(rounded) else [1] * len(rounded)
    sign = 1 if sum(rounded) > 0 else -1
    divisor = sign * (math.gcd(*rounded) or 1)
    return [number // divisor for number in rounded]


def _shortened(text: str, width: int = 120) -> str:
    return text if len(text) <= width else text[: width - 4] + " ..."
