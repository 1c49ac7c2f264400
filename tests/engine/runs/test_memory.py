"""Freed memory goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
import torch

from gatewise.engine.runs.memory import give_back

MB = 1 << 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can give memory back")
def test_that_freed_blocks_below_a_living_one_are_given_back() -> None:
    process = psutil.Process()
    blocks = [torch.ones(16_384) for _ in range(2_000)]  # of 64 KB: from the heap, not mapped one by one
    last = blocks.pop()
    blocks.clear()
    before = process.memory_info().rss
    give_back()
    assert before - process.memory_info().rss > 80 * MB
    assert float(last.sum()) == 16_384


_FREE_LARGE_BLOCKS = """
import psutil, torch
from gatewise.engine.runs.memory import map_large_blocks

process, mega = psutil.Process(), 1 << 20
map_large_blocks()
torch.ones(30 * mega // 4)  # after it was freed, the C library would take all smaller blocks from its heap
blocks = [torch.ones(4 * mega // 4) for _ in range(40)]
last = blocks.pop()
before = process.memory_info().rss
blocks.clear()
print(before - process.memory_info().rss)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
def test_that_large_blocks_go_back_when_they_are_freed() -> None:
    """In a process of its own: what other tests have freed leaves holes in the heap."""
    ended = subprocess.run([sys.executable, "-c", _FREE_LARGE_BLOCKS], capture_output=True, text=True, check=True)
    assert int(ended.stdout) > 150 * MB
