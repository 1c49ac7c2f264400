"""What a device of this machine does in a second, measured in a moment: operations of products, and bytes moved."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

_SECONDS = 0.3  # to measure each
_LEAST = 3  # calls


@dataclass(frozen=True)
class Rates:
    """Per second, with torch's threads."""

    operations: float
    bytes: float


@cache
def measure_rates(device: str = "cpu") -> Rates:
    """Measure a device once for each process, in float32."""
    with torch.device(device):
        rows, wide = torch.randn(512, 1024), torch.randn(1024, 2048)
        product = torch.empty(512, 2048)
        source, target = torch.ones(1 << 24), torch.empty(1 << 24)
    operations = 2 * rows.numel() * wide.shape[1] / _fastest(lambda: torch.mm(rows, wide, out=product))
    moved = 2 * source.numel() * source.element_size() / _fastest(lambda: target.copy_(source))
    return Rates(operations, moved)


def _fastest(call: Callable[[], torch.Tensor]) -> float:
    call()  # the first call is slower: memory and threads are made ready
    seconds: list[float] = []
    started = time.perf_counter()
    while len(seconds) < _LEAST or time.perf_counter() - started < _SECONDS:
        begun = time.perf_counter()
        call().view(-1)[0].item()  # which waits for an accelerator
        seconds.append(time.perf_counter() - begun)
    return min(seconds)
