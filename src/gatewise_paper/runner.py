"""`reproduce`: forecast, all searches, all measurements, then verdicts and pages, experiment by experiment.

Searches and measurements run side by side, in processes or on a cluster, and give their values to the run store alone:
whatever was done before a crash is there again, and nothing depends on who did it. What fails, fails the experiments
that need it, and no others.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gatewise.circuits.drawing import require_matplotlib
from gatewise.errors import GatewiseError
from gatewise.files import read_json, write_atomically
from gatewise.methods.base import SearchDirection
from gatewise.methods.provenance import versions
from gatewise.methods.registry import methods
from gatewise.plan import forecast
from gatewise.progress import progress_bar
from gatewise.workers import Job, run_jobs
from gatewise_paper.claims import EFFECT_FLOOR, SMALLEST_DIFFERENCE
from gatewise_paper.experiment import Experiment, Measurement, Outcome, Search, SearchName
from gatewise_paper.experiments import EXPERIMENTS
from gatewise_paper.experiments.cost import SMALLEST_COST
from gatewise_paper.lab import Lab
from gatewise_paper.naming import DIRECTIONS, METHOD_NAMES
from gatewise_paper.presets import DTYPE, FORGET, THREADS, LeftOutError, Preset, find_preset
from gatewise_paper.records import Records, check_nothing_is_lost, make_record, read_records
from gatewise_paper.size_calibration import calibrate
from gatewise_paper.summary import write_summary
from gatewise_paper.tested_gates import TestedKey

_SLOWEST_FIRST = ("acdc", "edge-pruning")
_RETRIES = 1  # of what breaks its process


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
    """Run experiments and write their tables, figures and verdicts.

    Everything is kept in `out/store`: the same call resumes after an interruption, and does nothing twice. Experiments
    that an earlier call wrote to `out` stay on its pages, unless they are run again.

    Args:
        names: Names of experiments, or `["all"]`.
        preset: How large: the name of a preset, or one of your own.
        out: Folder of the pages, figures and the store.
        workers: Processes of this machine; by default one for each core.
        ray: Address of a Ray cluster instead, whose machines share the folder `out`.
        options: Options of the command line that this call is, for the record.
        log: Whether to say on stderr what is done.

    Returns:
        Path of the summary, `out/summary.md`.

    Raises:
        GatewiseError: If an experiment, preset or model is not known, or an experiment failed.
    """
    experiments = _experiments(names)
    require_matplotlib()
    preset = find_preset(preset) if isinstance(preset, str) else preset
    lab = Lab(preset, Path(out))
    lab.store.check_writable()
    about = _about(lab)
    records = read_records(lab.folder, about)
    if preset.needs_calibration:
        lab = Lab(preset.calibrated(_calibration(lab)), Path(out))
    run = _Run(lab, workers or os.cpu_count() or 1, ray, log)
    plan = run.plan(experiments, leave_out="all" in names)
    for name, settings in plan.settings.items():
        check_nothing_is_lost(lab.folder, name, records.experiments.get(name), settings)
    failed, given = dict(plan.unready), ["--preset", preset.name] if options is None else list(options)
    for experiment in (experiment for experiment in experiments if experiment.name in plan.measurements):
        started = time.monotonic()
        try:
            outcome = run.outcome(experiment, plan)
            run_on = {"options": given, "settings": plan.settings[experiment.name], "versions": versions()}
            record = make_record(lab.folder, experiment, outcome, run_on)
            records = read_records(lab.folder, about).joined(experiment.name, record, EXPERIMENTS)
        except GatewiseError as error:
            failed[experiment.name] = str(error)
        ended = "failed" if experiment.name in failed else "done"
        run.say(f"{experiment.name}: {ended} after {_duration(time.monotonic() - started)}")
        # After each experiment, so that none is lost.
        written = Records(records.experiments, {**records.failed, **failed})
        write_summary(lab.folder, written, about, len(EXPERIMENTS))
    if failed:
        raise GatewiseError(
            f"{len(failed)} of {len(experiments)} experiments failed: "
            f"{'; '.join(f'{name}: {why}' for name, why in failed.items())}. The others are in "
            f"{lab.folder / 'summary.md'}."
        )
    return lab.folder / "summary.md"


def judge(lab: Lab, experiment: Experiment, measurements: Iterable[Measurement]) -> Outcome:
    """An experiment's outcome, from measurements that are in the store; what is not there is measured now."""
    return experiment.judge(lab, {measurement.key: lab.measure(measurement) for measurement in measurements})


def merge_searches(searches: Iterable[Search]) -> dict[SearchName, Search]:
    """Every search once, in all directions that anybody needs. The longest kinds first; variants last."""
    directions: dict[SearchName, set[SearchDirection]] = {}
    for search in searches:
        directions.setdefault(search.name, set()).update(search.directions)
    merged = [
        Search(name.task, name.method, name.seed, tuple(d for d in DIRECTIONS if d in needed), name.variant)
        for name, needed in directions.items()
    ]
    rank = {method: i for i, method in enumerate(_SLOWEST_FIRST)}
    merged.sort(key=lambda s: (rank.get(s.method, len(rank)), bool(s.variant), -len(s.directions), s))
    return {search.name: search for search in merged}


def _experiments(names: Sequence[str]) -> list[Experiment]:
    wanted = list(EXPERIMENTS) if "all" in names else list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in EXPERIMENTS]
    if unknown or not wanted:
        given = repr(unknown[0]) if unknown else "none"
        raise GatewiseError(f"got {given}; the experiments are {', '.join(EXPERIMENTS)}, or all.")
    return [EXPERIMENTS[name] for name in wanted]


def _calibration(lab: Lab) -> dict[str, Any]:
    """Of a model that has none beforehand: made once, and kept with the results."""
    path = lab.folder / "size_calibration.json"
    if not path.is_file():
        write_atomically(path, (json.dumps(calibrate(lab), indent=1) + "\n").encode())
    chosen: dict[str, Any] = read_json(path, "the sizes that gatewise reproduce has chosen")
    return chosen


@dataclass(frozen=True)
class _Plan:
    """What is to be done, enumerated once."""

    measurements: Mapping[str, Sequence[Measurement]]  # by experiment
    searches: Mapping[SearchName, Search]  # of all of them, each in all directions that any needs
    settings: Mapping[str, Mapping[str, Any]]  # by experiment: what it is run on, for the record
    unready: Mapping[str, str]  # experiments that cannot run, and why


@dataclass(frozen=True)
class _Run:
    """What is done where."""

    lab: Lab
    workers: int
    ray: str | None
    log: bool
    done: set[SearchName] = field(default_factory=set)  # searches that are in the store by now

    def say(self, text: str) -> None:
        if self.log:
            sys.stderr.write(text + "\n")

    def plan(self, experiments: Sequence[Experiment], *, leave_out: bool) -> _Plan:
        """What experiments want to be measured, with a forecast, and why some cannot run; an error if none can.

        leave_out: those that do without all of the methods are left out without a word.
        """
        _ = self.lab.model  # without it none can
        wanted: dict[str, list[Measurement]] = {}
        unready: dict[str, str] = {}
        for experiment in experiments:
            try:
                lab = self.lab.of(experiment.name)
                experiment.check(lab.preset)
                wanted[experiment.name] = list(experiment.measurements(lab))
            except GatewiseError as error:
                if len(experiments) == 1:
                    raise
                if leave_out and isinstance(error, LeftOutError):
                    continue
                unready[experiment.name] = str(error)
                self.say(f"{experiment.name} cannot run and is left out: {error}")
        searches = merge_searches(s for measurements in wanted.values() for m in measurements for s in m.searches)
        preset, model = self.lab.preset, self.lab.model
        self.say(f"preset {preset.name}: {len(wanted)} experiments, {len(searches)} searches on {model.name}")
        if self.log:
            self.say(_forecast(self.lab, searches.values(), self.workers))
        settings = {name: _settings(self.lab, measurements) for name, measurements in wanted.items()}
        return _Plan(wanted, searches, settings, unready)

    def outcome(self, experiment: Experiment, plan: _Plan) -> Outcome:
        """Do the searches of an experiment, then its measurements, and judge them; an error if one fails."""
        measurements = plan.measurements[experiment.name]
        needed = {search.name for measurement in measurements for search in measurement.searches} - self.done
        searches = [search for name, search in plan.searches.items() if name in needed]
        failed: Mapping[Any, str] = self._side_by_side(searches, Lab.find, "searches")
        self.done.update(search.name for search in searches if search not in failed)
        problems = failed or self._side_by_side(measurements, Lab.measure, "measurements")
        if problems:
            raise GatewiseError(next(iter(problems.values())))
        return judge(self.lab.of(experiment.name), experiment, measurements)

    def _side_by_side(self, jobs: Sequence[Job], work: Callable[[Lab, Job], object], what: str) -> dict[Job, str]:
        """Do all jobs; those that failed, and why."""
        started, problems = time.monotonic(), dict[Job, str]()
        # The lab goes to each process once, which then loads the model once; in this process it is this very lab.
        where: dict[str, Any] = {"retries": _RETRIES, "workers": self.workers, "ray": self.ray, "threads": THREADS}
        with progress_bar(what, len(jobs)) as bar:
            for ended in run_jobs(jobs, partial(_work_in, work), self.lab, **where):
                if ended.problem:
                    problems[ended.job] = f"{ended.job}: {ended.problem}"
                bar.describe(str(ended.job))
                bar.advance()
        count, after = len(jobs) - len(problems), _duration(time.monotonic() - started)
        self.say(f"{count} of {len(jobs)} {what} done after {after}")
        return problems


def _work_in(work: Callable[[Lab, Any], object], job: Any, lab: Lab) -> None:
    """Do a job in a lab; what it gives is in the store."""
    work(lab, job)


def _forecast(lab: Lab, searches: Iterable[Search], processes: int) -> str:
    """How long the searches will take, roughly, by their operations: those of one kind are worked out once."""
    total = 0.0
    try:
        for (task, name, direction, size), count in Counter(_kinds(lab, searches)).items():
            method, examples = lab.method(name), lab.preset.setups[name].pairs
            cost = forecast(lab.preset.model, task, method, direction, edges=size, examples=examples, dtype=DTYPE)
            total += count * cost.seconds
    except GatewiseError as error:
        return f"there is no forecast for these searches: {error}"
    return f"forecast: {_duration(total / processes)} for the searches, if none is stored yet"


def _kinds(lab: Lab, searches: Iterable[Search]) -> Iterator[tuple[str, str, SearchDirection, int]]:
    """Task, method, direction and size of what a forecast knows."""
    for search in searches:
        if search.is_derived:
            continue
        method, task = methods()[search.method], "ioi" if search.task == FORGET else search.task
        sizes, directions = lab.sizes.searched(search.method, search.task), search.directions
        if method.together and len(directions) > 1:  # directions that share work cost what both together cost
            directions = ("ns+dn",)
        for direction in directions:
            for size in sizes[-1:] if method.ranks_once else sizes:
                yield task, search.method, direction, size


def _about(lab: Lab) -> dict[str, Any]:
    """What all experiments of a folder have in common."""
    preset = lab.preset
    left_out = {METHOD_NAMES[name]: setup.left_out for name, setup in preset.setups.items() if setup.left_out}
    without = "; ".join(f"{method} in {', '.join(experiments)}" for method, experiments in left_out.items())
    declared = [
        f"Declared beforehand: differences up to {SMALLEST_DIFFERENCE:g} do not matter ({SMALLEST_COST:g} for "
        f"ratios of times); what is removed together and changes less than {EFFECT_FLOOR:.0%} of the KL between the "
        "runs has no effect. A seed has pairs of its own and seeds the method.",
        f"Left out: {without}." if without else "",
        preset.note,
    ]
    return {
        "preset": preset.name,
        "model": preset.model,
        "edges": lab.model.graph.n_edges,
        "weights": lab.model.fingerprint,
        "dtype": DTYPE,
        "threads": THREADS,
        "held_out": preset.held_out,
        "declared": " ".join(filter(None, declared)),
    }


def _settings(lab: Lab, measurements: Sequence[Measurement]) -> dict[str, Any]:
    """What an experiment was run on: pairs and seeds, and for each method and task the sizes of its circuits."""
    used: dict[str, Any] = {}
    for measurement in measurements:
        key = measurement.key
        for search in measurement.searches:
            setup = lab.preset.setups[search.method]
            new = {"seeds": 0, "pairs": setup.pairs, "edges": {}, "parameters": dict(setup.parameters)}
            settings = used.setdefault(search.method, new)
            settings["seeds"] = max(settings["seeds"], search.seed + 1)
            sizes = [key.size] if hasattr(key, "size") else getattr(key, "sizes", None)
            known = settings["edges"].get(search.task, ())
            settings["edges"][search.task] = sorted({*known, *(sizes or lab.sizes.of(search.method, search.task))})
    seeds = {measurement.key.seed for measurement in measurements if isinstance(measurement.key, TestedKey)}
    tested = {"seeds": len(seeds), "pairs": lab.preset.testing.pairs} if seeds else None
    return {"methods": used, "tested_gates": tested}


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3600:.1f} h"
