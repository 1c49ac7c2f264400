"""Bottleneck edges: removing just one of them from the full graph loses a good part of the task.

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

BOTTLENECK = 0.05  # normalised effect that an edge has alone if it is one
CANDIDATES = 100  # edges that may be bottlenecks of a task: the strongest by Ns and by Dn


def bottlenecks_among(setting: Setting, edges: Sequence[str], smallest: float) -> dict[str, float]:
    """Those of the edges whose removal alone changes enough, with their normalised effects (of the KL between runs)."""
    clean, corrupted = (log_probabilities(setting.last_logits(side)) for side in ("clean", "corrupted"))
    between = float(kl_divergence(clean, corrupted).mean())
    removals = [frozenset((setting.graph.index(edge),)) for edge in edges]
    effects = (kl_changes(setting, None, removals).mean(dim=1) / between).tolist() if removals else []
    return {edge: effect for edge, effect in zip(edges, effects, strict=True) if effect >= smallest}


def find_bottlenecks(
    model: Model, pairs: Pairs, method: str, *, removed_on: int, candidates: int, smallest: float
) -> dict[str, float]:
    """Find a task's bottlenecks among the strongest edges by Ns and by Dn; the largest effect first.

    removed_on: how many of the pairs removals are measured on.
    """
    count = min(candidates, model.graph.n_edges)
    circuits = discover_all(model, pairs, method, ("ns", "dn"), sizes=(count,))
    edges = dict.fromkeys(edge for (circuit,) in circuits.values() for edge in circuit.edges)
    effects = bottlenecks_among(Setting(model, pairs[:removed_on]), list(edges), smallest)
    return dict(sorted(effects.items(), key=lambda effect: -effect[1]))


def best_of_others(circuit: Circuit, excluded: Collection[str], sizes: Sequence[int]) -> list[Circuit]:
    """The best edges by a circuit's scores, of each size, without the excluded ones."""
    graph, scores = circuit.graph, circuit.scores
    assert scores is not None
    indices = torch.tensor([graph.index(edge) for edge in excluded], dtype=torch.long)
    strength = scores.abs().index_fill(0, indices, -1.0)  # below every other edge, also below those of score 0
    return [Circuit(graph, mask, scores) for mask in select_each(graph, strength, sizes)]
