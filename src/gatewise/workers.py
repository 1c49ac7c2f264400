"""Where jobs are done: in this process, in several of this machine, or on a Ray cluster.

Jobs are cells of a sweep, searches and measurements of the paper's experiments, or parts of one search. Each way
yields them as they end, with what they gave or what went wrong. A job that breaks its process is tried again, as is
one that ends with an error the user cannot fix; what a user can fix (`GatewiseError`) is not worth a second try.

What jobs share (a model, pairs) goes to each process once, as a pickle, and is made there once. If the model is on an
accelerator, each worker has a device of that kind: those of this machine in turn, or what Ray gives it. There a job
whose process died is repeated with half of the examples at a time, since a full memory is the likeliest reason.
"""

from __future__ import annotations

import io
import itertools
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

import psutil
import torch
from torch import Tensor

from gatewise.devices import assign, assigned, device_count
from gatewise.errors import GatewiseError, GatewiseWarning, first_line
from gatewise.import_path import starting_elsewhere, take_up
from gatewise.progress import hide_bars

Job = TypeVar("Job")  # a cell of a sweep, a search or a measurement of an experiment, a part of a search
JobFunction = Callable[[Job, Any], Any]  # of a job and what jobs share; both can be sent to another process
_MAIN = threading.Lock()
_IMPORTS = ["torch", "transformers.modeling_utils", "gatewise.workers"]  # of nearly all workers


@dataclass(frozen=True)
class FinishedJob(Generic[Job]):
    """A job that has ended."""

    job: Job
    value: Any = None
    problem: str = ""  # what went wrong, if anything did
    notes: tuple[str, ...] = ()  # what the user should know


@dataclass(frozen=True)
class WorkerPool:
    """Who does the parts of one search or evaluation: so many processes of this machine, or a Ray cluster.

    Each worker computes on one thread, so that nothing depends on how many there are: sums of floats do depend on how
    many threads share a product. A pool of one worker is this process.
    """

    workers: int = 1
    ray: str | None = None
    retries: int = 2
    device: str = "cpu"  # the kind that each worker has one of
    gpus: float = 1.0  # that each worker takes of a Ray cluster

    def results(self, jobs: Sequence[Job], work: JobFunction[Job], shared: Any) -> Iterator[tuple[Job, Any]]:
        """Yield the jobs with what they give, as they end; the first that fails for good is an error."""
        if self.ray is None and min(self.workers, len(jobs)) < 2:
            yield from ((job, work(job, shared)) for job in jobs)
            return
        for finished in run_jobs(
            jobs,
            work,
            shared,
            retries=self.retries,
            workers=self.workers,
            ray=self.ray,
            device=self.device,
            gpus=self.gpus,
        ):
            if finished.problem:
                raise GatewiseError(finished.problem)
            yield finished.job, finished.value


def check_workers(workers: int, ray: str | None) -> None:
    """Refuse a number of workers that is none, and workers beside Ray."""
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise GatewiseError(f"workers is a number of processes, at least 1; got {workers!r}.")
    if ray is not None and workers > 1:
        raise GatewiseError("give either workers (of this machine) or ray (a cluster), not both.")


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Let torch compute on so many threads meanwhile; None: as many as before."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_jobs(
    jobs: Sequence[Job],
    work: JobFunction[Job],
    shared: Any = None,
    *,
    retries: int,
    workers: int = 1,
    ray: str | None = None,
    threads: int = 1,
    device: str = "cpu",
    gpus: float = 1.0,
) -> Iterator[FinishedJob[Job]]:
    """Do `work` for every job.

    Args:
        jobs: What is to be done.
        work: Called with a job and what jobs share.
        shared: What all jobs need, sent to each process once.
        retries: Further tries of a job whose process dies, or that fails for another reason than what was asked.
        workers: Processes of this machine; 1 is this process.
        ray: Address of a Ray cluster, in place of workers.
        threads: That each job takes of the Ray cluster.
        device: The kind of device that jobs compute on. Processes take those of this machine in turn.
        gpus: That each job takes of the Ray cluster if the device is none of the CPU; a fraction shares one.

    Returns:
        The finished jobs, as they end.
    """
    if ray is not None:
        return _warned(_on_ray(jobs, work, _packed(shared), retries, ray, threads, device, gpus))
    processes = min(workers, len(jobs))
    if processes > 1:
        return _warned(_in_processes(jobs, work, _packed(shared), retries, processes, device))
    run = partial(_finished, work=work, shared=lambda: shared)
    return (_with_retries(lambda job, _: run(job), job, retries) for job in jobs)


def _warned(ended: Iterator[FinishedJob[Job]]) -> Iterator[FinishedJob[Job]]:
    """Tell the user what workers want to be known, each thing once."""
    known_notes: set[str] = set()
    for finished in ended:
        for note in finished.notes:
            if note not in known_notes:
                known_notes.add(note)
                warnings.warn(note, GatewiseWarning, stacklevel=2)
        yield finished


def _finished(job: Job, work: JobFunction[Job], shared: Callable[[], Any]) -> FinishedJob[Job]:
    """Do one job; what the user has to fix is its problem, all else is an error."""
    try:
        return FinishedJob(job, work(job, shared()))
    except GatewiseError as error:
        return FinishedJob(job, problem=str(error))


def _with_retries(run: Callable[[Job, int], FinishedJob[Job]], job: Job, retries: int) -> FinishedJob[Job]:
    """What `run` gives for a job and how many tries there were before, or how it failed the last time."""
    problem = ""
    for tries in range(retries + 1):
        try:
            return run(job, tries)
        except BrokenProcessPool:
            problem = "its process died"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    return FinishedJob(job, problem=f"{problem} ({retries + 1} times)")


def _noted(finished: FinishedJob[Job], device: str, tries: int) -> FinishedJob[Job]:
    """Say that a job was repeated with smaller batches, which may round otherwise."""
    if device == "cpu" or not tries or finished.problem:
        return finished
    note = f"a worker on {device} died or failed; its work was repeated with fewer examples at a time (1/{1 << tries})."
    return replace(finished, notes=(*finished.notes, note))


# What jobs share


class _Pickler(pickle.Pickler):
    """Sends tensors of accelerators over the host: to a worker's own device, or, what it found, to the CPU."""

    def __init__(self, file: io.BytesIO, *, to_device: bool) -> None:
        super().__init__(file)
        self._to_device = to_device

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.device.type in ("cpu", "meta"):
            return NotImplemented
        kind = value.device.type if self._to_device else "cpu"
        return placed, (value.detach().cpu(), kind, isinstance(value, torch.nn.Parameter), value.requires_grad)


def placed(value: Tensor, kind: str, parameter: bool, requires_grad: bool) -> Tensor:
    """Put what was sent to this process on its own device of a kind."""
    value = value.to(assigned(kind))
    return torch.nn.Parameter(value, requires_grad) if parameter else value


def _pickled(value: Any, *, to_device: bool) -> bytes:
    file = io.BytesIO()
    _Pickler(file, to_device=to_device).dump(value)
    return file.getvalue()


def _packed(shared: Any) -> bytes:
    try:
        return _pickled(shared, to_device=True)
    except GatewiseError:
        raise
    except Exception as error:  # pickle's own, AttributeError, TypeError: whatever an object makes of it
        raise GatewiseError(
            f"this cannot be sent to workers: {first_line(error)}. Define your own metrics, methods and adapters by "
            f"name in a module that workers can import, or leave workers out."
        ) from error


class _Shared:
    """In a worker: what jobs share, unpickled when the first one asks for it."""

    def __init__(self, name: str, fetch: Callable[[], bytes]) -> None:
        self.name = name
        self._fetch: Callable[[], bytes] | None = fetch
        self._value: Any = None

    def __call__(self) -> Any:
        if self._fetch is not None:
            try:
                self._value = pickle.loads(self._fetch())  # noqa: S301 - our own
            except (AttributeError, ImportError) as error:
                raise GatewiseError(
                    f"a worker cannot find what it needs: {first_line(error)}. Put your own metrics, methods and "
                    f"adapters in a module that workers can import."
                ) from error
            self._fetch = None
        return self._value


_shared = _Shared("", lambda: b"")  # of this worker


# Processes of this machine


def _in_processes(
    jobs: Sequence[Job], work: JobFunction[Job], shared: bytes, retries: int, workers: int, kind: str
) -> Iterator[FinishedJob[Job]]:
    """Threads that each feed a process of their own: a process that dies takes no other's job with it."""
    own, pools = threading.local(), []
    numbers = itertools.count()
    process_ids: list[Future[int]] = []
    stopped = threading.Event()

    def run(job: Job, tries: int) -> FinishedJob[Job]:
        if stopped.is_set():
            return FinishedJob(job, problem="stopped")
        try:
            if getattr(own, "pool", None) is None:
                if getattr(own, "device", None) is None:  # a process that follows a dead one has the same
                    own.device = kind if kind == "cpu" else f"{kind}:{next(numbers) % device_count(kind)}"
                environment, surroundings = dict(os.environ), _surroundings()
                with _without_main(), starting_elsewhere():  # the pool starts a tracker, its first job the processes
                    if stopped.is_set():  # while this thread waited for its turn
                        return FinishedJob(job, problem="stopped")
                    own.pool = ProcessPoolExecutor(1, mp_context=_start_method(), initializer=_end_with_parent)
                    pools.append(own.pool)
                    process_ids.append(own.pool.submit(_begin, shared, environment, surroundings))
            future: Future[bytes] = own.pool.submit(_in_worker, job, work, own.device, tries)
            finished: FinishedJob[Job] = pickle.loads(future.result())  # noqa: S301 - our own
            return _noted(finished, own.device, tries)
        except BrokenProcessPool:
            own.pool = None  # the next try gets a new process
            raise

    with ThreadPoolExecutor(workers) as executor:
        futures = [executor.submit(_with_retries, run, job, retries) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:  # an interrupt, or a caller that has seen enough: nobody waits for the rest
            stopped.set()
            executor.shutdown(wait=False, cancel_futures=True)
            while not all(future.done() for future in futures):  # a thread may just be starting a process
                _stop_processes(process_ids, workers)
                time.sleep(0.05)
            raise
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            for pool in pools:
                pool.shutdown(wait=False, cancel_futures=True)


def _stop_processes(process_ids: Sequence[Future[int]], workers: int) -> None:
    """End the processes that have begun, and what others are waiting for."""
    for begun in process_ids:
        if begun.done() and begun.exception() is None:
            with suppress(ProcessLookupError):
                os.kill(begun.result(), signal.SIGTERM)
    if len(process_ids) < workers or not all(begun.done() for begun in process_ids):
        _stop_server()


def _start_method() -> Any:
    """How processes start: on Linux as forks of a server that has done the imports, elsewhere as new interpreters.

    Imports take seconds for each new interpreter. A fork of this process itself is not safe: torch has threads.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS)
    return context


def _stop_server() -> None:
    """Kill a fork server that is still importing: whoever waits for its processes would wait for many seconds."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any("multiprocessing.forkserver" in word for word in child.cmdline()):
                child.kill()  # the next process that is asked for starts another


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


def _end_with_parent() -> None:
    """In a worker: end when the parent is killed, instead of waiting for jobs for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:

        def wait() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=wait, daemon=True).start()


def _surroundings() -> tuple[str, list[str]]:
    """The working folder, and where modules are looked for."""
    return os.getcwd(), list(sys.path)


def _begin(shared: bytes, environment: dict[str, str], surroundings: tuple[str, list[str]]) -> int:
    """The first thing that a process does; returns its id."""
    global _shared
    os.environ.clear()
    os.environ.update(environment)  # the fork server's may be of an earlier time
    take_up(*surroundings)
    hide_bars()
    _shared = _Shared("", lambda: shared)
    return os.getpid()


def _in_worker(job: Any, work: JobFunction[Any], device: str = "cpu", tries: int = 0) -> bytes:
    assign(device, 0 if device == "cpu" else tries)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        finished = _finished(job, work, _shared)
    for_users = [warning for warning in caught if issubclass(warning.category, GatewiseWarning)]
    finished = replace(finished, notes=tuple(str(warning.message) for warning in for_users))
    # Pickled here and not by the pool, which would put tensors into shared memory: there may be little of it.
    return _pickled(finished, to_device=False)


# Ray


def on_ray_worker(
    job: Any,
    work: JobFunction[Any],
    name: str,
    content: Sequence[Any],
    surroundings: tuple[str, list[str]],
    kind: str = "cpu",
    tries: int = 0,
) -> bytes:
    """Do a job in a worker of Ray, which may have done others of the same work before. content: an object reference"""
    global _shared
    hide_bars()
    device = _device_of_ray(kind)
    if _shared.name != f"{name} {device}":  # Ray may give the next job of this process another device
        take_up(*surroundings)
        _shared = _Shared(f"{name} {device}", lambda: bytes(_ray().get(content[0])))
    return _in_worker(job, work, device, tries)


def _device_of_ray(kind: str) -> str:
    """The device that Ray has given this job. Of CUDA's it lets the process see no other."""
    if kind in ("cpu", "cuda"):
        return kind if kind == "cpu" else "cuda:0"
    (given, *_) = _ray().get_runtime_context().get_accelerator_ids()["GPU"]
    return f"{kind}:{int(given) % device_count(kind)}"


def _on_ray(
    jobs: Sequence[Job],
    work: JobFunction[Job],
    shared: bytes,
    retries: int,
    address: str,
    threads: int,
    kind: str,
    gpus: float,
) -> Iterator[FinishedJob[Job]]:
    """Jobs of a Ray cluster, which distributes them; those whose worker dies are started again elsewhere."""
    ray = _ray()
    ours = not ray.is_initialized()
    if ours:
        try:
            _check_reachable(address)
            # In a folder of its own that holds nothing: Ray would let workers look for modules in ours.
            with TemporaryDirectory(prefix="gatewise-ray-") as empty:
                environment = {"working_dir": empty}
                ray.init(address=address, log_to_driver=False, logging_level="error", runtime_env=environment)
        except (OSError, ValueError, RuntimeError) as error:
            raise GatewiseError(
                f"there is no Ray cluster at {address!r} ({first_line(error)}). Start one with `ray start --head`, "
                f"or leave --ray out."
            ) from error
    try:
        present = ray.cluster_resources().get("GPU", 0)
        if kind != "cpu" and present < gpus:
            raise GatewiseError(
                f"the model is on {kind}, of which each worker takes {gpus:g}, and the Ray cluster at {address!r} has "
                f"{present:g} GPUs. Start it with `ray start --head --num-gpus N`, or load the model with device='cpu'."
            )
        taken = {"num_gpus": gpus} if kind != "cpu" else {}
        remote = ray.remote(on_ray_worker).options(num_cpus=threads, max_retries=0, **taken)
        # In a list, since Ray would fetch a reference that is an argument before the job starts, for every job.
        name, content = uuid.uuid4().hex, [ray.put(shared)]
        surroundings = _surroundings()
        pending: dict[Any, tuple[Job, int]] = {}
        for job in jobs:
            pending[remote.remote(job, work, name, content, surroundings, kind)] = (job, 0)
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            job, tries = pending.pop(done)
            try:
                yield _noted(pickle.loads(ray.get(done)), kind, tries)  # noqa: S301 - our own
            except ray.exceptions.RayError as error:
                if tries < retries:
                    again = remote.remote(job, work, name, content, surroundings, kind, tries + 1)
                    pending[again] = (job, tries + 1)
                else:
                    yield FinishedJob(job, problem=f"{first_line(error)} ({retries + 1} times)")
    finally:
        if ours:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise GatewiseError("--ray needs Ray: pip install 'gatewise[ray]', on every machine of the cluster.") from error
    return ray


def _check_reachable(address: str) -> None:
    """Raise an OSError if nobody listens at HOST:PORT: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10):
            pass
