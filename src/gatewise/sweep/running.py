"""`run_sweep`: compute what is missing of a grid, and collect everything into one table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gatewise.compute import Compute, current_compute
from gatewise.errors import GatewiseError
from gatewise.files import write_json
from gatewise.plan import Forecast, forecast
from gatewise.progress import progress_bar
from gatewise.store import Store
from gatewise.sweep.cells import cell_ingredients, forget, loaded, run_cell
from gatewise.sweep.grid import Cell, Grid
from gatewise.sweep.sweep_table import TableRow, rows_of, write_csv, write_parquet
from gatewise.workers import check_workers, run_jobs

TABLE, PARQUET, FAILURES = "table.csv", "table.parquet", "failures.json"
_SCANNED = 20  # sizes that are run to choose one by faithfulness, about
_PLANNED = ("examples", "device", "dtype", "bos", "first_token", "memory")  # choices of a cell that a plan depends on


@dataclass(frozen=True)
class SweepForecast:
    """What is known before the work."""

    cells: int
    missing: int
    measured: int  # cells in the store whose time is known
    seconds: float | None  # for the missing ones, one at a time; None where nothing is known about them
    peak: int | None = None  # bytes of the largest missing search, in its process

    def __str__(self) -> str:
        counts = f"{self.cells} cells, {self.cells - self.missing} in the store, {self.missing} to compute"
        if self.missing == 0:
            return counts
        size = "" if self.peak is None else f", at most {self.peak / 1e9:.1f} GB in each process"
        if self.seconds is None:
            return f"{counts}{size}; how long that takes is not known before cells like them were computed"
        source = f"from {self.measured} measured" if self.measured else "by their operations"
        seconds = f"about {self.seconds:,.0f} s" if self.seconds >= 1.5 else "about a second"
        return f"{counts}, {seconds} one at a time ({source}){size}"


@dataclass(frozen=True)
class SweepReport:
    """How a sweep ended."""

    forecast: SweepForecast
    failures: tuple[tuple[Cell, str], ...]
    rows: tuple[TableRow, ...]
    seconds: float
    files: tuple[Path, ...]

    @property
    def complete(self) -> bool:
        """True if no cell failed."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """Make what `gatewise sweep --json` prints.

        Returns:
            Plain data: counts, failures, seconds and files.
        """
        return {
            "cells": self.forecast.cells,
            "computed": self.forecast.missing - len(self.failures),
            "rows": len(self.rows),
            "failures": _failures_as_json(self.failures),
            "seconds": self.seconds,
            "files": [str(file) for file in self.files],
        }


def run_sweep(
    grid: Grid,
    out: str | Path,
    *,
    retries: int = 2,
    dry_run: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    compute: Compute | None = None,
) -> SweepReport:
    """Compute what the store lacks of a grid, and write the table of all cells to a folder.

    Args:
        grid: What to search for, by `read_grid`.
        out: Folder for the table.
        retries: Further tries of cells whose process dies or that fail for reasons other than what was asked.
        dry_run: Only say what is missing, and how long it takes.
        tell: Called with the forecast, as text.
        compute: Workers, and the store: by default the folder `store` below `out`. On a Ray cluster it has to be a
            folder that all of its machines share, or a URL. The memory of a search is the grid's to say.

    Returns:
        The rows of the table, the cells that failed and why, and the files that were written.

    Raises:
        GatewiseError: The workers or the store cannot be used, or the grid is too large; said before the work.
    """
    resources = current_compute(compute)
    workers = 1 if resources.workers is None else resources.workers
    check_workers(workers, resources.ray)
    if retries < 0:
        raise GatewiseError(f"retries is a number of further tries, at least 0; got {retries}.")
    begun, out = time.perf_counter(), Path(out)
    store = resources.open_store() or Store(out / "store")
    apart = workers > 1 or resources.ray is not None
    if apart and store.backend.protocol == "memory":
        raise GatewiseError(
            f"the store {store.shown} is in the memory of one process; give one that workers can share."
        )
    cells = grid.cells()
    if not dry_run:
        store.check_writable()
        store.tidy()
    ingredients, problems = _all_ingredients(cells)
    measured = _recalled(ingredients, store)
    missing = [cell for cell in ingredients if cell not in measured]
    expected = _forecast(cells, measured, missing)
    tell(str(expected))
    if dry_run:
        return SweepReport(expected, tuple(problems.items()), (), time.perf_counter() - begun, ())
    if apart:
        forget()  # the model that was needed to look cells up: workers load their own
    threads = max((cell.threads for cell in missing), default=1)
    ended = run_jobs(
        missing,
        run_cell,
        store.location,
        retries=retries,
        workers=workers,
        ray=resources.ray,
        threads=threads,
        device=_kind_of_device(missing),
        gpus=resources.gpus,
    )
    with progress_bar("sweep", len(missing)) as bar:
        for end in ended:
            if end.problem:
                problems[end.job] = end.problem
            bar.describe(f"sweep, {len(problems)} failed" if problems else "sweep")
            bar.advance()
    measured |= _recalled({cell: ingredients[cell] for cell in missing if cell not in problems}, store)
    for cell in cells:
        if cell not in measured and cell not in problems:
            problems[cell] = f"its result is not in {store.shown}: can all workers write there?"
    failures = tuple((cell, problems[cell]) for cell in cells if cell in problems)
    rows = tuple(row for cell in cells if cell in measured for row in rows_of(cell, measured[cell]))
    files = _write(out, rows, failures)
    return SweepReport(expected, failures, rows, time.perf_counter() - begun, files)


def _kind_of_device(cells: Sequence[Cell]) -> str:
    """Return the kind of device that workers need: that of the cells which compute on none of the CPU."""
    kinds = {(cell.device or "cpu").partition(":")[0] for cell in cells} - {"cpu"}
    if len(kinds) > 1:
        raise GatewiseError(f"cells compute on {', '.join(sorted(kinds))}; make one sweep for each kind of device.")
    return kinds.pop() if kinds else "cpu"


def _all_ingredients(cells: Sequence[Cell]) -> tuple[dict[Cell, dict[str, Any]], dict[Cell, str]]:
    """Return what determines each cell's result, and what is wrong with cells whose model or task cannot be had."""
    ingredients: dict[Cell, dict[str, Any]] = {}
    problems: dict[Cell, str] = {}
    broken: dict[tuple[str, str | None, str | None], str] = {}  # models that cannot be loaded: once is enough
    with progress_bar("looking cells up", len(cells)) as bar:
        for cell in cells:
            source = (cell.model, cell.device, cell.dtype)
            if source not in broken:
                try:
                    loaded(*source)
                except Exception as error:
                    broken[source] = _message(error)
            if source in broken:
                problems[cell] = broken[source]
            else:
                try:
                    ingredients[cell] = cell_ingredients(cell)
                except Exception as error:
                    problems[cell] = _message(error)
            bar.advance()
    return ingredients, problems


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, GatewiseError) else f"{type(error).__name__}: {error}"


def _recalled(ingredients: Mapping[Cell, dict[str, Any]], store: Store) -> dict[Cell, Any]:
    """Return the rows and seconds of the cells that the store has."""
    known = {cell: store.recall(determining) for cell, determining in ingredients.items()}
    return {cell: value for cell, value in known.items() if value is not None}


def _forecast(cells: Sequence[Cell], measured: Mapping[Cell, Any], missing: Sequence[Cell]) -> SweepForecast:
    """Forecast time by the median of measured cells that are alike, else by the search's plan; memory by the plan."""
    times: dict[tuple[str, ...], list[float]] = {}
    for cell, known in measured.items():
        for kind in _kinds(cell):
            times.setdefault(kind, []).append(known["seconds"])
    plans = _plans(missing)
    seconds: list[float] = []
    for cell in missing:
        alike, plan = next((times[kind] for kind in _kinds(cell) if kind in times), None), plans[_planned(cell)]
        if alike is not None:
            seconds.append(statistics.median(alike))
        elif plan is not None:
            seconds.append(_seconds(cell, plan))
    total = sum(seconds) if len(seconds) == len(missing) else None
    peak = max((plan.peak for plan in plans.values() if plan is not None), default=None)
    return SweepForecast(len(cells), len(missing), len(measured), total, peak)


def _kinds(cell: Cell) -> tuple[tuple[str, ...], ...]:
    """Return what makes measured cells alike, the nearest likeness first."""
    return (cell.model, cell.task, cell.method, cell.direction), (cell.model, cell.method)


def _seconds(cell: Cell, plan: Forecast) -> float:
    """Add the search, and running its circuits, their complements and random ones on the held-out pairs."""
    sizes = _SCANNED if cell.faithfulness is not None else max(1, len(cell.sizes))
    runs = 2 * (2 + sizes * (1 + cell.random_circuits))
    return plan.seconds + runs * plan.seconds / plan.f * cell.test_examples / cell.examples


def _planned(cell: Cell) -> Cell:
    """Return a cell that stands for all whose searches have the same plan."""
    largest = (max(cell.sizes),) if cell.sizes else ()
    searched = replace(cell, sizes=largest, threshold=None, faithfulness=None, most_edges=None)
    return replace(searched, seed=0, test_examples=1, random_circuits=0, threads=1)


def _plans(missing: Sequence[Cell]) -> dict[Cell, Forecast | None]:
    """Plan one search of each kind; None for those that have no plan, such as those in synthetic models."""
    plans: dict[Cell, Forecast | None] = {}
    kinds = list(dict.fromkeys(_planned(cell) for cell in missing))
    with progress_bar("planning", len(kinds)) as bar:
        for cell in kinds:
            try:
                plans[cell] = forecast(
                    cell.model,
                    cell.task,
                    cell.bound_method,
                    cell.direction,
                    edges=max(cell.sizes, default=None),
                    **{name: getattr(cell, name) for name in _PLANNED},
                )
            except GatewiseError:
                plans[cell] = None
            bar.advance()
    return plans


def _write(out: Path, rows: Sequence[TableRow], failures: Sequence[tuple[Cell, str]]) -> tuple[Path, ...]:
    write_csv(out / TABLE, rows)
    files = [out / TABLE]
    if rows and write_parquet(out / PARQUET, rows):
        files.append(out / PARQUET)
    if failures:
        write_json(out / FAILURES, _failures_as_json(failures), indent=1)
        return (*files, out / FAILURES)
    (out / FAILURES).unlink(missing_ok=True)  # of an earlier start
    return tuple(files)


def _failures_as_json(failures: Sequence[tuple[Cell, str]]) -> list[dict[str, Any]]:
    return [{"cell": asdict(cell), "problem": problem} for cell, problem in failures]
