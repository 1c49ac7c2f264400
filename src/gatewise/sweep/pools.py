"""Where cells run: in this process, in several of this machine, or on a Ray cluster. The store is all they share.

Each way yields the cells as they end, with "" or what went wrong. A cell that breaks its process is tried again, as is
one that ends with an error the user cannot mend; what a user can mend (`GatewiseError`) is not worth a second try.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from gatewise.errors import GatewiseError
from gatewise.sweep.grid import Cell

Ended = Iterator[tuple[Cell, str]]


def attempt(cell: Cell, root: str) -> str:
    """Run a cell; "" if its result is stored now, else what the user has to mend."""
    from gatewise.store import Store
    from gatewise.sweep.cells import run_cell

    try:
        run_cell(cell, Store(root))
    except GatewiseError as error:
        return str(error)
    return ""


def in_this_process(cells: Sequence[Cell], root: str, retries: int) -> Ended:
    for cell in cells:
        yield cell, _tried(attempt, cell, root, retries)


def in_processes(cells: Sequence[Cell], root: str, retries: int, workers: int) -> Ended:
    """Threads that each feed a process of their own: a process that dies takes no other's cell with it."""
    own, pools = threading.local(), []

    def run(cell: Cell, root: str) -> str:
        if getattr(own, "pool", None) is None:
            context = multiprocessing.get_context("spawn")
            own.pool = ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_parent)
            pools.append(own.pool)
        try:
            ended: Future[str] = own.pool.submit(attempt, cell, root)
            return ended.result()
        except BrokenProcessPool:
            own.pool = None
            raise

    with ThreadPoolExecutor(workers) as threads:
        futures = {threads.submit(_tried, run, cell, root, retries): cell for cell in cells}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for pool in pools:
                pool.shutdown(wait=False, cancel_futures=True)


def on_ray(cells: Sequence[Cell], root: str, retries: int, address: str) -> Ended:
    """Tasks of a Ray cluster, which distributes them and starts them again elsewhere when a worker dies."""
    ray = _ray()
    ours = not ray.is_initialized()
    if ours:
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (OSError, ValueError, RuntimeError) as error:
            raise GatewiseError(
                f"there is no Ray cluster at {address!r} ({_first_line(error)}). Start one with `ray start --head`, "
                f"or leave --ray out."
            ) from error
    try:
        remote = ray.remote(attempt)
        pending: dict[Any, Cell] = {}
        for cell in cells:
            options = {"num_cpus": cell.threads, "max_retries": retries, "retry_exceptions": True}
            pending[remote.options(**options).remote(cell, root)] = cell
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            try:
                problem = ray.get(done)
            except ray.exceptions.RayError as error:
                problem = f"{_first_line(error)} ({retries + 1} times)"
            yield pending.pop(done), problem
    finally:
        if ours:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise GatewiseError("--ray needs Ray: pip install 'gatewise[ray]', on every machine of the cluster.") from error
    return ray


def _knock(address: str) -> None:
    """An OSError if nobody listens at HOST:PORT: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10):
            pass


def _tried(run: Callable[[Cell, str], str], cell: Cell, root: str, retries: int) -> str:
    """What `run` says, or how it failed the last time."""
    problem = ""
    for _ in range(retries + 1):
        try:
            return run(cell, root)
        except BrokenProcessPool:
            problem = "its process died"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    return f"{problem} ({retries + 1} times)"


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:

        def wait() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=wait, daemon=True).start()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
