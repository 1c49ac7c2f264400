"""Misalignment: do Ns and Dn circuits of equal size fit (figmisalignmentscore, tabratio, figvennintersection)?

One Ns circuit of the middle size stays, and is split against Dn circuits of 0.6 to 1.4 times as many edges. The score
is run in both readings of `gatewise.logic.alignment`: "sound", within everything that either circuit has, and "alone",
the AND (or OR) circuit by itself, as printed. Dn circuits of such close sizes come from one search for all of them: EAP
ranks edges once anyway, Edge Pruning with `rank_all`, and ACDC starts at the tau of the Dn circuit of equal size.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.engine.runs import Direction
from gatewise.logic.alignment import (
    CONTEXTS,
    MISALIGNED_TYPES,
    Context,
    CurvePoint,
    Misalignment,
    MisalignmentCurve,
    MisalignmentScore,
    Sampling,
    misalignment_curve,
)
from gatewise.logic.gates import Gates, split_gates
from gatewise.methods import discover
from gatewise.paper.contract import (
    METHOD_NAMES,
    TASK_NAMES,
    Experiment,
    Job,
    Judgement,
    Outcome,
    Table,
    Verdict,
    grid,
)
from gatewise.paper.experiments.sizes import middle_size
from gatewise.paper.experiments.venn import draw_venn
from gatewise.paper.figures import BASELINE_COLOUR, LINES, MARKERS, METHOD_COLOURS, legend_below, panels, wide_axis
from gatewise.paper.published import RATIOS
from gatewise.statistics import rank_correlation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.paper.lab import Lab
    from gatewise.paper.presets import Preset

_SCALES = tuple(round(0.6 + 0.1 * i, 1) for i in range(9))  # the paper's 60 to 140 for 100
_OFFSET = 1.5  # m of the paper
_DIRECTION: Direction = "ns"
_NEAR = (0.9, 1.15)  # ratios that count as about 1 : 1; the paper's are 1.03 to 1.12
_CLEAR = 0.5  # rank correlation from which a curve rises or falls
Curves = Mapping[tuple[str, str], MisalignmentCurve]  # by task, method


def dn_circuits(lab: Lab, task: str, method: str) -> tuple[Circuit, list[Circuit]]:
    """The Ns circuit of the middle size, and the Dn circuits around it, all on the same pairs."""
    size = middle_size(lab)
    ns, dn = (lab.circuits(task, method, direction)[size] for direction in ("ns", "dn"))
    parameters = dict(lab.preset.parameters.get(method, {}))
    if method == "acdc":
        parameters["first_threshold"] = dn.provenance["notes"]["tau"]
    if method == "edge-pruning":
        parameters["rank_all"] = True
    sizes = sorted({max(1, round(scale * size)) for scale in _SCALES})
    pairs = lab.pairs(task, method)
    return ns, discover(lab.model, pairs, method, "dn", edges=sizes, seed=0, store=lab.store, **parameters)


def measure_curve(lab: Lab, task: str, method: str, context: Context) -> MisalignmentCurve:
    """Misalignment over sizes of the Dn circuit, through the store."""
    ns, dns = dn_circuits(lab, task, method)
    held_out, sampling = lab.held_out(task)[: lab.preset.sampled_pairs], Sampling(samples=lab.preset.sampled_sets)
    asked = {
        "ns": ns.fingerprint,
        "dn": [dn.fingerprint for dn in dns],
        "held_out": held_out.fingerprint,
        "context": context,
        "sampling": [sampling.share, sampling.samples, sampling.draws, sampling.seed],
        "offset": _OFFSET,
    }

    def compute() -> list[Any]:
        curve = misalignment_curve(
            lab.model, held_out, ns, dns, context=context, sampling=sampling, offset=_OFFSET, direction=_DIRECTION
        )
        return [[point.ns_edges, point.dn_edges, point.misalignment.to_json()] for point in curve.points]

    found = lab.remember("misalignment", asked, compute)
    return MisalignmentCurve(
        tuple(
            CurvePoint(
                ns_edges,
                dn_edges,
                Misalignment(
                    {kind: _score(scores[kind]) for kind in MISALIGNED_TYPES}, context, _DIRECTION, _OFFSET, sampling
                ),
            )
            for ns_edges, dn_edges, scores in found
        )
    )


def measure_curves(lab: Lab, task: str, method: str) -> None:
    """In all contexts: one job, since they share their circuits."""
    for context in CONTEXTS:
        measure_curve(lab, task, method, context)


def _score(plain: Mapping[str, Any]) -> MisalignmentScore:
    values: dict[str, Any] = {
        key: math.nan if value is None and key != "reason" else value for key, value in plain.items()
    }
    values["terms"] = tuple(math.nan if term is None else term for term in plain["terms"])
    return MisalignmentScore(**values)


def slope(curve: MisalignmentCurve, kind: Any) -> float:
    """Rank correlation of a score with the size of the Dn circuit; NaN for fewer than three scores."""
    values = [(p.dn_edges, p.misalignment.scores[kind].mean) for p in curve.points]
    known = [(size, score) for size, score in values if not math.isnan(score)]
    if len(known) < 3:
        return math.nan
    sizes, scores = (torch.tensor(column, dtype=torch.float64) for column in zip(*known, strict=True))
    return rank_correlation(sizes, scores)


def judge_slopes(slopes: Sequence[float], *, rising: bool) -> tuple[Judgement, int]:
    """Whether most curves rise (or fall) clearly, and how many do."""
    known = [value if rising else -value for value in slopes if not math.isnan(value)]
    right = sum(value > _CLEAR for value in known)
    if not known:
        return "cannot be judged", 0
    share = right / len(known)
    return ("holds" if share >= 0.8 else "holds partly" if share > 0.5 else "does not hold"), right


def judge_ratios(best: Sequence[tuple[float, float]]) -> Judgement:
    """Whether best ratios are about 1 : 1. best: each ratio, and the share of other sizes that are as good.

    If in most curves half of all sizes are as good as the best, the curves do not say which ratio is best.
    """
    told = [ratio for ratio, rivals in best if rivals < 0.5]
    if not best or len(told) < 0.5 * len(best):
        return "cannot be judged"
    share = sum(_NEAR[0] <= ratio <= _NEAR[1] for ratio in told) / len(told)
    return "holds" if share >= 0.8 else "holds partly" if share > 0.5 else "does not hold"


def best_ratio(curve: MisalignmentCurve) -> tuple[float, float] | None:
    """The best ratio, and the share of other sizes that are as good within two standard errors; None without scores."""
    if all(math.isnan(point.misalignment.total) for point in curve.points):
        return None
    return curve.best_ratio, len(curve.rivals) / max(1, len(curve.points) - 1)


def _run(lab: Lab) -> Outcome:
    cells = [(task, method) for task in lab.preset.tasks for method in lab.preset.methods]
    curves = {context: {cell: measure_curve(lab, *cell, context) for cell in cells} for context in CONTEXTS}
    task = lab.preset.tasks[0]
    venns = {method: _three(*dn_circuits(lab, task, method)) for method in lab.preset.methods}
    size = middle_size(lab)
    return Outcome(
        tables=[_ratios(lab, curves), *(_scores(lab, curves, name) for name in lab.preset.tasks)],
        verdicts=_verdicts(curves),
        paper=(RATIOS,),
        figures={
            f"Misalignment scores of a Ns circuit of {size:,} edges with Dn circuits of 0.6 to 1.4 times as many "
            "(figmisalignmentscore), in the sound circuit; OR without its offset of 1.5. Bars are standard errors over "
            "samples of K.": lambda: _figure(lab, curves["sound"]),
            f"Edges of real Ns and Dn circuits, {TASK_NAMES[task]} (figvennintersection); areas are in proportion to "
            "numbers of edges.": lambda: draw_venn(venns),
        },
        notes=[
            f"Seed 0; {min(lab.preset.sampled_pairs, lab.preset.held_out)} held-out pairs; {lab.preset.sampled_sets} "
            f"samples of K for each size, each {Sampling().share:.0%} of the type's edges, {Sampling().draws} draws of "
            "two edges each. The paper does not say how it samples.",
            "Dn circuits of all sizes around the middle come from one search: Edge Pruning trains once, for the "
            "smallest, and ranks; ACDC starts from the tau found for equal sizes.",
            "Alone, the AND (or OR) circuit seldom has a path to the logits; then the scores are exactly 0 and 1.5, "
            "and all sizes are equally good.",
        ],
    )


def _three(ns: Circuit, dns: Sequence[Circuit]) -> list[Gates]:
    """Splits with the smallest, the equal and the largest Dn circuit."""
    equal = min(dns, key=lambda dn: abs(len(dn) - len(ns)))
    return [split_gates(ns, dn) for dn in dict.fromkeys((dns[0], equal, dns[-1]))]


def _ratios(lab: Lab, curves: Mapping[Context, Curves]) -> Table:
    """tabratio."""
    rows: list[list[str | None]] = []
    for context, by_cell in curves.items():
        for method in lab.preset.methods:
            cells = []
            for task in lab.preset.tasks:
                found = best_ratio(by_cell[task, method])
                others = len(by_cell[task, method].points) - 1
                cells.append(None if found is None else f"{found[0]:.2f}:1 ({round(found[1] * others)} of {others})")
            rows.append([METHOD_NAMES[method], context, *cells])
    return Table(
        "Best |Ns| : |Dn|",
        ("method", "context", *(TASK_NAMES[task] for task in lab.preset.tasks)),
        rows,
        f"By the smallest sum of both scores; Ns has {middle_size(lab):,} edges, seed 0. In brackets: how many of the "
        "other sizes are as good within two standard errors (over samples of K). Of equal sums, the one nearest to "
        "1 : 1.",
    )


def _scores(lab: Lab, curves: Mapping[Context, Curves], task: str) -> Table:
    columns = [(method, kind) for method in lab.preset.methods for kind in MISALIGNED_TYPES]
    curve = {method: curves["sound"][task, method] for method in lab.preset.methods}
    rows: list[list[str | int | None]] = []
    for place, point in enumerate(next(iter(curve.values())).points):
        cells = [curve[method].points[place].misalignment.scores[kind] for method, kind in columns]
        rows.append([point.dn_edges, *(None if c.reason else f"{c.mean:.3g} ± {_error(c):.1g}" for c in cells)])
    return Table(
        f"{TASK_NAMES[task]}: misalignment scores in the sound circuit",
        ("edges of Dn", *(f"{METHOD_NAMES[method]} {kind}" for method, kind in columns)),
        rows,
        f"Ns has {middle_size(lab):,} edges, seed 0. ± is the standard error over samples of K. OR has the offset 1.5.",
    )


def _verdicts(curves: Mapping[Context, Curves]) -> list[Verdict]:
    sound = curves["sound"].values()
    falls, fall = judge_slopes([slope(curve, "AND") for curve in sound], rising=False)
    rises, rise = judge_slopes([slope(curve, "OR") for curve in sound], rising=True)
    best = [found for found in map(best_ratio, sound) if found is not None]
    told = [ratio for ratio, rivals in best if rivals < 0.5]
    median = f"; the median best ratio is {statistics.median(r for r, _ in best):.2f} : 1" if best else ""
    return [
        Verdict(
            "The misalignment of AND is high if the Dn circuit is much smaller, and falls as it grows.",
            falls,
            f"It falls with the size of Dn (rank correlation below -{_CLEAR}) for {fall} of {len(sound)} pairs of task "
            "and method.",
        ),
        Verdict(
            "The misalignment of OR rises as the Dn circuit grows beyond the Ns circuit.",
            rises,
            f"It rises with the size of Dn (rank correlation above {_CLEAR}) for {rise} of {len(sound)} pairs of task "
            "and method.",
        ),
        Verdict(
            "The best ratio of Ns to Dn edges is about 1 : 1, slightly above.",
            judge_ratios(best),
            "The sum of both scores tells sizes apart (fewer than half of them within two standard errors of the best) "
            f"for {len(told)} of {len(sound)} pairs of task and method; of those "
            f"{sum(_NEAR[0] <= r <= _NEAR[1] for r in told)} have their best ratio within {_NEAR[0]} to {_NEAR[1]}"
            f"{median}.",
        ),
    ]


def _figure(lab: Lab, curves: Curves) -> Figure:
    tasks, methods = lab.preset.tasks, lab.preset.methods
    drawn, axes = panels(len(tasks), 2, width=3.8, height=2.4)
    for row, task in enumerate(tasks):
        for column, kind in enumerate(MISALIGNED_TYPES):
            at = axes[row][column]
            for method in methods:
                points = [p for p in curves[task, method].points if p.misalignment.scores[kind].reason is None]
                scores = [p.misalignment.scores[kind] for p in points]
                at.errorbar(
                    [p.dn_edges for p in points],
                    [score.mean - (_OFFSET if kind == "OR" else 0) for score in scores],
                    yerr=[_error(score) for score in scores],
                    color=METHOD_COLOURS[method],
                    marker=MARKERS[method],
                    linestyle=LINES["ns+dn"],
                    markersize=4,
                    capsize=2,
                    label=METHOD_NAMES[method],
                )
            sizes = [p.dn_edges for method in methods for p in curves[task, method].points]
            at.set_xlim(0.97 * min(sizes), 1.03 * max(sizes))
            if (linear := _linear_range([curves[task, method] for method in methods], kind)) is not None:
                wide_axis(at, linear)
            at.axvline(middle_size(lab), color=BASELINE_COLOUR, linestyle=":", linewidth=1, label="edges of Ns")
            at.set_title(f"{kind}, {TASK_NAMES[task]}")
            at.set_xlabel("edges of Dn")
        axes[row][0].set_ylabel("misalignment")
    handles, labels = axes[0][0].get_legend_handles_labels()
    legend_below(drawn, handles, labels)
    return drawn


def _linear_range(curves: Sequence[MisalignmentCurve], kind: Any) -> float | None:
    """Where a logarithmic axis starts, so that the smallest scores can be seen too; None if all are alike."""
    largest = []
    for curve in curves:
        scores = (point.misalignment.scores[kind] for point in curve.points)
        values = [abs(s.mean - (_OFFSET if kind == "OR" else 0)) for s in scores if s.reason is None]
        largest += [max(values)] if values and max(values) > 0 else []
    return max(1e-3 * max(largest), min(largest)) if largest and max(largest) > 10 * min(largest) else None


def _error(score: MisalignmentScore) -> float:
    return score.std / math.sqrt(score.samples) if score.samples and not math.isnan(score.std) else 0.0


def _jobs(preset: Preset) -> list[Job]:
    return [
        Job(measure_curves, (task, method))
        for method in preset.methods  # the slow ones first
        for task in preset.tasks
    ]


EXPERIMENT = Experiment(
    name="misalignment",
    title="Misalignment of Ns and Dn circuits",
    claim="the sum of the misalignment scores of AND and OR is smallest if Ns and Dn have about the same number of "
    "edges.",
    labels=("figmisalignmentscore", "tabratio", "figvennintersection"),
    run=_run,
    cells=lambda preset: grid(preset, directions=("ns", "dn")),
    jobs=_jobs,
)
