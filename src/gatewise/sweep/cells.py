"""One cell: its search and its evaluation, recalled from the store or computed. They depend on the cell alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gatewise.compute import Compute
from gatewise.devices import assigned
from gatewise.engine.setting import Setting
from gatewise.evaluation import evaluate
from gatewise.evaluation.evaluations import VERSION
from gatewise.methods import discover_all
from gatewise.methods.base import Problem
from gatewise.methods.provenance import ingredients
from gatewise.methods.smallest import rank_directions
from gatewise.models import load_model
from gatewise.store import Store
from gatewise.sweep.grid import Cell
from gatewise.tasks import task as make_task
from gatewise.workers import threads

if TYPE_CHECKING:
    from gatewise.circuits.circuit import Circuit
    from gatewise.methods.base import SearchDirection
    from gatewise.models.model import Model
    from gatewise.tasks import Task


def cell_ingredients(cell: Cell) -> dict[str, Any]:
    """List everything that determines the result of a cell. Loads its model, and keeps it for the next cell."""
    with threads(cell.threads):
        model, task = loaded(cell.model, cell.device, cell.dtype), _task(cell)
        setting = Setting(model, task.train, seed=cell.seed, memory=cell.memory)
        sizes = {cell.direction: cell.sizes} if cell.sizes else {}
        if cell.faithfulness is not None:
            sizes = {cell.direction: (cell.most_edges or model.graph.n_edges,)}
        problem = Problem(setting, (cell.direction,), sizes, cell.threshold, seed=cell.seed)
        return {
            "what": "cell of a sweep",
            "cell": {name: value for name, value in asdict(cell).items() if name != "together"},
            "search": ingredients(problem, cell.bound_method),
            "test": task.test.fingerprint,
            "evaluation": VERSION,
        }


def run_cell(cell: Cell, location: str) -> dict[str, Any]:
    """Return the rows of the cell's circuits, and the seconds that finding and evaluating them took.

    location: of the store
    """
    store = Store(location)
    rows: dict[str, Any] = store.remember(cell_ingredients(cell), lambda: _compute(cell, store))
    return rows


def _compute(cell: Cell, store: Store) -> dict[str, Any]:
    with threads(cell.threads):
        model, task = loaded(cell.model, cell.device, cell.dtype), _task(cell)
        begun = time.perf_counter()
        compute = Compute(memory=cell.memory, store=store)
        # One search finds the circuits of all directions that share work; the other cells recall theirs.
        directions = cell.together or (cell.direction,)
        if cell.faithfulness is not None:
            circuits, chosen = _smallest(cell, directions, model, task, compute)
        else:
            chosen = {}
            circuits = discover_all(
                model,
                task.train,
                cell.bound_method,
                directions,
                sizes=cell.sizes or None,
                threshold=cell.threshold,
                seed=cell.seed,
                compute=compute,
            )[cell.direction]
        evaluations = evaluate(
            model, task.test, list(circuits), random_circuits=cell.random_circuits, seed=cell.seed, compute=compute
        )
        seconds = time.perf_counter() - begun
    return {"rows": [chosen | evaluation.row() for evaluation in evaluations], "seconds": seconds}


def _smallest(
    cell: Cell, directions: Sequence[SearchDirection], model: Model, task: Task, compute: Compute
) -> tuple[tuple[Circuit, ...], dict[str, Any]]:
    """Return the smallest circuit that is as faithful as the cell asks for, or the nearest, and what is known of it."""
    assert cell.faithfulness is not None
    search = rank_directions(
        model, task.train, cell.bound_method, directions, edges=cell.most_edges, seed=cell.seed, compute=compute
    )
    choice = search.smallest(cell.direction, cell.faithfulness)
    chosen = {
        "reached": choice.edges is not None,
        "most_edges": choice.most_edges,
        "validation_pairs": choice.validation_pairs,
        "validated_share": choice.chosen.share,
        "validated_low": choice.chosen.low,
    }
    return (choice.of_size(choice.chosen.edges),), chosen


def forget() -> None:
    """Let go of the model of the last cell."""
    loaded.cache_clear()
    _made_task.cache_clear()


@lru_cache(maxsize=1)
def loaded(name: str, device: str | None, dtype: str | None) -> Model:
    """Load a model, in a worker on its own device. That of the last cell is kept, no other: they can be large."""
    return load_model(name, device=None if device is None else assigned(device), dtype=dtype)


def _task(cell: Cell) -> Task:
    return _made_task(
        replace(
            cell, method="", direction="ns", sizes=(), threshold=None, parameters=(), faithfulness=None, most_edges=None
        )
    )


@lru_cache(maxsize=8)
def _made_task(cell: Cell) -> Task:
    """Make the task of a cell without its search: cells that differ in nothing else share it."""
    return make_task(
        cell.task,
        loaded(cell.model, cell.device, cell.dtype),
        examples=cell.examples,
        test_examples=cell.test_examples,
        seed=cell.seed,
        bos=cell.bos,
        first_token=cell.first_token,
    )
