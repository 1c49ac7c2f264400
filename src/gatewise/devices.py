"""What depends on the device that computes: its free memory, its widest floats, and what the host sends and fetches.

The only module that speaks to torch.cuda and its like. An accelerator works while the host goes on, until the host asks
for a number: then both wait. So indices that the host knows are sent once and kept, and numbers are fetched together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import psutil
import torch
from torch import Tensor

_assigned: torch.device | None = None  # to this process, if it is a worker
_halvings = 0  # how often this process shall halve its batches
_KEPT_BYTES = 1 << 16  # tensors up to this size are kept on the device
_AT_ONCE = 1 << 26  # bytes that are fetched together


def is_accelerator(device: torch.device) -> bool:
    """Whether the device is neither the CPU nor the one that only counts."""
    return device.type not in ("cpu", "meta")


def free_memory(device: torch.device) -> int:
    """Bytes that are free where a device computes; those of the machine if the device does not say."""
    if device.type == "mps":  # shares the machine's memory, of which the driver recommends a part
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    if is_accelerator(device):
        memory_info = getattr(torch.get_device_module(device), "mem_get_info", None)
        if memory_info is not None:
            return int(memory_info(device)[0])
    return int(psutil.virtual_memory().available)


def release_cached_memory(device: torch.device) -> None:
    """Give back what torch keeps for later tensors of a device."""
    if is_accelerator(device):
        torch.get_device_module(device).empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device's memory is full; Apple's has no type of its own for it."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


def device_budget(device: torch.device) -> int:
    """Bytes of activations at a time on an accelerator, where the user gave no number.

    The largest power of two below four fifths of what is free: the same for small changes of what others take.
    """
    return 1 << max(20, (free_memory(device) * 4 // 5).bit_length() - 1)


@cache
def device_count(kind: str) -> int:
    """How many devices of a kind this process sees: for CUDA those of CUDA_VISIBLE_DEVICES."""
    return 1 if kind == "cpu" else int(torch.get_device_module(kind).device_count())


def assign(device: str | None, halvings: int = 0) -> None:
    """Say, in a worker, which device it computes on, and how often it shall halve its batches."""
    global _assigned, _halvings
    _assigned, _halvings = None if device is None else torch.device(device), halvings


def assigned(device: str | torch.device) -> torch.device:
    """Where this process computes what is meant for a kind of device: a worker on its own, if none is numbered."""
    wanted = torch.device(device)
    return _assigned if _assigned is not None and _assigned.type == wanted.type and wanted.index is None else wanted


def halvings() -> int:
    """How often this process halves its batches: a worker after others have died of the same work."""
    return _halvings


@cache
def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 on devices that have no other, such as Apple's."""
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except TypeError:
        return torch.float32
    return torch.float64


def widened(x: Tensor) -> Tensor:
    """The same numbers in the widest floats of their device."""
    return x.to(widest_float(x.device))


def on_device(known: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A small tensor of the host on a device, sent once for all equal ones. Not to be written to."""
    if not is_accelerator(device) or known.nbytes > _KEPT_BYTES:
        return known.to(device, dtype)
    return _sent(known.numpy().tobytes(), known.dtype, tuple(known.shape), device, dtype or known.dtype)


@lru_cache(maxsize=1 << 14)
def _sent(
    content: bytes, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device, target: torch.dtype
) -> Tensor:
    known = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return known.reshape(shape).to(device, target)


def rows_of(rows: Sequence[int], device: torch.device) -> slice | Tensor:
    """What selects these rows of a tensor: a slice where they follow each other, which sends and copies nothing."""
    if len(rows) and list(rows) == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return on_device(torch.tensor(rows, dtype=torch.long), device)


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one device on the host; waits once for many of them."""
    if not tensors or not is_accelerator(tensors[0].device):
        return list(tensors)
    on_host: list[Tensor] = []
    first, size = 0, 0
    for end, tensor in enumerate(tensors):
        if size and size + tensor.nbytes > _AT_ONCE:
            on_host += _fetched_together(tensors[first:end])
            first, size = end, 0
        size += tensor.nbytes
    return on_host + _fetched_together(tensors[first:])


def _fetched_together(tensors: Sequence[Tensor]) -> list[Tensor]:
    if len(tensors) == 1:
        return [tensors[0].detach().cpu()]
    content = torch.cat([tensor.detach().reshape(-1).contiguous().view(torch.uint8) for tensor in tensors]).cpu()
    on_host = []
    for tensor, part in zip(tensors, content.split([tensor.nbytes for tensor in tensors]), strict=True):
        on_host.append(part.clone().view(tensor.dtype).reshape(tensor.shape))  # a copy starts where its dtype may start
    return on_host
