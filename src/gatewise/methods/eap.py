"""EAP: edge attribution patching, a linear estimate of what removing each edge would do; and EAP-IG.

Scores are signed, in units of the logit difference: the estimated loss of it when the edge's clean content is exchanged
for the corrupted one (ns: expanded around the clean run; dn: around the corrupted run, with the same difference and the
same logit difference, as the paper prints). Positive means that the edge helps the correct answer, in every direction.
Edges are chosen by |score|. Both take a gradient rule: what the backward pass does where the model is not linear.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from gatewise.engine.attribution import Attribution
from gatewise.engine.runs.counting import GRAIN, Counter
from gatewise.engine.runs.memory import give_back
from gatewise.engine.setting import Batch, Setting
from gatewise.errors import GatewiseError
from gatewise.methods.base import (
    Findings,
    Method,
    Problem,
    SearchDirection,
    Work,
    metric_of_share,
    ranked,
    single_directions_of,
)
from gatewise.models.gradient_rules import GradientRule, RuleName, find_rule
from gatewise.progress import progress_bar

BLOCKS = 32  # of micro-batches that are summed apart: as many as may be computed in different places


@dataclass(frozen=True)
class _LinearEstimate(Method):
    """Scores of all edges from gradients, averaged over examples, in blocks of examples that workers share."""

    ranks_once = True
    additive = True
    scores_examples = True
    version = "2"  # since scores are positive where an edge helps
    threshold_meaning = "smallest |score|, in units of the logit difference"

    rule: RuleName | GradientRule = field(default="plain", kw_only=True)

    @abstractmethod
    def attribute(self, attribution: Attribution, problem: Problem) -> Tensor:
        """Return scores summed over the examples of a micro-batch. [estimate, port, sender]"""

    def parts(self, problem: Problem) -> Sequence[int]:
        """Number the blocks of examples."""
        return range(len(in_blocks(problem.setting.batches(gradient=True))))

    def search(self, problem: Problem) -> Findings:
        """Sum block after block in this process."""
        sums, blocks = {}, self.parts(problem)
        with progress_bar(f"{self.title} {', '.join(problem.directions)}", len(blocks)) as bar:
            for block in blocks:
                sums[block] = self.search_part(problem, block)
                bar.advance()
        return self.join_parts(problem, sums)

    def search_part(self, problem: Problem, part: int) -> Tensor:
        """Sum scores over the micro-batches of a block, in float64. [estimate, edge]"""
        total: Tensor | None = None
        for batch in in_blocks(problem.setting.batches(gradient=True))[part]:
            for wide in problem.setting.in_fitting_batches(batch, lambda fitting: self._scores(problem, fitting)):
                total = wide if total is None else total + wide
            give_back()
        assert total is not None  # no block is empty
        return total

    def _scores(self, problem: Problem, batch: Batch) -> Tensor:
        """Sum scores over the examples of a micro-batch, in float64. [estimate, edge]"""
        return self._estimates(problem, batch).cpu().double()

    def score_batch(self, problem: Problem, batch: Batch) -> Tensor:
        """Score edges on each example of a batch alone; those of ns+dn are the sum. [example, edge]"""
        return self._estimates(problem, batch, per_example=True).sum(dim=0).cpu()

    def _estimates(self, problem: Problem, batch: Batch, *, per_example: bool = False) -> Tensor:
        """Score edges on a batch. [estimate, edge], the sum over examples, or [estimate, example, edge]"""
        attribution = self._attribution(problem, batch, per_example=per_example)
        scores = problem.graph.vector(self.attribute(attribution, problem))
        if not bool(torch.isfinite(scores).all()):
            last = batch.first + len(batch.pairs) - 1
            raise GatewiseError(
                f"{problem.model.name} gives NaN or infinite scores on examples {batch.first} to {last}; "
                f"look at these pairs, or try dtype='float32'."
            )
        return scores

    def _attribution(self, problem: Problem, batch: Batch, *, per_example: bool = False) -> Attribution:
        return Attribution(problem.setting, batch, find_rule(self.rule), per_example=per_example)

    def threshold_for(self, setting: Setting, direction: SearchDirection, share: float) -> tuple[Method, float]:
        """Return a share of the metric's difference between the runs: scores are in its unit."""
        return self, metric_of_share(setting, direction, share)

    def forecast(self, problem: Problem) -> Work:
        """Count one micro-batch."""
        batches = problem.setting.batches(gradient=True)
        with Counter() as counter:
            estimates = len(self.attribute(self._attribution(problem, batches[0]), problem))
        share = len(problem.pairs) / len(batches[0].pairs)
        return Work(
            runs=int(GRAIN * counter.peak),
            buffers=min(BLOCKS, len(batches)) * estimates * problem.graph.n_edges * 8,
            operations=counter.operations * share,
            moved=counter.moved * share,
            micro_batch=len(batches[0].pairs),
            micro_batches=len(batches),
        )


@dataclass(frozen=True)
class Eap(_LinearEstimate):
    """EAP: gradients on the clean run (ns), on the corrupted run (dn), or both combined.

    Args:
        combine: How ns+dn makes one score of two: their sum (the paper), or the one of larger magnitude ("max").
        rule: How gradients go back: "plain" (the paper), "constant-norm", "gim", "relp", or a `GradientRule`.
    """

    name = "eap"
    title = "EAP"
    summary = "a linear estimate of every edge's effect from one gradient per direction"
    together = True

    combine: Literal["sum", "max"] = "sum"

    def check(self, problem: Problem) -> None:
        """Refuse KL."""
        if problem.setting.metric is not None and problem.setting.metric.function is None:
            raise GatewiseError(
                "eap cannot use KL: its gradient is 0 where both runs agree, and that is where EAP takes it. "
                "Use the logit difference (metric=None), another metric, or eap-ig."
            )

    def score_batch(self, problem: Problem, batch: Batch) -> Tensor:
        """Refuse the larger of two directions, which is no mean over examples."""
        if self.combine == "max" and "ns+dn" in problem.directions:
            raise GatewiseError(
                "eap with combine='max' takes the larger of two means over examples, which no score of a single "
                "example sums up to; use combine='sum', or one direction."
            )
        return super().score_batch(problem, batch)

    def attribute(self, attribution: Attribution, problem: Problem) -> Tensor:
        """Return one estimate for each of the problem's single directions. [direction, port, sender]"""
        scores = attribution.directions(problem.single_directions)
        return torch.stack([scores[direction] for direction in problem.single_directions])

    def join_parts(self, problem: Problem, outcomes: Mapping[int, Tensor]) -> Findings:
        """Rank edges by the scores of each direction; those of ns+dn follow from the two."""
        means = dict(zip(problem.single_directions, mean_scores(problem, outcomes), strict=True))
        scores: dict[SearchDirection, Tensor] = {}
        for direction in problem.directions:
            estimates = torch.stack([means[single] for single in single_directions_of(direction)])
            scores[direction] = combined(estimates, self.combine)
        return ranked(problem, scores)


@dataclass(frozen=True)
class EapIg(_LinearEstimate):
    """EAP-IG: gradients averaged over the way between the two runs.

    Args:
        steps: Points between the corrupted and the clean input at which the gradient is taken.
        path: Whether a gradient is multiplied by how far the activations moved since the point before: the path
            integral. By default it is multiplied by the whole difference, as published.
        rule: How gradients go back: "plain" (as published), "constant-norm", "gim", "relp", or a `GradientRule`.
    """

    name = "eap-ig"
    title = "EAP-IG"
    summary = "EAP with the gradient averaged between the corrupted and the clean input; has no direction"
    directed = False

    steps: int = 5
    path: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise GatewiseError(f"steps is a whole number of at least 1, got {self.steps!r}.")

    def check(self, problem: Problem) -> None:
        """Refuse directions and ablations."""
        if problem.directions != ("ns",) or problem.setting.ablation != "patching":
            given = problem.setting.ablation if problem.directions == ("ns",) else ", ".join(problem.directions)
            raise GatewiseError(
                f"eap-ig has no direction and no ablation, got {given!r}: it integrates between the clean and the "
                f"corrupted run, so noising and denoising are one. Leave both as they are by default, or use "
                f"method='eap'."
            )

    def attribute(self, attribution: Attribution, problem: Problem) -> Tensor:
        """Return the one estimate. [1, port, sender]"""
        scores = attribution.along_path(self.steps) if self.path else attribution.integrated(self.steps)
        return scores[None]

    def join_parts(self, problem: Problem, outcomes: Mapping[int, Tensor]) -> Findings:
        """Rank edges by their scores."""
        return ranked(problem, {"ns": mean_scores(problem, outcomes)[0]})


def combined(scores: Tensor, combine: str) -> Tensor:
    """Make one score per edge out of one or two directions'. [direction, edge] -> [edge]"""
    if combine == "sum":
        return scores.sum(dim=0)
    largest = scores.abs().argmax(dim=0, keepdim=True)  # of equal magnitudes, ns
    return scores.gather(0, largest)[0]


def in_blocks(batches: Sequence[Batch]) -> list[Sequence[Batch]]:
    """Cut micro-batches into at most `BLOCKS` consecutive blocks, as equal as can be."""
    count = min(BLOCKS, len(batches))
    cuts = [len(batches) * i // count for i in range(count + 1)]
    return [batches[start:end] for start, end in pairwise(cuts)]


def mean_scores(problem: Problem, sums: Mapping[int, Tensor]) -> Tensor:
    """Average over all examples, from the sums of all blocks. [estimate, edge]"""
    # Float sums depend on their order. It is fixed, whoever does the work: within a block micro-batch by micro-batch,
    # then block by block.
    total = sum((sums[block] for block in range(1, len(sums))), sums[0])
    return (total / len(problem.pairs)).to(torch.promote_types(problem.model.dtype, torch.float32))
