"""Torture: kill work of every kind with SIGKILL at random moments, start it again, compare with undisturbed work.

    python tests/torture/torture.py --kills 9        what `make torture` runs: so many of each kind

The processes that are killed are forks of one that has loaded everything, so that most of a moment is work. Further
ones kill themselves in the middle of writing a file, which random moments seldom meet. `two-at-once` is a sweep by two
processes in one folder. After every kill: all that is in the store is sound, and no checkpoint is behind one that was
there before. At the end: the same results, bit by bit but for times, and no temporary files. A method is one line of
`SEARCHES`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from gatewise import files, task
from gatewise.compute import Compute
from gatewise.methods import Acdc, EdgePruning, Method, Ranking, discover_all
from gatewise.report import make_report
from gatewise.store import Store
from gatewise.store.maintenance import list_entries
from gatewise.sweep import run_sweep
from gatewise.sweep.cells import loaded
from gatewise.sweep.grid import grid_from
from gatewise_paper.presets import QUICK
from gatewise_paper.runner import reproduce

_PATIENCE = 1800.0  # seconds that a run may take before it counts as hanging
_SHARE_IN_WRITES = 0.2  # of the starts: killed by themselves, in the middle of writing a file

_TIMES = re.compile(r"seconds|started|ended|(^|_)(time|times|date|when)($|_)")  # names of fields

EXAMPLES = 4
SEARCHES: dict[str, tuple[Method, list[int]]] = {
    "acdc": (Acdc(max_thresholds=4), [60, 20]),
    "edge-pruning": (EdgePruning(steps=25), [40, 20]),
    "ranking": (Ranking(steps=45), [40, 20]),
}
GRID: dict[str, Any] = {
    "models": "tiny", "tasks": "ioi", "directions": ["ns", "dn"], "sizes": 20, "seeds": 0,
    "examples": EXAMPLES, "test_examples": EXAMPLES, "random_circuits": 1,
    "methods": {"eap": {}, "acdc": {"max_thresholds": 1}, "edge-pruning": {"steps": 25}},
}  # fmt: skip


def search(method: Method, sizes: list[int], folder: Path) -> None:
    model = loaded("tiny", None, None)  # before the forks: the same for all of them
    pairs = task("ioi", model, examples=EXAMPLES, seed=0).train
    discover_all(model, pairs, method, ["ns+dn"], sizes=sizes, compute=Compute(store=folder / "store"))


def sweep(folder: Path) -> None:
    report = run_sweep(grid_from(GRID), folder)
    if not report.complete:
        raise AssertionError(report.failures)


def report(folder: Path) -> None:
    """What `gatewise run` does, with its files."""
    model = loaded("tiny", None, None)
    about = task("ioi", model, examples=EXAMPLES, seed=0)
    made = make_report(model, about, "eap", edges=40, sizes=[20], compute=Compute(store=folder / "store"))
    made.save(folder / "report")


def paper(folder: Path) -> None:
    """An experiment of `gatewise reproduce`."""
    preset = QUICK.changed(methods=("eap",), tasks=("ioi",), sizes=(5, 20), seeds=1, pairs=2, held_out=2)
    reproduce(["completeness"], preset, out=folder, workers=1, log=False)


def two_at_once(folder: Path) -> None:
    """A sweep by two processes that share a folder; the other may be killed in the middle of a write, or by us."""
    other = os.fork()
    if not other:
        code = 1
        try:
            sweep(folder)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    sweep(folder)
    code = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
    if code not in (0, -signal.SIGKILL):
        raise AssertionError(f"the other process ended with {code}")


WORK: dict[str, Callable[[Path], None]] = {
    **{name: partial(search, method, sizes) for name, (method, sizes) in SEARCHES.items()},
    "sweep": sweep,
    "report": report,
    "reproduce": paper,
    "two-at-once": two_at_once,
}


@dataclass
class Tally:
    """What was done to one kind of work."""

    kills: int = 0  # at random moments
    kills_in_writes: int = 0  # by itself, half-way through a file
    runs: int = 0  # that ended, after some kills each, and were compared
    resumed: int = 0  # starts that found a checkpoint
    seconds_undisturbed: float = 0.0  # of work of the processor
    problems: list[str] = field(default_factory=list)


def torture(name: str, kills: int, seed: int = 0, tell: Callable[[str], None] = lambda text: None) -> Tally:
    """Kill one kind of work at so many random moments, over as many runs as that takes."""
    tally, dice = Tally(), random.Random(f"{name} {seed}")
    loaded("tiny", None, None)
    with tempfile.TemporaryDirectory() as place:
        root, work = Path(place), WORK[name]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _wait(_start(work, root / "whole"), None)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        tally.seconds_undisturbed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        wanted = results(root / "whole")
        while tally.kills < kills:
            folder = root / f"run{tally.runs}"
            _disturbed_run(work, folder, tally, kills, dice)
            tally.runs += 1
            for problem in [*differences(wanted, results(folder)), *litter(folder)]:
                tally.problems.append(f"{name}, run {tally.runs}: {problem}")
            tell(f"{name}: {tally.kills} of {kills} kills, {tally.runs} runs")
    return tally


def _disturbed_run(work: Callable[[Path], None], folder: Path, tally: Tally, kills: int, dice: random.Random) -> None:
    """Start the work again and again until it ends undisturbed, or until all kills are done and it may end."""
    known: dict[str, int] = {}
    while True:
        tally.resumed += any(folder.rglob("*.checkpoint"))
        if tally.kills >= kills:
            _wait(_start(work, folder), None)
            return
        if dice.random() < _SHARE_IN_WRITES:
            killed = _wait(_start(work, folder, kill_in_write=dice.randrange(6), share=dice.random()), None)
            tally.kills_in_writes += killed
        else:
            killed = _wait(_start(work, folder), dice.uniform(0, tally.seconds_undisturbed))
            tally.kills += killed
        if not killed:
            return
        tally.problems += _after_a_kill(folder, known)


def _start(work: Callable[[Path], None], folder: Path, kill_in_write: int = -1, share: float = 0.0) -> int:
    """The number of a process that does the work."""
    child = os.fork()
    if child:
        return child
    os.setpgid(0, 0)  # a group of its own, with all that it starts
    code = 1
    try:
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the .* circuit of .* edges has no path")  # of small circuits of `tiny`
        warnings.filterwarnings("ignore", "the .* training has not settled")  # after so few steps
        if kill_in_write >= 0:
            _arm(kill_in_write, share)
        work(folder)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _arm(writes: int, share: float) -> None:
    """After so many files, write only a share of the next one, and die."""
    real, done = files._write, []  # type: ignore[var-annotated]

    def write(path: Path, content: bytes) -> None:
        if len(done) == writes:
            path.write_bytes(content[: int(share * len(content))])
            os.kill(os.getpid(), signal.SIGKILL)
        done.append(path)
        real(path, content)

    files._write = write


def _wait(child: int, until_kill: float | None) -> bool:
    """Whether the process was killed, by us after so many seconds of work or by itself. An error if it failed or hangs.

    Seconds of the processor, so that the moments are spread over the work however busy the machine is.
    """
    begun, sent, process = time.monotonic(), False, psutil.Process(child)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            _kill_group(child)  # what it has started
            if code not in (0, -signal.SIGKILL):
                raise AssertionError(f"the work ended with {code}")
            return code != 0
        if not sent and until_kill is not None and sum(process.cpu_times()[:2]) >= until_kill:
            _kill_group(child)
            sent = True
        if time.monotonic() - begun > _PATIENCE:
            _kill_group(child)
            raise AssertionError("the work hangs")
        time.sleep(0.005)


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it has ended, or has not yet made itself a group
        os.killpg(leader, signal.SIGKILL)


def _after_a_kill(folder: Path, known: dict[str, int]) -> list[str]:
    """What is wrong with the store. known: how far each checkpoint was, which is updated."""
    store = Store(folder / "store")
    if not Path(store.location).is_dir():
        return []
    entries = list_entries(store)
    problems = [f"{entry.path}: {entry.problem}" for entry in entries if entry.problem]
    kept = {entry.key: entry for entry in entries if not entry.problem}
    for key in known.keys() - kept.keys():
        problems.append(f"{key}: what was saved is gone")
    for key, entry in kept.items():
        now = progress(store, key) if entry.kind == "checkpoint" else sys.maxsize
        if now < known.get(key, 0):
            problems.append(f"{key}: a checkpoint fell back from {known[key]} to {now}")
        known[key] = now
    return problems


def progress(store: Store, key: str) -> int:
    """How far a checkpoint is."""
    saved = store.checkpoint(key).load()
    if saved is None:
        return -1
    state = saved.state
    if "now" in state:  # of ACDC
        return len(state["done"]) * 1_000_000 + int(state["now"]["position"])
    return len(state["steps"]) * 1_000_000 + int(state["steps"][-1])


def results(folder: Path) -> dict[str, Any]:
    """Everything that must not depend on kills: circuits with scores and notes, plain results, tables."""
    store, found = Store(folder / "store"), {}
    for entry in list_entries(store):
        if entry.kind == "circuits":
            circuits = store.get(entry.key)
            assert circuits is not None
            found[entry.key] = [
                (c.mask.tolist(), None if c.scores is None else _bits(c.scores), repr(c.provenance.get("notes")))
                for c in circuits
            ]
        elif entry.kind == "json":  # what else is left over is litter
            found[entry.key] = repr(without_times(entry.content["value"]))  # type: ignore[assignment]
    for name in ("table.csv", "table.parquet", "summary.md"):
        if (folder / name).is_file():
            found[name] = (folder / name).read_bytes()  # type: ignore[assignment]
    if (folder / "results.json").is_file():
        found["results.json"] = repr(without_times(json.loads((folder / "results.json").read_bytes())))  # type: ignore[assignment]
    for path in (folder / "report").glob("*"):
        found[path.name] = len(path.name)  # type: ignore[assignment]  # that it is there; it tells times
    return found


def without_times(value: Any) -> Any:
    """Plain data without what no two runs have in common: how long something took, and when it was."""
    if isinstance(value, dict):
        return {name: without_times(part) for name, part in value.items() if not _TIMES.search(name)}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def _bits(values: torch.Tensor) -> bytes:
    return values.contiguous().view(torch.uint8).numpy().tobytes()


def differences(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return [f"{name} differs" for name in sorted(wanted.keys() | found.keys()) if wanted.get(name) != found.get(name)]


def litter(folder: Path) -> list[str]:
    return [f"{path} is left over" for path in folder.rglob("*") if path.suffix in (".part", ".checkpoint", ".lock")]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=9)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=WORK)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    failed = False
    for name in [chosen.only] if chosen.only else WORK:
        tally = torture(name, chosen.kills, chosen.seed, lambda text: print(text, file=sys.stderr))
        print(
            f"{name}: {tally.kills} kills at random moments, {tally.kills_in_writes} in the middle of a write; "
            f"{tally.resumed} starts went on from a checkpoint; {tally.runs} runs ended and were compared "
            f"({tally.seconds_undisturbed:.1f} s of work each when undisturbed): {len(tally.problems)} problems"
        )
        for problem in tally.problems:
            print(f"  {problem}")
        failed = failed or bool(tally.problems)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
