"""EAP: edge attribution patching, a linear estimate of what removing each edge would do; and EAP-IG.

Scores are signed: the estimated change of the margin when the edge's clean content is exchanged for the corrupted one
(ns: expanded around the clean run; dn: around the corrupted run, with the same difference and the same margin, as the
paper prints). Negative means that the edge helps the right answer. Edges are chosen by |score|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gatewise.engine.attribution import Attribution
from gatewise.engine.batches import batches
from gatewise.errors import GatewiseError
from gatewise.methods.contract import Finding, Method, Problem, top_edges
from gatewise.progress import progress_bar


@dataclass(frozen=True)
class EapConfig:
    """How `ns+dn` makes one score of two: their sum (the paper), or the one of larger magnitude (its authors' demo)."""

    combine: Literal["sum", "max"] = "sum"

    def __post_init__(self) -> None:
        if self.combine not in ("sum", "max"):
            raise GatewiseError(f"combine is 'sum' or 'max' (the score of larger magnitude), got {self.combine!r}.")


@dataclass(frozen=True)
class EapIgConfig:
    """At how many points between the corrupted and the clean input the gradient is taken."""

    steps: int = 5

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise GatewiseError(f"steps is a whole number of at least 1, got {self.steps!r}.")


def search_eap(problem: Problem, config: EapConfig) -> list[Finding]:
    """Gradients on the clean run (ns), on the corrupted run (dn), or both combined."""
    directions = problem.directions

    def attribute(attribution: Attribution) -> Tensor:
        found = attribution.directions(directions)
        return torch.stack([found[direction] for direction in directions])

    scores = _mean_scores(problem, attribute, f"EAP {problem.direction}")
    return _findings(problem, combined(scores, config.combine))


def search_eap_ig(problem: Problem, config: EapIgConfig) -> list[Finding]:
    """Gradients averaged over the way between the two runs."""
    if problem.direction != "ns":
        raise GatewiseError(
            f"eap-ig has no direction {problem.direction!r}: it integrates between the clean and the corrupted run, so "
            f"noising and denoising are one. Leave direction at 'ns', or use method='eap'."
        )
    return _findings(problem, _mean_scores(problem, lambda found: found.integrated(config.steps), "EAP-IG"))


def combined(scores: Tensor, how: str) -> Tensor:
    """One score per edge out of one or two directions'. [direction, edge] -> [edge]"""
    if how == "sum":
        return scores.sum(dim=0)
    largest = scores.abs().argmax(dim=0, keepdim=True)  # of equal magnitudes, ns
    return scores.gather(0, largest)[0]


def _mean_scores(problem: Problem, attribute: Callable[[Attribution], Tensor], title: str) -> Tensor:
    """The mean over all examples, whatever the batches, of scores that come summed over a batch's. [..., edge]"""
    model, pairs = problem.model, problem.pairs
    total: Tensor | None = None
    with progress_bar(title, len(pairs)) as bar:
        for first, part in batches(model, pairs, problem.memory, gradient=True):
            scores = model.graph.vector(attribute(Attribution(model, part)))
            if not bool(torch.isfinite(scores).all()):
                raise GatewiseError(
                    f"{model.name} gives NaN or infinite scores on examples {first} to {first + len(part) - 1}; "
                    f"look at these pairs, or try dtype='float32'."
                )
            total = scores.double() if total is None else total + scores.double()
            bar.advance(len(part))
    assert total is not None  # pairs are never empty
    return (total / len(pairs)).to(torch.promote_types(model.dtype, torch.float32)).cpu()


def _findings(problem: Problem, scores: Tensor) -> list[Finding]:
    """Rank once, cut as often as asked."""
    strength = scores.abs()
    if problem.threshold is not None:
        return [Finding(strength >= problem.threshold, scores)]
    return [Finding(top_edges(strength, size), scores) for size in problem.sizes]


EAP = Method(
    name="eap",
    summary="a linear estimate of every edge's effect from one gradient per direction",
    config=EapConfig,
    search=search_eap,
    threshold_meaning="smallest |score|, in units of the margin",
)
EAP_IG = Method(
    name="eap-ig",
    summary="EAP with the gradient averaged between the corrupted and the clean input; has no direction",
    config=EapIgConfig,
    search=search_eap_ig,
    directed=False,
    threshold_meaning="smallest |score|, in units of the margin",
)
