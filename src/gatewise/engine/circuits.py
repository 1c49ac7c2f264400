"""Running circuits on pairs of any number: the public face of the engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.engine.batches import batches
from gatewise.engine.dense import DenseEngine
from gatewise.engine.runs import (
    Ablation,
    Direction,
    check_choice,
    check_pairs,
    clean_moments,
    lay_out,
    plain_run,
    prefix_of,
    prepare,
)
from gatewise.errors import GatewiseError
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs


def run_circuit(
    model: Model,
    pairs: Pairs,
    circuit: Circuit,
    direction: Direction = "ns",
    *,
    ablation: Ablation = "interchange",
    seed: int = 0,
    memory: int | str | None = None,
) -> Tensor:
    """Logits of the circuit at the last position. [example, vocabulary]

    Runs the reference side (`ns`: clean, `dn`: corrupted). A kept edge carries its sender's output of this run, already
    changed by removals upstream; a removed edge carries the sender's output of the other side, or what the ablation
    puts in its place. `seed` is for noise ablation; `memory` bounds the activations, as in '8GB'.
    """
    return run_circuits(model, pairs, [circuit], direction, ablation=ablation, seed=seed, memory=memory)[0]


def run_circuits(
    model: Model,
    pairs: Pairs,
    circuits: Sequence[Circuit],
    direction: Direction = "ns",
    *,
    ablation: Ablation = "interchange",
    seed: int = 0,
    memory: int | str | None = None,
) -> Tensor:
    """Logits of many circuits, which share the two cached runs. [circuit, example, vocabulary]"""
    check_choice(direction, ablation)
    check_circuits(model, circuits)
    check_pairs(model, pairs)
    shared = ablation == "interchange"
    parts = list(batches(model, pairs, memory, share_prefix=shared))
    moments = clean_moments(model, [part for _, part in parts]) if ablation in ("mean", "noise") else None
    found = torch.empty(len(circuits), len(pairs), model.vocabulary_size, dtype=model.dtype, device=model.device)
    for first, part in parts:
        prepared = prepare(model, part, direction, ablation, seed=seed, first_example=first, moments=moments)
        engine = DenseEngine(model, prepared)
        for row, circuit in enumerate(circuits):
            found[row, first : first + len(part)] = engine.logits(dense_mask(model, circuit))
    return found


def last_logits(
    model: Model, pairs: Pairs, side: Literal["clean", "corrupted"] = "clean", *, memory: int | str | None = None
) -> Tensor:
    """Logits of the whole model at the last position of one side. [example, vocabulary]"""
    check_pairs(model, pairs)
    found = []
    for _, part in batches(model, pairs, memory):
        layout = lay_out(model, part, share_prefix=True)
        tokens = part.clean if side == "clean" else part.corrupted
        found.append(plain_run(model, tokens, layout, prefix_of(model, tokens, layout)).logits)
    return torch.cat(found)


def check_circuits(model: Model, circuits: Sequence[Circuit]) -> None:
    for circuit in circuits:
        if circuit.graph != model.graph:
            raise GatewiseError(
                f"the circuit belongs to {circuit.graph!r}, but {model.name} has {model.graph!r}. "
                f"Load the model it was found in, with the same `qkv`."
            )


def dense_mask(model: Model, circuit: Circuit) -> Tensor:
    """The circuit as a matrix [port, sender] on the model's device."""
    return model.graph.matrix(circuit.mask.to(model.device, model.dtype))
