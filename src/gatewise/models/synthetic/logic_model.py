"""Logic models made in code, whose gates are known: the paper's toy models, and the ground truth for everything else.

Every node owns one dimension of the residual stream and writes there only. Sources emit a value on the clean token and
exactly 0 on the corrupted one, so that zero ablation and patching coincide and both directions exist. A
gate reads the dimensions of its senders and ignores all others: edges from other nodes exist, and do nothing. The
readout is two logits [C, 0], since a distribution over one would be constant. The adder is linear through 0, not
a ReLU, whose gradient at 0 is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_TYPES, GateType
from gatewise.models.components import Pointwise
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

CLEAN_TOKEN, CORRUPTED_TOKEN = 1, 0
RIGHT_TOKEN, WRONG_TOKEN = 0, 1


@dataclass(frozen=True)
class SyntheticGate:
    """A node that combines its senders. AND and OR expect senders that emit 0 or 1, and emit 0 or 1."""

    node: str
    type: GateType
    senders: tuple[str, ...]
    weights: tuple[float, ...] = ()  # with which it reads its senders; all 1 if not said


def build_synthetic(
    name: str, sources: Mapping[str, float], layers: Sequence[Sequence[SyntheticGate]], readout: str
) -> Model:
    """A logic model: sources with what they emit on the clean token, layers of gates, the node that is read out."""
    emitted = torch.zeros(2, len(sources))
    emitted[CLEAN_TOKEN] = torch.tensor(list(sources.values()))
    return logic_model(name, list(sources), emitted, layers, readout)


def logic_model(
    name: str,
    sources: Sequence[str],
    emitted: Tensor,
    layers: Sequence[Sequence[SyntheticGate]],
    readout: str,
    stray: Sequence[Tensor] = (),
) -> Model:
    """A logic model with a vocabulary of any size, in the number type of `emitted`.

    emitted: [token, source], what the sources write on each token. stray: for each layer [gate, sender], weights with
    which its gates read what they should not.
    """
    names = [[gate.node for gate in layer] for layer in layers]
    d_model = len(sources) + sum(map(len, names))
    graph = Graph.layered(list(sources), names, d_model)
    own = {node: i for i, node in enumerate(graph.senders)}
    reads = [_read_weights(layer, own).to(emitted) for layer in layers]
    if stray:
        reads = [weights + more.to(weights) for weights, more in zip(reads, stray, strict=True)]
    head = emitted.new_zeros(len(emitted), d_model)
    head[RIGHT_TOKEN, own[readout]] = 1.0
    weights = {"emitted": emitted, "head": head}
    for i, layer in enumerate(layers):
        weights[f"reads.{i}"] = reads[i]
        weights[f"gates.{i}"] = emitted.new_tensor([(GATE_TYPES.index(gate.type), len(gate.senders)) for gate in layer])
    places = torch.eye(len(sources), d_model).to(emitted)

    def embed(tokens: Tensor, _positions: Tensor) -> Tensor:
        return emitted[tokens].movedim(-1, 0)[..., None] * places[:, None, None]

    return Model(
        name=name,
        graph=graph,
        embed=embed,
        sublayers=tuple(
            Pointwise(_function(layer, own, w), len(layer)) for layer, w in zip(layers, reads, strict=True)
        ),
        final_norm=lambda x: x,
        head=head,
        vocabulary_size=len(emitted),
        tensors=lambda: weights,
    )


def _read_weights(layer: Sequence[SyntheticGate], own: Mapping[str, int]) -> Tensor:
    weights = torch.zeros(len(layer), len(own), dtype=torch.float64)
    for i, gate in enumerate(layer):
        for sender, weight in zip(gate.senders, gate.weights or (1.0,) * len(gate.senders), strict=True):
            weights[i, own[sender]] = weight
    return weights


def _function(
    layer: Sequence[SyntheticGate], own: Mapping[str, int], reads: Tensor
) -> Callable[[Tensor, Sequence[int]], Tensor]:
    def function(x: Tensor, nodes: Sequence[int]) -> Tensor:  # [node, rows..., position, d]
        out = torch.zeros_like(x)
        for i, node in enumerate(nodes):
            gate = layer[node]
            out[i, ..., own[gate.node]] = gate_function(gate.type, x[i] @ reads[node], len(gate.senders))
        return out

    return function


def gate_function(kind: GateType, total: Tensor, fan_in: int) -> Tensor:
    """The gate's output from the sum of its inputs."""
    if kind == "AND":
        return torch.relu(total - (fan_in - 1))
    if kind == "OR":
        return 1 - torch.relu(1 - total)
    return total


def synthetic_model(kind: str) -> Model:
    """One of the paper's toy models: `and`, `or`, `adder`, `combined`."""
    single = {"and": ("AND", 1.0), "or": ("OR", 1.0), "adder": ("ADDER", 1.5)}
    if kind in single:
        gate, second = single[kind]
        layers = [[SyntheticGate("B", gate, ("A1", "A2"))]]  # type: ignore[arg-type]
        return build_synthetic(f"synthetic:{kind}", {"A1": 1.0, "A2": second}, layers, "B")
    if kind == "combined":
        first = [SyntheticGate("B1", "AND", ("A1", "A2")), SyntheticGate("B2", "OR", ("A3", "A4"))]
        layers = [first, [SyntheticGate("C", "ADDER", ("B1", "B2"))]]
        return build_synthetic("synthetic:combined", dict.fromkeys(("A1", "A2", "A3", "A4"), 1.0), layers, "C")
    known = ", ".join(f"synthetic:{k}" for k in (*single, "combined"))
    raise GatewiseError(f"there is no synthetic model {kind!r}; there are {known}.")


def synthetic_pairs(examples: int = 1) -> Pairs:
    """The pairs of every synthetic model: one token, clean or corrupted; right means the readout leads over 0."""
    return Pairs.from_tokens(
        [[CLEAN_TOKEN]] * examples,
        [[CORRUPTED_TOKEN]] * examples,
        correct=[RIGHT_TOKEN] * examples,
        incorrect=[WRONG_TOKEN] * examples,
        name="synthetic",
    )
