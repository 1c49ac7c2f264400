"""Random logic models whose gates are known: the ground truth that methods and labelling rules are judged by.

Every gate emits 0 on the corrupted side and, without noise, 1 on the clean side, whatever its type, so that thresholds
make sense when gates read gates: an ADDER's weights sum to 1. The last node, `out`, is an adder over the gates that no
other gate reads; its weights are scaled so that the clean logit difference is `FULL_LOGIT_DIFF`, small enough for a
softmax to notice every edge. Each layer has a distractor, a gate that nothing reads.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_TYPES, GateType
from gatewise.models.model import Model
from gatewise.models.synthetic.logic_model import CLEAN_TOKEN, CORRUPTED_TOKEN, LogicGate, logic_model, token_pairs
from gatewise.tasks.pairs import Pairs

FULL_LOGIT_DIFF = 2.0
_READOUT = "out"
_GATES_PER_LAYER = 2


@dataclass(frozen=True, eq=False)
class SyntheticModel:
    """A logic model, pairs for it, and what a search should find."""

    model: Model
    pairs: Pairs
    gates: tuple[LogicGate, ...]  # those that matter; `out` is the last
    truth: Mapping[str, GateType]  # edges into gates of at least two senders, by name
    circuit: Circuit  # the edges that matter: those of `truth`, and `out->logits`

    def __repr__(self) -> str:
        counts = {kind: sum(gate.type == kind for gate in self.gates) for kind in GATE_TYPES}
        shown = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        edges = f"{len(self.circuit)} of {self.model.graph.n_edges} edges"
        return f"<SyntheticModel {self.model.name}: {shown} gates, {edges}>"


def random_logic_model(
    seed: int,
    *,
    layers: int = 2,
    fan_in: tuple[int, int] = (2, 5),
    sources: int = 8,
    nested: bool = False,
    noise: float = 0.0,
    examples: int = 8,
    types: Sequence[GateType] = GATE_TYPES,
    dtype: torch.dtype = torch.float32,
) -> SyntheticModel:
    """Draw a random logic model of AND, OR and ADDER gates.

    Args:
        seed: Decides everything that is drawn.
        layers: Layers of two gates each, before the readout.
        fan_in: Fewest and most senders of a gate.
        sources: Number of sources.
        nested: Whether gates after the first layer read at least one earlier gate; else gates read sources only.
        noise: Standard deviation of the weights with which gates read all other nodes, and of what sources emit from
            one example to the next. Without noise all examples are alike.
        examples: Number of pairs.
        types: Types of gates that are drawn; the readout is an ADDER anyway.
        dtype: Number type of the model.

    Returns:
        The model, its pairs, and its true gates and circuit.
    """
    if not 2 <= fan_in[0] <= fan_in[1] <= sources:
        raise GatewiseError(
            f"fan_in is (smallest, largest) with 2 <= smallest <= largest <= sources, got {fan_in} of {sources}."
        )
    if layers < 1 or noise < 0 or examples < 1:
        raise GatewiseError(
            f"layers and examples are at least 1 and noise at least 0, got {layers}, {examples} and {noise}."
        )
    if not types or not set(types) <= set(GATE_TYPES):
        raise GatewiseError(f"types are some of {', '.join(GATE_TYPES)}, got {', '.join(types) or 'none'}.")
    rng = random.Random(f"planted/{seed}")  # an older word: the seed of all published numbers
    names = [f"A{i + 1}" for i in range(sources)]
    plan = _draw_gates(rng, names, layers, fan_in, nested, types)
    gates = [gate for layer in plan for gate in layer]
    gates.append(_readout(rng, gates))
    everything: list[list[LogicGate]] = []
    for level, layer in enumerate(plan):
        distractor = _draw_gate(rng, f"D{level + 1}.1", rng.choice(types), names, fan_in)
        everything.append([*layer, distractor])
    everything.append(gates[-1:])
    emitted, stray = _draw_noise(seed, names, everything, noise, examples)
    name = f"synthetic:random-{seed}"
    model = logic_model(name, names, everything, _READOUT, emitted=emitted.to(dtype), stray=stray)
    truth = {f"{sender}->{gate.node}": gate.type for gate in gates for sender in gate.senders}
    circuit = model.graph.circuit([*truth, f"{_READOUT}->logits"])
    clean = [[CLEAN_TOKEN + i * (noise > 0)] for i in range(examples)]  # tokens differ in what sources emit on them
    return SyntheticModel(model, token_pairs(clean, [[CORRUPTED_TOKEN]] * examples), tuple(gates), truth, circuit)


def _draw_gates(
    rng: random.Random,
    sources: Sequence[str],
    layers: int,
    fan_in: tuple[int, int],
    nested: bool,
    types: Sequence[GateType],
) -> list[list[LogicGate]]:
    kinds = _rounds_of_types(rng, types)
    plan: list[list[LogicGate]] = []
    for level in range(layers):
        earlier = [gate.node for layer in plan for gate in layer] if nested else []
        names = [f"G{level + 1}.{i + 1}" for i in range(_GATES_PER_LAYER)]
        plan.append([_draw_gate(rng, name, next(kinds), sources, fan_in, earlier) for name in names])
    return plan


def _rounds_of_types(rng: random.Random, types: Sequence[GateType]) -> Iterator[GateType]:
    """All types in random order, again and again: every model of three gates or more has each."""
    while True:
        yield from rng.sample(types, len(types))


def _draw_gate(
    rng: random.Random,
    node: str,
    kind: GateType,
    sources: Sequence[str],
    fan_in: tuple[int, int],
    earlier: Sequence[str] = (),
) -> LogicGate:
    """A gate over distinct senders; at least one of `earlier`, if there are any."""
    count = rng.randint(*fan_in)
    first = [rng.choice(earlier)] if earlier else []
    rest = rng.sample([node for node in (*sources, *earlier) if node not in first], count - len(first))
    return LogicGate(node, kind, (*first, *rest), _shares(rng, count) if kind == "ADDER" else ())


def _readout(rng: random.Random, gates: Sequence[LogicGate]) -> LogicGate:
    """The adder at the end: over all gates without a reader, and over others if those were not two."""
    read = {sender for gate in gates for sender in gate.senders}
    ends = [gate.node for gate in gates if gate.node not in read]
    spare = [gate.node for gate in gates if gate.node in read]
    if len(ends) < 2:
        ends = rng.sample(spare, 2 - len(ends)) + ends
    weights = tuple(FULL_LOGIT_DIFF * share for share in _shares(rng, len(ends)))
    return LogicGate(_READOUT, "ADDER", tuple(ends), weights)


def _shares(rng: random.Random, count: int) -> tuple[float, ...]:
    """Unequal positive numbers that sum to 1, the largest less than twice the smallest."""
    drawn = [rng.uniform(0.7, 1.3) for _ in range(count)]
    return tuple(value / sum(drawn) for value in drawn)


def _draw_noise(
    seed: int, sources: Sequence[str], layers: Sequence[Sequence[LogicGate]], noise: float, examples: int
) -> tuple[Tensor, list[Tensor]]:
    """What sources emit [token, source], and the stray weights of each layer [gate, sender]."""
    generator = torch.Generator().manual_seed(seed)
    order = [*sources, *(gate.node for layer in layers for gate in layer)]
    variants = examples if noise > 0 else 1
    emitted = torch.ones(variants + 1, len(sources), dtype=torch.float64)
    emitted += noise * torch.randn(emitted.shape, generator=generator, dtype=torch.float64)
    emitted[CORRUPTED_TOKEN] = 0
    stray = []
    for layer in layers:
        weights = noise * torch.randn(len(layer), len(order), generator=generator, dtype=torch.float64)
        for i, gate in enumerate(layer):
            weights[i, [order.index(sender) for sender in gate.senders]] = 0
        stray.append(weights)
    return emitted, stray
