"""Workers with devices: every device is used, results are those of one process on the CPU, the dead are replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import standin_device
import torch

SCRIPT = Path(__file__).parent / "workers_on_devices.py"


def _outcome(folder: Path, device: str, *, workers: int = 1, ray: str = "", gpus: float = 1) -> tuple[Any, set[str]]:
    """What the script gives, and the devices that its processes have used."""
    notes = folder / "notes"
    notes.mkdir(parents=True)
    environment = {
        **os.environ,
        "PYTHONPATH": standin_device.autoload_folder(folder / "autoload"),
        "STANDIN_NOTES": str(notes),
        "STANDIN_KILLED": str(folder / "killed"),
    }
    if device == "cpu":
        (folder / "killed").touch()
    arguments = [device, str(folder), str(workers), ray, str(gpus)]
    done = subprocess.run([sys.executable, SCRIPT, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "outcome.json").read_text()), {note.name.partition("-")[2] for note in notes.iterdir()}


@pytest.fixture(scope="module")
def expected(standin: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same by one process on the CPU."""
    return _outcome(tmp_path_factory.mktemp("cpu"), "cpu")[0]


def _check(outcome: Any, expected: Any) -> None:
    assert outcome["eap"] == expected["eap"]
    assert outcome["edge-pruning"] == expected["edge-pruning"]
    assert outcome["evaluate"] == expected["evaluate"]
    assert outcome["failures"] == []
    assert len(outcome["table"]) == len(expected["table"]) == 2
    # Repeated with half of the examples at a time, sums round otherwise.
    survived, wanted = torch.tensor(outcome["survived"]), torch.tensor(expected["survived"])
    torch.testing.assert_close(survived, wanted, atol=1e-6, rtol=1e-5)
    assert any("repeated with fewer examples at a time" in text for text in outcome["said"])
    assert not any("repeated" in text for text in expected["said"])


@pytest.mark.parametrize("workers", [2, 4])
def test_processes_take_the_devices_in_turn(workers: int, expected: Any, tmp_path: Path) -> None:
    outcome, used = _outcome(tmp_path, "standin", workers=workers)
    assert used >= {str(index) for index in range(workers)}
    _check(outcome, expected)


@contextmanager
def _cluster(gpus: int, autoload: str) -> Iterator[str]:
    """The address of a Ray cluster of this test's own, with logical GPUs."""
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs Ray: pip install 'gatewise[ray]'")
    cluster = cluster_utils.Cluster()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("PYTHONPATH", autoload)
        node = {"num_cpus": 4, "num_gpus": gpus, "include_dashboard": False, "object_store_memory": 100 << 20}
        try:
            cluster.add_node(**node)
            yield cluster.address
        finally:
            cluster.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1.0, 0.5])
def test_rays_logical_gpus_are_devices(gpus: float, expected: Any, tmp_path: Path) -> None:
    with _cluster(2, standin_device.autoload_folder(tmp_path / "of-ray")) as address:
        outcome, used = _outcome(tmp_path / "run", "standin", ray=address, gpus=gpus)
    assert used >= {"0", "1"}
    _check(outcome, expected)
