"""Exact effects as a method: edges ranked by what removing each alone really does. Slow: one partial run per edge."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.engine.patching.edge_ablation import NOTHING, EdgeAblation, measure_ablation
from gatewise.engine.setting import Batch
from gatewise.errors import GatewiseError
from gatewise.methods.base import Findings, Method, Problem, ranked


@dataclass(frozen=True)
class Exact(Method):
    """Exact effects on the logit difference, or on the metric in its place, of every edge of the full graph."""

    name = "exact"
    title = "exact effects"
    summary = "what removing each edge alone really does to the logit difference; one partial run per edge"
    ranks_once = True
    additive = True
    scores_examples = True
    threshold_meaning = "smallest |effect|, in units of the logit difference"

    def check(self, problem: Problem) -> None:
        """Refuse both directions at once."""
        if "ns+dn" in problem.directions:
            raise GatewiseError("exact effects are of one direction, 'ns' or 'dn'; got 'ns+dn'.")

    def score_batch(self, problem: Problem, batch: Batch) -> Tensor:
        """Measure what each edge adds to the logit difference of each example. [example, edge]"""
        (direction,) = problem.single_directions
        ablation = EdgeAblation(problem.setting, batch, problem.graph.full(), direction)
        removals = [NOTHING, *(frozenset([edge]) for edge in range(problem.graph.n_edges))]
        (values,) = measure_ablation(ablation, removals, [ablation.logit_diff])
        # Denoising removes an edge by giving it clean content, noising by taking that away.
        sign = 1 if direction == "dn" else -1
        added: Tensor = sign * (values[1:] - values[0]).T
        return added.to(torch.promote_types(problem.model.dtype, torch.float32))

    def search(self, problem: Problem) -> Findings:
        """Average over all examples."""
        scores = {}
        for direction in problem.directions:
            parts = [self.score_batch(problem.only(direction), batch) for batch in problem.setting.batches()]
            scores[direction] = torch.cat(parts).double().mean(dim=0)
        return ranked(problem, scores)
