"""`forecast`: the memory and time of a search, by running one micro-batch of it on the meta device.

    peak = Python and torch + weights + the larger of (the check of the weights, the search)

A fifth is added to what is counted where gradients are taken: freed memory does not go back at once.

What is run how often, the method says (`Method.forecast`). EAP, EAP-IG and Edge Pruning do the same work whatever the
numbers, so that counting it is exact. How much ACDC does depends on what it finds: of it the states of all examples are
counted, and the time is a rule of thumb.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from gatewise.compute import parse_bytes
from gatewise.engine.runs.batches import free_memory
from gatewise.engine.runs.counting import Counter
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.methods.base import SEARCH_DIRECTIONS, Method, Problem, SearchDirection, Work
from gatewise.methods.discovery import configured
from gatewise.models.loader import as_number_type, check_device
from gatewise.plan.accelerators import ACCELERATORS, CONTEXT_BYTES, REACHED, find_accelerator, rates_of
from gatewise.plan.rates import Rates, measure_rates
from gatewise.plan.sources import Subject, subject

RUNTIME_BYTES = 375 << 20  # Python, torch and transformers, loaded
_LEFT = 0.9  # share of the free memory that a run should not exceed


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
    advice: tuple[str, ...] = field(default=())

    @property
    def fits(self) -> bool:
        return self.peak <= _LEFT * self.free

    def to_json(self) -> dict[str, Any]:
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
    **parameters: Any,
) -> Forecast:
    """What `discover` with these arguments would take. `memory`: its budget; `free`: what the machine has.

    `device`: of this machine. `accelerator`: instead, one of `gatewise.plan.ACCELERATORS`, which need not be here.
    """
    chosen, config = configured(method, parameters)
    if direction not in SEARCH_DIRECTIONS:
        raise GatewiseError(f"direction is 'ns', 'dn' or 'ns+dn', got {direction!r}.")
    if isinstance(examples, bool) or not isinstance(examples, int) or examples < 1:
        raise GatewiseError(f"examples is a whole number of at least 1, got {examples!r}.")
    dtype = str(dtype or "float32").removeprefix("torch.")
    place = _place(device, dtype, accelerator)
    about = subject(model, task, examples, dtype, device=place.kind, bos=bos, first_token=first_token)
    graph = about.model.graph
    if edges is not None and not 0 < edges <= graph.n_edges:
        raise GatewiseError(f"a circuit of {edges:,} edges was asked for; {about.model.name} has {graph.n_edges:,}.")
    setting = Setting(about.model, about.pairs, memory=memory)
    problem = Problem(setting, (direction,), {} if edges is None else {direction: (edges,)})
    work = _work(problem, chosen, config)
    plain_operations, plain_moved = _plain(about)
    rates = place.rates
    plain_seconds = plain_operations / rates.operations + plain_moved / rates.bytes
    counted = work.operations / rates.operations + work.moved / rates.bytes
    f = work.operations / plain_operations if work.rough_f is None else work.rough_f
    seconds = counted if work.rough_f is None else f * plain_seconds
    tensors = list(about.model.tensors().values())
    weights = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    check = _check(tensors)
    available = place.free if free is None else parse_bytes(free)
    found = Forecast(
        model=about.model.name,
        task=task,
        method=chosen.name,
        direction=direction,
        device=place.name,
        dtype=dtype,
        examples=examples,
        tokens=about.pairs.width,
        window=about.pairs.width - int(about.pairs.first_difference.min()),
        graph_edges=graph.n_edges,
        parameters=sum(tensor.numel() for tensor in tensors),
        runtime=place.runtime,
        weights=weights,
        check=check,
        runs=work.runs,
        buffers=work.buffers,
        peak=place.runtime + weights + max(check, work.runs + work.buffers),
        micro_batch=work.micro_batch,
        micro_batches=work.micro_batches,
        f=f,
        seconds=seconds,
        operations_per_second=rates.operations,
        free=available,
        rough=work.rough_f is not None or chosen.forecast is None,
    )
    return _advised(found, about, chosen)


@dataclass(frozen=True)
class _Place:
    """Where a search is to run."""

    name: str
    kind: str  # cpu, cuda, ...
    runtime: int  # bytes that are taken before anything is loaded
    free: int
    rates: Rates


def _place(device: str | None, dtype: str, accelerator: str | None) -> _Place:
    as_number_type(dtype)
    if accelerator is None:
        check_device(device, as_number_type(dtype))
        here = torch.device(device or "cpu")
        return _Place(str(here), here.type, RUNTIME_BYTES, free_memory(here), measure_rates(str(here)))
    if device is not None:
        raise GatewiseError(f"give either an accelerator ({accelerator}) or a device of this machine ({device}).")
    name, found = find_accelerator(accelerator)
    return _Place(name, "cuda", CONTEXT_BYTES, found.memory << 30, rates_of(name, dtype))


def _work(problem: Problem, method: Method, config: Any) -> Work:
    """What the method says of its work; if it says nothing, the two runs of all examples, which is the least."""
    if method.forecast is not None:
        return method.forecast(problem, config)
    parts = problem.setting.batches()
    with Counter() as counter:
        runs = problem.setting.runs(parts[0], keep=False)
        del runs
    share = len(problem.pairs) / len(parts[0].pairs)
    operations, moved = counter.operations * share, counter.moved * share
    return Work(counter.peak, 0, operations, moved, len(parts[0].pairs), len(parts))


def _plain(about: Subject) -> tuple[float, float]:
    """Operations and bytes moved of F: `hf(input_ids)` on all examples."""
    few = about.pairs[:4]
    with Counter() as counter, torch.no_grad():
        about.model.hf(input_ids=few.clean.to("meta"))
    share = len(about.pairs) / len(few)
    return counter.operations * share, counter.moved * share


def _check(tensors: list[torch.Tensor]) -> int:
    """What it takes to see that all weights are finite."""
    largest = max(tensors, key=lambda tensor: tensor.numel() * tensor.element_size())
    with Counter() as counter:
        torch.isfinite(largest).all()
    return int(counter.peak)


def _advised(found: Forecast, about: Subject, method: Method) -> Forecast:
    advice = []
    if found.device in ACCELERATORS:
        advice.append(f"for an accelerator that was never measured: {REACHED:.0%} of its maker's rates are believed")
    if method.forecast is None:
        advice.append(f"{method.name} does not say what it takes; counted are the two runs, which is the least")
    if not about.measured_tokens:
        advice.append(
            f"prompts are taken to have {found.tokens} tokens; give a folder with tokenizer.json to have them counted"
        )
    if not found.fits:
        if found.dtype == "float32":
            advice.append("dtype bfloat16 halves the weights")
        if found.runs + found.buffers > found.weights and found.micro_batches > 1:
            half = max(1, math.ceil((found.runs // 2) / 2**20))
            advice.append(f"a smaller budget means smaller micro-batches: --memory {half}MB")
        if not method.ranks_once:
            advice.append(f"{method.title} keeps runs and states in memory: use fewer examples, or --method eap")
        if found.weights > _LEFT * found.free:
            advice.append("the weights alone do not fit: use a smaller model or a larger machine")
    return Forecast(**{**asdict(found), "advice": tuple(advice)})
