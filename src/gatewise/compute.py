"""`Compute`: where work is done and where results are kept. It never decides what is computed.

Every call that works takes one as `compute=`. As a context it is what all calls within take by default:

    with gw.Compute(workers=4, store="runs"):
        gates = gw.find_gates(model, task, edges=500)
"""

from __future__ import annotations

import os
import re
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from gatewise.devices import device_budget, is_accelerator
from gatewise.errors import GatewiseError
from gatewise.files import shown
from gatewise.store import Store
from gatewise.workers import WorkerPool, check_workers

DEFAULT_MEMORY = 4 << 30  # bytes of activations at a time
_MOST_MEMORY = 1 << 50  # more than any machine has
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_ENTERED: ContextVar[tuple[Compute, ...]] = ContextVar("entered", default=())


@dataclass(frozen=True)
class Compute:
    """Memory, processes and the store of one call, or of all calls within a `with` block.

    Args:
        memory: Bytes of activations at a time, or text such as "8GB"; by default 4 GB, on an accelerator what is free
            there (the largest power of two below four fifths of it).
        workers: Number of processes of this machine that share the work, one thread each. By default the work is done
            in this process, on torch's threads. The result is the same for any number of workers. If the model is on an
            accelerator, the processes take this machine's devices of that kind in turn.
        ray: Address of a Ray cluster that shares the work, in place of `workers`; "auto" for this machine's.
        gpus: GPUs that each worker takes of the Ray cluster, if the model is on one; workers with 0.5 share one.
        store: Folder or URL that keeps results. What was computed before with the same weights, pairs and settings is
            read there, and an interrupted search resumes from its last checkpoint.
    """

    memory: int | str | None = None
    workers: int | None = None
    ray: str | None = None
    store: Store | str | os.PathLike[str] | None = None
    gpus: float = 1.0

    @property
    def memory_bytes(self) -> int:
        """The memory budget in bytes, of work on the CPU."""
        return parse_bytes(self.memory)

    def open_store(self) -> Store | None:
        """Open the store.

        Returns:
            The store; None if results are not kept.
        """
        return self.store if isinstance(self.store, Store) or self.store is None else Store(self.store)

    def worker_pool(self, device: torch.device) -> WorkerPool | None:
        """Make the workers that share the work.

        Args:
            device: Where the model is; each worker has a device of that kind.

        Returns:
            The workers; None if the work is done in this process.

        Raises:
            GatewiseError: If the number of workers or of GPUs makes no sense.
        """
        if self.workers is None and self.ray is None:
            return None
        check_workers(1 if self.workers is None else self.workers, self.ray)
        if not self.gpus > 0:
            raise GatewiseError(f"gpus is how many GPUs a worker takes, such as 1 or 0.5; got {self.gpus!r}.")
        return WorkerPool(self.workers or 1, self.ray, device=device.type, gpus=self.gpus)

    def __enter__(self) -> Compute:
        _ENTERED.set((*_ENTERED.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        _ENTERED.set(_ENTERED.get()[:-1])


def current_compute(given: Compute | None = None) -> Compute:
    """Return what a call computes on: what it was given, or the innermost `with` block's, or the defaults."""
    if given is not None:
        return given
    entered = _ENTERED.get()
    return entered[-1] if entered else Compute()


def memory_budget(memory: int | str | None, device: torch.device) -> int:
    """Return the bytes of activations at a time: what was given, or else what a kind of device has by default."""
    return device_budget(device) if memory is None and is_accelerator(device) else parse_bytes(memory)


def parse_bytes(memory: int | str | None) -> int:
    """Return bytes from a number or from text such as "8GB"; by default 4 GB."""
    if memory is None:
        return DEFAULT_MEMORY
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([kmgt]?)i?b?\s*", str(memory).lower())
    given = 0 if match is None else int(float(match[1]) * _UNITS[match[2]])
    if not 0 < given <= _MOST_MEMORY:
        raise GatewiseError(
            f"memory is a positive number of bytes or text such as '8GB', at most {format_bytes(_MOST_MEMORY)}; "
            f"got {shown(memory)}."
        )
    return given


def format_bytes(count: int) -> str:
    """Return text such as "1.5 GiB", in the largest unit of which there is at least one."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"
