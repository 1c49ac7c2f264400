"""Running circuits on pairs of any number: the public face of the engines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine.forward.sparse import SparseEngine
from gatewise.engine.runs.activations import Ablation, Direction
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
    """Run a circuit: the reference side, with what removed edges carry patched.

    A kept edge carries its sender's output of this run, already changed by removals upstream; a removed edge carries
    the sender's output of the other side, or what the ablation puts in its place.

    Args:
        model: The model.
        data: Pairs, a task, of which the held-out pairs are used, or a prepared setting.
        circuit: The edges that are kept; None for all edges.
        direction: `ns` (noising) runs the clean side, `dn` (denoising) the corrupted side.
        ablation: `patching` (the default), `zero`, `mean` or `noise`; the last three have `ns` only.
        seed: Of noise ablation.
        compute: Where to run; its memory bounds the activations.

    Returns:
        Logits at the last position. [example, vocabulary]

    Raises:
        GatewiseError: The circuit is of another model's graph, or the direction has no meaning.
    """
    setting = Setting.of(model, data, "test", ablation=ablation, seed=seed, compute=compute)
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
    """Run many circuits, which share the two cached runs.

    Args:
        model: The model.
        data: Pairs, a task, of which the held-out pairs are used, or a prepared setting.
        circuits: The circuits. Those with the same edges into the first layers run faster one after the other.
        direction: As for `run_circuit`.
        ablation: As for `run_circuit`.
        seed: Of noise ablation.
        compute: Where to run; its memory bounds the activations.

    Returns:
        Logits at the last position. [circuit, example, vocabulary]

    Raises:
        GatewiseError: A circuit is of another model's graph, or the direction has no meaning.
    """
    setting = Setting.of(model, data, "test", ablation=ablation, seed=seed, compute=compute)
    setting.check_direction(direction)
    setting.check_circuits(circuits)
    logits = torch.empty(len(circuits), len(setting), model.vocabulary_size, dtype=model.dtype, device=model.device)
    for batch in setting.batches():
        engine = SparseEngine(model, setting.intervention(batch, direction))
        for first in range(0, len(circuits), _AT_ONCE):
            chosen = slice(first, first + _AT_ONCE)
            logits[chosen, batch.rows] = engine.logits_of(circuits[chosen])
    return logits


def last_logits(model: Model, data: Data, side: SideName = "clean", *, compute: Compute | None = None) -> Tensor:
    """Run the whole model on one side.

    Args:
        model: The model.
        data: Pairs, a task, of which the held-out pairs are used, or a prepared setting.
        side: `clean` or `corrupted`.
        compute: Where to run; its memory bounds the activations.

    Returns:
        Logits at the last position. [example, vocabulary]
    """
    return Setting.of(model, data, "test", compute=compute).last_logits(side)


def dense_mask(model: Model, circuit: Circuit) -> Tensor:
    """The circuit as a matrix [port, sender] on the model's device."""
    return model.graph.matrix(circuit.mask.to(model.device, model.dtype))
