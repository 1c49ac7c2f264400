"""Set-up of all tests: one torch thread per process, no network, and the one large model, loaded once."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
# Some virtual machines announce AMX and then refuse its instructions: bfloat16 would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from gatewise.models.model import Model

torch.set_num_threads(1)

# Longest first, so that none of two processes waits for the other at the end.
_LONG = ("test_ray.py", "test_all_experiments_small", "test_torture", "test_resume", "test_toy_models", "browser/")
# What stays in one of two processes, which would be prepared in both: a cluster, a site, a wheel, a browser, a store of
# searches, the stand-in accelerator, and the process that workers are forks of.
_TOGETHER = {
    "ray": ("test_ray.py",),
    "workers": ("test_workers.py", "test_sweep.py"),
    "standin": ("tests/standin/",),
    "help": ("cli/test_help.py",),
    "experiments": ("paper/test_experiments.py",),
    "report": ("tests/report/", "cli/test_run.py"),
    "browser": ("tests/browser/",),
    "site": ("test_site.py",),
    "notebooks": ("test_notebooks.py",),
    "wheel": ("test_wheel.py",),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(name in item.nodeid for name in _LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `--dist loadgroup`: xdist 3.8 does not see its own marks of groups under pytest 9.2."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]
        """Groups first, those of most tests before others; then test by test."""

        def _split_scope(self, nodeid: str) -> str:
            groups = (group for group, names in _TOGETHER.items() if any(name in nodeid for name in names))
            return next(groups, nodeid)

    return Together(config, log)


@pytest.fixture(scope="session")
def smollm2() -> Model:
    """SmolLM2-135M with its real weights; the first run of all fetches it."""
    from gatewise.models.loader import load_model

    return load_model("smollm2-135m")


@pytest.fixture(scope="module")
def fresh_process() -> Iterator[ProcessPoolExecutor]:
    """A process that has not run other tests, for those of forks and of memory.

    Gradients on the stand-in accelerator start threads of torch's, and forks of such a process cannot take gradients.
    """
    spawn = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)) as process:
        yield process
