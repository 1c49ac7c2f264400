"""Formulas of tasks as clauses for a SAT solver.

All tasks share the variables of the edges. Every clause is part of a definition in both directions ("alive if, and only
if"), so that the encoding is exact whatever shape the gates have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise.gates.reconciliation.formulas import GateTable, Receiver, TaskFormula, Term, WeightedSum

_FAR = 10**9  # more than any sum of weights
_Describe = Callable[..., str]  # says in words what a term asks for, or without one the whole receiver


def pysat(module: str) -> ModuleType:
    """Import a module of PySAT, which is an extra."""
    try:
        return import_module(f"pysat.{module}")
    except ImportError as error:
        raise GatewiseError("combining tasks needs python-sat: pip install 'gatewise[sat]'.") from error


class _Answer(NamedTuple):
    """A literal, and the thresholds for which it is the answer."""

    first: int
    last: int
    literal: int


class Clauses:
    """All formulas as clauses. A selector switches each gate, so that an unsatisfiable core names gates."""

    def __init__(self, formulas: Sequence[TaskFormula]) -> None:
        self._variables = 0
        self._constant = 0
        self.hard: list[list[int]] = []
        self.edge_stays: dict[int, int] = {}  # edge -> variable: true if it stays
        self.gates: dict[int, str] = {}  # selector -> the gate in words
        for formula in formulas:
            logits = self._formula(formula)
            self.hard.append([logits if formula.keep else -logits])

    def removed(self, assignment: Sequence[int]) -> list[int]:
        """The edges that a solution takes away."""
        true = set(assignment)
        return [edge for edge, stays in self.edge_stays.items() if stays not in true]

    def removal_size(self, graph: Graph) -> list[int]:
        """Literals of which as many are false as edges are removed, counted for each receiver.

        So the solver can say "one of those into this head" and need not name each edge, which is much faster.
        """
        literals: list[int] = []
        for edges in graph.by_receiver(list(self.edge_stays), "node").values():
            gone = [-self.edge_stays[edge] for edge in edges]
            with pysat("card").ITotalizer(lits=gone, ubound=len(gone) - 1, top_id=self._variables) as totalizer:
                self.hard += totalizer.cnf.clauses
                self._variables = max(self._variables, totalizer.top_id)
                literals += [-literal for literal in totalizer.rhs[: len(gone)]]
        return literals

    def _new(self) -> int:
        self._variables += 1
        return self._variables

    def _selector(self, description: str) -> list[int]:
        """The beginning of clauses that hold only while the gate is switched on."""
        selector = self._new()
        self.gates[selector] = description
        return [-selector]

    def _formula(self, formula: TaskFormula) -> int:
        """The literal that says whether the logits are alive."""
        alive: dict[str, int] = {}
        for node, receiver in formula.receivers.items():
            counts = self._edges_that_count(formula, receiver, alive)
            describe = partial(formula.describe, node)
            if isinstance(receiver, WeightedSum):
                alive[node] = self._sum(receiver, counts, describe)
            else:
                alive[node] = self._table(receiver, counts, describe)
        return alive["logits"]

    def _edges_that_count(self, formula: TaskFormula, receiver: Receiver, alive: Mapping[str, int]) -> dict[int, int]:
        """Edge -> literal: it is kept, and its sender is alive."""
        literals: dict[int, int] = {}
        for edge in receiver.edges:
            if edge not in self.edge_stays:
                self.edge_stays[edge] = self._new()
            stays, sender = self.edge_stays[edge], alive.get(formula.sender[edge])
            literals[edge] = stays if sender is None else self._gate("AND", [stays, sender])
        return literals

    def _gate(self, kind: str, inputs: Sequence[int], selector: Sequence[int] = ()) -> int:
        """A literal that is the AND or the OR of others, if its selector is on."""
        output = self._new()
        sign = -1 if kind == "OR" else 1  # an OR is the AND of the negations, negated
        self.hard += [[*selector, -sign * output, sign * literal] for literal in inputs]
        self.hard.append([*selector, sign * output, *(-sign * literal for literal in inputs)])
        return output

    def _sum(self, receiver: WeightedSum, counts: Mapping[int, int], describe: _Describe) -> int:
        if len(receiver.terms) == 1:
            term = receiver.terms[0]
            return self._gate(term.kind, [counts[edge] for edge in term.edges], self._selector(describe()))
        weighed: list[tuple[int, int]] = []
        threshold = receiver.threshold
        for term in receiver.terms:
            literal = self._term(term, counts, describe)
            if term.weight < 0:
                # -w if present is -w, plus w if absent: so all weights are positive and the threshold is higher.
                literal, threshold = -literal, threshold - term.weight
            weighed.append((abs(term.weight), literal))
        output, selector = self._new(), self._selector(describe())
        reached = self._at_least(sorted(weighed, key=lambda pair: -pair[0]), threshold)
        self.hard += [[*selector, -output, reached], [*selector, output, -reached]]
        return output

    def _term(self, term: Term, counts: Mapping[int, int], describe: _Describe) -> int:
        inputs = [counts[edge] for edge in term.edges]
        return inputs[0] if len(inputs) == 1 else self._gate(term.kind, inputs, self._selector(describe(term)))

    def _at_least(self, weighed: Sequence[tuple[int, int]], threshold: int) -> int:
        """A literal that is true if, and only if, the true ones of (weight, literal) weigh as much as the threshold.

        A binary decision diagram over what is still missing after each literal. Thresholds between which no sum lies
        have the same answer and share a node: without that the diagram would have a node for every number.
        """
        remaining = [0]  # what the literals from each index on can still bring; built from the last
        for weight, _ in reversed(weighed):
            remaining.append(remaining[-1] + weight)
        remaining.reverse()
        known: list[list[_Answer]] = [[] for _ in weighed]  # by index

        def node(index: int, missing: int) -> _Answer:
            if missing <= 0:
                return _Answer(-_FAR, 0, self._true())
            if missing > remaining[index]:
                return _Answer(remaining[index] + 1, _FAR, -self._true())
            for answer in known[index]:
                if answer.first <= missing <= answer.last:
                    return answer
            weight, literal = weighed[index]
            if_true, if_false = node(index + 1, missing - weight), node(index + 1, missing)
            output = if_true.literal
            if if_true.literal != if_false.literal:
                output = self._choice(literal, if_true.literal, if_false.literal)
            first, last = max(if_true.first + weight, if_false.first), min(if_true.last + weight, if_false.last)
            known[index].append(_Answer(first, last, output))
            return known[index][-1]

        return node(0, threshold).literal

    def _choice(self, literal: int, if_true: int, if_false: int) -> int:
        """A literal that is `if_true` or `if_false` as another one says; `if_false` implies `if_true`."""
        output = self._new()
        self.hard += [[-output, if_true], [-output, literal, if_false], [output, -if_false]]
        self.hard.append([output, -literal, -if_true])
        return output

    def _true(self) -> int:
        if not self._constant:
            self._constant = self._new()
            self.hard.append([self._constant])
        return self._constant

    def _table(self, receiver: GateTable, counts: Mapping[int, int], describe: _Describe) -> int:
        groups = [self._sum(group, counts, describe) for group in receiver.groups.values()]
        output, selector = self._new(), self._selector(describe())
        for row, enough in enumerate(receiver.enough):
            other_row = [-literal if row >> i & 1 else literal for i, literal in enumerate(groups)]
            self.hard.append([*selector, *other_row, output if enough else -output])
        return output
