"""Where work is done: in this process, in several of this machine, or on a Ray cluster.

Tasks are cells of a sweep, searches and measurements of the paper's experiments, or parts of one search. Each way
yields them as they end, with what they gave or what went wrong. A task that breaks its process is tried again, as is
one that ends with an error the user cannot mend; what a user can mend (`GatewiseError`) is not worth a second try.

What tasks share (a model, pairs) goes to each process once, as a pickle, and is made there once.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from gatewise.errors import GatewiseError
from gatewise.progress import hide_bars

Job = TypeVar("Job")  # a cell of a sweep, a search or a measurement of an experiment, a part of a search
JobFunction = Callable[[Job, Any], Any]  # of a task and what tasks share; both can be sent to another process
_MAIN = threading.Lock()
_IMPORTS = ["torch", "transformers.modeling_utils", "gatewise.workers"]  # of nearly all workers


@dataclass(frozen=True)
class Ended(Generic[Job]):
    """A task that is over."""

    task: Job
    value: Any = None
    problem: str = ""  # what went wrong, if anything did


@dataclass(frozen=True)
class Team:
    """Who does the parts of one search or evaluation: so many processes of this machine, or a Ray cluster.

    Each worker computes on one thread, so that nothing depends on how many there are: sums of floats do depend on how
    many threads share a product. One worker is this process on one thread.
    """

    workers: int = 1
    ray: str | None = None
    retries: int = 2

    def results(self, tasks: Sequence[Job], work: JobFunction[Job], shared: Any) -> Iterator[tuple[Job, Any]]:
        """What the tasks give, as they end; the first that fails for good is an error."""
        if self.ray is None and min(self.workers, len(tasks)) < 2:
            yield from ((task, work(task, shared)) for task in tasks)
            return
        how: dict[str, Any] = {"retries": self.retries, "workers": self.workers, "ray": self.ray}
        for ended in run_tasks(tasks, work, shared, **how):
            if ended.problem:
                raise GatewiseError(ended.problem)
            yield ended.task, ended.value


def check_workers(workers: int, ray: str | None) -> None:
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise GatewiseError(f"workers is a number of processes, at least 1; got {workers!r}.")
    if ray is not None and workers > 1:
        raise GatewiseError("give either workers (of this machine) or ray (a cluster), not both.")


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """So many threads of torch meanwhile; None: as many as there are."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_tasks(
    tasks: Sequence[Job],
    work: JobFunction[Job],
    shared: Any = None,
    *,
    retries: int,
    workers: int = 1,
    ray: str | None = None,
    threads: int = 1,
) -> Iterator[Ended[Job]]:
    """Do `work` for every task, on `shared`. `threads`: that each of them takes."""
    if ray is not None:
        return _on_ray(tasks, work, _packed(shared), retries, ray, threads)
    processes = min(workers, len(tasks))
    if processes > 1:
        return _in_processes(tasks, work, _packed(shared), retries, processes)
    return (_tried(lambda task: _attempt(task, work, lambda: shared), task, retries) for task in tasks)


def _attempt(task: Job, work: JobFunction[Job], shared: Callable[[], Any]) -> Ended[Job]:
    """Do one task; what the user has to mend is its problem."""
    try:
        return Ended(task, work(task, shared()))
    except GatewiseError as error:
        return Ended(task, problem=str(error))


def _packed(shared: Any) -> bytes:
    try:
        return pickle.dumps(shared)
    except GatewiseError:
        raise
    except Exception as error:  # pickle's own, AttributeError, TypeError: whatever an object makes of it
        raise GatewiseError(
            f"this cannot be sent to workers: {_first_line(error)}. Define your own metrics, methods and adapters by "
            f"name in a module that workers can import, or leave workers out."
        ) from error


def _unpacked(content: bytes) -> Any:
    try:
        return pickle.loads(content)  # noqa: S301 - our own
    except (AttributeError, ImportError) as error:
        raise GatewiseError(
            f"a worker cannot find what it needs: {_first_line(error)}. Put your own metrics, methods and adapters in "
            f"a module that workers can import."
        ) from error


class _Shared:
    """In a worker: what tasks share, made when the first one asks for it."""

    def __init__(self, name: str, fetch: Callable[[], bytes]) -> None:
        self.name = name
        self._fetch: Callable[[], bytes] | None = fetch
        self._value: Any = None

    def __call__(self) -> Any:
        if self._fetch is not None:
            self._value, self._fetch = _unpacked(self._fetch()), None
        return self._value


_shared = _Shared("", lambda: b"")  # of this worker


def _in_processes(
    tasks: Sequence[Job], work: JobFunction[Job], shared: bytes, retries: int, workers: int
) -> Iterator[Ended[Job]]:
    """Threads that each feed a process of their own: a process that dies takes no other's task with it."""
    own, pools = threading.local(), []
    begun: list[Future[int]] = []
    stopped = threading.Event()

    def run(task: Job) -> Ended[Job]:
        if stopped.is_set():
            return Ended(task, problem="stopped")
        try:
            if getattr(own, "pool", None) is None:
                own.pool = ProcessPoolExecutor(1, mp_context=_context(), initializer=_end_with_parent)
                pools.append(own.pool)
                with _without_main():
                    begun.append(own.pool.submit(_begin, shared, dict(os.environ)))
            ended: Future[bytes] = own.pool.submit(_in_worker, task, work)
            found: Ended[Job] = pickle.loads(ended.result())  # noqa: S301 - our own
            return found
        except BrokenProcessPool:
            own.pool = None
            raise

    with ThreadPoolExecutor(workers) as executor:
        futures = [executor.submit(_tried, run, task, retries) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:  # an interrupt, or a caller that has seen enough: nobody waits for the rest
            stopped.set()
            for one in begun:
                if one.done() and one.exception() is None:
                    with suppress(ProcessLookupError):
                        os.kill(one.result(), signal.SIGTERM)
            raise
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            for pool in pools:
                pool.shutdown(wait=False, cancel_futures=True)


def _context() -> Any:
    """How processes start: on Linux as forks of one that has done the imports, which take seconds, and nothing else."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS)
    return context


def _begin(shared: bytes, environment: dict[str, str]) -> int:
    """The first thing that a process does; which one it is."""
    global _shared
    os.environ.clear()
    os.environ.update(environment)  # its own may be of an earlier time
    hide_bars()
    _shared = _Shared("", lambda: shared)
    return os.getpid()


def _in_worker(task: Any, work: JobFunction[Any]) -> bytes:
    """Pickled here and not by the pool, which would share the memory of tensors: there may be little to share."""
    return pickle.dumps(_attempt(task, work, _shared))


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that start meanwhile do not run the user's script again, as those of `multiprocessing` would."""
    main = sys.modules["__main__"]
    with _MAIN:
        hidden: dict[str, Any] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
        main.__spec__ = None
        try:
            yield
        finally:
            vars(main).update(hidden)


def attempt(task: Any, work: JobFunction[Any], name: str, content: Sequence[Any]) -> bytes:
    """In a worker of Ray, which may have done other tasks of the same work before. content: one object reference"""
    global _shared
    hide_bars()
    if _shared.name != name:
        _shared = _Shared(name, lambda: bytes(_ray().get(content[0])))
    return pickle.dumps(_attempt(task, work, _shared))


def _on_ray(
    tasks: Sequence[Job], work: JobFunction[Job], shared: bytes, retries: int, address: str, threads: int
) -> Iterator[Ended[Job]]:
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
        name, content = uuid.uuid4().hex, [ray.put(shared)]
        pending: dict[Any, Job] = {remote.remote(task, work, name, content): task for task in tasks}
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            task = pending.pop(done)
            try:
                yield pickle.loads(ray.get(done))  # noqa: S301 - our own
            except ray.exceptions.RayError as error:
                yield Ended(task, problem=f"{_first_line(error)} ({retries + 1} times)")
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


def _tried(run: Callable[[Job], Ended[Job]], task: Job, retries: int) -> Ended[Job]:
    """What `run` gives, or how it failed the last time."""
    problem = ""
    for _ in range(retries + 1):
        try:
            return run(task)
        except BrokenProcessPool:
            problem = "its process died"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    return Ended(task, problem=f"{problem} ({retries + 1} times)")


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
