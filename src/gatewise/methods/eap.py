"""EAP: edge attribution patching, a linear estimate of what removing each edge would do; and EAP-IG.

Scores are signed: the estimated change of the margin when the edge's clean content is exchanged for the corrupted one
(ns: expanded around the clean run; dn: around the corrupted run, with the same difference and the same margin, as the
paper prints). Negative means that the edge helps the right answer. Edges are chosen by |score|.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from gatewise.engine.attribution import Attribution
from gatewise.engine.batches import batches
from gatewise.engine.freeing import give_back
from gatewise.errors import GatewiseError
from gatewise.methods.calibration import calibrate
from gatewise.methods.contract import Finding, Method, Problem, top_edges
from gatewise.progress import progress_bar
from gatewise.tasks.pairs import Pairs

BLOCKS = 32  # of micro-batches that are summed apart: as many as may be computed in different places
_Part = tuple[int, Pairs]  # index of the first example, and the examples


@dataclass(frozen=True)
class EapConfig:
    """Parameters of EAP."""

    combine: Literal["sum", "max"] = "sum"  # of ns+dn: the sum (paper), or the score of larger magnitude
    calibrate: int = 0  # edges to compare with their exact effects; the rank correlation is noted

    def __post_init__(self) -> None:
        _check_calibrate(self.calibrate)
        if self.combine not in ("sum", "max"):
            raise GatewiseError(f"combine is 'sum' or 'max' (the score of larger magnitude), got {self.combine!r}.")


@dataclass(frozen=True)
class EapIgConfig:
    """Parameters of EAP-IG."""

    steps: int = 5  # points between the corrupted and the clean input at which the gradient is taken
    calibrate: int = 0  # edges to compare with their exact effects; the rank correlation is noted

    def __post_init__(self) -> None:
        _check_calibrate(self.calibrate)
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise GatewiseError(f"steps is a whole number of at least 1, got {self.steps!r}.")


def _check_calibrate(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise GatewiseError(f"calibrate is a number of edges, 0 for none; got {count!r}.")


def search_eap(problem: Problem, config: EapConfig) -> list[Finding]:
    """Gradients on the clean run (ns), on the corrupted run (dn), or both combined."""
    scores = score_blocks(problem, config).mean(problem)
    return _findings(problem, combined(scores, config.combine), config.calibrate)


def search_eap_ig(problem: Problem, config: EapIgConfig) -> list[Finding]:
    """Gradients averaged over the way between the two runs."""
    return _findings(problem, score_blocks(problem, config).mean(problem)[0], config.calibrate)


def score_blocks(problem: Problem, config: EapConfig | EapIgConfig, shard: tuple[int, int] = (0, 1)) -> Blocks:
    """The sums of scores over the examples of this shard's blocks: [direction, edge] each, EAP-IG's being one."""
    if isinstance(config, EapConfig):
        directions = problem.directions

        def attribute(attribution: Attribution) -> Tensor:
            found = attribution.directions(directions)
            return torch.stack([found[direction] for direction in directions])

        return _sums(problem, attribute, f"EAP {problem.direction}", shard)
    if problem.direction != "ns":
        raise GatewiseError(
            f"eap-ig has no direction {problem.direction!r}: it integrates between the clean and the corrupted run, so "
            f"noising and denoising are one. Leave direction at 'ns', or use method='eap'."
        )
    return _sums(problem, lambda found: found.integrated(config.steps)[None], "EAP-IG", shard)


def combined(scores: Tensor, how: str) -> Tensor:
    """One score per edge out of one or two directions'. [direction, edge] -> [edge]"""
    if how == "sum":
        return scores.sum(dim=0)
    largest = scores.abs().argmax(dim=0, keepdim=True)  # of equal magnitudes, ns
    return scores.gather(0, largest)[0]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Sums over blocks of micro-batches, by the number of the block.

    Sums of floats depend on their order, so the order is fixed, whoever does the work: within a block micro-batch by
    micro-batch, then block by block. A shard is every n-th block.
    """

    sums: Mapping[int, Tensor]  # [direction, edge] each, in float64

    def __or__(self, other: Blocks) -> Blocks:
        return Blocks({**self.sums, **other.sums})

    def mean(self, problem: Problem) -> Tensor:
        """Over all examples. [direction, edge]"""
        needed = len(in_blocks(list(batches(problem.model, problem.pairs, problem.memory, gradient=True))))
        if sorted(self.sums) != list(range(needed)):
            raise GatewiseError(
                f"scores of the blocks {sorted(self.sums)} were given, and {needed} blocks are needed; join all shards "
                f"of the same pairs and the same memory, each once."
            )
        total = sum((self.sums[block] for block in range(1, needed)), self.sums[0])
        return (total / len(problem.pairs)).to(torch.promote_types(problem.model.dtype, torch.float32))


def in_blocks(parts: Sequence[_Part]) -> list[Sequence[_Part]]:
    """Micro-batches in at most `BLOCKS` consecutive blocks, as equal as can be."""
    count = min(BLOCKS, len(parts))
    cuts = [len(parts) * i // count for i in range(count + 1)]
    return [parts[a:b] for a, b in pairwise(cuts)]


def _sums(problem: Problem, attribute: Callable[[Attribution], Tensor], title: str, shard: tuple[int, int]) -> Blocks:
    """Sum what comes summed over a micro-batch's examples."""
    model, pairs = problem.model, problem.pairs
    blocks = in_blocks(list(batches(model, pairs, problem.memory, gradient=True)))
    sums: dict[int, Tensor] = {}
    with progress_bar(title, len(pairs) // shard[1]) as bar:
        for block in range(shard[0], len(blocks), shard[1]):
            for first, part in blocks[block]:
                scores = model.graph.vector(attribute(Attribution(model, part)))
                if not bool(torch.isfinite(scores).all()):
                    raise GatewiseError(
                        f"{model.name} gives NaN or infinite scores on examples {first} to {first + len(part) - 1}; "
                        f"look at these pairs, or try dtype='float32'."
                    )
                wide = scores.double().cpu()
                sums[block] = sums[block] + wide if block in sums else wide
                give_back()
                bar.advance(len(part))
    return Blocks(sums)


def _findings(problem: Problem, scores: Tensor, sample: int) -> list[Finding]:
    """Rank once, cut as often as asked."""
    strength = scores.abs()
    notes = {"calibration": calibrate(problem, scores, sample)} if sample else {}
    if problem.threshold is not None:
        return [Finding(strength >= problem.threshold, scores, notes)]
    return [Finding(top_edges(strength, size), scores, notes) for size in problem.sizes]


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
