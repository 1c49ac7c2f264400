"""How the benchmarks measure: interleaved timings, peak memory in a fresh process, one table. Knows no job."""

from __future__ import annotations

import contextlib
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.table import Table

PLAIN = "F: hf(input_ids)"  # the job that all others are compared with
CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "cpu": time.process_time,  # of all threads: does not count what other processes do, for busy machines
}


@dataclass(frozen=True)
class Job:
    """Something to measure. `make` does what is cached between calls and gives the function that is timed."""

    make: Callable[[], Callable[[], object]]
    per: int = 1  # units of work in one call: times are given for one
    most_f: float | None = None  # the project's own limit, in units of F
    most_mb: float | None = None  # and of peak extra memory
    below: str | None = None  # a job that it has to be faster than, for one unit
    memory: bool = True  # whether to measure it


@dataclass(frozen=True)
class Row:
    """One line of the result. `f` compares the fastest calls, `f_median` is the median ratio within a round."""

    job: str
    seconds: float  # of the fastest call, for one unit
    seconds_median: float
    f: float
    f_median: float
    extra_mb: float | None
    most_f: float | None
    most_mb: float | None

    @property
    def within(self) -> bool:
        """Whether the limits hold; True if there are none."""
        fast = self.most_f is None or self.f_median <= self.most_f
        return fast and (self.most_mb is None or self.extra_mb is None or self.extra_mb <= self.most_mb)


def time_jobs(jobs: Mapping[str, Job], repeats: int, peak: Callable[[str], float] | None, clock: str) -> list[Row]:
    """Time all jobs in rounds, so that a busy moment of the machine hits all of them alike.

    `peak` gives a job's peak extra memory in MB; None leaves memory out. `clock` is one of `CLOCKS`.
    """
    now = CLOCKS[clock]
    calls = {name: job.make() for name, job in jobs.items()}
    for call in calls.values():
        call()
    rounds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, call in calls.items():
            started = now()
            call()
            rounds[name].append((now() - started) / jobs[name].per)
    plain = rounds[PLAIN]
    medians = {
        name: statistics.median(seconds / f for seconds, f in zip(found, plain, strict=True))
        for name, found in rounds.items()
    }
    rows = []
    for name, job in jobs.items():
        rows.append(
            Row(
                job=name,
                seconds=min(rounds[name]),
                seconds_median=statistics.median(rounds[name]),
                f=min(rounds[name]) / min(plain),
                f_median=medians[name],
                extra_mb=peak(name) if peak is not None and job.memory else None,
                most_f=job.most_f if job.below is None else medians[job.below],
                most_mb=job.most_mb,
            )
        )
    return rows


def peak_in_fresh_process(script: str, arguments: list[str]) -> float:
    """Run `script arguments`, which prints what `extra_memory` gives, in a process of its own. In MB"""
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"measuring memory with {arguments} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


class Stopwatch:
    """Measures a job that takes long: its time, its memory, and F in between, which is not counted.

    F is timed three times before, three times after, and once every `every` seconds while the job calls `pause`: the
    machine may be busier at times.
    """

    def __init__(self, clock: str, plain: Callable[[], object], every: float = 20.0) -> None:
        self._now, self._plain, self._every = CLOCKS[clock], plain, every
        self._plain()  # the first call is slower
        self.plain_seconds: list[float] = []
        self._measure_plain(3)
        self._before = psutil.Process().memory_info().rss
        forget_peak()
        self._not_counted = 0.0
        self._started = self._last = self._now()

    def pause(self, done: int = 0) -> None:
        """Time F if it is time to. Takes what progress is reported with."""
        if self._now() - self._last > self._every:
            started = self._now()
            self._measure_plain()
            self._last = self._now()
            self._not_counted += self._last - started

    def stop(self) -> tuple[float, float, float]:
        """Seconds of the job, seconds of F (the median), and peak extra memory in MB."""
        seconds = self._now() - self._started - self._not_counted
        extra = (peak_resident() - self._before) / 1e6
        self._measure_plain(3)
        return seconds, statistics.median(self.plain_seconds), extra

    def _measure_plain(self, times: int = 1) -> None:
        for _ in range(times):
            started = self._now()
            self._plain()
            self.plain_seconds.append(self._now() - started)


def extra_memory(job: Job) -> float:
    """Peak resident memory of this process during the job, minus what was resident before. In MB

    Where the peak cannot be forgotten, this is an upper bound if loading took more than the job.
    """
    before = psutil.Process().memory_info().rss
    forget_peak()
    job.make()()
    return (peak_resident() - before) / 1e6


def forget_peak() -> None:
    """Let the peak of resident memory start again from what is resident now, where the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_resident() -> int:
    """In bytes. Linux's ru_maxrss is no use: a child inherits it from the larger process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def environment(clock: str) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "load": round(psutil.getloadavg()[0], 1),
        "clock": clock,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("gatewise", "torch", "transformers")},
        "commit": _commit(),
    }


def _commit() -> str:
    """Of the repository, with a plus if files have changed since."""
    here = Path(__file__).parent
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=here, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def as_table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("job")
    for column in ("ms", "F", "F, median", "limit", "extra MB", "limit"):
        table.add_column(column, justify="right")
    for row in rows:
        style = "" if row.within else "bold red"
        table.add_row(
            row.job,
            f"{row.seconds * 1000:,.1f}",
            f"{row.f:.2f}",
            f"{row.f_median:.2f}",
            "" if row.most_f is None else f"{row.most_f:.3g}",
            "" if row.extra_mb is None else f"{row.extra_mb:,.0f}",
            "" if row.most_mb is None else f"{row.most_mb:,.0f}",
            style=style,
        )
    return table


def as_json(sections: Mapping[str, list[Row]], clock: str) -> str:
    found = {title: [{**asdict(row), "within": row.within} for row in rows] for title, rows in sections.items()}
    return json.dumps({"environment": environment(clock), "sections": found}, indent=2)
