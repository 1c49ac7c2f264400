"""Synthetic tasks that share a trunk: which edges all tasks use and which one alone has is known.

    trunk   S1 S2 -> T1, S3 S4 -> T2, T1 T2 -> U         the same for all tasks
    task t  Pt.1 Pt.2 -> Gt, U Gt -> Ot, Ot -> Ft -> logit of the task's answer

All gates but Ft are ANDs, so that nothing of task t passes on the prompts of another: there Pt.1 and Pt.2 are silent on
both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.models.model import Model
from gatewise.models.synthetic.logic_model import LogicGate, logic_model
from gatewise.tasks.pairs import Pairs

_LOGIT = 3.0  # that a task's answer has on the clean prompt
_TRUNK = ("S1", "S2", "S3", "S4")


@dataclass(frozen=True, eq=False)
class SharedTrunk:
    """A model of several tasks, their pairs, and the true parts of their circuits."""

    model: Model
    pairs: Mapping[str, Pairs]  # by task
    shared: Circuit
    own: Mapping[str, Circuit]


def shared_trunk(seed: int = 0, *, tasks: int = 3, noise: float = 0.05, examples: int = 16) -> SharedTrunk:
    """Draw a model of tasks that share a trunk.

    Args:
        seed: Decides everything that is drawn.
        tasks: Number of tasks.
        noise: Standard deviation of what sources emit from one example to the next, and of the weights with which gates
            read nodes that they should not.
        examples: Pairs of each task.

    Returns:
        The model, and which edges are shared and which are one task's own.
    """
    names = [str(task + 1) for task in range(tasks)]
    sources = [*_TRUNK, *(f"P{name}.{i}" for name in names for i in (1, 2))]
    own_gates = [LogicGate(f"G{name}", "AND", (f"P{name}.1", f"P{name}.2")) for name in names]
    layers = [
        [LogicGate("T1", "AND", ("S1", "S2")), LogicGate("T2", "AND", ("S3", "S4")), *own_gates],
        [LogicGate("U", "AND", ("T1", "T2"))],
        [LogicGate(f"O{name}", "AND", ("U", f"G{name}")) for name in names],
        [LogicGate(f"F{name}", "ADDER", (f"O{name}",), (_LOGIT,)) for name in names],
    ]
    generator = torch.Generator().manual_seed(seed)
    emitted = torch.zeros(1 + tasks * examples, len(sources), dtype=torch.float64)  # token 0 is the corrupted prompt
    pairs: dict[str, Pairs] = {}
    for task, name in enumerate(names):
        tokens = torch.arange(examples) + 1 + task * examples
        speaking = [*range(len(_TRUNK)), len(_TRUNK) + 2 * task, len(_TRUNK) + 2 * task + 1]
        values = 1 + noise * torch.randn(examples, len(speaking), generator=generator, dtype=torch.float64)
        emitted[tokens[:, None], torch.tensor(speaking)] = values
        answers = ([2 * task] * examples, [2 * task + 1] * examples)
        pairs[name] = Pairs.from_tokens(tokens[:, None], [[0]] * examples, *answers, name=f"task {name}")
    stray = []
    written = len(sources)
    for layer in layers:
        weights = noise * torch.randn(len(layer), len(sources) + sum(map(len, layers)), generator=generator)
        weights[:, written:] = 0  # what is not written yet
        stray.append(weights.double() / 4)
        written += len(layer)
    model = logic_model(
        f"synthetic:trunk-{seed}",
        sources,
        layers,
        {2 * task: f"F{name}" for task, name in enumerate(names)},
        emitted=emitted.float(),
        stray=stray,
    )
    shared = ["S1->T1", "S2->T1", "S3->T2", "S4->T2", "T1->U", "T2->U"]
    own: dict[str, Circuit] = {}
    for name in names:
        gate, out, last = f"G{name}", f"O{name}", f"F{name}"
        edges = [f"P{name}.1->{gate}", f"P{name}.2->{gate}", f"{gate}->{out}", f"U->{out}", f"{out}->{last}"]
        own[name] = model.graph.circuit([*edges, f"{last}->logits"])
    return SharedTrunk(model, pairs, model.graph.circuit(shared), own)
