"""Runs: what all nodes put out on one side of the pairs, and what a circuit needs to know about the other side.

`both_runs` and `ablated_runs` turn a batch of pairs into `BothRuns`, and those into an `Intervention`: the reference
side's input, and what a removed edge carries. From there on an engine does not know about directions or ablations: **Dn
is Ns with the two runs swapped**. `Setting` decides which of the two is asked, batch by batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gatewise.devices import widened, widest_float
from gatewise.engine.runs.batches import window_of
from gatewise.engine.runs.residual_stream import walk
from gatewise.models.components import Attention, KeysValues
from gatewise.models.layout import Layout
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

Direction = Literal["ns", "dn"]
Ablation = Literal["patching", "zero", "mean", "noise"]
ABLATIONS: tuple[Ablation, ...] = ("patching", "zero", "mean", "noise")
Prefix = tuple[KeysValues | None, ...]  # one for each sublayer of the model


@dataclass(frozen=True, eq=False)
class Run:
    """The outputs of all nodes on one side, in the window."""

    outputs: Tensor  # [sender, example, window, d]
    logits: Tensor  # [example, vocabulary] at the last position


@dataclass(frozen=True, eq=False)
class Intervention:
    """Everything that running a circuit on one batch needs."""

    layout: Layout
    prefix: Prefix
    sources: Tensor  # [source, example, window, d], the reference side's
    other: Tensor  # [sender, example, window, d], what removed edges carry
    base: tuple[Tensor, ...]  # for each sublayer, its ports' input when all edges are removed. [example, window, d]
    reference_logits: Tensor  # [example, vocabulary]
    is_run: bool = True  # whether `other` is what the nodes put out when all edges are removed: not of an ablation


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and deviation of every node's output over the real positions of the clean run. [sender, d] each"""

    mean: Tensor
    deviation: Tensor


def lay_out(model: Model, pairs: Pairs, *, share_prefix: bool) -> Layout:
    """Decide the window: all columns, or those from the first difference of any pair on.

    Attention looks back only, so before a pair's first difference both sides have the same activations, and so has
    every circuit: keys and values of these columns are computed once, as the prefix. One window serves a batch, so it
    begins where the first of its pairs differs.
    """
    start = pairs.width - window_of(pairs) if share_prefix else 0
    return Layout(pairs.to(model.device).lengths, pairs.width, start, model.dtype)


@torch.no_grad()
def plain_run(model: Model, tokens: Tensor, layout: Layout, prefix: Prefix | None = None) -> Run:
    """Run all edges on one side, from the window's first column on. prefix: made if it is not given"""
    prefix = prefix_of(model, tokens, layout) if prefix is None else prefix
    graph, columns = model.graph, slice(layout.start, layout.width)
    shape = (len(graph.senders), len(tokens), layout.window, model.d_model)
    outputs = torch.empty(shape, dtype=model.dtype, device=model.device)
    residual, _ = _forward(model, tokens, layout, prefix, columns, outputs)
    return Run(outputs, model.unembed(residual[:, -1]))


@torch.no_grad()
def prefix_of(model: Model, tokens: Tensor, layout: Layout) -> Prefix:
    """Keys and values of the columns before the window, which both sides share."""
    if layout.start == 0:
        return _no_prefix(model)
    before = Layout(layout.lengths - layout.window, layout.start, 0, layout.dtype)
    return _forward(model, tokens, before, _no_prefix(model), slice(0, layout.start), None)[1]


def _no_prefix(model: Model) -> Prefix:
    return (None,) * len(model.sublayers)


def _forward(
    model: Model, tokens: Tensor, layout: Layout, prefix: Prefix, columns: slice, outputs: Tensor | None
) -> tuple[Tensor, Prefix]:
    """The last residual stream, and the keys and values of these columns; fills `outputs` if given."""
    nodes = model.graph.sender_slices
    keys_values: list[KeysValues | None] = []

    def write(index: int, x: Tensor) -> Tensor:
        sublayer, cached = model.sublayers[index], None
        if isinstance(sublayer, Attention):
            out, cached = sublayer.run(x[None], layout, prefix[index])
        else:
            out = sublayer(x.expand(sublayer.n_nodes, *x.shape))
        keys_values.append(cached)
        if outputs is not None:
            outputs[nodes[index + 1]] = out
        return out.sum(dim=0)

    sources = model.embed(tokens[:, columns].to(model.device), layout.positions()[:, columns])
    if outputs is not None:
        outputs[nodes[0]] = sources
    return walk(model, sources.sum(dim=0), write)[-1], tuple(keys_values)


def bases(model: Model, other: Tensor) -> tuple[Tensor, ...]:
    """Input of each sublayer's ports, and of the logits, when every edge carries `other`: output biases included."""
    written = [other[nodes] for nodes in model.graph.sender_slices]
    return tuple(walk(model, written[0].sum(dim=0), lambda index, _: written[index + 1].sum(dim=0)))


@dataclass(frozen=True, eq=False)
class BothRuns:
    """The two sides of a batch: whichever is the reference, the other is what removed edges carry.

    With zero, mean and noise ablation nothing is run on the corrupted side: it is what is left when every edge carries
    the ablation's constant or draw, and it cannot be the reference.
    """

    layout: Layout
    prefix: Prefix
    clean: Run
    corrupted: Run
    ablated: bool = False

    def reference(self, direction: Direction) -> Run:
        return self.clean if direction == "ns" else self.corrupted

    def intervention(self, model: Model, direction: Direction) -> Intervention:
        other = self.corrupted if direction == "ns" else self.clean
        reference, nodes = self.reference(direction), model.graph.sender_slices[0]
        return Intervention(
            self.layout,
            self.prefix,
            sources=reference.outputs[nodes].clone(),  # so that the rest of the run can be freed
            other=other.outputs,
            base=bases(model, other.outputs),
            reference_logits=reference.logits,
            is_run=not self.ablated,
        )


def both_runs(model: Model, pairs: Pairs, *, share_prefix: bool = True) -> BothRuns:
    """Run both sides once, from their first difference on."""
    layout = lay_out(model, pairs, share_prefix=share_prefix)
    pairs = pairs.to(model.device)
    prefix = prefix_of(model, pairs.clean, layout)
    clean, corrupted = (plain_run(model, tokens, layout, prefix) for tokens in (pairs.clean, pairs.corrupted))
    return BothRuns(layout, prefix, clean, corrupted)


def ablated_runs(
    model: Model,
    pairs: Pairs,
    ablation: Ablation,
    *,
    seed: int = 0,
    first_example: int = 0,
    moments: Moments | None = None,
) -> BothRuns:
    """The clean side, and what zero, mean or noise ablation puts in place of the other.

    first_example: index of the batch's first example, which seeds noise. moments: needed for mean and noise.
    """
    layout = lay_out(model, pairs, share_prefix=False)
    clean = plain_run(model, pairs.clean, layout)
    if ablation == "zero":
        other = torch.zeros_like(clean.outputs[:, :1, :1])
    else:
        assert moments is not None
        other = moments.mean.to(clean.outputs.dtype)[:, None, None]
        if ablation == "noise":
            noise = _noise(pairs, clean.outputs, seed, first_example)
            other = other + noise * moments.deviation.to(other)[:, None, None]
    whole = other.expand_as(clean.outputs)
    last = bases(model, whole[:, :, -1:])[-1][:, -1]
    return BothRuns(layout, _no_prefix(model), clean, Run(whole, model.unembed(last)), ablated=True)


def _noise(pairs: Pairs, like: Tensor, seed: int, first_example: int) -> Tensor:
    """Standard normal draws, example by example, for the real positions only: padding changes nothing."""
    noise = torch.zeros(like.shape, dtype=torch.float64)  # and on the CPU: the same draws for every dtype and device
    for row, length in enumerate(pairs.lengths.tolist()):
        # A seed for each example, counted over all batches: however they are cut, an example's noise is its own.
        generator = torch.Generator().manual_seed(seed * 1_000_003 + first_example + row)
        shape = (noise.shape[0], length, noise.shape[3])
        noise[:, row, -length:] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return noise.to(like)


def clean_moments(model: Model, batches: list[Pairs]) -> Moments:
    """Mean and deviation of the nodes' outputs over examples and real positions of the clean run."""
    count, shape = 0, (len(model.graph.senders), model.d_model)
    total, square = torch.zeros(2, *shape, dtype=widest_float(model.device), device=model.device)
    for pairs in batches:
        layout = lay_out(model, pairs, share_prefix=False)
        outputs = plain_run(model, pairs.clean, layout).outputs
        # In float64: the variance is a difference of two sums that are nearly equal where a mean is large.
        chosen = widened(outputs[:, layout.real()])  # [sender, real position, d]
        count += chosen.shape[1]
        total += chosen.sum(1)
        square += chosen.square().sum(1)
    mean = total / count
    return Moments(mean, (square / count - mean.square()).clamp(min=0).sqrt())
