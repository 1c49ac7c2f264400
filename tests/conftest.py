"""Set-up of all tests: one torch thread per process, no network, and the one large model, loaded once."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
# Some virtual machines announce AMX and then refuse its instructions: bfloat16 would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from gatewise.models.model import Model

torch.set_num_threads(1)

# Longest first, so that none of two processes waits for the other at the end.
_LONG = ("test_ray.py", "test_all_experiments_small", "test_torture.py", "test_resume.py", "test_toy.py", "browser/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(name in item.nodeid for name in _LONG))


@pytest.fixture(scope="session")
def smollm2() -> Model:
    """SmolLM2-135M with its real weights; the first run of all fetches it."""
    from gatewise.models.loader import load_model

    return load_model("smollm2-135m")
