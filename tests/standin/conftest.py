"""The stand-in accelerator for the tests of this folder; skipped with the reason where it cannot be compiled."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import standin_device
import torch


@pytest.fixture(autouse=True, scope="module")
def standin() -> Iterator[None]:
    """Devices `standin:0` to `standin:4`, and tied weights that stay tied on them."""
    try:
        standin_device.load()
    except standin_device.NoCompilerError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # as `load_into_process` says
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)
