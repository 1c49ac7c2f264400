"""Sweeps: complete, the same in one process and in several, and not stopped by cells that fail or workers that die."""

from __future__ import annotations

import csv
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet
import pytest
from processes import working_processes
from typer.testing import CliRunner

import gatewise as gw
from gatewise.cli.main import app
from gatewise.compute import Compute
from gatewise.errors import GatewiseError
from gatewise.store import Store
from gatewise.store.maintenance import list_entries
from gatewise.sweep import Cell, Grid, run_sweep
from gatewise.sweep import cells as cells_module
from gatewise.sweep.grid import grid_from

TOML = """
models = ["tiny"]
tasks = ["ioi"]
sizes = [200, [300, 600]]
seeds = [0, 1]
examples = 4
test_examples = 4
random_circuits = 1
methods = ["eap"]
directions = ["ns", "dn"]
"""


def grid(**change: Any) -> Grid:
    base = {
        "models": ["tiny"], "tasks": ["ioi"], "sizes": [200, [300, 600]], "seeds": [0, 1], "examples": 4,
        "test_examples": 4, "random_circuits": 1, "methods": ["eap"], "directions": ["ns", "dn"],
    }  # fmt: skip
    return grid_from({**base, **change})


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that ran in this process."""
    out = tmp_path_factory.mktemp("serial")
    report = run_sweep(grid(), out)
    assert report.complete
    return out


def test_rules_are_an_axis_with_a_name_in_the_table(tmp_path: Path) -> None:
    own = "gatewise.models.gradient_rules:GIM"  # as a user names one of their own
    asked = grid(methods={"eap": {"rule": ["plain", own]}}, sizes=[200], seeds=[0], directions=["ns"])
    assert run_sweep(asked, tmp_path).complete
    with (tmp_path / "table.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["set_rule"] for row in rows] == ["plain", "gim"]
    assert pyarrow.parquet.read_table(tmp_path / "table.parquet")["set_rule"].to_pylist() == ["plain", "gim"]


def table(folder: Path) -> bytes:
    return (folder / "table.csv").read_bytes()


def test_one_tidy_table(serial: Path) -> None:
    rows = list(csv.DictReader(table(serial).decode().splitlines()))
    assert len(rows) == 2 * 2 * 3
    assert [row["size"] for row in rows[:3]] == ["200", "300", "600"]
    assert all(row["edges"] == row["size"] and row["model"] == "tiny" for row in rows)
    assert len({row["circuit_kl_from_full"] for row in rows}) == len(rows)
    again = pyarrow.parquet.read_table(serial / "table.parquet").to_pylist()
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in again] == rows


def test_sizes_by_faithfulness(tmp_path: Path) -> None:
    goals = {
        "faithfulness": [0.5, 0.9999],
        "most_edges": 500,
        "sizes": 50,
        "examples": 24,
        "directions": ["ns", "ns+dn"],
    }
    report = run_sweep(grid(**goals, seeds=[0]), tmp_path)
    assert report.complete
    rows = {(row["direction"], row.get("faithfulness")): row for row in report.rows}
    assert set(rows) == {(side, goal) for side in ("ns", "ns+dn") for goal in (None, 0.5, 0.9999)}
    reached, missed = rows["ns", 0.5], rows["ns", 0.9999]
    assert (reached["reached"], missed["reached"]) == (True, False)
    assert reached["validated_low"] >= 0.5 > 0
    assert missed["validated_low"] < 0.9999
    assert reached["edges"] < missed["edges"] <= 500
    model = gw.load_model("tiny")
    circuit = gw.discover(model, gw.task("ioi", model, examples=24, test_examples=4), faithfulness=0.5, edges=500)
    assert reached["edges"] == len(circuit)


def test_what_is_stored_is_not_computed_again(serial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_module, "_compute", lambda *_: pytest.fail("computed again"))
    before = table(serial)
    told: list[str] = []
    report = run_sweep(grid(), serial, tell=told.append)
    assert report.complete
    assert table(serial) == before
    assert told == ["8 cells, 8 in the store, 0 to compute"]
    larger = run_sweep(grid(seeds=[0, 1, 2]), serial, dry_run=True, tell=told.append)
    assert larger.forecast.missing == 4
    assert larger.forecast.seconds is not None
    assert "4 to compute, about" in told[-1]
    assert larger.forecast.peak is not None
    assert 1e8 < larger.forecast.peak < 2e9  # tiny, and Python with torch
    assert "GB in each process" in told[-1]


def test_cells_that_fail_are_reported_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Cell] = []
    real = cells_module._compute

    def compute(cell: Cell, store: Store) -> dict[str, Any]:
        tried.append(cell)
        if cell.sizes == (30,) and cell.direction == "dn":
            raise RuntimeError("bad luck")
        if cell.sizes == (20,) and len(tried) == 1:
            raise RuntimeError("only once")
        return real(cell, store)

    monkeypatch.setattr(cells_module, "_compute", compute)
    some = grid(models=["tiny", "no-such-folder/model"], sizes=[20, 30, 10**9], seeds=0)
    report = run_sweep(some, tmp_path, retries=1)
    problems = {(cell.model, cell.direction, cell.sizes): problem for cell, problem in report.failures}
    assert len(problems) == 6 + 2 + 1
    assert problems["tiny", "dn", (30,)] == "RuntimeError: bad luck (2 times)"
    assert "1,000,000,000 edges" in problems["tiny", "ns", (10**9,)]
    assert len(tried) == 2 + 1 + 1 + 2 + 2  # what was asked wrongly is tried once, bad luck twice
    assert len(report.rows) == 3
    assert (tmp_path / "failures.json").exists()
    monkeypatch.undo()
    assert run_sweep(grid(sizes=[20, 30], seeds=0), tmp_path).complete
    assert not (tmp_path / "failures.json").exists()


def test_workers_may_die(serial: Path, tmp_path: Path) -> None:
    """Two of the worker processes are killed while they work; the table is that of the serial sweep."""
    killed: list[int] = []
    done = threading.Event()

    def kill() -> None:
        while not done.is_set() and len(killed) < 2:
            for child in working_processes():
                try:
                    if child.pid not in killed and len(killed) < 2:
                        os.kill(child.pid, signal.SIGKILL)
                        killed.append(child.pid)
                except (psutil.NoSuchProcess, ProcessLookupError):
                    continue
            time.sleep(0.5)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        report = run_sweep(grid(), tmp_path, retries=4, compute=Compute(workers=2))
    finally:
        done.set()
        killer.join()
    assert len(killed) == 2
    assert report.failures == ()
    assert table(tmp_path) == table(serial)
    assert not any(entry.problem for entry in list_entries(Store(tmp_path / "store")))
    assert list(tmp_path.rglob("*.part")) == list(tmp_path.rglob("*.checkpoint")) == []


def test_command(serial: Path, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(TOML)
    words = ["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path), "--store", str(serial / "store")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert table(tmp_path) == table(serial)
    (tmp_path / "grid.toml").write_text(TOML.replace("sizes = [200, [300, 600]]", "sizes = [200, 1000000000]"))
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 1
    assert "failed: tiny ioi eap ns 1000000000 edges seed 0" in result.stderr
    assert '"rows": 4' in result.stdout


def test_workers_and_ray_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(GatewiseError, match="not both"):
        run_sweep(grid(), tmp_path, compute=Compute(workers=2, ray="auto"))
    with pytest.raises(GatewiseError, match="workers is a number of processes, at least 1"):
        run_sweep(grid(), tmp_path, compute=Compute(workers=0))


_PARENT = """
import sys
from pathlib import Path
from gatewise.workers import run_jobs
from waiting import wait
list(run_jobs(["a", "b"], wait, sys.argv[1], retries=0, workers=2))
"""
_WAITING = """
import time
from pathlib import Path
def wait(task, folder):
    (Path(folder) / task).touch()
    time.sleep(600)
"""


def test_workers_end_when_the_sweep_is_killed(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(_PARENT)
    (tmp_path / "waiting.py").write_text(_WAITING)
    parent = psutil.Popen([sys.executable, str(tmp_path / "parent.py"), str(tmp_path)])
    while not ((tmp_path / "a").exists() and (tmp_path / "b").exists()):
        assert parent.poll() is None
        time.sleep(0.05)
    workers = parent.children(recursive=True)
    assert len(workers) >= 2
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
