"""Where a ranking of all edges is cut on models whose gates are known: what a threshold is to other methods."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.engine.running import run_circuits
from gatewise.engine.setting import Setting
from gatewise.methods.base import Method, SearchDirection, kl_of_share, single_directions_of
from gatewise.methods.discovery import discover
from gatewise.statistics import kl_divergence, log_probabilities

_TOGETHER = 16  # sizes that are run at a time


def smallest_within(
    setting: Setting, method: Method, direction: SearchDirection, share: float, seed: int = 0
) -> Circuit:
    """Rank all edges, and keep the fewest of the strongest that leave no more KL than one edge of this share does.

    Args:
        setting: Model and pairs.
        method: One that ranks all edges at once.
        direction: Of the search; for ns+dn the KL has to be small on both sides.
        share: Of the effect that an edge has to carry, as for `Method.threshold_for`.
        seed: Of the search.

    Returns:
        The smallest circuit of the ranking whose KL is at most share^2 of that between the runs.
    """
    ranking = discover(setting.model, setting.pairs, method, direction, edges=setting.graph.n_edges, seed=seed)
    assert ranking.scores is not None
    # Every size from 1 on: the KL of nested circuits may rise again, so that halving would miss the smallest.
    order = torch.argsort(ranking.scores.abs(), descending=True, stable=True).tolist()
    for first in range(1, len(order) + 1, _TOGETHER):
        sizes = range(first, min(first + _TOGETHER, len(order) + 1))
        circuits = [setting.graph.circuit(order[:size]) for size in sizes]
        for circuit, near in zip(circuits, _within(setting, circuits, direction, share), strict=True):
            if near:
                return circuit
    return setting.graph.full()


def _within(setting: Setting, circuits: list[Circuit], direction: SearchDirection, share: float) -> Iterator[bool]:
    """Say of each circuit whether its KL is small enough in every direction."""
    near = torch.ones(len(circuits), dtype=torch.bool)
    for single in single_directions_of(direction):
        reference = log_probabilities(setting.last_logits("clean" if single == "ns" else "corrupted"))
        outputs = log_probabilities(run_circuits(setting.model, setting.pairs, circuits, single))
        distances = kl_divergence(reference.expand_as(outputs), outputs).mean(dim=-1)
        near &= distances <= kl_of_share(setting, single, share)
    yield from near.tolist()
