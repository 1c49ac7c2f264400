"""Misalignment: whether the noising and the denoising circuit have sizes that fit, as in the paper's appendix.

If one circuit is too large, ADDER edges are found by it alone and pass for AND (or OR). With C* = C minus K, K a random
part of the type's edges, i and j two edges of C into one receiver, i* and j* two of C*, and m = 1.5:

    AND  E[D(C\\i || C\\i,j)] - E[D(C*\\i* || C*\\i*,j*)]
    OR   E[D(C\\i || C*\\i*)] - E[D(C\\i,j || C*\\i*,j*)] + m

High means misaligned. The paper does not say how it samples; `Sampling` says how we do. D(X || Y) is the KL between the
outputs of two circuits run by noising: last position, full vocabulary, mean over examples.

Context "alone" is literal: C is the AND (or OR) circuit by itself. It seldom has a path to the logits; where it has
none, all outputs are the corrupted run's and the scores are exactly 0 and m, which `connected` tells. Context "sound"
runs the logically sound circuit, and removes K, i and j, still edges of the type, from that.

Beware: the two expectations of a score rise and fall together. On synthetic models, ADDER edges among the AND (or OR)
edges even lower the score a little, while each expectation, which `terms` reports, is 0 for true gates
and not for ADDER edges.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Grouping
from gatewise.compute import Compute
from gatewise.engine.patching.edge_ablation import EdgeAblation, Removal
from gatewise.engine.patching.kl_screening import divergence_between
from gatewise.engine.setting import Data, Setting
from gatewise.errors import GatewiseError
from gatewise.gates.labels import Gates
from gatewise.models.model import Model
from gatewise.progress import Bar, progress_bar

MisalignedType = Literal["AND", "OR"]
TYPES: tuple[MisalignedType, ...] = ("AND", "OR")
Context = Literal["alone", "sound"]
CONTEXTS: tuple[Context, ...] = ("alone", "sound")
OFFSET = 1.5  # m, of OR


@dataclass(frozen=True)
class Sampling:
    """How K, (i, j) and (i*, j*) are drawn; types and `seed` have random streams of their own.

    For each of `samples`: K is a uniformly random set of `share` of the type's edges (rounded, at least one). Then
    `draws` times, with replacement: (i, j) uniformly among all ordered pairs of the type's edges into one receiver, and
    (i*, j*) independently, uniformly among those that K left. OR's first term takes the i of (i, j) and the i* of
    (i*, j*). A K that leaves no pair gives no score and is counted as skipped. Receivers are ports, or nodes if the
    gates are grouped so.
    """

    share: float = 0.2
    samples: int = 20
    draws: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1 or self.samples < 1 or self.draws < 1:
            raise GatewiseError(
                f"sampling needs 0 < share < 1 and at least one sample and draw, got share={self.share}, "
                f"samples={self.samples}, draws={self.draws}."
            )


@dataclass(frozen=True)
class Score:
    """The score of one type: mean and standard deviation over samples of K."""

    mean: float
    std: float  # over samples; nan if there are fewer than two
    terms: tuple[float, float]  # means of the two expectations: mean = first - second (+ m for OR)
    samples: int  # that gave a score
    skipped: int  # whose K left no two edges into one receiver
    edges: int  # of the type
    pairs: int  # of the type's edges into one receiver, unordered
    connected: int  # edges of the type on a path from a source to the logits in C
    reason: str | None = None  # why there is no score

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.std / math.sqrt(self.samples) if self.samples else math.nan

    def to_json(self) -> dict[str, Any]:
        """All fields; what has no value is None."""
        plain = {key: None if value != value else value for key, value in asdict(self).items()}
        return {**plain, "terms": [None if term != term else term for term in self.terms]}


Scores = Mapping[MisalignedType, Score]


def misalignment(
    model: Model,
    data: Data,
    gates: Gates,
    *,
    context: Context = "alone",
    sampling: Sampling | None = None,
    compute: Compute | None = None,
) -> Scores:
    """Measure the misalignment scores of AND and OR.

    Args:
        model: The model.
        data: Pairs, a task or a setting to measure on.
        gates: Gates by the set difference of a noising and a denoising circuit.
        context: Whether C is the circuit of the type "alone", or the "sound" circuit. See the module.
        sampling: How sets and pairs of edges are drawn.
        compute: Where to run.

    Returns:
        A score by type.

    Raises:
        GatewiseError: If the context is not known.
    """
    if context not in CONTEXTS:
        raise GatewiseError(f"context is 'alone' (the gate circuit by itself) or 'sound', got {context!r}.")
    setting = Setting.of(model, data, compute=compute)
    setting.check_circuits([gates.sound])
    sampling = sampling or Sampling()
    drawn = {kind: _draw(gates, kind, sampling) for kind in TYPES}
    whole = {kind: gates.by_type[kind] if context == "alone" else gates.sound for kind in TYPES}
    sums = {kind: torch.zeros(2, len(drawn[kind]), dtype=torch.float64) for kind in TYPES}
    batches = setting.batches()
    with progress_bar("misalignment", len(batches) * sum(map(len, drawn.values()))) as bar:
        for batch in batches:
            for kind in TYPES:
                sums[kind] += _measure(partial(EdgeAblation, setting, batch), whole[kind], kind, drawn[kind], bar)
    return {kind: _score(gates, kind, sums[kind] / len(setting), whole[kind], sampling) for kind in TYPES}


@dataclass(frozen=True, eq=False)
class _Sample:
    removed: Circuit  # K
    pairs: list[tuple[int, int]]  # (i, j)
    pairs_left: list[tuple[int, int]]  # (i*, j*)


def _draw(gates: Gates, kind: MisalignedType, sampling: Sampling) -> list[_Sample]:
    """The samples that can give a score."""
    rng = random.Random(f"misalignment/{kind}/{sampling.seed}")
    circuit = gates.by_type[kind]
    everything = _receivers(circuit, gates.grouping)
    samples = []
    for _ in range(sampling.samples if everything else 0):
        size = max(1, round(sampling.share * len(circuit)))
        removed = Circuit.from_indices(circuit.graph, rng.sample(circuit.indices, size))
        left = _receivers(circuit - removed, gates.grouping)
        if left:
            samples.append(_Sample(removed, _draw_pairs(rng, everything, sampling), _draw_pairs(rng, left, sampling)))
    return samples


def _receivers(circuit: Circuit, grouping: Grouping) -> list[list[int]]:
    """Edges into each receiver that has at least two."""
    groups = circuit.graph.by_receiver(circuit.indices, grouping)
    return [edges for edges in groups.values() if len(edges) >= 2]


def _draw_pairs(rng: random.Random, receivers: Sequence[list[int]], sampling: Sampling) -> list[tuple[int, int]]:
    """Ordered pairs, uniformly: a receiver by how many it has, then two of its edges."""
    weights = [math.comb(len(edges), 2) for edges in receivers]
    drawn = [rng.sample(edges, 2) for edges in rng.choices(receivers, weights, k=sampling.draws)]
    return [(i, j) for i, j in drawn]


def _measure(
    bench_of: Callable[[Circuit], EdgeAblation],
    whole: Circuit,
    kind: MisalignedType,
    samples: Sequence[_Sample],
    bar: Bar,
) -> Tensor:
    """For each sample both terms: the mean over draws, summed over the batch's examples. [term, sample]"""
    bench = bench_of(whole)
    if not samples or bench.is_silent:  # without a path to the logits all outputs are equal
        bar.advance(len(samples))
        return torch.zeros(2, len(samples), dtype=torch.float64)
    of_whole = _outputs(bench, [pair for sample in samples for pair in sample.pairs])
    outputs = []  # for each sample [C or C*, one or two removed, draw, example, d]
    for sample in samples:
        of_left = _outputs(bench_of(whole - sample.removed), sample.pairs_left)
        outputs.append(torch.stack([_stacked(of_whole, sample.pairs), _stacked(of_left, sample.pairs_left)]))
        bar.advance()
    stacked = torch.stack(outputs)
    if kind == "AND":  # one against two removed, of C and of C*; OR: C against C*, without one and without two
        stacked = stacked.transpose(1, 2)
    p, q = stacked.unbind(dim=1)  # [sample, term, draw, example, d] each; unembedded together
    divergences = divergence_between(bench.model, p.flatten(0, 2), q.flatten(0, 2)).reshape(p.shape[:-1])
    return divergences.mean(dim=2).sum(dim=-1).T


def _outputs(bench: EdgeAblation, pairs: Sequence[tuple[int, int]]) -> dict[Removal, Tensor]:
    """Last residuals [example, d] of the bench's circuit without i, and without i and j, for each pair."""
    removals = list(dict.fromkeys(frozenset(edges) for i, j in pairs for edges in ((i,), (i, j))))
    outputs = {}
    for rows, residuals in bench.residuals(removals):
        for row, residual in zip(rows, residuals, strict=True):
            outputs[removals[row]] = residual
    return outputs


def _stacked(outputs: Mapping[Removal, Tensor], pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Without the first, and without both, of each pair. [one or two, pair, example, d]"""
    without_first = torch.stack([outputs[frozenset((i,))] for i, _ in pairs])
    return torch.stack([without_first, torch.stack([outputs[frozenset(pair)] for pair in pairs])])


def _score(gates: Gates, kind: MisalignedType, terms: Tensor, whole: Circuit, sampling: Sampling) -> Score:
    """terms: [term, sample]"""
    circuit = gates.by_type[kind]
    receivers = _receivers(circuit, gates.grouping)
    values = terms[0] - terms[1] + (OFFSET if kind == "OR" else 0.0)
    reason = None
    if not receivers:
        reason = f"no receiver has two {kind} edges"
    elif not len(values):
        reason = f"no receiver has two {kind} edges left without K"
    return Score(
        mean=float(values.mean()),
        std=float(values.std()) if len(values) > 1 else math.nan,
        terms=(float(terms[0].mean()), float(terms[1].mean())),
        samples=len(values),
        skipped=sampling.samples - len(values),
        edges=len(circuit),
        pairs=sum(math.comb(len(edges), 2) for edges in receivers),
        connected=len(whole.connected() & circuit),
        reason=reason,
    )
