"""How well estimated scores order edges: against the exact effects of a random sample of edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gatewise.engine.effects import edge_effects
from gatewise.methods.contract import Problem
from gatewise.statistics import rank_correlation


def calibrate(problem: Problem, scores: Tensor, count: int) -> dict[str, Any]:
    """Rank correlation of scores with true changes of the margin, for `count` edges drawn by the seed.

    Removing an edge under dn puts the clean content in place of the corrupted one, which is the difference of the
    scores with the opposite sign.
    """
    graph = problem.model.graph
    generator = torch.Generator().manual_seed(problem.seed)
    drawn = torch.randperm(graph.n_edges, generator=generator)[:count].sort().values
    true = torch.zeros(len(drawn), dtype=torch.float64)
    for direction in problem.runs:
        effects = edge_effects(problem.model, problem.pairs, drawn.tolist(), direction, memory=problem.setting.memory)
        true += effects.margin if direction == "ns" else -effects.margin
    estimated = scores[drawn].double()
    return {
        "edges": len(drawn),
        "rank_correlation": rank_correlation(estimated, true),
        "rank_correlation_of_magnitudes": rank_correlation(estimated.abs(), true.abs()),
    }
