"""Logic models made in code, whose gates are known: the paper's toy models, and the ground truth for everything else.

Every node owns one dimension of the residual stream and writes there only. Sources emit a value on the clean token and
exactly 0 on the corrupted one, so that zero ablation and patching coincide and both directions exist. A gate reads the
dimensions of its senders and ignores all others: edges from other nodes exist, and do nothing. The readout is two
logits [C, 0], since a distribution over one would be constant. The adder is linear through 0, not a ReLU, whose
gradient at 0 is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_TYPES, GateType
from gatewise.models.components import Attention, Pointwise
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

CORRUPTED_TOKEN, CLEAN_TOKEN = 0, 1
CORRECT_TOKEN, INCORRECT_TOKEN = 0, 1  # of the logits


@dataclass(frozen=True)
class LogicGate:
    """A node that combines its senders. AND and OR expect senders that emit 0 or 1, and emit 0 or 1."""

    node: str
    type: GateType
    senders: tuple[str, ...]
    weights: tuple[float, ...] = ()  # with which it reads its senders; all 1 if not said


def logic_model(
    name: str,
    sources: Mapping[str, float] | Sequence[str],
    layers: Sequence[Sequence[LogicGate]],
    readout: str | Mapping[int, str],
    *,
    emitted: Tensor | None = None,
    stray: Sequence[Tensor] = (),
) -> Model:
    """Make a logic model.

    Args:
        name: Of the model.
        sources: The sources, with what each emits on the clean token; 1 if names alone are given.
        layers: Gates, layer by layer.
        readout: The node whose output is the first logit; or nodes by the token whose logit their output is.
        emitted: What sources emit on each token of a larger vocabulary, in the number type of the model.
            [token, source]
        stray: For each layer weights with which its gates read what they should not. [gate, sender]

    Returns:
        The model.
    """
    if emitted is None:
        values = list(sources.values()) if isinstance(sources, Mapping) else [1.0] * len(sources)
        emitted = torch.tensor([[0.0] * len(sources), values])
    names = [[gate.node for gate in layer] for layer in layers]
    graph = Graph.layered(list(sources), names, len(sources) + sum(map(len, names)))
    own = {node: i for i, node in enumerate(graph.senders)}
    weights, sublayers = {}, []
    for i, layer in enumerate(layers):
        reads = _read_weights(layer, own).to(emitted)
        if stray:
            reads = reads + stray[i].to(reads)
        weights[f"reads.{i}"] = reads
        weights[f"gates.{i}"] = emitted.new_tensor([(GATE_TYPES.index(gate.type), len(gate.senders)) for gate in layer])
        sublayers.append(Pointwise(_layer_function(layer, own, reads), len(layer)))
    read_out = {CORRECT_TOKEN: readout} if isinstance(readout, str) else readout
    return synthetic(name, graph, emitted, sublayers, {token: own[node] for token, node in read_out.items()}, weights)


def synthetic(
    name: str,
    graph: Graph,
    emitted: Tensor,
    sublayers: Sequence[Attention | Pointwise],
    readout: int | Mapping[int, int],
    weights: Mapping[str, Tensor],
    speaking: Tensor | None = None,
) -> Model:
    """Make a model of sources that each write to a dimension of their own, sublayers, and a dimension that is read out.

    readout: the dimension of the first logit, or dimensions by token.
    emitted: [token, source]. speaking: 1 where a source speaks, by default everywhere. [position, source]
    """
    head = emitted.new_zeros(len(emitted), graph.d_model)
    for token, dimension in ({CORRECT_TOKEN: readout} if isinstance(readout, int) else readout).items():
        head[token, dimension] = 1.0
    directions = torch.eye(emitted.shape[1], graph.d_model).to(emitted)
    tensors = {"emitted": emitted, "head": head, **weights}

    def embed(tokens: Tensor, positions: Tensor) -> Tensor:
        values = emitted[tokens] if speaking is None else emitted[tokens] * speaking.to(emitted)[positions]
        return values.movedim(-1, 0)[..., None] * directions[:, None, None]

    return Model(name, graph, embed, tuple(sublayers), lambda x: x, head, len(emitted), lambda: tensors)


def _read_weights(layer: Sequence[LogicGate], own: Mapping[str, int]) -> Tensor:
    weights = torch.zeros(len(layer), len(own), dtype=torch.float64)
    for i, gate in enumerate(layer):
        for sender, weight in zip(gate.senders, gate.weights or (1.0,) * len(gate.senders), strict=True):
            weights[i, own[sender]] = weight
    return weights


def _layer_function(
    layer: Sequence[LogicGate], own: Mapping[str, int], reads: Tensor
) -> Callable[[Tensor, Sequence[int]], Tensor]:
    def function(x: Tensor, nodes: Sequence[int]) -> Tensor:  # [node, rows..., position, d]
        out = torch.zeros_like(x)
        for i, node in enumerate(nodes):
            gate = layer[node]
            out[i, ..., own[gate.node]] = gate_function(gate.type, x[i] @ reads[node], len(gate.senders))
        return out

    return function


def gate_function(kind: GateType, total: Tensor, fan_in: int) -> Tensor:
    """Return the gate's output from the sum of its inputs."""
    if kind == "AND":
        return torch.relu(total - (fan_in - 1))
    if kind == "OR":
        return 1 - torch.relu(1 - total)
    return total


def synthetic_model(kind: str) -> Model:
    """Make one of the paper's toy models.

    Args:
        kind: `and`, `or`, `adder` or `combined`.

    Returns:
        The model that `load_model("synthetic:...")` gives.
    """
    singles: dict[str, GateType] = {"and": "AND", "or": "OR", "adder": "ADDER"}
    if kind in singles:
        sources = {"A1": 1.0, "A2": 1.5 if kind == "adder" else 1.0}
        return logic_model(f"synthetic:{kind}", sources, [[LogicGate("B", singles[kind], ("A1", "A2"))]], "B")
    if kind == "combined":
        first = [LogicGate("B1", "AND", ("A1", "A2")), LogicGate("B2", "OR", ("A3", "A4"))]
        layers = [first, [LogicGate("C", "ADDER", ("B1", "B2"))]]
        return logic_model("synthetic:combined", ("A1", "A2", "A3", "A4"), layers, "C")
    known = ", ".join(f"synthetic:{name}" for name in (*singles, "combined"))
    raise GatewiseError(f"there is no synthetic model {kind!r}; there are {known}.")


def synthetic_pairs(examples: int = 1) -> Pairs:
    """Make pairs for a logic model: one token, clean or corrupted; correct means that the readout leads over 0.

    Args:
        examples: How many pairs, all alike.

    Returns:
        The pairs.
    """
    return token_pairs([[CLEAN_TOKEN]] * examples, [[CORRUPTED_TOKEN]] * examples)


def token_pairs(clean: Sequence[Sequence[int]], corrupted: Sequence[Sequence[int]]) -> Pairs:
    """Make pairs of these prompts, with the answers of every synthetic model."""
    correct, incorrect = [CORRECT_TOKEN] * len(clean), [INCORRECT_TOKEN] * len(clean)
    return Pairs.from_tokens(clean, corrupted, correct, incorrect, name="synthetic")
