"""The command line: what lists, loading a model and `gatewise run` take, each in a fresh process, with their limits.

    python bench/command.py                       # wall time; the model is in the cache
    python bench/command.py --clock cpu           # the CPU time of the process, for a busy machine
    python bench/command.py --only "methods"      # what has this in its name

`gatewise run` is asked with its defaults into an empty folder, then again; then without `answer.json`, when everything
but the page comes out of the store. `cpu` with more than one thread adds up what all of them take.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

MODEL = "smollm2-135m"
PROGRAM = "import sys; from gatewise.cli.main import main; sys.argv[0] = 'gatewise'; main()"
LOAD = f"from gatewise import load_model; load_model({MODEL!r})"
LOADED = f"import time; {LOAD}; now = time.{{clock}}(); load_model({MODEL!r}); print(time.{{clock}}() - now)"


@dataclass(frozen=True)
class Timing:
    """What one call took."""

    what: str
    seconds: float
    most: float | None = None  # the project's own limit, in seconds on 2 quiet cores


class Clock:
    """Runs programs, and tells how long they take."""

    def __init__(self, kind: str, threads: int) -> None:
        self.kind, self.environment = kind, {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}

    def _now(self) -> float:
        if self.kind == "wall":
            return time.perf_counter()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def output(self, program: str, *words: str) -> tuple[float, str]:
        started = self._now()
        done = subprocess.run(
            [sys.executable, "-c", program, *words], env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{words or program} failed:\n{done.stderr}")
        return self._now() - started, done.stdout

    def seconds(self, program: str, *words: str) -> float:
        return self.output(program, *words)[0]

    def loading(self) -> float:
        """Of a second time, when all is imported."""
        return float(self.output(LOADED.format(clock="perf_counter" if self.kind == "wall" else "process_time"))[1])


def timings(clock: Clock, wanted: Callable[[str], bool]) -> list[Timing]:
    found = []
    for words in ("methods", "tasks list", "models", "--help"):
        if wanted(words):
            found.append(
                Timing(f"gatewise {words}", min(clock.seconds(PROGRAM, *words.split()) for _ in range(3)), 0.5)
            )
    if wanted("loading"):
        found.append(Timing("importing torch and transformers, loading SmolLM2", clock.seconds(LOAD)))
        found.append(Timing("loading SmolLM2 alone", clock.loading(), 2.0))
    if wanted("run"):
        with tempfile.TemporaryDirectory() as folder:
            run = ("run", MODEL, "--out", folder)
            found.append(Timing("gatewise run", clock.seconds(PROGRAM, *run), 45.0))
            found.append(Timing("gatewise run, asked again", clock.seconds(PROGRAM, *run), 1.0))
            (Path(folder) / "answer.json").unlink()
            found.append(Timing("gatewise run, out of the store", clock.seconds(PROGRAM, *run)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="what has this in its name")
    parser.add_argument("--out", type=Path, help="write JSON to this file as well")
    options = parser.parse_args()
    found = timings(Clock(options.clock, options.threads), lambda name: options.only in name)
    table = Table(
        "what", "seconds", "limit", title=f"The command line, {options.clock} time, {options.threads} threads"
    )
    for one in found:
        missed = one.most is not None and one.seconds > one.most
        limit = "" if one.most is None else f"{one.most:g}"
        table.add_row(one.what, f"{one.seconds:.2f}", limit, style="bold red" if missed else "")
    Console(width=110).print(table)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
