"""Random logic models whose gates are known: the ground truth that methods and labelling rules are judged by.

Every gate emits 0 on the corrupted side and, without noise, 1 on the clean side, whatever its type, so that thresholds
make sense when gates read gates: an ADDER's weights sum to 1. The last node, `out`, is an adder over the gates that no
other gate reads; its weights are scaled so that the clean logit difference is `FULL_LOGIT_DIFF`, small enough for a
softmax to notice every edge. Distractors are gates that nothing reads.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_TYPES, GateType
from gatewise.models.model import Model
from gatewise.models.synthetic.logic_model import CORRUPTED_TOKEN, RIGHT_TOKEN, WRONG_TOKEN, SyntheticGate, logic_model
from gatewise.tasks.pairs import Pairs

FULL_LOGIT_DIFF = 2.0
_READOUT = "out"


@dataclass(frozen=True, eq=False)
class SyntheticModel:
    """A logic model, pairs for it, and what a search should find."""

    model: Model
    pairs: Pairs
    gates: tuple[SyntheticGate, ...]  # those that matter; `out` is the last
    truth: Mapping[str, GateType]  # edges into gates of at least two senders, by name
    circuit: Circuit  # the edges that matter: those of `truth`, and `out->logits`

    def __repr__(self) -> str:
        count = {kind: sum(gate.type == kind for gate in self.gates) for kind in GATE_TYPES}
        shown = ", ".join(f"{number} {kind}" for kind, number in count.items())
        return (
            f"<PlantedModel {self.model.name}: {shown} gates, {len(self.circuit)} of {self.model.graph.n_edges} edges>"
        )


def random_synthetic(
    seed: int,
    *,
    layers: int = 2,
    gates_per_layer: int = 2,
    fan_in: tuple[int, int] = (2, 5),
    sources: int = 8,
    nested: bool = False,
    distractors: int = 1,
    noise: float = 0.0,
    examples: int = 8,
    dtype: torch.dtype = torch.float32,
) -> SyntheticModel:
    """A random logic model of AND, OR and ADDER gates.

    Without `nested`, gates read sources only; with it, gates after the first layer read at least one earlier gate.
    `distractors`: gates per layer that nothing reads. `noise`: deviation of the weights with which gates read all other
    nodes, and of what sources emit from one example to the next. Without noise all examples are alike.
    """
    _check(layers, gates_per_layer, fan_in, sources, distractors, noise, examples)
    rng = random.Random(f"planted/{seed}")  # an older name of these models: another one would draw other circuits
    names = [f"A{i + 1}" for i in range(sources)]
    plan = _draw_gates(rng, names, layers, gates_per_layer, fan_in, nested)
    readout = _readout(rng, [gate for layer in plan for gate in layer])
    useless = [
        [_gate(rng, f"D{level + 1}.{i + 1}", rng.choice(GATE_TYPES), names, fan_in) for i in range(distractors)]
        for level in range(layers)
    ]
    everything = [gates + more for gates, more in zip(plan, useless, strict=True)] + [[readout]]
    emitted, stray = _numbers(seed, names, everything, noise, examples)
    model = logic_model(f"synthetic:random-{seed}", names, emitted.to(dtype), everything, _READOUT, stray)
    gates = (*(gate for layer in plan for gate in layer), readout)
    truth = {f"{sender}->{gate.node}": gate.type for gate in gates for sender in gate.senders}
    circuit = model.graph.circuit([*truth, f"{_READOUT}->logits"])
    return SyntheticModel(model, _pairs(examples, varied=noise > 0), gates, truth, circuit)


def _check(
    layers: int,
    gates_per_layer: int,
    fan_in: tuple[int, int],
    sources: int,
    distractors: int,
    noise: float,
    examples: int,
) -> None:
    if not 2 <= fan_in[0] <= fan_in[1]:
        raise GatewiseError(f"fan_in is (smallest, largest) with 2 <= smallest <= largest, got {fan_in}.")
    if sources < fan_in[1]:
        raise GatewiseError(f"gates of {fan_in[1]} senders need at least as many sources, got sources={sources}.")
    if layers < 1 or gates_per_layer < 1 or layers * gates_per_layer < 2:
        raise GatewiseError(f"a synthetic model has at least two gates, got {layers} layers of {gates_per_layer}.")
    if distractors < 0 or noise < 0 or examples < 1:
        raise GatewiseError(
            f"distractors and noise are at least 0 and examples at least 1, got {distractors}, {noise}, {examples}."
        )


def _draw_gates(
    rng: random.Random, sources: Sequence[str], layers: int, per_layer: int, fan_in: tuple[int, int], nested: bool
) -> list[list[SyntheticGate]]:
    kinds = _rounds_of_types(rng)
    plan: list[list[SyntheticGate]] = []
    for level in range(layers):
        earlier = [gate.node for layer in plan for gate in layer] if nested else []
        names = [f"G{level + 1}.{i + 1}" for i in range(per_layer)]
        plan.append([_gate(rng, name, next(kinds), sources, fan_in, earlier) for name in names])
    return plan


def _rounds_of_types(rng: random.Random) -> Iterator[GateType]:
    """All three types in random order, again and again: every model of three gates or more has each."""
    while True:
        yield from rng.sample(GATE_TYPES, len(GATE_TYPES))


def _gate(
    rng: random.Random,
    node: str,
    kind: GateType,
    sources: Sequence[str],
    fan_in: tuple[int, int],
    earlier: Sequence[str] = (),
) -> SyntheticGate:
    """A gate over distinct senders; at least one of `earlier`, if there are any."""
    count = rng.randint(*fan_in)
    first = [rng.choice(earlier)] if earlier else []
    rest = rng.sample([node for node in (*sources, *earlier) if node not in first], count - len(first))
    return SyntheticGate(node, kind, (*first, *rest), _shares(rng, count) if kind == "ADDER" else ())


def _readout(rng: random.Random, gates: Sequence[SyntheticGate]) -> SyntheticGate:
    """The adder at the end: over all gates without a reader, and over others if those were not two."""
    read = {sender for gate in gates for sender in gate.senders}
    ends = [gate.node for gate in gates if gate.node not in read]
    spare = [gate.node for gate in gates if gate.node in read]
    if len(ends) < 2:
        ends = rng.sample(spare, 2 - len(ends)) + ends
    weights = tuple(FULL_LOGIT_DIFF * share for share in _shares(rng, len(ends)))
    return SyntheticGate(_READOUT, "ADDER", tuple(ends), weights)


def _shares(rng: random.Random, count: int) -> tuple[float, ...]:
    """Unequal positive numbers that sum to 1, the largest less than twice the smallest."""
    drawn = [rng.uniform(0.7, 1.3) for _ in range(count)]
    return tuple(value / sum(drawn) for value in drawn)


def _numbers(
    seed: int, sources: Sequence[str], layers: Iterable[Sequence[SyntheticGate]], noise: float, examples: int
) -> tuple[Tensor, list[Tensor]]:
    """What sources emit [token, source], and the stray weights of each layer [gate, sender]."""
    generator = torch.Generator().manual_seed(seed)
    layers = list(layers)
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


def _pairs(examples: int, *, varied: bool) -> Pairs:
    """One token each: clean ones that differ in what sources emit, or are all alike; one corrupted token."""
    clean = [[1 + i if varied else 1] for i in range(examples)]
    correct, incorrect = [RIGHT_TOKEN] * examples, [WRONG_TOKEN] * examples
    return Pairs.from_tokens(
        clean, [[CORRUPTED_TOKEN]] * examples, correct=correct, incorrect=incorrect, name="synthetic"
    )
