"""`forecast`: the memory and time of a search, by running one micro-batch of it on the meta device.

    peak = Python and torch + weights + the larger of (the check of the weights, the search)

A fifth is added to what is counted where gradients are taken: freed memory does not go back at once.

What is run how often, the method says (`Method.forecast`). EAP, EAP-IG and Edge Pruning do the same work whatever the
numbers, so that counting it is exact. How much ACDC does depends on what it finds: of it the states of all examples are
counted, and the time is a rule of thumb.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from gatewise.compute import parse_bytes
from gatewise.devices import free_memory
from gatewise.engine.runs.counting import Counter
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.methods.base import SEARCH_DIRECTIONS, Method, Problem, SearchDirection, Work
from gatewise.methods.registry import find_method
from gatewise.models.loader import as_number_type, check_device
from gatewise.plan.accelerators import ACCELERATORS, CONTEXT_BYTES, REACHED, find_accelerator, rates_of
from gatewise.plan.rates import Rates, measure_rates
from gatewise.plan.sources import Subject, subject

RUNTIME_BYTES = 375 << 20  # Python, torch and transformers, loaded
_USABLE = 0.9  # share of the free memory that a run should not exceed


@dataclass(frozen=True)
class Forecast:
    """What a search will take, about. Bytes and seconds."""

    model: str
    task: str
    method: str
    direction: str
    device: str  # of this machine, or the name of an accelerator
    dtype: str
    examples: int
    tokens: int  # of the longest prompt
    window: int  # of those, from the first difference of the pairs on
    graph_edges: int
    parameters: int
    runtime: int
    weights: int
    check: int  # of the weights, before the search: not at the same time as runs and buffers
    runs: int
    buffers: int
    peak: int
    micro_batch: int
    micro_batches: int
    f: float  # work in plain forward passes of all examples
    seconds: float
    operations_per_second: float
    free: int  # memory that there is
    rough: bool  # whether the time is a rule of thumb
    advice: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """True if the peak is well within the free memory."""
        return self.peak <= _USABLE * self.free

    def to_json(self) -> dict[str, Any]:
        """Make what `gatewise plan --json` prints.

        Returns:
            Plain data: the fields, and whether the search fits.
        """
        return {**asdict(self), "fits": self.fits}


def forecast(
    model: str,
    task: str = "ioi",
    method: str | Method = "eap",
    direction: SearchDirection = "ns",
    *,
    examples: int = 64,
    edges: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    bos: bool | None = None,
    first_token: bool = False,
    memory: int | str | None = None,
    accelerator: str | None = None,
    free: int | str | None = None,
) -> Forecast:
    """Forecast what `discover` with these arguments would take, without weights.

    Args:
        model: A folder with config.json, a .gguf file, or a well-known name.
        task: As for `gatewise.task`.
        method: As for `discover`.
        direction: As for `discover`.
        examples: Number of pairs to search on.
        edges: Size of the circuit; the time of ACDC and Edge Pruning depends on it.
        device: Of this machine; by default the CPU.
        dtype: Number type of the weights; by default float32.
        bos: As for `gatewise.task`.
        first_token: As for `gatewise.task`.
        memory: Budget for activations, as of `Compute`.
        accelerator: Instead of a device, one of `gatewise.plan.ACCELERATORS`, which need not be here.
        free: Memory of the machine; by default what is free there.

    Returns:
        Memory by what takes it, time, and advice.

    Raises:
        GatewiseError: The model, task or device is not known, or a number is out of range.
    """
    bound = find_method(method)
    if direction not in SEARCH_DIRECTIONS:
        raise GatewiseError(f"direction is 'ns', 'dn' or 'ns+dn', got {direction!r}.")
    if isinstance(examples, bool) or not isinstance(examples, int) or examples < 1:
        raise GatewiseError(f"examples is a whole number of at least 1, got {examples!r}.")
    dtype = str(dtype or "float32").removeprefix("torch.")
    machine = _machine(device, dtype, accelerator)
    planned = subject(model, task, examples, dtype, device=machine.kind, bos=bos, first_token=first_token)
    graph = planned.model.graph
    if edges is not None and not 0 < edges <= graph.n_edges:
        raise GatewiseError(f"a circuit of {edges:,} edges was asked for; {planned.model.name} has {graph.n_edges:,}.")
    setting = Setting(planned.model, planned.pairs, memory=memory)
    problem = Problem(setting, (direction,), {} if edges is None else {direction: (edges,)})
    counted = bound.forecast(problem)
    work = _two_runs(setting) if counted is None else counted
    plain_operations, plain_moved = _plain(planned)
    rates = machine.rates
    f, seconds = work.operations / plain_operations, work.operations / rates.operations + work.moved / rates.bytes
    if work.rough_f is not None:
        f = work.rough_f
        seconds = f * (plain_operations / rates.operations + plain_moved / rates.bytes)
    tensors = list(planned.model.tensors().values())
    weights, check = sum(tensor.nbytes for tensor in tensors), _check_bytes(tensors)
    bare = Forecast(
        model=planned.model.name,
        task=task,
        method=bound.name,
        direction=direction,
        device=machine.name,
        dtype=dtype,
        examples=len(planned.pairs),
        tokens=planned.pairs.width,
        window=planned.pairs.width - int(planned.pairs.first_difference.min()),
        graph_edges=graph.n_edges,
        parameters=sum(tensor.numel() for tensor in tensors),
        runtime=machine.runtime,
        weights=weights,
        check=check,
        runs=work.runs,
        buffers=work.buffers,
        peak=machine.runtime + weights + max(check, work.runs + work.buffers),
        micro_batch=work.micro_batch,
        micro_batches=work.micro_batches,
        f=f,
        seconds=seconds,
        operations_per_second=rates.operations,
        free=machine.free if free is None else parse_bytes(free),
        rough=work.rough_f is not None or counted is None,
    )
    unknown = [f"{bound.name} does not say what it takes; counted are the two runs, which is the least"]
    return replace(bare, advice=(*(unknown if counted is None else ()), *_advice(bare, planned, bound)))


@dataclass(frozen=True)
class _Machine:
    """Where a search is to run."""

    name: str
    kind: str  # cpu, cuda, ...
    runtime: int  # bytes that are taken before anything is loaded
    free: int
    rates: Rates


def _machine(device: str | None, dtype: str, accelerator: str | None) -> _Machine:
    as_number_type(dtype)
    if accelerator is None:
        check_device(device, as_number_type(dtype))
        here = torch.device(device or "cpu")
        return _Machine(str(here), here.type, RUNTIME_BYTES, free_memory(here), measure_rates(str(here)))
    if device is not None:
        raise GatewiseError(f"give either an accelerator ({accelerator}) or a device of this machine ({device}).")
    name, known = find_accelerator(accelerator)
    return _Machine(name, "cuda", CONTEXT_BYTES, known.memory << 30, rates_of(name, dtype))


def _two_runs(setting: Setting) -> Work:
    """Count the two runs of all examples, which is the least that a search takes."""
    batches = setting.batches()
    with Counter() as counter:
        setting.runs(batches[0], keep=False)
    share = len(setting) / len(batches[0].pairs)
    operations, moved = counter.operations * share, counter.moved * share
    return Work(counter.peak, 0, operations, moved, len(batches[0].pairs), len(batches))


def _plain(planned: Subject) -> tuple[float, float]:
    """Count operations and bytes moved of F: `hf(input_ids)` on all examples."""
    few = planned.pairs[:4]
    with Counter() as counter, torch.no_grad():
        planned.model.hf(input_ids=few.clean.to("meta"))
    share = len(planned.pairs) / len(few)
    return counter.operations * share, counter.moved * share


def _check_bytes(tensors: list[torch.Tensor]) -> int:
    """Count what it takes to see that all weights are finite."""
    largest = max(tensors, key=lambda tensor: tensor.nbytes)
    with Counter() as counter:
        torch.isfinite(largest).all()
    return int(counter.peak)


def _advice(bare: Forecast, planned: Subject, method: Method) -> list[str]:
    """Say what a forecast rests on, and what helps if the search does not fit."""
    advice = []
    if bare.device in ACCELERATORS:
        advice.append(f"for an accelerator that was never measured: {REACHED:.0%} of its maker's rates are believed")
    elif torch.device(bare.device).type != "cpu":
        advice.append(
            "on devices other than the CPU, results are tested with a stand-in accelerator; time and memory of real ones "
            "were never compared with a forecast"
        )
    if not planned.measured_tokens:
        advice.append(
            f"prompts are taken to have {bare.tokens} tokens; give a folder with tokenizer.json to have them counted"
        )
    if bare.fits:
        return advice
    if bare.dtype == "float32":
        advice.append("dtype bfloat16 halves the weights")
    if bare.runs + bare.buffers > bare.weights and bare.micro_batches > 1:
        half = max(1, math.ceil((bare.runs // 2) / 2**20))
        advice.append(f"a smaller budget means smaller micro-batches: --memory {half}MB")
    if not method.ranks_once:
        advice.append(f"{method.title} keeps runs and states in memory: use fewer examples, or --method eap")
    if bare.weights > _USABLE * bare.free:
        advice.append("the weights alone do not fit: use a smaller model or a larger machine")
    return advice
