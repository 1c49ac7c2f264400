"""Edges that are costly alone: removing just one of them from the full graph loses a good part of the task.

A circuit that has them loses the task whatever else it has, so that the rest of it does not show. Unlearning leaves
those in place that every task needs, redundancy those that its own task needs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.selection import select_each
from gatewise.engine.patching.edge_ablation import kl_changes
from gatewise.engine.setting import Setting
from gatewise.methods import discover_all
from gatewise.models.model import Model
from gatewise.statistics import kl_divergence, log_probabilities
from gatewise.tasks.pairs import Pairs


def costly_alone(setting: Setting, edges: Sequence[str], smallest: float) -> dict[str, float]:
    """Of some edges those whose removal alone costs enough, and what it costs, in shares of the KL between the runs."""
    clean, corrupted = (log_probabilities(setting.last_logits(side)) for side in ("clean", "corrupted"))
    between = float(kl_divergence(clean, corrupted).mean())
    removals = [frozenset((setting.graph.index(edge),)) for edge in edges]
    costs = (kl_changes(setting, None, removals).mean(dim=1) / between).tolist() if removals else []
    return {edge: cost for edge, cost in zip(edges, costs, strict=True) if cost >= smallest}


def costly_edges(
    model: Model, pairs: Pairs, method: str, *, candidates: int, removed_on: int, smallest: float
) -> dict[str, float]:
    """Those of a task: of the strongest edges that a method finds by Ns and by Dn on some pairs, the dearest first.

    removed_on: how many of the pairs removals are measured on.
    """
    count = min(candidates, model.graph.n_edges)
    circuits = discover_all(model, pairs, method, ("ns", "dn"), sizes=(count,))
    edges = dict.fromkeys(edge for (circuit,) in circuits.values() for edge in circuit.edges)
    costs = costly_alone(Setting(model, pairs[:removed_on]), list(edges), smallest)
    return dict(sorted(costs.items(), key=lambda item: -item[1]))


def strongest_others(circuit: Circuit, left: Collection[str], sizes: Sequence[int]) -> list[Circuit]:
    """The best edges by a circuit's scores, of each size, without those that are left in place."""
    graph, scores = circuit.graph, circuit.scores
    assert scores is not None
    strength = scores.abs().index_fill(0, torch.tensor([graph.index(edge) for edge in left], dtype=torch.long), -1.0)
    return [Circuit(graph, mask, scores) for mask in select_each(graph, strength, sizes)]
