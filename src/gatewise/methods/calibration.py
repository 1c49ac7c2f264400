"""How well estimated scores order edges: against the exact effects of a random sample of edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gatewise.engine.effects import edge_effects
from gatewise.methods.contract import Problem


def calibrate(problem: Problem, scores: Tensor, count: int) -> dict[str, Any]:
    """Rank correlation of scores with true changes of the margin, for `count` edges drawn by the seed.

    Removing an edge under dn puts the clean content in place of the corrupted one, which is the difference of the
    scores with the opposite sign.
    """
    graph = problem.model.graph
    generator = torch.Generator().manual_seed(problem.seed)
    drawn = torch.randperm(graph.n_edges, generator=generator)[:count].sort().values
    true = torch.zeros(len(drawn), dtype=torch.float64)
    for direction in problem.directions:
        effects = edge_effects(problem.model, problem.pairs, drawn.tolist(), direction, memory=problem.memory)
        true += effects.margin if direction == "ns" else -effects.margin
    estimated = scores[drawn].double()
    return {
        "edges": len(drawn),
        "rank_correlation": rank_correlation(estimated, true),
        "rank_correlation_of_magnitudes": rank_correlation(estimated.abs(), true.abs()),
    }


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's: the correlation of ranks, equal values sharing their mean rank. 0 if one side is constant."""
    x, y = (_ranks(values) for values in (a, b))
    x, y = x - x.mean(), y - y.mean()
    spread = x.norm() * y.norm()
    return float((x * y).sum() / spread) if spread > 0 else 0.0


def _ranks(values: Tensor) -> Tensor:
    _, groups, sizes = torch.unique(values, return_inverse=True, return_counts=True)
    last = sizes.cumsum(0).double()
    ranks: Tensor = (last - (sizes.double() - 1) / 2)[groups]
    return ranks
