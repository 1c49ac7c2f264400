"""`reproduce`: forecast, all searches side by side, then the experiments' jobs, then one by one, then the summary.

Searches and jobs run in processes of their own, one thread each, and give their results to the run store alone:
whatever was done before a crash is found again, and results do not depend on the number of processes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path

import torch

from gatewise.errors import GatewiseError
from gatewise.paper.contract import Cell, Experiment, Job
from gatewise.paper.experiments import EXPERIMENTS
from gatewise.paper.figures import require_matplotlib
from gatewise.paper.lab import Lab
from gatewise.paper.presets import PRESETS, Preset
from gatewise.paper.summary import Finished, about_preset, draw_figures, write_summary
from gatewise.progress import progress_bar

# In units of F, a plain forward pass of the pairs: see docs/benchmarks.md. For the forecast only.
_EAP, _STEP, _SEARCH, _SEARCH_EDGES, _GROWTH = 5.0, 6.0, 150.0, 3_600, 0.4
_SEARCHES_PER_SIZE, _CIRCUIT = 1.5, 3.0


def reproduce(
    names: Sequence[str],
    preset: Preset | str = "quick",
    *,
    out: str | Path,
    workers: int | None = None,
    command: str = "",
    log: bool = True,
) -> Path:
    """Run experiments (`["all"]` for all) and write tables, figures and verdicts to `out`; returns the summary's path.

    Everything found is kept in `out/store`: the same call goes on after an interruption, and does nothing twice.
    """
    chosen = _experiments(names)
    require_matplotlib()
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise GatewiseError(f"there is no preset {preset!r}; there are {', '.join(PRESETS)}.")
        preset = PRESETS[preset]
    folder = Path(out)
    lab = Lab(preset, folder)
    lab.store.check_writable()
    say = _say if log else _be_silent
    chosen, unready = _checked(chosen, lab.preset, say)
    cells = _needed(chosen, lab.preset)
    jobs = list(dict.fromkeys(job for experiment in chosen for job in experiment.jobs(lab.preset)))
    processes = max(1, min(workers or os.cpu_count() or 1, max(len(cells), len(jobs))))
    say(f"preset {preset.name}: {len(chosen)} experiments, {len(cells)} searches on {lab.model.name}")
    if cells:
        expected = _duration(forecast(lab, cells) / processes)
        say(
            f"forecast: {expected} for the searches on {processes} processes, if none is stored yet; "
            f"then about a third of that to measure"
        )
    for tasks, what in ((cells, "searches"), (jobs, "measurements")):
        if tasks:
            started = time.monotonic()
            _side_by_side(lab, tasks, what, min(processes, len(tasks)))
            say(f"{len(tasks)} {what} done after {_duration(time.monotonic() - started)}")
    finished, failed = _run(lab, chosen, say)
    failed = {**unready, **failed}
    about = {
        "command": command or f"gatewise reproduce {' '.join(names)} --preset {preset.name}",
        "preset": about_preset(preset, {method: lab.sizes(method) for method in preset.methods}),
        "edges": lab.model.graph.n_edges,
        "weights": lab.model.fingerprint,
        "versions": {
            **{name: version(name) for name in ("gatewise", "torch", "transformers")},
            "python": platform.python_version(),
        },
    }
    write_summary(folder, finished, about, failed)
    if failed:
        raise GatewiseError(
            f"{len(failed)} of {len(chosen) + len(unready)} experiments failed: "
            f"{'; '.join(f'{name}: {why}' for name, why in failed.items())}. The others are in {folder / 'summary.md'}."
        )
    return folder / "summary.md"


def forecast(lab: Lab, cells: Sequence[Cell]) -> float:
    """Seconds that the searches will take one after the other, roughly, by multiples of F measured now."""
    passes: dict[tuple[str, str], float] = {}
    total = 0.0
    for cell in cells:
        at = (cell.task, cell.method)
        if at not in passes:
            passes[at] = _plain_seconds(lab, cell)
        sizes = lab.sizes(cell.method)
        per_search = _SEARCH * (lab.model.graph.n_edges / _SEARCH_EDGES) ** _GROWTH
        steps = lab.preset.parameters.get("edge-pruning", {}).get("steps", 300)
        costs = {
            "acdc": per_search * _SEARCHES_PER_SIZE * len(sizes),
            "edge-pruning": _STEP * steps * len(sizes),
        }
        twice = 2 if cell.direction == "ns+dn" else 1
        measured = _CIRCUIT * len(sizes) * lab.preset.held_out / lab.preset.pairs[cell.method] if cell.measured else 0
        total += passes[at] * (twice * costs.get(cell.method, _EAP) + measured)
    return total


@torch.no_grad()
def _plain_seconds(lab: Lab, cell: Cell) -> float:
    pairs = lab.pairs(cell.task, cell.method)
    times = []
    for _ in range(2):
        started = time.monotonic()
        lab.model.hf(pairs.clean.to(lab.model.device))
        times.append(time.monotonic() - started)
    return min(times)


def _experiments(names: Sequence[str]) -> list[Experiment]:
    wanted = list(EXPERIMENTS) if "all" in names else list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in EXPERIMENTS]
    if unknown or not wanted:
        given = repr(unknown[0]) if unknown else "none"
        raise GatewiseError(f"got {given}; the experiments are {', '.join(EXPERIMENTS)}, or all.")
    return [EXPERIMENTS[name] for name in wanted]


def _checked(chosen: Sequence[Experiment], preset: Preset, say: object) -> tuple[list[Experiment], dict[str, str]]:
    """Those that can run, and why the others cannot, which is said at once; an error if none can."""
    unready: dict[str, str] = {}
    for experiment in chosen:
        try:
            experiment.check(preset)
        except GatewiseError as error:
            if len(chosen) == 1:
                raise
            unready[experiment.name] = str(error)
            assert callable(say)
            say(f"{experiment.name} cannot run and is left out: {error}")
    return [experiment for experiment in chosen if experiment.name not in unready], unready


def _needed(chosen: Sequence[Experiment], preset: Preset) -> list[Cell]:
    """Every search once; a measured one makes the same unmeasured one needless. The longest kinds first."""
    cells = {cell for experiment in chosen for cell in experiment.cells(preset)}
    measured = {(c.task, c.method, c.direction, c.seed) for c in cells if c.measured}
    kept = [c for c in cells if c.measured or (c.task, c.method, c.direction, c.seed) not in measured]
    slowest = {"acdc": 0, "edge-pruning": 1}
    return sorted(kept, key=lambda c: (slowest.get(c.method, 2), c.direction != "ns+dn", c))


def _side_by_side(lab: Lab, tasks: Sequence[Cell | Job], what: str, processes: int) -> None:
    """Do cells or jobs in processes of their own; in this one if one is enough."""
    if processes == 1:
        with progress_bar(what, len(tasks)) as bar:
            for task in tasks:
                bar.describe(_name(task))
                _do(lab, task)
                bar.advance()
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_start, initargs=(lab.preset, str(lab.folder)))
    try:
        waiting = {pool.submit(_do_here, task): task for task in tasks}
        with progress_bar(what, len(tasks)) as bar:
            for future in as_completed(waiting):
                future.result()
                bar.describe(_name(waiting[future]))
                bar.advance()
    except BrokenProcessPool as error:
        raise GatewiseError(
            "a process of the pool has died (out of memory?). What was found is kept: give the same command again, "
            "perhaps with --workers 1."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_lab: Lab | None = None  # of a process of the pool


def _start(preset: Preset, folder: str) -> None:
    global _lab
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _lab = Lab(preset, Path(folder))


def _end_with_parent() -> None:
    """A killed run must not leave processes behind that wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do_here(task: Cell | Job) -> None:
    assert _lab is not None
    _do(_lab, task)


def _do(lab: Lab, task: Cell | Job) -> None:
    if isinstance(task, Job):
        with contextlib.suppress(GatewiseError):  # its experiment meets the same error, and only that one fails
            task.run(lab)
    else:
        lab.find(task)


def _run(lab: Lab, chosen: Sequence[Experiment], say: object) -> tuple[list[Finished], dict[str, str]]:
    finished: list[Finished] = []
    failed: dict[str, str] = {}
    for experiment in chosen:
        started = time.monotonic()
        try:
            finished.append(draw_figures(lab.folder, experiment, experiment.run(lab)))
        except GatewiseError as error:
            failed[experiment.name] = str(error)
        assert callable(say)
        say(
            f"{experiment.name}: {'failed' if experiment.name in failed else 'done'} "
            f"after {_duration(time.monotonic() - started)}"
        )
    return finished, failed


def _name(cell: Cell | Job) -> str:
    if isinstance(cell, Job):
        return str(cell)
    return f"{cell.method} {cell.direction} on {cell.task}, seed {cell.seed}"


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _be_silent(text: str) -> None:
    pass


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3600:.1f} h"
