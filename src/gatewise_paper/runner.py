"""`reproduce`: forecast, all searches, all measurements, then verdicts and pages, experiment by experiment.

Searches and measurements run side by side, in processes or on a cluster, and give their results to the run store alone:
whatever was done before a crash is found again, and results do not depend on who did them. What fails, fails the
experiments that need it, and no others.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gatewise.circuits.drawing import require_matplotlib
from gatewise.errors import GatewiseError
from gatewise.files import write_atomically
from gatewise.methods.base import SearchDirection
from gatewise.methods.provenance import versions
from gatewise.methods.registry import methods
from gatewise.plan import forecast
from gatewise.progress import progress_bar
from gatewise.workers import Job, run_jobs
from gatewise_paper.experiment import Experiment, Measurement, Search
from gatewise_paper.experiments import EXPERIMENTS
from gatewise_paper.lab import Lab
from gatewise_paper.naming import DIRECTIONS, METHOD_NAMES
from gatewise_paper.presets import FORGET, PRESETS, LeftOutError, Preset
from gatewise_paper.records import check_nothing_is_lost, recorded, recorded_before
from gatewise_paper.size_calibration import ChosenSizes, calibrate
from gatewise_paper.summary import write_summary
from gatewise_paper.tested_gates import TestedKey

_SLOWEST_FIRST = ("acdc", "edge-pruning")
_RETRIES = 1  # of what breaks its process
_lab: Lab | None = None  # of this process: its model is loaded once


def reproduce(
    names: Sequence[str],
    preset: Preset | str = "quick",
    *,
    out: str | Path,
    workers: int | None = None,
    ray: str | None = None,
    options: Sequence[str] | None = None,
    log: bool = True,
) -> Path:
    """Run experiments (`["all"]` for all) and write tables, figures and verdicts to `out`; returns the summary's path.

    Everything found is kept in `out/store`: the same call goes on after an interruption, and does nothing twice.
    Experiments that an earlier call wrote to `out` stay on its pages, unless they are run again.
    `workers`: processes of this machine, one for each core by default. `ray`: a cluster instead, whose machines share
    the folder `out`. `options`: those of the command line that this is, for the record.
    """
    chosen = _experiments(names)
    require_matplotlib()
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise GatewiseError(f"there is no preset {preset!r}; there are {', '.join(PRESETS)}.")
        preset = PRESETS[preset]
    lab = Lab(preset, Path(out))
    lab.store.check_writable()
    about = _about(lab)
    before = recorded_before(lab.folder, about)
    if preset.needs_calibration:
        lab = Lab(preset.calibrated(_calibration(lab)), Path(out))
    run = _Run(lab, workers or os.cpu_count() or 1, ray, log)
    wanted, failed = run.wanted(chosen, every="all" in names)
    more = ["--preset", preset.name] if options is None else list(options)
    asked = {name: settings(lab, some) for name, some in wanted.items()}
    for name, own in asked.items():
        check_nothing_is_lost(lab.folder, name, before.experiments.get(name), own)
    every = run.begin(wanted)
    for experiment in [one for one in chosen if one.name in wanted]:
        started, some = time.monotonic(), wanted[experiment.name]
        try:
            problems = run.done(some, every)
            if problems:
                raise GatewiseError(next(iter(problems.values())))
            result = judged(lab.of(experiment.name), experiment, some)
            run_on = {"options": more, "settings": asked[experiment.name], "versions": versions()}
            record = recorded(lab.folder, experiment, result, run_on)
            before = recorded_before(lab.folder, about).joined(experiment.name, record, EXPERIMENTS)
        except GatewiseError as error:
            failed[experiment.name] = str(error)
        ended = "failed" if experiment.name in failed else "done"
        run.say(f"{experiment.name}: {ended} after {_duration(time.monotonic() - started)}")
        write_summary(lab.folder, before.with_failed(failed), about, len(EXPERIMENTS))  # after each: none is lost
    if failed:
        raise GatewiseError(
            f"{len(failed)} of {len(chosen)} experiments failed: "
            f"{'; '.join(f'{name}: {why}' for name, why in failed.items())}. The others are in "
            f"{lab.folder / 'summary.md'}."
        )
    return lab.folder / "summary.md"


def _calibration(lab: Lab) -> ChosenSizes:
    """Of a model that has none beforehand: made once, and kept with the results."""
    path = lab.folder / "size_calibration.json"
    if not path.is_file():
        write_atomically(path, (json.dumps(calibrate(lab), indent=1) + "\n").encode())
    found: ChosenSizes = json.loads(path.read_text())
    return found


def judged(lab: Lab, experiment: Experiment, measurements: Iterable[Measurement]) -> Any:
    """An experiment's result, from measurements that are in the store; what is not there is measured now."""
    return experiment.judge(lab, {one.key: lab.measure(one) for one in measurements})


def merged(searches: Iterable[Search]) -> list[Search]:
    """Every search once, in all directions that anybody needs. The longest kinds first; variants last."""
    directions: dict[Any, set[str]] = {}
    for one in searches:
        directions.setdefault(one.about, set()).update(one.directions)
    found = [
        Search(task, method, seed, tuple(d for d in DIRECTIONS if d in some), variant)
        for (task, method, seed, variant), some in directions.items()
    ]
    place = {method: i for i, method in enumerate(_SLOWEST_FIRST)}
    return sorted(
        found, key=lambda one: (place.get(one.method, len(place)), bool(one.variant), -len(one.directions), one)
    )


def _experiments(names: Sequence[str]) -> list[Experiment]:
    wanted = list(EXPERIMENTS) if "all" in names else list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in EXPERIMENTS]
    if unknown or not wanted:
        given = repr(unknown[0]) if unknown else "none"
        raise GatewiseError(f"got {given}; the experiments are {', '.join(EXPERIMENTS)}, or all.")
    return [EXPERIMENTS[name] for name in wanted]


@dataclass(frozen=True)
class _Run:
    """What is done where."""

    lab: Lab
    workers: int
    ray: str | None
    log: bool
    found: set[Any] = field(default_factory=set)  # what searches were about that are in the store by now

    def say(self, text: str) -> None:
        if self.log:
            sys.stderr.write(text + "\n")

    def wanted(
        self, chosen: Sequence[Experiment], *, every: bool
    ) -> tuple[dict[str, list[Measurement]], dict[str, str]]:
        """What experiments want to be measured, and why some cannot run, said at once; an error if none can.

        every: if all there are were asked for, those that do without all of the methods are left out.
        """
        _ = self.lab.model  # without it none can
        wanted: dict[str, list[Measurement]] = {}
        unready: dict[str, str] = {}
        for experiment in chosen:
            try:
                own = self.lab.of(experiment.name)
                experiment.check(own.preset)
                wanted[experiment.name] = list(experiment.measurements(own))
            except GatewiseError as error:
                if len(chosen) == 1:
                    raise
                if every and isinstance(error, LeftOutError):
                    continue
                unready[experiment.name] = str(error)
                self.say(f"{experiment.name} cannot run and is left out: {error}")
        return wanted, unready

    def begin(self, wanted: Mapping[str, Sequence[Measurement]]) -> dict[Any, Search]:
        """All searches of all experiments, by what they are about, with a forecast."""
        searches = merged(search for some in wanted.values() for one in some for search in one.searches)
        lab = self.lab
        self.say(f"preset {lab.preset.name}: {len(wanted)} experiments, {len(searches)} searches on {lab.model.name}")
        if self.log:
            self.say(_forecast(lab, searches, self.workers))
        return {search.about: search for search in searches}

    def done(self, measurements: Sequence[Measurement], every: Mapping[Any, Search]) -> dict[Measurement, str]:
        """Do the searches of an experiment, each in all directions that any needs, then its measurements.

        Those that could not be done, and why.
        """
        needed = merged(every[search.about] for one in measurements for search in one.searches)
        searches = [one for one in needed if one.about not in self.found]
        failed = {one.about: why for one, why in self._side_by_side(searches, Lab.find, "searches").items()}
        self.found.update(one.about for one in searches if one.about not in failed)
        problems = {
            one: failed[search.about] for one in measurements for search in one.searches if search.about in failed
        }
        left = [one for one in measurements if one not in problems]
        return problems | self._side_by_side(left, Lab.measure, "measurements")

    def _side_by_side(self, tasks: Sequence[Job], work: Callable[[Lab, Job], object], what: str) -> dict[Job, str]:
        """Do all tasks; those that failed, and why."""
        global _lab
        _lab, started, threads = self.lab, time.monotonic(), self.lab.preset.threads
        problems: dict[Job, str] = {}
        place = (work, self.lab.preset, str(self.lab.folder.absolute()))
        where: dict[str, Any] = {"retries": _RETRIES, "workers": self.workers, "ray": self.ray, "threads": threads}
        with progress_bar(what, len(tasks)) as bar:
            for ended in run_jobs(tasks, _in_lab, place, **where):
                if ended.problem:
                    problems[ended.job] = f"{ended.job}: {ended.problem}"
                bar.describe(str(ended.job))
                bar.advance()
        done, after = len(tasks) - len(problems), _duration(time.monotonic() - started)
        self.say(f"{done} of {len(tasks)} {what} done after {after}")
        return problems


def _forecast(lab: Lab, searches: Sequence[Search], processes: int) -> str:
    """How long the searches will take, roughly, by their operations: those of one kind are worked out once."""
    preset, total = lab.preset, 0.0
    try:
        for (task, method, direction, size), count in Counter(_kinds(lab, searches)).items():
            bound, examples = lab.method(method), preset.pairs[method]
            one = forecast(preset.model, task, bound, direction, edges=size, examples=examples, dtype=preset.dtype)
            total += count * one.seconds
    except GatewiseError as error:
        return f"there is no forecast for these searches: {error}"
    return f"forecast: {_duration(total / processes)} for the searches, if none is stored yet"


def _kinds(lab: Lab, searches: Iterable[Search]) -> Iterator[tuple[str, str, SearchDirection, int]]:
    """Task, method, direction and size of what a forecast knows. Directions that share work cost what both cost."""
    for search in searches:
        of_first = search.method == "acdc" and search.variant == "fixed pairs" and search.seed == 0
        if search.variant in ("connected", "two masks", "untrimmed") or of_first:  # read off others
            continue
        method, task = methods()[search.method], "ioi" if search.task == FORGET else search.task
        sizes, directions = lab.searched_sizes(search.method, search.task), search.directions
        if method.together and len(directions) > 1:
            directions = ("ns+dn",)
        for direction in directions:
            for size in sizes[-1:] if method.ranks_once else sizes:
                yield task, search.method, direction, size


def _in_lab(task: Any, place: tuple[Callable[[Lab, Any], object], Preset, str]) -> None:
    global _lab
    work, preset, folder = place
    if _lab is None or (_lab.preset, str(_lab.folder.absolute())) != (preset, folder):
        _lab = Lab(preset, Path(folder))
    work(_lab, task)


def _about(lab: Lab) -> dict[str, Any]:
    """What all experiments of a folder have in common."""
    preset = lab.preset
    without = "; ".join(f"{METHOD_NAMES[m]} in {', '.join(some)}" for m, some in preset.left_out.items())
    declared = [
        f"Declared beforehand: differences up to {preset.smallest:g} do not matter ({preset.smallest_cost:g} for "
        f"ratios of times); what is removed together and changes less than {preset.floor:.0%} of the KL between the "
        "runs has no effect. A seed has pairs of its own and seeds the method.",
        f"Left out: {without}." if without else "",
        preset.note,
    ]
    return {
        "preset": preset.name,
        "model": preset.model,
        "edges": lab.model.graph.n_edges,
        "weights": lab.model.fingerprint,
        "dtype": preset.dtype,
        "threads": preset.threads,
        "held_out": preset.held_out,
        "declared": " ".join(filter(None, declared)),
    }


def settings(lab: Lab, measurements: Sequence[Measurement]) -> dict[str, Any]:
    """What an experiment was run on: pairs and seeds, and for each method and task the sizes of its circuits."""
    preset = lab.preset
    methods: dict[str, Any] = {}
    for one in measurements:
        for search in one.searches:
            new = {"seeds": 0, "pairs": preset.pairs[search.method], "edges": {}}
            own = methods.setdefault(
                search.method, {**new, "parameters": dict(preset.parameters.get(search.method, {}))}
            )
            own["seeds"] = max(own["seeds"], search.seed + 1)
            sizes = [one.key.size] if hasattr(one.key, "size") else getattr(one.key, "sizes", None)
            known = own["edges"].get(search.task, ())
            own["edges"][search.task] = sorted({*known, *(sizes or lab.sizes(search.method, search.task))})
    gates = [one.key for one in measurements if isinstance(one.key, TestedKey)]
    tested = {"seeds": len({key.seed for key in gates}), "pairs": preset.gate_pairs} if gates else None
    return {"methods": methods, "tested_gates": tested}


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3600:.1f} h"
