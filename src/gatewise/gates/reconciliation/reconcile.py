"""Tasks combined by logic: the fewest edges whose removal takes some tasks away and leaves others, by a MaxSAT solver.

Every task is a formula over the edges (`logic.formulas`). All formulas share the variables of the edges; what adds up
is counted by totalizers. PySAT decides whether there is a removal (else: which gates clash), and RC2 finds a smallest
one. All clauses are definitions in both directions, so this is exact whatever shape the gates have; but only where all
are monotone does removing still more leave gone what is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Timer
from types import ModuleType
from typing import Any, NamedTuple

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise.gates.labels import Gates, check_one_model, task_names
from gatewise.gates.reconciliation.formulas import GateTable, LabelsBy, Part, Receiver, Sum, TaskFormula

SHARE = 0.9
SECONDS = 60.0
_SOLVER = "glucose4"
_FAR = 10**9  # more than any sum of shares


@dataclass(frozen=True, eq=False)
class Reconciliation:
    """What to remove so that some tasks are gone and others work, or why there is no such thing."""

    formulas: tuple[TaskFormula, ...]  # of the tasks to keep, then of those to remove
    removal: Circuit | None  # None: impossible
    at_least: int  # no removal has fewer edges: proven
    core: tuple[str, ...]  # gates that clash, in words
    core_is_minimal: bool  # whether without any one of them there would be a removal; else the time was over
    seconds: float

    @property
    def possible(self) -> bool:
        return self.removal is not None

    @property
    def smallest(self) -> bool:
        """Whether no removal has fewer edges; else this is what was found in the time."""
        return self.removal is not None and len(self.removal) <= self.at_least

    @property
    def monotone(self) -> bool:
        """Whether removing still more leaves gone what is gone; not with XOR-like, inhibiting or negative gates."""
        return all(formula.monotone for formula in self.formulas)

    def levels(self, removal: Circuit | None = None) -> dict[str, float]:
        """The share of its effect that each task has left, by its formula, without these edges [the answer's]."""
        removed = removal or self.removal
        edges = () if removed is None else removed.indices
        return {formula.name: formula.levels(edges)["logits"] for formula in self.formulas}

    def to_json(self) -> dict[str, Any]:
        return {
            "possible": self.possible,
            "keep": [formula.name for formula in self.formulas if formula.keep],
            "remove": [formula.name for formula in self.formulas if not formula.keep],
            "share": self.formulas[0].share,
            "removal": None if self.removal is None else self.removal.edges,
            "smallest": self.smallest,
            "at_least": self.at_least,
            "levels": self.levels() if self.possible else None,
            "core": list(self.core),
            "core_is_minimal": self.core_is_minimal,
            "monotone": self.monotone,
            "seconds": self.seconds,
        }

    def __repr__(self) -> str:
        keep, remove = (" and ".join(f.name for f in self.formulas if f.keep == kept) for kept in (True, False))
        asked = f"remove {remove}, keep {keep or 'nothing'}"
        if self.removal is None:
            return f"<Reconciliation: cannot {asked}; {len(self.core)} gates clash: {'; '.join(self.core)}>"
        proven = "no fewer do" if self.smallest else f"at least {self.at_least} are needed: the time was over"
        return f"<Reconciliation: to {asked}, take away {len(self.removal)} edges ({proven})>"


def reconcile(
    keep: Sequence[Gates],
    remove: Sequence[Gates],
    *,
    share: float = SHARE,
    by: LabelsBy = "split",
    seconds: float = SECONDS,
) -> Reconciliation:
    """The fewest edges to take away so that the tasks of `remove` are gone and those of `keep` work, by their gates.

    share: of its effect that a receiver has to keep, or to lose; what is between is neither. by: labels of the split,
    or tested gates (receivers without one are ADDERs). seconds: after which the best removal found so far is taken.
    """
    _check(keep, remove, share, by, seconds)
    started = time.monotonic()
    names = task_names([*keep, *remove])
    formulas = tuple(
        TaskFormula(gates, name, keep=place < len(keep), share=share, by=by)
        for place, (gates, name) in enumerate(zip([*keep, *remove], names, strict=True))
    )
    found = _solve(formulas, seconds)
    removal = None if found.edges is None else formulas[0].graph.circuit(found.edges)
    taken = time.monotonic() - started
    return Reconciliation(formulas, removal, found.at_least, found.core, found.core_is_minimal, taken)


def _check(keep: Sequence[Gates], remove: Sequence[Gates], share: float, by: str, seconds: float) -> None:
    given: tuple[object, object] = (keep, remove)
    if any(isinstance(one, Gates) for one in given):
        raise GatewiseError("keep and remove are lists of gates, one for each task, such as keep=[gates_ioi].")
    if not remove:
        raise GatewiseError("nothing is to be removed: give the gates of at least one task as remove=[...].")
    if not 0.5 < share <= 1:
        raise GatewiseError(f"share is more than 0.5 and at most 1, got {share}: what is kept is not also lost.")
    if by not in ("split", "tested"):
        raise GatewiseError(f"by is 'split' or 'tested', got {by!r}.")
    if not seconds > 0:
        raise GatewiseError(f"seconds is the time to search for, more than 0; got {seconds}.")
    check_one_model([*keep, *remove])


def _pysat(module: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(f"pysat.{module}")
    except ImportError as error:
        raise GatewiseError("combining tasks needs python-sat: pip install 'gatewise[sat]'.") from error


class _Clauses:
    """All formulas as clauses. A selector switches each gate, so that a core names gates."""

    def __init__(self, formulas: Sequence[TaskFormula]) -> None:
        self._top = 0
        self._constant = 0
        self.hard: list[list[int]] = []
        self.edges: dict[int, int] = {}  # edge -> variable: true if it stays
        self.gates: dict[int, str] = {}  # selector -> words
        for formula in formulas:
            logits = self._formula(formula)
            self.hard.append([logits if formula.keep else -logits])

    def removed(self, model: Sequence[int]) -> list[int]:
        """The edges that a solution takes away."""
        true = set(model)
        return [edge for edge, stays in self.edges.items() if stays not in true]

    def counted(self, graph: Graph) -> list[int]:
        """Literals of which as many are false as edges are removed, counted for each receiver.

        So the solver can say "one of those into this head" and need not name each edge.
        """
        found: list[int] = []
        for edges in graph.by_receiver(list(self.edges), "node").values():
            gone = [-self.edges[edge] for edge in edges]
            with _pysat("card").ITotalizer(lits=gone, ubound=len(gone) - 1, top_id=self._top) as totalizer:
                self.hard += totalizer.cnf.clauses
                self._top = max(self._top, totalizer.top_id)
                found += [-one for one in totalizer.rhs[: len(gone)]]
        return found

    def _new(self) -> int:
        self._top += 1
        return self._top

    def _edge(self, edge: int) -> int:
        return self.edges[edge] if edge in self.edges else self.edges.setdefault(edge, self._new())

    def _formula(self, formula: TaskFormula) -> int:
        alive: dict[str, int] = {}
        for node, receiver in formula.receivers.items():
            counts = self._counting(formula, receiver, alive)
            words = _worded(formula, node)
            if isinstance(receiver, Sum):
                alive[node] = self._sum(receiver, counts, words)
            else:
                alive[node] = self._table(receiver, counts, words)
        return alive["logits"]

    def _counting(self, formula: TaskFormula, receiver: Receiver, alive: Mapping[str, int]) -> dict[int, int]:
        """Edge -> literal: it is kept, and its sender is alive."""
        found = {}
        for edge in receiver.edges:
            kept, sender = self._edge(edge), alive.get(formula.sender[edge])
            found[edge] = kept if sender is None else self._gate("AND", [kept, sender])
        return found

    def _gate(self, kind: str, inputs: Sequence[int], selector: Sequence[int] = ()) -> int:
        """A literal that is the AND or the OR of others, if its selector is on."""
        found, sign = self._new(), 1 if kind == "AND" else -1
        self.hard += [[*selector, -sign * found, sign * one] for one in inputs]
        self.hard.append([*selector, sign * found, *(-sign * one for one in inputs)])
        return found

    def _select(self, words: str) -> list[int]:
        selector = self._new()
        self.gates[selector] = words
        return [-selector]

    def _sum(self, receiver: Sum, counts: Mapping[int, int], words: Callable[[Part | None], str]) -> int:
        if len(receiver.parts) == 1:
            part = receiver.parts[0]
            kind = "OR" if part.type == "OR" else "AND"
            return self._gate(kind, [counts[edge] for edge in part.edges], self._select(words(None)))
        terms: list[tuple[int, int]] = []
        against = 0
        for part in receiver.parts:
            inputs = [counts[edge] for edge in part.edges]
            one = inputs[0] if len(inputs) == 1 else self._gate(part.type, inputs, self._select(words(part)))
            terms.append((abs(part.share), one if part.share > 0 else -one))
            against += max(0, -part.share)
        found, selector = self._new(), self._select(words(None))
        reached = self._at_least(sorted(terms, key=lambda term: -term[0]), receiver.bar + against)
        self.hard += [[*selector, -found, reached], [*selector, found, -reached]]
        return found

    def _at_least(self, terms: Sequence[tuple[int, int]], bar: int) -> int:
        """A literal that is true if, and only if, the terms (weight, literal) that are true weigh so much.

        A decision diagram: what is still missing after each term. Bars between which no sum lies share a node.
        """
        left = [0]  # what the terms from each place on can still bring, the last first
        for weight, _ in reversed(terms):
            left.append(left[-1] + weight)
        left.reverse()
        known: list[list[tuple[int, int, int]]] = [[] for _ in terms]  # by place: bars from, to, and their literal

        def node(place: int, missing: int) -> tuple[int, int, int]:
            """The first and the last bar with the same answer, and the answer."""
            if missing <= 0:
                return -_FAR, 0, self._true()
            if missing > left[place]:
                return left[place] + 1, _FAR, -self._true()
            for first, last, found in known[place]:
                if first <= missing <= last:
                    return first, last, found
            weight, literal = terms[place]
            first_with, last_with, there = node(place + 1, missing - weight)
            first_without, last_without, absent = node(place + 1, missing)
            first, last = max(first_with + weight, first_without), min(last_with + weight, last_without)
            found = there if there == absent else self._choice(literal, there, absent)
            known[place].append((first, last, found))
            return first, last, found

        return node(0, bar)[2]

    def _choice(self, literal: int, there: int, absent: int) -> int:
        """A literal that is `there` if the other one is true, else `absent`, which implies `there`."""
        found = self._new()
        self.hard += [[-found, there], [-found, literal, absent], [found, -absent], [found, -literal, -there]]
        return found

    def _true(self) -> int:
        if not self._constant:
            self._constant = self._new()
            self.hard.append([self._constant])
        return self._constant

    def _table(self, receiver: GateTable, counts: Mapping[int, int], words: Callable[[Part | None], str]) -> int:
        groups = [self._sum(group, counts, words) for group in receiver.groups.values()]
        found, selector = self._new(), self._select(words(None))
        for row, enough in enumerate(receiver.enough):
            other = [-one if row >> i & 1 else one for i, one in enumerate(groups)]
            self.hard.append([*selector, *other, found if enough else -found])
        return found


def _worded(formula: TaskFormula, node: str) -> Callable[[Part | None], str]:
    return lambda part: formula.words(node, part)


class _Solution(NamedTuple):
    """A removal, and how many edges are needed at least; or None, and the gates that clash."""

    edges: list[int] | None
    at_least: int = 0
    core: tuple[str, ...] = ()
    core_is_minimal: bool = True


def _solve(formulas: Sequence[TaskFormula], seconds: float) -> _Solution:
    """A removal, smallest if the time suffices, and how many edges are needed at least; or the gates that clash."""
    until = time.monotonic() + seconds
    clauses = _Clauses(formulas)
    with _pysat("solvers").Solver(_SOLVER, bootstrap_with=clauses.hard) as solver:
        solver.set_phases(list(clauses.edges.values()))
        answer = _within(solver, list(clauses.gates), until)
        if answer is None:
            raise GatewiseError(f"{seconds:g} seconds were too few to find any answer; give more, or smaller circuits.")
        if not answer:
            core, minimal = _minimal_core(solver, until)
            words = tuple(dict.fromkeys(clauses.gates[one] for one in core))
            return _Solution(None, core=words, core_is_minimal=minimal)
        some = clauses.removed(solver.get_model())
    formula, soft = _pysat("formula").WCNF(), clauses.counted(formulas[0].graph)
    formula.extend([*clauses.hard, *([selector] for selector in clauses.gates)])
    formula.extend([[one] for one in soft], weights=[1] * len(soft))
    with _pysat("examples.rc2").RC2(formula, solver=_SOLVER) as solver, _interrupting(solver.interrupt, until):
        model = solver.compute(expect_interrupt=True)
        at_least = int(solver.cost)
    return _Solution(_thinned(formulas, some) if model is None else clauses.removed(model), at_least)


def _thinned(formulas: Sequence[TaskFormula], removed: Sequence[int]) -> list[int]:
    """A removal without edges that can stay as well: halves are given back, then halves of what cannot be."""
    left = list(removed)
    parts = [left]
    while parts:
        part = parts.pop()
        fewer = [edge for edge in left if edge not in set(part)]
        if all(formula.alive(fewer)["logits"] == formula.keep for formula in formulas):
            left = fewer
        elif len(part) > 1:
            parts += [part[: len(part) // 2], part[len(part) // 2 :]]
    return left


def _within(solver: Any, on: Sequence[int], until: float) -> bool | None:
    """Whether the clauses hold with these selectors; None if the time was over before."""
    with _interrupting(solver.interrupt, until):
        answer: bool | None = solver.solve_limited(assumptions=list(on), expect_interrupt=True)
    solver.clear_interrupt()
    return answer


def _minimal_core(solver: Any, until: float) -> tuple[list[int], bool]:
    """Selectors that cannot all be on, and whether none of them can be left out: no, if the time was over before."""
    core, minimal = list(solver.get_core()), True
    for one in list(core):
        answer = _within(solver, [other for other in core if other != one], until) if one in core else True
        minimal = minimal and answer is not None
        if answer is False:
            core = list(solver.get_core())
    return core, minimal


@contextmanager
def _interrupting(interrupt: Callable[[], None], until: float) -> Iterator[None]:
    timer = Timer(max(0.001, until - time.monotonic()), interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
