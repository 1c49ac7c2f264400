"""`forecast`: the memory and time of a search, by running one micro-batch of it on the meta device.

    peak = Python and torch + weights + the larger of (the check of the weights, the search)

A fifth is added to what is counted where gradients are taken: freed memory does not go back at once.

EAP, EAP-IG and Edge Pruning do the same work whatever the numbers, so that counting it is exact. How much ACDC does
depends on what it finds: of it the states of all examples are counted, and the time is a rule of thumb.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import psutil
import torch

from gatewise.engine.attribution import Attribution
from gatewise.engine.batches import batches, parse_bytes
from gatewise.engine.dense import DenseEngine
from gatewise.engine.incremental import ROW_BYTES, State
from gatewise.engine.runs import Direction, both_runs, prepare
from gatewise.errors import GatewiseError
from gatewise.methods.acdc import AcdcConfig
from gatewise.methods.contract import Problem
from gatewise.methods.eap import BLOCKS
from gatewise.methods.edge_pruning import EdgePruningConfig, MeanDivergence, even
from gatewise.plan.count import Counter
from gatewise.plan.rates import measure_rates
from gatewise.plan.sources import Subject, subject

MethodName = Literal["eap", "eap-ig", "acdc", "edge-pruning"]
DIRECTIONS: dict[str, tuple[Direction, ...]] = {"ns": ("ns",), "dn": ("dn",), "ns+dn": ("ns", "dn")}

RUNTIME_BYTES = 375 << 20  # Python, torch and transformers, loaded
_ACDC_F_PER_EDGE = 0.014  # of the graph, for one threshold: SmolLM2 took 1678 F for 123,211 edges
_ACDC_THRESHOLDS = 5  # tried for a number of edges, about
_GRAIN = 1.2  # memory that torch has asked for, over what lives in it: measured where gradients are taken
_LEFT = 0.9  # share of the free memory that a run should not exceed


@dataclass(frozen=True)
class _Work:
    """What a search takes besides weights."""

    runs: int  # bytes of outputs and activations of the examples that are in memory at a time
    buffers: int  # bytes of sums, masks, optimiser state and chains
    operations: float
    moved: float
    micro_batch: int
    micro_batches: int


@dataclass(frozen=True)
class Forecast:
    """What a search will take, about. Bytes and seconds."""

    model: str
    task: str
    method: str
    direction: str
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
    method: MethodName = "eap",
    direction: str = "ns",
    *,
    examples: int = 64,
    edges: int | None = None,
    dtype: str = "float32",
    memory: int | str | None = None,
    free: int | str | None = None,
) -> Forecast:
    """What `discover` with these arguments would take. `memory`: its budget; `free`: what the machine has."""
    if method not in get_args(MethodName):
        raise GatewiseError(f"there is no forecast for {method!r}; there is one for {', '.join(get_args(MethodName))}.")
    if direction not in DIRECTIONS:
        raise GatewiseError(f"direction is 'ns', 'dn' or 'ns+dn', got {direction!r}.")
    if isinstance(examples, bool) or not isinstance(examples, int) or examples < 1:
        raise GatewiseError(f"examples is a whole number of at least 1, got {examples!r}.")
    about = subject(model, task, examples, dtype)
    graph = about.model.graph
    if edges is not None and not 0 < edges <= graph.n_edges:
        raise GatewiseError(f"a circuit of {edges:,} edges was asked for; {about.model.name} has {graph.n_edges:,}.")
    work = _work(about, method, DIRECTIONS[direction], memory)
    plain_operations, plain_moved = _plain(about)
    rates = measure_rates()
    plain_seconds = plain_operations / rates.operations + plain_moved / rates.bytes
    rough = method == "acdc"
    f = _acdc_f(graph.n_edges, edges, len(DIRECTIONS[direction])) if rough else work.operations / plain_operations
    seconds = f * plain_seconds if rough else work.operations / rates.operations + work.moved / rates.bytes
    tensors = list(about.model.tensors().values())
    weights = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    check = _check(tensors)
    available = psutil.virtual_memory().available if free is None else parse_bytes(free)
    found = Forecast(
        model=about.model.name,
        task=task,
        method=method,
        direction=direction,
        dtype=dtype,
        examples=examples,
        tokens=about.pairs.width,
        window=about.pairs.width - int(about.pairs.first_difference.min()),
        graph_edges=graph.n_edges,
        parameters=sum(tensor.numel() for tensor in tensors),
        runtime=RUNTIME_BYTES,
        weights=weights,
        check=check,
        runs=work.runs,
        buffers=work.buffers,
        peak=RUNTIME_BYTES + weights + max(check, work.runs + work.buffers),
        micro_batch=work.micro_batch,
        micro_batches=work.micro_batches,
        f=f,
        seconds=seconds,
        operations_per_second=rates.operations,
        free=available,
        rough=rough,
    )
    return _advised(found, about)


def _work(about: Subject, method: str, directions: tuple[Direction, ...], memory: int | str | None) -> _Work:
    if method == "acdc":
        return _acdc(about, directions)
    if method == "edge-pruning":
        return _edge_pruning(about, directions, memory)
    model, pairs = about.model, about.pairs
    parts = [part for _, part in batches(model, pairs, memory, gradient=True)]
    with Counter() as counter:
        attribution = Attribution(model, parts[0])
        found = attribution.directions(directions) if method == "eap" else {"ns": attribution.integrated(5)}
        del found, attribution
    share = len(pairs) / len(parts[0])
    sums = min(BLOCKS, len(parts)) * (len(directions) if method == "eap" else 1) * model.graph.n_edges * 8
    return _Work(
        int(_GRAIN * counter.peak), sums, counter.operations * share, counter.moved * share, len(parts[0]), len(parts)
    )


def _edge_pruning(about: Subject, directions: tuple[Direction, ...], memory: int | str | None) -> _Work:
    """All steps of the schedule. What is prepared is kept between steps while it fits the budget."""
    config, model = EdgePruningConfig(), about.model
    steps = even(Problem(model, about.pairs, "ns"), config.batch)
    parts = [part for _, part in batches(model, steps[0], memory, gradient=True)]
    with Counter() as preparing:
        prepared = prepare(model, parts[0])
        reference = MeanDivergence(prepared)
    kept = prepared.other.nbytes + sum(base.nbytes for base in prepared.base) + prepared.reference_logits.nbytes
    with Counter() as counter:
        mask = model.graph.matrix(torch.ones(model.graph.n_edges, device="meta"))
        DenseEngine(model, prepared).gradient(mask, reference)
    places = len(steps) * len(parts) * len(directions)
    others = min(parse_bytes(memory), (places - 1) * kept)
    per_step = len(parts) * len(directions)
    recomputed = places * kept > parse_bytes(memory)
    often = config.steps * per_step if recomputed else places
    return _Work(
        runs=int(_GRAIN * (max(preparing.peak, preparing.live + counter.peak) + others)),
        buffers=12 * 4 * model.graph.n_edges,  # log alpha, Adam's two means, the draw, and what a step makes of them
        operations=config.steps * per_step * counter.operations + often * preparing.operations,
        moved=config.steps * per_step * counter.moved + often * preparing.moved,
        micro_batch=len(parts[0]),
        micro_batches=len(steps) * len(parts),
    )


def _acdc(about: Subject, directions: tuple[Direction, ...]) -> _Work:
    """The states of all examples; inputs of ports that no longer read what all others read; a chain."""
    model, pairs = about.model, about.pairs
    kept = model.graph.edge_index >= 0
    with Counter() as counter, torch.no_grad():
        runs = both_runs(model, pairs)
        states = [State(model, runs.intervention(model, d), runs.reference(d).outputs, kept) for d in directions]
        one = states[0].shared[0]
    stream = one.numel() * one.element_size()
    inputs = len(directions) * len(model.graph.ports) * stream // 2  # of about half of the ports
    chain = 4 * min(AcdcConfig.chain, len(model.graph.senders)) * stream
    buffers = min(ROW_BYTES, chain) * len(directions)
    return _Work(counter.peak + inputs, buffers, counter.operations, counter.moved, len(pairs), 1)


def _acdc_f(graph_edges: int, edges: int | None, directions: int) -> float:
    return _ACDC_F_PER_EDGE * graph_edges * directions * (1 if edges is None else _ACDC_THRESHOLDS)


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


def _advised(found: Forecast, about: Subject) -> Forecast:
    advice = []
    if not about.measured_tokens:
        advice.append(
            f"prompts are taken to have {found.tokens} tokens; give a folder with tokenizer.json to have them counted"
        )
    if not found.fits:
        if found.dtype == "float32":
            advice.append("dtype bfloat16 halves the weights")
        if found.runs + found.buffers > found.weights and found.method != "acdc":
            half = max(1, math.ceil((found.runs // 2) / 2**20))
            advice.append(f"a smaller budget means smaller micro-batches: --memory {half}MB")
        if found.method == "acdc":
            advice.append("ACDC keeps all examples in memory: use fewer, or --method eap")
        elif found.method == "edge-pruning":
            advice.append("--method eap needs no training, and less memory")
        if found.weights > _LEFT * found.free:
            advice.append("the weights alone do not fit: use a smaller model or a larger machine")
    return Forecast(**{**asdict(found), "advice": tuple(advice)})
