"""A reproduction that is killed at random moments and started again ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from gatewise_paper.presets import QUICK
from gatewise_paper.runner import reproduce

NAMES = ("completeness", "graph-study", "unlearning")
ARGUMENTS = [
    *("reproduce", *NAMES, "--preset", "quick", "--workers", "2"),
    *("--methods", "eap", "--tasks", "ioi", "--sizes", "5,20", "--seeds", "2", "--pairs", "2", "--held-out", "4"),
]
PRESET = QUICK.changed(methods=("eap",), tasks=("ioi",), sizes=(5, 20), seeds=2, pairs=2, held_out=4)  # the same
KILLS = 2


def _start(folder: Path) -> subprocess.Popen[bytes]:
    program = "from gatewise.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.argv[0] = 'gatewise'; {program}", *ARGUMENTS, "--out", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _finish(folder: Path) -> None:
    """In this process: what is left of a killed run is found by its keys, whoever asks."""
    reproduce(NAMES, PRESET, out=folder, workers=1, log=False)


def _stored(folder: Path) -> int:
    return len(list((folder / "store").glob("*/*.safetensors")))


def test_killed_and_started_again(tmp_path: Path) -> None:
    """A run is killed as soon as so many results are stored, a number that is drawn: its work is never done by then."""
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    _finish(tmp_path / "whole")
    everything = _stored(tmp_path / "whole")
    for _ in range(KILLS):
        run = _start(tmp_path / "killed")
        already = _stored(tmp_path / "killed")
        enough = rng.randrange(already, max(already + 1, 2 * everything // 3))
        while _stored(tmp_path / "killed") < enough and run.poll() is None:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.2))
        workers = psutil.Process(run.pid).children(recursive=True) if run.poll() is None else []
        run.send_signal(signal.SIGKILL)
        run.wait()
        _, alive = psutil.wait_procs(workers, timeout=30)
        assert not alive, f"{alive} outlive a killed run"
    before = _stored(tmp_path / "killed")
    _finish(tmp_path / "killed")
    assert before < everything, f"seed {seed}: nothing was left to do after the kills"
    assert _stored(tmp_path / "killed") == everything, f"seed {seed}: something was done twice"
    for page in ("results.json", "summary.md"):
        one, two = ((tmp_path / name / page).read_text() for name in ("whole", "killed"))
        assert one == two, f"seed {seed}"
    figures = sorted(path.name for path in (tmp_path / "killed" / "figures").glob("*.svg"))
    assert figures == sorted(path.name for path in (tmp_path / "whole" / "figures").glob("*.svg"))
