"""Two tasks at once: can one be kept while the other is removed? The paper's closing example, as a problem of logic.

Both by Corollary 1, for gates of two tasks in one model:

- the task to *keep* needs each AND and ADDER edge, and of each OR gate at least one edge;
- the task to *remove* must lose each OR and ADDER edge, and of each AND gate at least one edge.

An edge that one needs and the other must lose is a conflict. It dissolves if it is an OR edge of the task to keep and
another sender of that gate is left, or an AND edge of the task to remove and another edge of that gate can go instead.
An edge belongs to at most one gate of each task, so whether all demands can be met is a matching problem, solved
exactly. Edges without a label count as ADDER edges: nothing is known that would make them dispensable. What is found
rests on the labels: remove the edges and measure both tasks before believing it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gatewise.circuits.circuit import Circuit
from gatewise.gates.labels import Gate, Gates, check_one_model

ClashVerdict = Literal["conflict", "dissolved by OR", "dissolved by AND"]
VERDICTS: tuple[ClashVerdict, ...] = ("conflict", "dissolved by OR", "dissolved by AND")


@dataclass(frozen=True)
class Clash:
    """An edge that both tasks use."""

    edge: str
    keep: str  # its type in the task to keep
    remove: str  # its type in the task to remove
    verdict: ClashVerdict
    instead: tuple[str, ...] = ()  # what makes it dissolve: edges of the OR gate that stay, or of the AND gate that go


@dataclass(frozen=True, eq=False)
class Conflicts:
    """What two tasks ask of the edges they share."""

    keep: Circuit  # the sound circuit of the task to keep
    remove: Circuit
    clashes: tuple[Clash, ...]  # every shared edge, in the graph's order
    removal: Circuit  # edges to take away: all that the task to remove must lose and the other does not need

    @property
    def compatible(self) -> bool:
        """Whether no conflict is left."""
        return not any(clash.verdict == "conflict" for clash in self.clashes)

    def counts(self) -> dict[ClashVerdict, int]:
        found = Counter(clash.verdict for clash in self.clashes)
        return {verdict: found[verdict] for verdict in VERDICTS}

    def to_json(self) -> dict[str, Any]:
        return {
            "compatible": self.compatible,
            "edges": {"keep": len(self.keep), "remove": len(self.remove), "shared": len(self.clashes)},
            "verdicts": self.counts(),
            "shared": [
                {"edge": c.edge, "keep": c.keep, "remove": c.remove, "verdict": c.verdict, "instead": list(c.instead)}
                for c in self.clashes
            ],
            "removal": self.removal.edges,
        }

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts().items())
        return f"<Conflicts: {len(self.clashes)} shared edges: {verdicts}; {len(self.removal)} edges to remove>"


def find_conflicts(keep: Gates, remove: Gates) -> Conflicts:
    """Which edges the task of `keep` needs and that of `remove` must lose, and which of these conflicts dissolve."""
    check_one_model([keep, remove])
    or_gates, and_gates = _gates_of(keep, "OR"), _gates_of(remove, "AND")
    needed = set(keep.sound.edges) - or_gates.keys()
    doomed = set(remove.sound.edges) - and_gates.keys()
    spare = _Spare(or_gates, doomed)
    removed = {edge for edge in doomed if edge not in needed and not spare.is_last(edge)}
    chosen = _choose(and_gates, needed, spare)
    removed |= {edge for edge in chosen.values() if edge is not None}
    shared = (keep.sound & remove.sound).edges
    clashes = []
    for edge in shared:
        verdict, instead = _verdict(edge, or_gates, and_gates, removed, chosen)
        labels = (keep.label(edge) or "no label", remove.label(edge) or "no label")
        clashes.append(Clash(edge, *labels, verdict, instead))
    return Conflicts(keep.sound, remove.sound, tuple(clashes), keep.graph.circuit(sorted(removed)))


def _gates_of(gates: Gates, kind: str) -> dict[str, Gate]:
    """Edge -> its gate, for gates of this type with at least two edges: of a single edge nothing is left."""
    return {edge: gate for gate in gates if gate.type == kind and len(gate.edges) >= 2 for edge in gate.edges}


class _Spare:
    """How many more edges of each OR gate of the task to keep may go."""

    def __init__(self, or_gates: Mapping[str, Gate], doomed: set[str]) -> None:
        self._gate = or_gates
        self._last: set[str] = set()
        self._room: dict[Gate, int] = {}
        for gate in dict.fromkeys(or_gates.values()):
            going = [edge for edge in gate.edges if edge in doomed]
            if len(going) == len(gate.edges):
                self._last.add(going[0])  # all of them should go; one has to stay
            self._room[gate] = max(0, len(gate.edges) - len(going) - 1)

    def is_last(self, edge: str) -> bool:
        return edge in self._last

    def gate(self, edge: str) -> Gate | None:
        return self._gate.get(edge)

    def room(self, gate: Gate) -> int:
        return self._room[gate]


def _choose(and_gates: Mapping[str, Gate], needed: set[str], spare: _Spare) -> dict[Gate, str | None]:
    """Of each AND gate of the task to remove one edge to take away; None where every choice hurts the other task.

    An edge that the other task does not use is free. An OR edge of the other task uses up room of its gate: these
    choices are a matching of AND gates to room in OR gates, found by augmenting paths.
    """
    chosen: dict[Gate, str | None] = {}
    users: dict[Gate, list[Gate]] = {}  # OR gate -> AND gates that take an edge of it

    def place(gate: Gate, tried: set[Gate]) -> bool:
        for edge in gate.edges:
            owner = spare.gate(edge)
            if edge in needed or owner is None or owner in tried:
                continue
            tried.add(owner)
            taking = users.setdefault(owner, [])
            if len(taking) < spare.room(owner):
                taking.append(gate)
                chosen[gate] = edge
                return True
            for other in taking:
                if place(other, tried):
                    taking.remove(other)
                    taking.append(gate)
                    chosen[gate] = edge
                    return True
        return False

    for gate in dict.fromkeys(and_gates.values()):
        chosen[gate] = next((edge for edge in gate.edges if edge not in needed and spare.gate(edge) is None), None)
        if chosen[gate] is None:
            place(gate, set())
    return chosen


def _verdict(
    edge: str,
    or_gates: Mapping[str, Gate],
    and_gates: Mapping[str, Gate],
    removed: set[str],
    chosen: Mapping[Gate, str | None],
) -> tuple[ClashVerdict, tuple[str, ...]]:
    if edge in removed:  # only an OR edge of the task to keep can be both
        return "dissolved by OR", tuple(other for other in or_gates[edge].edges if other not in removed)
    gate = and_gates.get(edge)
    if gate is not None and chosen[gate] is not None:
        return "dissolved by AND", tuple(other for other in gate.edges if other in removed)
    return "conflict", ()
