"""`run_sweep`: what is missing of a grid is computed, and everything is collected into one table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatewise.errors import GatewiseError
from gatewise.files import write_json
from gatewise.progress import progress_bar
from gatewise.store import Store
from gatewise.sweep.grid import Cell, Grid
from gatewise.sweep.sweep_table import TableRow, rows_of, write_csv, write_parquet
from gatewise.workers import check_workers, run_jobs

if TYPE_CHECKING:
    from gatewise.plan import Forecast

TABLE, PARQUET, FAILURES = "table.csv", "table.parquet", "failures.json"


@dataclass(frozen=True)
class SweepForecast:
    """What is known before the work."""

    cells: int
    missing: int
    measured: int  # cells in the store whose time is known
    seconds: float | None  # for the missing ones, one at a time; None where nothing is known about them
    peak: int | None = None  # bytes of the largest missing search, in its process

    def __str__(self) -> str:
        done = f"{self.cells} cells, {self.cells - self.missing} in the store, {self.missing} to compute"
        if self.missing == 0:
            return done
        size = "" if self.peak is None else f", at most {self.peak / 1e9:.1f} GB in each process"
        if self.seconds is None:
            return f"{done}{size}; how long that takes is not known before cells like them were computed"
        source = f"from {self.measured} measured" if self.measured else "by their operations"
        seconds = f"about {self.seconds:,.0f} s" if self.seconds >= 1.5 else "about a second"
        return f"{done}, {seconds} one at a time ({source}){size}"


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
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        return {
            "cells": self.forecast.cells,
            "computed": self.forecast.missing - len(self.failures),
            "rows": len(self.rows),
            "failures": failures_as_json(self.failures),
            "seconds": self.seconds,
            "files": [str(file) for file in self.files],
        }


def run_sweep(
    grid: Grid,
    out: str | Path,
    *,
    store: Store | str | Path | None = None,
    workers: int = 1,
    ray: str | None = None,
    retries: int = 2,
    dry_run: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> SweepReport:
    """Compute what the store lacks of a grid and write the table to the folder `out`.

    `store`: by default the folder `store` below `out`. `workers`: processes of this machine. `ray`: the address of a
    cluster, or "auto"; the store has to be a folder that all of its machines share, or a URL. `retries`: of cells whose
    process dies or that fail for reasons other than what was asked. `tell` is called with the forecast.
    """
    check_workers(workers, ray)
    if retries < 0:
        raise GatewiseError(f"retries is a number of further tries, at least 0; got {retries}.")
    from gatewise.sweep.cells import forget, run_cell

    begun, out = time.perf_counter(), Path(out)
    kept = store if isinstance(store, Store) else Store(store if store is not None else out / "store")
    if (workers > 1 or ray is not None) and kept.backend.protocol == "memory":
        raise GatewiseError(f"the store {kept.shown} is in the memory of one process; give one that workers can share.")
    cells = grid.cells()
    if not dry_run:
        kept.check_writable()
        kept.tidy()
    names, problems = _names(cells)
    found = _recalled(names, kept)
    missing = [cell for cell in names if cell not in found]
    forecast = _forecast(cells, found, missing)
    tell(str(forecast))
    if dry_run:
        return SweepReport(forecast, tuple(problems.items()), (), time.perf_counter() - begun, ())
    root = kept.location
    if ray is not None or workers > 1:
        forget()
    threads = max((cell.threads for cell in missing), default=1)
    done = run_jobs(missing, run_cell, root, retries=retries, workers=workers, ray=ray, threads=threads)
    with progress_bar("sweep", len(missing)) as bar:
        for ended in done:
            if ended.problem:
                problems[ended.job] = ended.problem
            bar.describe(f"sweep, {len(problems)} failed" if problems else "sweep")
            bar.advance()
    found |= _recalled({cell: names[cell] for cell in missing if cell not in problems}, kept)
    for cell in cells:
        if cell not in found and cell not in problems:
            problems[cell] = f"its result is not in {kept.shown}: can all workers write there?"
    failures = tuple((cell, problems[cell]) for cell in cells if cell in problems)
    rows = tuple(row for cell in cells if cell in found for row in rows_of(cell, found[cell]))
    files = _write(out, rows, failures)
    return SweepReport(forecast, failures, rows, time.perf_counter() - begun, files)


def _names(cells: Sequence[Cell]) -> tuple[dict[Cell, dict[str, Any]], dict[Cell, str]]:
    """What determines each cell's result, and what is wrong with cells whose model or task cannot be had."""
    from gatewise.sweep.cells import cell_ingredients, loaded

    names, problems = {}, {}
    broken: dict[tuple[str, str | None, str | None], str] = {}  # models that cannot be loaded: once is enough
    with progress_bar("looking cells up", len(cells)) as bar:
        for cell in cells:
            source = (cell.model, cell.device, cell.dtype)
            try:
                if source in broken:
                    problems[cell] = broken[source]
                else:
                    try:
                        loaded(*source)
                    except Exception as error:
                        broken[source] = _said(error)
                        raise
                    names[cell] = cell_ingredients(cell)
            except Exception as error:
                problems[cell] = _said(error)
            bar.advance()
    return names, problems


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, GatewiseError) else f"{type(error).__name__}: {error}"


def _recalled(names: dict[Cell, dict[str, Any]], store: Store) -> dict[Cell, Any]:
    """What the store has."""
    known = {cell: store.recall(name) for cell, name in names.items()}
    return {cell: value for cell, value in known.items() if value is not None}


def _forecast(cells: Sequence[Cell], found: dict[Cell, Any], missing: Sequence[Cell]) -> SweepForecast:
    """Time from the median of measured cells that are alike (model, task, method and direction; else model and method),
    else from the plan of their searches; memory from that plan."""
    alike: dict[tuple[str, ...], list[float]] = {}
    for cell, known in found.items():
        for kind in _kinds(cell):
            alike.setdefault(kind, []).append(known["seconds"])
    plans = _plans(missing)
    times, peaks = [], []
    for cell in missing:
        known, plan = next((alike[kind] for kind in _kinds(cell) if kind in alike), None), plans[_planned(cell)]
        times.append(statistics.median(known) if known is not None else None if plan is None else _seconds(cell, plan))
        peaks.append(None if plan is None else plan.peak)
    known_times = [one for one in times if one is not None]
    seconds = sum(known_times) if len(known_times) == len(missing) else None
    return SweepForecast(
        len(cells), len(missing), len(found), seconds, max((p for p in peaks if p is not None), default=None)
    )


def _seconds(cell: Cell, plan: Forecast) -> float:
    """Of the search, and of running its circuits, their complements and random ones on the held-out pairs."""
    sizes = max(1, len(cell.sizes))
    runs = 2 * (2 + sizes * (1 + cell.random_circuits))
    return plan.seconds + runs * plan.seconds / plan.f * cell.test_examples / cell.examples


def _planned(cell: Cell) -> tuple[Any, ...]:
    """What the plan of a search depends on."""
    edges = max(cell.sizes, default=None)
    choices = (cell.examples, edges, cell.device, cell.dtype, cell.bos, cell.first_token, cell.memory)
    return (cell.model, cell.task, cell.method, cell.direction, *choices)


def _plans(missing: Sequence[Cell]) -> dict[tuple[Any, ...], Forecast | None]:
    """One for each kind of search; None for those that have none, such as synthetic models or methods of others."""
    from gatewise.plan import forecast

    plans: dict[tuple[Any, ...], Forecast | None] = {}
    kinds = list(dict.fromkeys(_planned(cell) for cell in missing))
    with progress_bar("planning", len(kinds)) as bar:
        for kind in kinds:
            names = ("examples", "edges", "device", "dtype", "bos", "first_token", "memory")
            try:
                plans[kind] = forecast(*kind[:4], **dict(zip(names, kind[4:], strict=True)))
            except GatewiseError:
                plans[kind] = None
            bar.advance()
    return plans


def _kinds(cell: Cell) -> tuple[tuple[str, ...], ...]:
    return (cell.model, cell.task, cell.method, cell.direction), (cell.model, cell.method)


def _write(out: Path, rows: Sequence[TableRow], failures: Sequence[tuple[Cell, str]]) -> tuple[Path, ...]:
    write_csv(out / TABLE, rows)
    files = [out / TABLE]
    if rows and write_parquet(out / PARQUET, rows):
        files.append(out / PARQUET)
    if failures:
        write_json(out / FAILURES, failures_as_json(failures), indent=1)
        return (*files, out / FAILURES)
    (out / FAILURES).unlink(missing_ok=True)  # of an earlier start
    return tuple(files)


def failures_as_json(failures: Sequence[tuple[Cell, str]]) -> list[dict[str, Any]]:
    return [{"cell": asdict(cell), "problem": problem} for cell, problem in failures]
