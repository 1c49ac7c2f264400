"""What a removal does when the model is run without these edges, beside other removals and what formulas predict.

Removed edges carry corrupted outputs, as in noising. What is left of a task is its normalised effect: 0 is the logit
difference of the corrupted run, 1 that of the clean run. Where a formula says that a task works or is gone, and it is
not so, the gate to blame is looked for: at every receiver, what its gates give from what its senders *really* carry is
compared with what it really puts out, along the gradient of the logit difference. The largest gap, in normalised
effects, is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.devices import widest_float
from gatewise.engine.patching.node_patching import NodePatching
from gatewise.engine.running import run_circuit
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.gates.labels import Gates
from gatewise.gates.reconciliation._gate_rule import removal_by_gate_rule
from gatewise.gates.reconciliation.formulas import TaskFormula, WeightedSum
from gatewise.gates.reconciliation.smallest_removal import Reconciliation
from gatewise.models.model import Model
from gatewise.statistics import Measure, kl_divergence, log_probabilities
from gatewise.tasks.pairs import Pairs

ANSWER = "reconcile"


@dataclass(frozen=True)
class MisleadingGate:
    """The receiver whose gates predict its output worst."""

    gate: str  # in words
    predicted: float  # fraction of its effect that its gates give from what its senders carry
    measured: float  # fraction that it has
    effect: float  # its normalised effect in the whole model

    def __str__(self) -> str:
        return (
            f"{self.gate}: {self.predicted:.2f} predicted, {self.measured:.2f} measured, "
            f"of {self.effect:.0%} of the logit difference"
        )


@dataclass(frozen=True)
class TriedRemoval:
    """What one removal leaves of one task."""

    removal: str
    edges: int
    task: str
    keep: bool
    accuracy: Measure
    logit_diff: Measure
    share: float  # normalised effect that is left
    kl: Measure  # from the whole model
    predicted: float | None = None  # fraction that the formula gives, if this is the answer's removal
    misleading_gate: MisleadingGate | None = None  # if the task does not do what the formula says

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data.

        Returns:
            All fields, measures as their means.
        """
        means = {name: getattr(self, name).mean for name in ("accuracy", "logit_diff", "kl")}
        gate = None if self.misleading_gate is None else str(self.misleading_gate)
        return {**asdict(self), **means, "misleading_gate": gate}


def other_removals(
    keep: Sequence[Gates], remove: Sequence[Gates], size: int | None = None, seed: int = 0
) -> dict[str, Circuit]:
    """Collect what else one might remove, to hold against what `reconcile` says.

    Args:
        keep: Gates of the tasks to keep.
        remove: Gates of the tasks to remove.
        size: Number of edges of random removals; None for no random ones.
        seed: Of the random removals.

    Returns:
        By name: nothing, whole circuits, what only these tasks have, Corollary 1 gate by gate, random edges.
    """
    graph = remove[0].graph
    doomed, needed = _union(remove, graph.empty()), _union(keep, graph.empty())
    removals = {"nothing": graph.empty(), "whole circuit": doomed, "set difference": doomed - needed}
    if keep:
        by_rule = graph.empty()
        for lost in remove:
            spared_by_all = graph.full()
            for spared in keep:
                spared_by_all &= removal_by_gate_rule(spared, lost)
            by_rule |= spared_by_all
        removals["gate by gate"] = by_rule
    if size is not None:
        order = torch.randperm(len(doomed), generator=torch.Generator().manual_seed(seed)).tolist()
        removals["random, of the circuit"] = graph.circuit([doomed.indices[i] for i in order[:size]])
        removals["random, of the model"] = graph.random_circuit(size, seed)
    return removals


def _union(tasks: Sequence[Gates], empty: Circuit) -> Circuit:
    for gates in tasks:
        empty = empty | gates.sound
    return empty


def try_removals(
    model: Model,
    data: Mapping[str, Pairs],
    reconciliation: Reconciliation,
    others: Mapping[str, Circuit],
    *,
    compute: Compute | None = None,
) -> list[TriedRemoval]:
    """Run every task without the edges of each removal.

    Args:
        model: The model that the gates were found on.
        data: Pairs of every task, by the task's name.
        reconciliation: What `reconcile` says; its removal is tried too and held against its formulas.
        others: Other removals by name, such as those of `other_removals`.
        compute: Where to run; by default in this process.

    Returns:
        One trial for each task and removal.

    Raises:
        GatewiseError: If pairs of a task are missing.
    """
    formulas = {formula.name: formula for formula in reconciliation.formulas}
    removals = dict(others)
    if reconciliation.removal is not None:
        removals = {ANSWER: reconciliation.removal, **removals}
    missing = [name for name in formulas if name not in data]
    if missing:
        raise GatewiseError(f"pairs of {', '.join(missing)} are missing; there are {', '.join(data) or 'none'}.")
    trials: list[TriedRemoval] = []
    for name, formula in formulas.items():
        trials += _trials_of_task(formula, Setting.of(model, data[name], compute=compute), removals)
    return trials


def _trials_of_task(formula: TaskFormula, setting: Setting, removals: Mapping[str, Circuit]) -> list[TriedRemoval]:
    pairs, graph = setting.pairs, setting.graph
    full, empty = (run_circuit(setting.model, setting, circuit) for circuit in (graph.full(), graph.empty()))
    reference, low, high = (
        log_probabilities(full),
        *(pairs.logit_diff(logits).cpu().double() for logits in (empty, full)),
    )
    trials = []
    for name, removal in removals.items():
        logits = run_circuit(setting.model, setting, ~removal) if removal else full
        logit_diff = pairs.logit_diff(logits).cpu().double()
        share = float((logit_diff - low).mean() / (high - low).mean())
        predicted = misleading = None
        if name == ANSWER:
            predicted = formula.levels(removal.indices)["logits"]
            holds = share >= formula.share if formula.keep else share <= 1 - formula.share
            misleading = None if holds else misleading_gate(setting, formula, removal)
        trial = TriedRemoval(
            removal=name,
            edges=len(removal),
            task=formula.name,
            keep=formula.keep,
            accuracy=Measure.of(pairs.pairwise_accuracy(logits)),
            logit_diff=Measure.of(logit_diff),
            share=share,
            kl=Measure.of(kl_divergence(reference, log_probabilities(logits))),
            predicted=predicted,
            misleading_gate=misleading,
        )
        trials.append(trial)
    return trials


def misleading_gate(setting: Setting, formula: TaskFormula, removal: Circuit) -> MisleadingGate | None:
    """Return the gate that, given its real inputs without these edges, predicts its output worst."""
    whole, left = _effects(setting), _effects(setting, ~removal)
    levels = {node: left[node] / effect for node, effect in whole.items() if abs(effect) > 1e-12}
    removed, largest_gap, worst = set(removal.indices), -1.0, None
    for node, receiver in formula.receivers.items():
        if node not in levels:
            continue
        carried = {
            edge: 0.0 if edge in removed else _clamped(levels.get(formula.sender[edge], 1.0)) for edge in receiver.edges
        }
        if isinstance(receiver, WeightedSum):
            predicted = _graded(receiver, carried)
        else:
            predicted = receiver.level(_present(carried, formula))
        effect = abs(whole[node] / whole["logits"])
        gap = abs(_clamped(predicted) - _clamped(levels[node])) * effect
        if gap > largest_gap:
            largest_gap, worst = gap, MisleadingGate(formula.describe(node), predicted, levels[node], effect)
    return worst


def _clamped(level: float) -> float:
    return min(1.0, max(0.0, level))


def _present(levels: Mapping[int, float], formula: TaskFormula) -> set[int]:
    """The edges that count, as the formula draws the line."""
    if formula.keep:
        return {edge for edge, level in levels.items() if level >= formula.share}
    return {edge for edge, level in levels.items() if level > 1 - formula.share}


def _graded(receiver: WeightedSum, levels: Mapping[int, float]) -> float:
    """A sum of terms that are partly there: an AND as much as its weakest edge, an OR as its strongest."""
    total = 0.0
    for term in receiver.terms:
        of_edges = [levels[edge] for edge in term.edges]
        total += term.weight * (max(of_edges) if term.kind == "OR" else min(of_edges))
    return total / receiver.total


def _effects(setting: Setting, circuit: Circuit | None = None) -> dict[str, float]:
    """Each node's output less the corrupted run's, along the whole model's gradient; at `logits` the metric itself."""
    senders = range(len(setting.graph.senders))
    effects = torch.zeros(len(senders) + 1, dtype=torch.float64)
    for batch in setting.batches(gradient=True):
        whole = NodePatching(setting, batch)
        changed = whole if circuit is None else NodePatching(setting, batch, circuit)
        wide = widest_float(setting.model.device)
        of_senders = [(whole.gradient(i) * changed.delta[i]).sum(dtype=wide) for i in senders]
        effects += torch.stack([*of_senders, changed.total_effect.sum()]).cpu()
    return dict(zip(setting.graph.nodes, effects.tolist(), strict=True))
