"""Corollary 1 applied to every gate by itself: a baseline beside what the solver says.

The task to *keep* needs each AND and ADDER edge, and of each OR gate at least one edge. The task to *remove* must lose
each OR and ADDER edge, and of each AND gate at least one edge. Edges without a label count as ADDER edges: nothing is
known that would make them dispensable. Where both tasks ask for the same edge, the task to keep has its way.
"""

from __future__ import annotations

from gatewise.circuits.circuit import Circuit
from gatewise.gates.labels import Gate, Gates


def removal_by_gate_rule(keep: Gates, remove: Gates) -> Circuit:
    """Edges that the task of `remove` must lose and that of `keep` does not need, by the rule of each gate."""
    or_gates, and_gates = _gate_of_edge(keep, "OR"), _gate_of_edge(remove, "AND")
    needed = set(keep.sound.edges) - or_gates.keys()
    doomed = set(remove.sound.edges) - and_gates.keys()
    removed = doomed - needed
    spare: dict[Gate, int] = {}  # how many more edges of each OR gate may go
    for gate in dict.fromkeys(or_gates.values()):
        going = [edge for edge in gate.edges if edge in doomed]
        if len(going) == len(gate.edges):
            removed.discard(going[0])  # all of them should go, but one has to stay
        spare[gate] = max(0, len(gate.edges) - len(going) - 1)
    chosen: dict[Gate, str] = {}  # AND gate -> the edge that breaks it
    users: dict[Gate, list[Gate]] = {gate: [] for gate in spare}  # OR gate -> AND gates that take one of its edges

    def assign(gate: Gate, tried: set[Gate]) -> bool:
        """Give an AND gate an edge of an OR gate that can spare one, moving other AND gates if need be."""
        for edge in gate.edges:
            owner = or_gates.get(edge)
            if edge in needed or owner is None or owner in tried:
                continue
            tried.add(owner)
            # An augmenting path: AND gates are matched to what OR gates can spare, and the matching is a largest one.
            full = len(users[owner]) >= spare[owner]
            moved = next((user for user in users[owner] if assign(user, tried)), None) if full else None
            if full and moved is None:
                continue
            if moved is not None:
                users[owner].remove(moved)
            users[owner].append(gate)
            chosen[gate] = edge
            return True
        return False

    for gate in dict.fromkeys(and_gates.values()):
        free = [edge for edge in gate.edges if edge not in needed and edge not in or_gates]
        if free:
            chosen[gate] = free[0]
        else:
            assign(gate, set())
    return keep.graph.circuit(sorted(removed | set(chosen.values())))


def _gate_of_edge(gates: Gates, kind: str) -> dict[str, Gate]:
    """Edge -> its gate, for gates of this type with at least two edges: of a single edge nothing is left."""
    return {edge: gate for gate in gates if gate.type == kind and len(gate.edges) >= 2 for edge in gate.edges}
