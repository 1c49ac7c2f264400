"""The fewest edges whose removal takes some tasks away and leaves others, by a MaxSAT solver.

Every task is a formula over the edges (`formulas`), and all formulas are clauses (`_clauses`). PySAT decides whether
there is a removal (else: which gates clash), and RC2 finds a smallest one. This is exact whatever shape the gates have;
but only where all are monotone does removing still more edges leave gone what is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Timer
from typing import Any

from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError
from gatewise.gates.labels import Gates, check_one_model, task_names
from gatewise.gates.reconciliation._clauses import Clauses, pysat
from gatewise.gates.reconciliation.formulas import LabelsBy, TaskFormula

_SOLVER = "glucose4"


@dataclass(frozen=True, eq=False)
class Reconciliation:
    """What to remove so that some tasks are gone and others work, or why there is no such removal."""

    formulas: tuple[TaskFormula, ...]  # of the tasks to keep, then of those to remove
    removal: Circuit | None  # None: impossible
    at_least: int = 0  # no removal has fewer edges: proven
    core: tuple[str, ...] = ()  # gates that clash, in words
    core_is_minimal: bool = True  # whether without any one of them there would be a removal; else the time was over
    seconds: float = 0.0

    @property
    def possible(self) -> bool:
        """Whether there is a removal."""
        return self.removal is not None

    @property
    def smallest(self) -> bool:
        """Whether no removal has fewer edges; else this is the best that the time allowed."""
        return self.removal is not None and len(self.removal) <= self.at_least

    @property
    def monotone(self) -> bool:
        """Whether removing still more leaves gone what is gone; not with XOR-like, inhibiting or negative gates."""
        return all(formula.monotone for formula in self.formulas)

    def levels(self, removal: Circuit | None = None) -> dict[str, float]:
        """Predict by the formulas what is left of each task.

        Args:
            removal: The edges that are removed; by default the answer's.

        Returns:
            For each task the fraction of its effect that arrives at the logits.
        """
        removed = removal or self.removal
        edges = () if removed is None else removed.indices
        return {formula.name: formula.levels(edges)["logits"] for formula in self.formulas}

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data.

        Returns:
            All of it, with circuits as lists of edges.
        """
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
        keep = " and ".join(formula.name for formula in self.formulas if formula.keep)
        remove = " and ".join(formula.name for formula in self.formulas if not formula.keep)
        aim = f"remove {remove}, keep {keep or 'nothing'}"
        if self.removal is None:
            return f"<Reconciliation: cannot {aim}; {len(self.core)} gates clash: {'; '.join(self.core)}>"
        proven = "no fewer do" if self.smallest else f"at least {self.at_least} are needed: the time was over"
        return f"<Reconciliation: to {aim}, take away {len(self.removal)} edges ({proven})>"


def reconcile(
    keep: Sequence[Gates],
    remove: Sequence[Gates],
    *,
    share: float = 0.9,
    by: LabelsBy = "split",
    seconds: float = 60.0,
) -> Reconciliation:
    """Find the fewest edges to remove so that some tasks are gone and others still work, by the gates of all.

    Args:
        keep: Gates of each task that has to stay; may be empty.
        remove: Gates of each task that has to go, found on the same model.
        share: Fraction of its effect that a receiver must keep, or lose; more than 0.5. In between, a task neither
            works nor is gone.
        by: `split` for set-difference labels, `tested` for tested gates; receivers without one count as ADDERs.
        seconds: Time after which the best removal so far is taken.

    Returns:
        The edges to remove and whether no smaller removal exists, or the gates that clash.

    Raises:
        GatewiseError: If the gates are of different models or lead nowhere, an argument is out of range, python-sat is
            not installed, or the time was too short for any answer.
    """
    _check(keep, remove, share, by, seconds)
    started = time.monotonic()
    tasks = [*keep, *remove]
    formulas = tuple(
        TaskFormula(gates, name, keep=index < len(keep), share=share, by=by)
        for index, (gates, name) in enumerate(zip(tasks, task_names(tasks), strict=True))
    )
    return replace(_solve(formulas, seconds), seconds=time.monotonic() - started)


def _check(keep: Sequence[Gates], remove: Sequence[Gates], share: float, by: str, seconds: float) -> None:
    given: tuple[object, object] = (keep, remove)
    if any(isinstance(argument, Gates) for argument in given):
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


def _solve(formulas: tuple[TaskFormula, ...], seconds: float) -> Reconciliation:
    deadline, graph = time.monotonic() + seconds, formulas[0].graph
    clauses = Clauses(formulas)
    with pysat("solvers").Solver(_SOLVER, bootstrap_with=clauses.hard) as solver:
        solver.set_phases(
            list(clauses.edge_stays.values())
        )  # begins with all edges kept, so that first answers are small
        satisfiable = _solve_within(solver, list(clauses.gates), deadline)
        if satisfiable is None:
            raise GatewiseError(f"{seconds:g} seconds were too few to find any answer; give more, or smaller circuits.")
        if not satisfiable:
            core, minimal = minimal_core(solver, deadline)
            words = dict.fromkeys(clauses.gates[selector] for selector in core)
            return Reconciliation(formulas, None, core=tuple(words), core_is_minimal=minimal)
        first_removal = clauses.removed(solver.get_model())
    wcnf, soft = pysat("formula").WCNF(), clauses.removal_size(graph)
    wcnf.extend([*clauses.hard, *([selector] for selector in clauses.gates)])
    wcnf.extend([[literal] for literal in soft], weights=[1] * len(soft))
    with pysat("examples.rc2").RC2(wcnf, solver=_SOLVER) as maxsat, _interrupting(maxsat.interrupt, deadline):
        assignment = maxsat.compute(expect_interrupt=True)
        at_least = int(maxsat.cost)
    # None: the time was over. What the first solver gave is valid, and only too large.
    removed = _thinned(formulas, first_removal) if assignment is None else clauses.removed(assignment)
    return Reconciliation(formulas, graph.circuit(removed), at_least)


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


def _solve_within(solver: Any, assumptions: list[int], deadline: float) -> bool | None:
    """Whether the clauses can be satisfied with these selectors on; None if the time was over before."""
    with _interrupting(solver.interrupt, deadline):
        satisfiable: bool | None = solver.solve_limited(assumptions=assumptions, expect_interrupt=True)
    solver.clear_interrupt()
    return satisfiable


def minimal_core(solver: Any, deadline: float) -> tuple[list[int], bool]:
    """Shrink the solver's unsatisfiable core.

    Returns:
        Selectors that cannot all be on, and whether none of them can be left out: False if the time was over before.
    """
    core, minimal = list(solver.get_core()), True
    for selector in list(core):
        if selector not in core:
            continue
        satisfiable = _solve_within(solver, [other for other in core if other != selector], deadline)
        minimal = minimal and satisfiable is not None
        if satisfiable is False:
            core = list(solver.get_core())
    return core, minimal


@contextmanager
def _interrupting(interrupt: Callable[[], None], deadline: float) -> Iterator[None]:
    timer = Timer(max(0.001, deadline - time.monotonic()), interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
