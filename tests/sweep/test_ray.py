"""Sweeps and searches on a real Ray cluster of several workers, some of which are killed while they work."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from gatewise import discover, load_model, task
from gatewise.compute import Compute
from gatewise.errors import GatewiseError
from gatewise.store import Store
from gatewise.store.maintenance import list_entries
from gatewise.sweep import run_sweep
from gatewise.sweep.grid import grid_from

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'gatewise[ray]'")

GRID: dict[str, Any] = {
    "models": "tiny", "tasks": "ioi", "directions": ["ns", "dn"], "examples": 4, "test_examples": 4,
    "random_circuits": 1, "sizes": [20, 60], "methods": {"eap": {}, "acdc": {"max_thresholds": 1}},
}  # fmt: skip


@contextmanager
def cluster(workers: int) -> Iterator[str]:
    """The address of a cluster of this test's own."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # not 15: beside the suite's other process they would starve
    node = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": 100 << 20}
    made = Cluster()
    try:
        for left in reversed(range(4)):
            try:
                made.add_node(**node)
                break
            except Exception:  # Ray gives a node 30 seconds to start, which a busy machine may not manage
                if left == 0:
                    raise
        yield made.address
    finally:
        made.shutdown()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of an empty bucket on an S3 server of these tests' own, which our workers know from the environment."""
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs")
    server = pytest.importorskip("moto.server", reason="needs moto").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                patch.setenv(name, "test")
            s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
            yield "s3://bucket"
    finally:
        server.stop()


@pytest.fixture(scope="module")
def two_workers(bucket: str) -> Iterator[str]:
    with cluster(2) as address:
        yield address


@contextmanager
def killer(kills: int, parts: int, done_parts: Callable[[], int]) -> Iterator[list[int]]:
    """Kill so many of our cluster's workers in the middle of their work, spread over all of it."""
    killed: list[int] = []
    done = threading.Event()

    def busy() -> list[psutil.Process]:
        found = []
        for child in psutil.Process().children(recursive=True):
            try:
                words = child.cmdline()
                if child.pid not in killed and any(word.startswith("ray::on_ray_worker") for word in words):
                    found.append(child)  # on a busy machine, one that was killed stays for a while
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return found

    def kill() -> None:
        while not done.is_set() and len(killed) < kills:
            for child in busy()[-1:] if done_parts() >= len(killed) * parts // kills else ():
                os.kill(child.pid, signal.SIGKILL)
                killed.append(child.pid)
            time.sleep(0.05)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


def compare(grid: dict[str, Any], folder: Path, address: str, kills: int) -> None:
    asked = grid_from(grid)
    serial = run_sweep(asked, folder / "serial")
    assert serial.complete

    def stored(name: str) -> int:  # cells, and searches that several of them share
        return len(list((folder / name / "store").glob("*/*.safetensors")))

    with killer(kills, stored("serial"), lambda: stored("ray")) as killed:
        report = run_sweep(asked, folder / "ray", retries=kills, compute=Compute(ray=address))
    assert len(set(killed)) == kills
    assert report.failures == ()
    assert len(report.rows) == len(asked)
    for table in ("table.csv", "table.parquet"):
        assert (folder / "ray" / table).read_bytes() == (folder / "serial" / table).read_bytes()
    assert not any(entry.problem for entry in list_entries(Store(folder / "ray" / "store")))
    report = run_sweep(asked, folder / "ray")  # the next start cleans up after the killed ones
    assert report.forecast.missing == 0
    assert [path for path in (folder / "ray").rglob("*") if path.suffix in (".part", ".checkpoint")] == []


def test_a_sweep_on_ray_whose_workers_die_equals_the_serial_one(two_workers: str, tmp_path: Path) -> None:
    compare({**GRID, "methods": ["eap"]}, tmp_path, two_workers, kills=1)


def test_one_search_by_two_workers_of_which_one_dies(two_workers: str) -> None:
    model = load_model("tiny")
    pairs = task("ioi", model, examples=200, test_examples=1).train
    one = discover(model, pairs, edges=50, compute=Compute(memory="20MB"))
    with killer(1, 1, lambda: 0) as killed:
        two = discover(model, pairs, edges=50, compute=Compute(memory="20MB", ray=two_workers))
    assert len(killed) == 1
    assert two == one
    assert torch.equal(two.scores, one.scores)  # type: ignore[arg-type]


@pytest.mark.attack
def test_workers_of_ray_run_nothing_of_the_working_folder(
    two_workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray lets workers look for modules where the search was started."""
    model = load_model("tiny")
    pairs = task("ioi", model, examples=4, test_examples=1).train
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in ("torch", "transformers", "numpy", "safetensors", "psutil", "tempfile", "pickle", "socket"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / name)!r} + '.ran', 'w').close()\n")
    monkeypatch.chdir(folder)
    discover(model, pairs, "acdc", threshold=0.5, compute=Compute(ray=two_workers))
    assert list(tmp_path.glob("*.ran")) == []


@pytest.mark.slow
def test_200_cells(tmp_path: Path) -> None:
    grid = {**GRID, "methods": ["eap"], "sizes": [20, 40, 60, 80], "seeds": list(range(25))}
    with cluster(4) as address:
        compare(grid, tmp_path, address, kills=12)


def test_a_sweep_of_two_workers_on_s3_equals_the_serial_one(bucket: str, two_workers: str, tmp_path: Path) -> None:
    asked = grid_from({**GRID, "methods": ["eap"], "sizes": 20})
    serial = run_sweep(asked, tmp_path / "serial")
    report = run_sweep(asked, tmp_path / "ray", compute=Compute(store=f"{bucket}/runs", ray=two_workers))
    assert report.failures == ()
    assert report.forecast.missing == len(asked)
    for table in ("table.csv", "table.parquet"):
        assert (tmp_path / "ray" / table).read_bytes() == (tmp_path / "serial" / table).read_bytes()
    stored, local = list_entries(Store(f"{bucket}/runs")), list_entries(Store(tmp_path / "serial" / "store"))
    assert sorted((entry.key, entry.kind, entry.problem) for entry in stored) == sorted(
        (entry.key, entry.kind, entry.problem) for entry in local
    )
    assert serial.complete


def test_no_cluster_there(tmp_path: Path) -> None:
    grid = grid_from({**GRID, "methods": ["eap"], "sizes": 20, "directions": "ns"})
    with pytest.raises(GatewiseError, match=r"no Ray cluster at '127.0.0.1:9'.*ray start --head"):
        run_sweep(grid, tmp_path, compute=Compute(ray="127.0.0.1:9"))
