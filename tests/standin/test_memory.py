"""Memory of a device: the budget follows what is free there, and full memory makes batches smaller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from standin_device import counted, limited_memory

import gatewise as gw
from gatewise import devices
from gatewise.engine import Setting
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.methods.base import Problem
from gatewise.methods.edge_pruning.method import EdgePruning
from gatewise.methods.provenance import ingredients
from gatewise.methods.registry import find_method
from gatewise.models.model import Model
from gatewise.tasks import Task


@pytest.fixture(scope="module")
def model(standin: None) -> Model:
    return gw.load_model("tiny", device="standin:1")


@pytest.fixture(scope="module")
def task(model: Model) -> Task:
    return gw.task("ioi", model, examples=16)


def test_the_budget_is_a_power_of_two_below_what_is_free(model: Model, task: Task) -> None:
    with limited_memory(1, 100 << 20):
        assert Setting(model, task.train).memory == 64 << 20
    with limited_memory(1, 110 << 20):
        setting = Setting(model, task.train)
    assert setting.memory == 64 << 20
    assert setting[:4].memory == 64 << 20
    assert Setting(model, task.train, memory="1GB").memory == 1 << 30


def test_on_the_cpu_the_budget_is_fixed(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "free_memory", lambda device: 1)
    assert Setting(gw.load_model("tiny"), task.train).memory == 4 << 30


def test_provenance_tells_the_budget_and_the_key_does_not(model: Model, task: Task) -> None:
    with limited_memory(1, 100 << 20):
        circuit = gw.discover(model, task, edges=30)
        problem = Problem(Setting(model, task.train), ("ns",), {"ns": (30,)})
    assert circuit.provenance["memory"] == 64 << 20
    assert circuit.provenance["device"] == "standin:1"
    key = ingredients(problem, find_method("eap"))
    assert (key["device"], key["memory"]) == ("standin", "free memory of the device")


SEARCHES: dict[str, Callable[[Model, Task], Any]] = {
    "EAP": lambda model, task: gw.score_edges(model, task).values,
    "Edge Pruning": lambda model, task: gw.discover(model, task, EdgePruning(steps=2), edges=60).scores,
    "evaluate": lambda model, task: torch.tensor(
        list(gw.evaluate(model, task, model.graph.random_circuit(200, seed=1), random_circuits=0).row().values())[-5:]
    ),
}


@pytest.mark.filterwarnings("ignore::gatewise.errors.GatewiseWarning")
@pytest.mark.parametrize("search", SEARCHES)
def test_batches_shrink_until_they_fit(search: str, model: Model, task: Task) -> None:
    with counted() as counts:
        expected = SEARCHES[search](model, task)
    said = pytest.warns(GatewiseWarning, match="ran out of memory with 16 examples at a time; going on with half")
    with limited_memory(1, counts.peak * 3 // 4), gw.Compute(memory="4GB"), said:  # a budget that promises too much
        given = SEARCHES[search](model, task)
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-4)


def test_one_example_that_does_not_fit_is_an_error(model: Model, task: Task) -> None:
    fails = pytest.raises(GatewiseError, match="standin:1 ran out of memory with one example of")
    with limited_memory(1, 1 << 16), gw.Compute(memory="4GB"), pytest.warns(GatewiseWarning), fails:
        gw.score_edges(model, task)


def test_acdc_which_holds_all_pairs_says_before_the_work_that_they_do_not_fit(model: Model, task: Task) -> None:
    with limited_memory(1, 1 << 20), pytest.raises(GatewiseError, match="are free"):
        gw.discover(model, task, "acdc", threshold=0.05, compute=gw.Compute(memory="4GB"))


class FakeCuda:
    """As much of `torch.cuda` as is asked for."""

    released = 0

    @staticmethod
    def mem_get_info(device: torch.device) -> tuple[int, int]:
        return (10 << 30) + device.index, 80 << 30

    @staticmethod
    def device_count() -> int:
        return 3

    @classmethod
    def empty_cache(cls) -> None:
        cls.released += 1


def test_cuda_is_asked_by_one_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: FakeCuda)
    devices.device_count.cache_clear()
    assert devices.free_memory(torch.device("cuda:1")) == (10 << 30) + 1
    assert devices.device_budget(torch.device("cuda:1")) == 8 << 30
    assert devices.device_count("cuda") == 3
    devices.release_cached_memory(torch.device("cuda:0"))
    assert FakeCuda.released == 1
    devices.device_count.cache_clear()


def test_a_device_that_does_not_say_has_the_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: object())
    assert devices.free_memory(torch.device("xpu:0")) > 1 << 20


def test_apples_memory_is_what_the_driver_recommends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 12 << 30)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 5 << 30)
    assert devices.free_memory(torch.device("mps")) == 7 << 30
    assert devices.is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 5 GB)"))
