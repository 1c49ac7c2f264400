"""Where tasks run: in this process, in several of this machine, or on a Ray cluster. The store is all they share.

Tasks are cells of a sweep, or searches and measurements of the paper's experiments. Each way yields them as they end,
with "" or what went wrong. A task that breaks its process is tried again, as is one that ends with an error the user
cannot mend; what a user can mend (`GatewiseError`) is not worth a second try.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from gatewise.errors import GatewiseError

Chore = TypeVar("Chore")  # a cell of a sweep, a search or a measurement of an experiment
Ended = Iterator[tuple[Chore, str]]


def run_tasks(
    tasks: Sequence[Chore],
    work: Callable[[Chore], object],
    *,
    retries: int,
    workers: int = 1,
    ray: str | None = None,
    threads: int = 1,
) -> Ended[Chore]:
    """Do `work`, which can be sent to another process, for every task. `threads`: that each of them takes."""
    if ray is not None:
        return _on_ray(tasks, work, retries, ray, threads)
    processes = min(workers, len(tasks))
    return _in_processes(tasks, work, retries, processes) if processes > 1 else _in_this_process(tasks, work, retries)


def attempt(work: Callable[[Chore], object], task: Chore) -> str:
    """Do one task; "" if its result is stored now, else what the user has to mend."""
    try:
        work(task)
    except GatewiseError as error:
        return str(error)
    return ""


def _in_this_process(tasks: Sequence[Chore], work: Callable[[Chore], object], retries: int) -> Ended[Chore]:
    for task in tasks:
        yield task, _tried(attempt, work, task, retries)


def _in_processes(tasks: Sequence[Chore], work: Callable[[Chore], object], retries: int, workers: int) -> Ended[Chore]:
    """Threads that each feed a process of their own: a process that dies takes no other's task with it."""
    own, pools = threading.local(), []

    def run(work: Callable[[Chore], object], task: Chore) -> str:
        if getattr(own, "pool", None) is None:
            context = multiprocessing.get_context("spawn")
            own.pool = ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_parent)
            pools.append(own.pool)
        try:
            ended: Future[str] = own.pool.submit(attempt, work, task)
            return ended.result()
        except BrokenProcessPool:
            own.pool = None
            raise

    with ThreadPoolExecutor(workers) as executor:
        futures = {executor.submit(_tried, run, work, task, retries): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            for pool in pools:
                pool.shutdown(wait=False, cancel_futures=True)


def _on_ray(
    tasks: Sequence[Chore], work: Callable[[Chore], object], retries: int, address: str, threads: int
) -> Ended[Chore]:
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
        remote = ray.remote(attempt).options(num_cpus=threads, max_retries=retries, retry_exceptions=True)
        pending: dict[Any, Chore] = {remote.remote(work, task): task for task in tasks}
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


def _tried(run: Callable[..., str], work: Callable[[Chore], object], task: Chore, retries: int) -> str:
    """What `run` says, or how it failed the last time."""
    problem = ""
    for _ in range(retries + 1):
        try:
            return run(work, task)
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
