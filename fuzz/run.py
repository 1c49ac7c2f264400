"""Fuzz every loader and print how many cases each has seen: `python fuzz/run.py [--targets circuit,csv] [--scale 0.1]`.

Three ways. *mutations*: valid files with a few changes, from a seeded generator. *coverage*: atheris, whose inputs are
steered to lines not seen before (needs the extra `fuzz`; a process per target). Both end with the input of the first
case that raises anything but GatewiseError, takes longer than a second, or more memory than a gigabyte above what was
there. The third way, by hypothesis, is in tests/test_fuzz.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from mutate import mutated  # noqa: E402

SLOWEST = 1.0  # seconds of CPU time for one case of a cheap target
SLOWEST_DEAR = 30.0
LONGEST_WAIT = 60.0  # seconds by the clock: on a busy machine a case may have to wait, but not on a pipe for ever
ROOM = 1 << 30  # bytes of address space above what is there before the first case


class TooSlowError(BaseException):
    """A case took too long: no loader may catch this."""


@dataclass(frozen=True)
class Count:
    """What one target has seen."""

    target: str
    way: str
    cases: int
    seconds: float
    slowest: float  # milliseconds
    failure: str = ""


def by_mutations(name: str, cases: int, seed: int, keep: Path) -> Count:
    """Run mutated seeds through one target, in this process."""
    from targets import TARGETS

    target = TARGETS[name]
    seeds = target.seeds()
    for content in seeds:
        target.run(content)  # also warms up what is made once
    rng = random.Random(f"{name}/{seed}")
    limit = SLOWEST if target.cheap else SLOWEST_DEAR
    slowest, started = 0.0, time.process_time()
    with _bounded_memory(), _alarm():
        for case in range(cases):
            content = mutated(rng, seeds, target.json)
            begun = time.process_time()
            _set_timers(limit, LONGEST_WAIT)
            try:
                target.run(content)
            except BaseException as error:
                _set_timers(0, 0)
                failure = _keep(keep, name, content, error)
                return Count(name, "mutations", case + 1, time.process_time() - started, slowest * 1000, failure)
            _set_timers(0, 0)
            slowest = max(slowest, time.process_time() - begun)
    return Count(name, "mutations", cases, time.process_time() - started, slowest * 1000)


def by_coverage(name: str, cases: int, keep: Path) -> Count:
    """Let atheris run one target in a process of its own, which it never leaves alive."""
    started = time.perf_counter()
    keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        command = [sys.executable, str(HERE / "coverage.py"), name, corpus, f"-runs={cases}", "-max_len=4096"]
        command += [f"-artifact_prefix={keep}/{name}-", f"-timeout={SLOWEST_DEAR:.0f}", "-rss_limit_mb=4096"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = re.findall(r"Done (\d+) runs", done.stderr) or re.findall(r"#(\d+)\s", done.stderr)
    failure = "" if done.returncode == 0 else "\n".join(done.stderr.splitlines()[-25:])
    return Count(name, "coverage", int(found[-1]) if found else 0, time.perf_counter() - started, 0.0, failure)


def _keep(folder: Path, name: str, content: bytes, error: BaseException) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{abs(hash(content)):x}"
    path.write_bytes(content)
    return f"{path}: {''.join(traceback.format_exception_only(error)).strip()[:300]}"


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """No case may take more than so much: what asks for it gets a MemoryError, which no loader may raise."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TooSlowError

    before = {number: signal.signal(number, ring) for number in (signal.SIGALRM, signal.SIGPROF)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _set_timers(cpu_seconds: float, seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the loaders.")
    parser.add_argument("--targets", help="names, separated by commas [all]")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the cases of a long run [1]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--way", choices=("mutations", "coverage", "both"), default="both")
    parser.add_argument("--keep", type=Path, default=HERE / "crashes", help="where failing inputs go [fuzz/crashes]")
    parser.add_argument("--out", type=Path, help="append each count to this file, as JSON")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from targets import TARGETS

    names = options.targets.split(",") if options.targets else list(TARGETS)
    failed = False
    for name in names:
        cases = max(1, int(TARGETS[name].cases * options.scale))
        found = []
        if options.way in ("mutations", "both"):
            found.append(by_mutations(name, cases, options.seed, options.keep))
        if options.way in ("coverage", "both") and TARGETS[name].cheap:
            found.append(by_coverage(name, cases, options.keep))
        for count in found:
            per_case = count.seconds / max(count.cases, 1) * 1e6
            print(f"{count.target:12} {count.way:10} {count.cases:>10,} cases {per_case:>8,.0f} us each", flush=True)
            if options.out is not None:
                with options.out.open("a") as stream:
                    stream.write(json.dumps(asdict(count)) + "\n")
            if count.failure:
                failed = True
                print(f"  FAILED: {count.failure}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
