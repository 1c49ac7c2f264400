"""EAP: edge attribution patching, a linear estimate of what removing each edge would do; and EAP-IG.

Scores are signed: the estimated change of the logit difference when the edge's clean content is exchanged for the
corrupted one (ns: expanded around the clean run; dn: around the corrupted run, with the same difference and the same
logit difference, as the paper prints). Negative means that the edge helps the correct answer. Edges are chosen by
|score|.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gatewise.engine.attribution import Attribution
from gatewise.engine.patching.exact_effects import exact_effects
from gatewise.engine.runs.counting import GRAIN, Counter
from gatewise.engine.runs.memory import give_back
from gatewise.engine.setting import Batch
from gatewise.errors import GatewiseError
from gatewise.methods.base import (
    Division,
    Finding,
    Findings,
    Method,
    Problem,
    SearchDirection,
    Work,
    logit_diff_share,
    parts_of,
    ranked,
)
from gatewise.methods.configs import OFFERED, EapConfig, EapIgConfig
from gatewise.progress import progress_bar
from gatewise.statistics import rank_correlation

BLOCKS = 32  # of micro-batches that are summed apart: as many as may be computed in different places


def search_eap(problem: Problem, config: EapConfig) -> Findings:
    """Gradients on the clean run (ns), on the corrupted run (dn), or both combined."""
    return _searched(problem, config, f"EAP {', '.join(problem.directions)}", eap_block, eap_findings)


def search_eap_ig(problem: Problem, config: EapIgConfig) -> Findings:
    """Gradients averaged over the way between the two runs."""
    return _searched(problem, config, "EAP-IG", eap_ig_block, eap_ig_findings)


def eap_block(problem: Problem, config: EapConfig, block: int) -> Tensor:
    """Scores summed over the examples of a block, in the order of `problem.runs`. [run, edge]"""
    runs = problem.runs
    if problem.setting.metric is not None and problem.setting.metric.function is None:
        raise GatewiseError(
            "eap cannot use KL: its gradient is 0 where both runs agree, and that is where EAP takes it. "
            "Use the logit difference (metric=None), another metric, or eap-ig."
        )

    def attribute(attribution: Attribution) -> Tensor:
        found = attribution.directions(runs)
        return torch.stack([found[run] for run in runs])

    return _sum(problem, attribute, block)


def eap_findings(problem: Problem, config: EapConfig, sums: Mapping[int, Tensor]) -> Findings:
    """One score per edge for each direction; ns+dn follows from the two."""
    means = dict(zip(problem.runs, _mean(problem, sums), strict=True))
    scores = {
        direction: combined(torch.stack([means[run] for run in parts_of(direction)]), config.combine)
        for direction in problem.directions
    }
    return _findings(problem, scores, config.calibrate)


def eap_ig_block(problem: Problem, config: EapIgConfig, block: int) -> Tensor:
    """The same of EAP-IG. [1, edge]"""
    if problem.directions != ("ns",) or problem.setting.ablation != "patching":
        asked = problem.setting.ablation if problem.directions == ("ns",) else ", ".join(problem.directions)
        raise GatewiseError(
            f"eap-ig has no direction and no ablation, got {asked!r}: it integrates between the clean and the "
            f"corrupted run, so noising and denoising are one. Leave both as they are by default, or use method='eap'."
        )
    return _sum(problem, lambda found: found.integrated(config.steps)[None], block)


def eap_ig_findings(problem: Problem, config: EapIgConfig, sums: Mapping[int, Tensor]) -> Findings:
    return _findings(problem, {"ns": _mean(problem, sums)[0]}, config.calibrate)


def combined(scores: Tensor, how: str) -> Tensor:
    """One score per edge out of one or two directions'. [direction, edge] -> [edge]"""
    if how == "sum":
        return scores.sum(dim=0)
    largest = scores.abs().argmax(dim=0, keepdim=True)  # of equal magnitudes, ns
    return scores.gather(0, largest)[0]


def _mean(problem: Problem, sums: Mapping[int, Tensor]) -> Tensor:
    """Over all examples, from the sums of all blocks. [run, edge]

    Sums of floats depend on their order, so the order is fixed, whoever does the work: within a block micro-batch by
    micro-batch, then block by block.
    """
    total = sum((sums[block] for block in range(1, len(sums))), sums[0])
    return (total / len(problem.pairs)).to(torch.promote_types(problem.model.dtype, torch.float32))


def blocks_of(problem: Problem, config: object = None) -> list[int]:
    return list(range(len(in_blocks(problem.setting.batches(gradient=True)))))


def in_blocks(parts: Sequence[Batch]) -> list[Sequence[Batch]]:
    """Micro-batches in at most `BLOCKS` consecutive blocks, as equal as can be."""
    count = min(BLOCKS, len(parts))
    cuts = [len(parts) * i // count for i in range(count + 1)]
    return [parts[a:b] for a, b in pairwise(cuts)]


def _searched(
    problem: Problem,
    config: Any,
    title: str,
    work: Callable[[Problem, Any, int], Tensor],
    join: Callable[[Problem, Any, Mapping[int, Tensor]], Findings],
) -> Findings:
    """Block after block, in this process."""
    blocks, sums = blocks_of(problem), {}
    with progress_bar(title, len(blocks)) as bar:
        for block in blocks:
            sums[block] = work(problem, config, block)
            bar.advance()
    return join(problem, config, sums)


def _sum(problem: Problem, attribute: Callable[[Attribution], Tensor], block: int) -> Tensor:
    """Sum what comes summed over a micro-batch's examples. [run, edge] of a block, in float64"""
    model = problem.model
    total: Tensor | None = None
    for batch in in_blocks(problem.setting.batches(gradient=True))[block]:
        scores = model.graph.vector(attribute(Attribution(problem.setting, batch)))
        if not bool(torch.isfinite(scores).all()):
            last = batch.first + len(batch.pairs) - 1
            raise GatewiseError(
                f"{model.name} gives NaN or infinite scores on examples {batch.first} to {last}; "
                f"look at these pairs, or try dtype='float32'."
            )
        wide = scores.double().cpu()
        total = wide if total is None else total + wide
        give_back()
    assert total is not None  # no block is empty
    return total


def _findings(
    problem: Problem, scores: Mapping[SearchDirection, Tensor], sample: int
) -> dict[SearchDirection, list[Finding]]:
    """Rank once, cut as often as asked."""
    notes = {d: {"calibration": _calibration(problem.only(d), scores[d], sample)} for d in scores} if sample else {}
    return ranked(problem, scores, notes)


def _calibration(problem: Problem, scores: Tensor, count: int) -> dict[str, Any]:
    """Rank correlation of scores with true changes of the logit difference, for `count` edges drawn by the seed.

    Removing an edge under dn puts the clean content in place of the corrupted one, which is the difference of the
    scores with the opposite sign.
    """
    graph = problem.model.graph
    generator = torch.Generator().manual_seed(problem.seed)
    drawn = torch.randperm(graph.n_edges, generator=generator)[:count].sort().values
    true = torch.zeros(len(drawn), dtype=torch.float64)
    for direction in problem.runs:
        effects = exact_effects(problem.model, problem.setting, drawn.tolist(), direction)
        true += effects.logit_diff if direction == "ns" else -effects.logit_diff
    estimated = scores[drawn].double()
    return {
        "edges": len(drawn),
        "rank_correlation": rank_correlation(estimated, true),
        "rank_correlation_of_magnitudes": rank_correlation(estimated.abs(), true.abs()),
    }


def _forecast(problem: Problem, config: EapConfig | EapIgConfig) -> Work:
    """Counted on one micro-batch."""
    parts = problem.setting.batches(gradient=True)
    with Counter() as counter:
        attribution = Attribution(problem.setting, parts[0])
        found = (
            attribution.integrated(config.steps)
            if isinstance(config, EapIgConfig)
            else attribution.directions(problem.runs)
        )
        del found, attribution
    share = len(problem.pairs) / len(parts[0].pairs)
    scores = 1 if isinstance(config, EapIgConfig) else len(problem.runs)
    return Work(
        runs=int(GRAIN * counter.peak),
        buffers=min(BLOCKS, len(parts)) * scores * problem.graph.n_edges * 8,
        operations=counter.operations * share,
        moved=counter.moved * share,
        micro_batch=len(parts[0].pairs),
        micro_batches=len(parts),
    )


EAP = Method(
    **vars(OFFERED["eap"]),
    search=search_eap,
    together=True,
    ranks_once=True,
    additive=True,
    for_share=logit_diff_share,
    forecast=_forecast,
    parts=Division(blocks_of, eap_block, eap_findings),
)
EAP_IG = Method(
    **vars(OFFERED["eap-ig"]),
    search=search_eap_ig,
    ranks_once=True,
    additive=True,
    for_share=logit_diff_share,
    forecast=_forecast,
    parts=Division(blocks_of, eap_ig_block, eap_ig_findings),
)
