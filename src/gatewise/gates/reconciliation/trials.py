"""What a removal does when the model is run without these edges, beside other removals and beside what logic says.

Removed edges carry corrupted outputs, as in noising. The share of a task is what is left of its logit difference
between the corrupted (0) and the clean run (1). Where a formula says that a task works or is gone, and it is not so,
the gate to blame is looked for: at every receiver, what its gates give from what its senders *really* carry is compared
with what it really puts out, along the logit difference's gradient; the largest difference, in normalised effects, is
named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine.patching.node_patching import Receivers
from gatewise.engine.running import run_circuit
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.gates.labels import Gates
from gatewise.gates.reconciliation.conflict import find_conflicts
from gatewise.gates.reconciliation.formulas import Sum, TaskFormula
from gatewise.gates.reconciliation.reconcile import Reconciliation
from gatewise.models.model import Model
from gatewise.statistics import Measure, kl_divergence, log_probabilities
from gatewise.tasks.pairs import Pairs

ANSWER = "reconcile"


@dataclass(frozen=True)
class WrongGate:
    """The receiver whose gates mislead most."""

    gate: str  # in words
    said: float  # share of its effect that its gates give from what its senders carry
    found: float  # share that it has
    worth: float  # of its effect, in normalised effects

    def __str__(self) -> str:
        return f"{self.gate}: {self.said:.2f} said, {self.found:.2f} found, of {self.worth:.0%} of the logit difference"


@dataclass(frozen=True)
class TriedRemoval:
    """One task after one removal."""

    removal: str
    edges: int
    task: str
    keep: bool
    accuracy: Measure
    logit_diff: Measure
    share: float  # of the logit difference's difference between the runs
    kl: Measure  # from the whole model
    said: float | None = None  # share that the formula gives, if this is the answer's removal
    wrong: WrongGate | None = None  # if that the task works, or is gone, is not so

    def to_json(self) -> dict[str, Any]:
        measures = {name: getattr(self, name).mean for name in ("accuracy", "logit_diff", "kl")}
        plain = {name: getattr(self, name) for name in ("removal", "edges", "task", "keep", "share", "said")}
        return {**plain, **measures, "wrong": None if self.wrong is None else str(self.wrong)}


def other_removals(
    keep: Sequence[Gates], remove: Sequence[Gates], size: int | None = None, seed: int = 0
) -> dict[str, Circuit]:
    """What else one might take away: whole circuits, what only they have, what `conflict` says, random edges."""
    graph = remove[0].graph
    doomed, needed = (_union(tasks, graph.empty()) for tasks in (remove, keep))
    found = {"nothing": graph.empty(), "whole circuit": doomed, "set difference": doomed - needed}
    if keep:
        by_rule = graph.empty()
        for lost in remove:
            spared = [find_conflicts(kept, lost).removal for kept in keep]
            by_rule = by_rule | Circuit(graph, torch.stack([one.mask for one in spared]).all(dim=0))
        found["conflict"] = by_rule
    if size is not None:
        order = torch.randperm(len(doomed), generator=torch.Generator().manual_seed(seed)).tolist()
        found["random, of the circuit"] = graph.circuit([doomed.indices[i] for i in order[:size]])
        found["random, of the model"] = graph.random_circuit(size, seed)
    return found


def _union(tasks: Sequence[Gates], empty: Circuit) -> Circuit:
    for gates in tasks:
        empty = empty | gates.sound
    return empty


def try_removals(
    model: Model,
    pairs: Mapping[str, Pairs],
    answer: Reconciliation | Mapping[str, bool],
    others: Mapping[str, Circuit],
    compute: Compute | None = None,
) -> list[TriedRemoval]:
    """Run every task without the edges of each removal. pairs: by the tasks' names.

    answer: what `reconcile` says, whose removal is tried too and held against its formulas; or the tasks alone, each
    with whether it is to be kept.
    """
    formulas: dict[str, TaskFormula] = {}
    if isinstance(answer, Reconciliation):
        formulas = {formula.name: formula for formula in answer.formulas}
        others = {**({} if answer.removal is None else {ANSWER: answer.removal}), **others}
        answer = {name: formula.keep for name, formula in formulas.items()}
    missing = [name for name in answer if name not in pairs]
    if missing:
        raise GatewiseError(f"pairs of {', '.join(missing)} are missing; there are {', '.join(pairs) or 'none'}.")
    return [
        trial
        for name, keep in answer.items()
        for trial in _of_task(name, keep, formulas.get(name), Setting.of(model, pairs[name], compute=compute), others)
    ]


def _of_task(
    task: str, keep: bool, formula: TaskFormula | None, setting: Setting, removals: Mapping[str, Circuit]
) -> list[TriedRemoval]:
    pairs, graph = setting.pairs, setting.graph
    full, empty = (run_circuit(setting.model, setting, circuit) for circuit in (graph.full(), graph.empty()))
    reference, low, high = log_probabilities(full), pairs.logit_diff(empty).double(), pairs.logit_diff(full).double()
    found = []
    for name, removal in removals.items():
        logits = run_circuit(setting.model, setting, ~removal) if removal else full
        logit_diff = pairs.logit_diff(logits).double()
        share = float((logit_diff - low).mean() / (high - low).mean())
        said = wrong = None
        if formula is not None and name == ANSWER:
            said = formula.levels(removal.indices)["logits"]
            holds = share >= formula.share if keep else share <= 1 - formula.share
            wrong = None if holds else wrong_gate(setting, formula, removal)
        kl = Measure.of(kl_divergence(reference, log_probabilities(logits)))
        accuracy = Measure.of(pairs.pairwise_accuracy(logits))
        measured = (accuracy, Measure.of(logit_diff), share, kl, said, wrong)
        found.append(TriedRemoval(name, len(removal), task, keep, *measured))
    return found


def wrong_gate(setting: Setting, formula: TaskFormula, removal: Circuit) -> WrongGate | None:
    """The gate whose inputs, as they really are without these edges, say most wrongly what comes out."""
    whole, left = _worths(setting), _worths(setting, ~removal)
    levels = {node: left[node] / worth for node, worth in whole.items() if abs(worth) > 1e-12}
    gone, found = set(removal.indices), []
    for node, receiver in formula.receivers.items():
        if node not in levels:
            continue
        there = {e: 0.0 if e in gone else _bounded(levels.get(formula.sender[e], 1.0)) for e in receiver.edges}
        said = _graded(receiver, there) if isinstance(receiver, Sum) else receiver.level(_present(there, formula))
        found.append(WrongGate(formula.words(node), said, levels[node], abs(whole[node] / whole["logits"])))
    return max(found, key=lambda one: abs(_bounded(one.said) - _bounded(one.found)) * one.worth, default=None)


def _bounded(level: float) -> float:
    return min(1.0, max(0.0, level))


def _present(there: Mapping[int, float], formula: TaskFormula) -> set[int]:
    return {
        edge for edge, level in there.items() if (level >= formula.share if formula.keep else level > 1 - formula.share)
    }


def _graded(receiver: Sum, there: Mapping[int, float]) -> float:
    """A sum of parts that are there to some extent: an AND to that of its weakest edge, an OR of its strongest."""
    parts = [(max if part.type == "OR" else min)(there[edge] for edge in part.edges) for part in receiver.parts]
    return sum(part.share * level for part, level in zip(receiver.parts, parts, strict=True)) / receiver.total


def _worths(setting: Setting, circuit: Circuit | None = None) -> dict[str, float]:
    """What each node's output is worth over the corrupted run's, along the whole model's gradient."""
    senders = range(len(setting.graph.senders))
    found = torch.zeros(len(senders) + 1, dtype=torch.float64)
    for batch in setting.batches(gradient=True):
        on = Receivers(setting, batch)
        moved = on if circuit is None else Receivers(setting, batch, circuit)
        values = [float((on.gradient(i) * moved.delta[i]).sum(dtype=torch.float64)) for i in senders]
        found += torch.tensor([*values, float(moved.total_effect.sum())])
    return dict(zip(setting.graph.nodes, found.tolist(), strict=True))
