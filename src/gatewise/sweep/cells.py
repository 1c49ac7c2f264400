"""One cell: its search and its evaluation, found in the store or computed. What it gives depends on the cell alone."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gatewise.compute import Compute
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.evaluation import evaluate
from gatewise.methods import discover
from gatewise.methods.base import SEARCH_DIRECTIONS, Problem, SearchDirection
from gatewise.methods.discovery import configured
from gatewise.methods.provenance import ingredients
from gatewise.models import load_model
from gatewise.store import Store
from gatewise.sweep.grid import Cell
from gatewise.tasks import task as make_task
from gatewise.workers import threads

if TYPE_CHECKING:
    from gatewise.models.model import Model
    from gatewise.tasks import Task


def cell_ingredients(cell: Cell) -> dict[str, Any]:
    """Everything that determines the result of a cell. Loads its model, and keeps it for the next cell."""
    with threads(cell.threads):
        model, task = loaded(cell.model, cell.device, cell.dtype), _task(cell)
        method, config = configured(cell.method, dict(cell.parameters))
        direction, setting = _direction(cell.direction), Setting(model, task.train, seed=cell.seed, memory=cell.memory)
        problem = Problem(
            setting, (direction,), {direction: cell.sizes} if cell.sizes else {}, cell.threshold, seed=cell.seed
        )
        return {
            "what": "cell of a sweep",
            "cell": {name: value for name, value in asdict(cell).items() if name != "together"},
            "search": ingredients(problem, method, config),
            "test": task.test.fingerprint,
        }


def run_cell(cell: Cell, store: str) -> dict[str, Any]:
    """The rows of the cell's circuits, and the seconds that finding and evaluating them took. `store`: its location."""
    kept = Store(store)
    found: dict[str, Any] = kept.remember(cell_ingredients(cell), lambda: _compute(cell, kept))
    return found


def _compute(cell: Cell, store: Store) -> dict[str, Any]:
    with threads(cell.threads):
        model, task = loaded(cell.model, cell.device, cell.dtype), _task(cell)
        begun = time.perf_counter()
        compute = Compute(memory=cell.memory, store=store)
        more: dict[str, Any] = {"seed": cell.seed, "compute": compute, **dict(cell.parameters)}
        direction = _direction(cell.direction)
        directions = tuple(map(_direction, cell.together)) or (direction,)
        asked = {"threshold": cell.threshold} if cell.threshold is not None else {"edges": cell.sizes}
        found = discover(model, task.train, cell.method, direction=directions, **asked, **more)[direction]
        circuits = found if isinstance(found, list) else [found]
        evaluated = evaluate(
            model, task.test, circuits, random_circuits=cell.random_circuits, seed=cell.seed, compute=compute
        )
        seconds = time.perf_counter() - begun
    return {"rows": [evaluation.row() for evaluation in evaluated], "seconds": seconds}


def _direction(name: str) -> SearchDirection:
    if name not in SEARCH_DIRECTIONS:
        raise GatewiseError(f"direction is 'ns', 'dn' or 'ns+dn', got {name!r}.")
    return name


def forget() -> None:
    """Let go of the model of the last cell."""
    loaded.cache_clear()
    _made_task.cache_clear()


@lru_cache(maxsize=1)
def loaded(name: str, device: str | None, dtype: str | None) -> Model:
    """The model of the cell before this one is kept, no more: they can be large."""
    return load_model(name, device=device, dtype=dtype)


def _task(cell: Cell) -> Task:
    return _made_task(replace(cell, method="", direction="", sizes=(), threshold=None, parameters=()))


@lru_cache(maxsize=8)
def _made_task(cell: Cell) -> Task:
    """Of a cell without its search: cells that differ in nothing else share it."""
    names = ("examples", "test_examples", "seed", "bos", "first_token")
    choices = {name: getattr(cell, name) for name in names}
    return make_task(cell.task, loaded(cell.model, cell.device, cell.dtype), **choices)
