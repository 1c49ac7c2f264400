"""Running circuits on pairs of any number: the public face of the engines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine.forward.sparse import SparseEngine
from gatewise.engine.runs.activations import Ablation, Direction
from gatewise.engine.runs.activations import check_circuits as check_circuits
from gatewise.engine.setting import Data, Setting, SideName
from gatewise.models.model import Model

_AT_ONCE = 8  # circuits that are unembedded together


def run_circuit(
    model: Model,
    data: Data,
    circuit: Circuit | None = None,
    direction: Direction = "ns",
    *,
    ablation: Ablation | None = None,
    seed: int = 0,
    compute: Compute | None = None,
) -> Tensor:
    """Logits of the circuit (default: of all edges) at the last position. [example, vocabulary]

    Runs the reference side (`ns`: clean, `dn`: corrupted). A kept edge carries its sender's output of this run, already
    changed by removals upstream; a removed edge carries the sender's output of the other side, or what the ablation
    puts in its place. `seed` is for noise ablation; `memory` bounds the activations, as in '8GB'.
    """
    setting = Setting.of(model, data, ablation=ablation, seed=seed, compute=compute)
    chosen = setting.graph.full() if circuit is None else circuit
    return run_circuits(model, setting, [chosen], direction)[0]


def run_circuits(
    model: Model,
    data: Data,
    circuits: Sequence[Circuit],
    direction: Direction = "ns",
    *,
    ablation: Ablation | None = None,
    seed: int = 0,
    compute: Compute | None = None,
) -> Tensor:
    """Logits of many circuits, which share the two cached runs. [circuit, example, vocabulary]"""
    setting = Setting.of(model, data, ablation=ablation, seed=seed, compute=compute)
    setting.check_direction(direction)
    setting.check_circuits(circuits)
    found = torch.empty(len(circuits), len(setting), model.vocabulary_size, dtype=model.dtype, device=model.device)
    for batch in setting.batches():
        engine = SparseEngine(model, setting.intervention(batch, direction))
        rows = slice(batch.first, batch.first + len(batch.pairs))
        for first in range(0, len(circuits), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            found[some, rows] = engine.logits_of(circuits[some])
    return found


def last_logits(
    model: Model,
    data: Data,
    side: SideName = "clean",
    *,
    compute: Compute | None = None,
) -> Tensor:
    """Logits of the whole model at the last position of one side. [example, vocabulary]"""
    return Setting.of(model, data, compute=compute).last_logits(side)


def dense_mask(model: Model, circuit: Circuit) -> Tensor:
    """The circuit as a matrix [port, sender] on the model's device."""
    return model.graph.matrix(circuit.mask.to(model.device, model.dtype))
