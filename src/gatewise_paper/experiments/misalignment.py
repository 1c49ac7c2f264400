"""Misalignment: do Ns and Dn circuits of equal size fit (figmisalignmentscore, tabratio, figvennintersection)?

One Ns circuit of the middle size stays, and is split against Dn circuits of 0.6 to 1.4 times as many edges. The score
is run in both readings: "sound", within everything that either circuit has, and "alone", the AND (or OR) circuit by
itself, as printed. Dn circuits of such close sizes come from one search for all of them: EAP
ranks edges once anyway, Edge Pruning with `rank_all`, and ACDC starts at the tau of the Dn circuit of equal size.

Beside the score stands a test of the labels: what each edge takes away at its receiver and what it brings alone give an
exact gate index, 1 for AND and -1 for OR (`docs/gates.md`). The better two circuits fit, the farther are their AND
edges above their OR edges.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.engine.setting import Setting
from gatewise.statistics import rank_correlation
from gatewise_paper.claims import Above, Between, Claim, Ruling, rules
from gatewise_paper.experiment import Experiment, Measured, Measurement, Result, Table, by_size, group, of_kind
from gatewise_paper.experiments.ends import ends_to_measure, floors
from gatewise_paper.experiments.venn import draw_venn
from gatewise_paper.figures import BASELINE_COLOUR, MARKERS, METHOD_COLOURS, Figure, filled, wide_axis
from gatewise_paper.lab import Lab
from gatewise_paper.measures.edge_indices import edge_indices
from gatewise_paper.measures.misalignment import (
    CONTEXTS,
    MISALIGNED_TYPES,
    MisalignmentCurve,
    MisalignmentScore,
    Sampling,
    misalignment_curve,
)
from gatewise_paper.naming import METHOD_NAMES, mean_and_deviation, task_name
from gatewise_paper.presets import Fitting
from gatewise_paper.printed_numbers import RATIOS

_OFFSET = 1.5  # m of the paper
_NEAR = (0.9, 1.15)  # ratios that count as about 1 : 1; the paper's are 1.03 to 1.12
_TOLD = 0.5  # share of sizes that may be as good as the best: with more, a curve does not tell sizes apart
Curve = dict[str, Any]  # what `curve` gives for one context


class MisalignmentKey(NamedTuple):
    task: str
    method: str
    seed: int
    size: int  # of the Ns circuit
    fitting: Fitting
    start: int  # of the gate pairs, see Preset.pool


def fitting_circuits(lab: Lab, key: MisalignmentKey) -> tuple[Circuit, list[Circuit]]:
    """The Ns circuit, and the Dn circuits around its size, all on the same pairs."""
    ns, dn = (lab.circuits(key.task, key.method, d, key.seed)[key.size] for d in ("ns", "dn"))
    changes: dict[str, Any] = {}
    if key.method == "acdc":
        changes["first_threshold"] = dn.provenance["notes"]["tau"]
    if key.method == "edge-pruning":
        changes["rank_all"] = True
    sizes = sorted({max(1, round(scale * key.size)) for scale in key.fitting.scales})
    return ns, lab.search(key.task, key.method, ("dn",), sizes, key.seed, **changes)["dn"]


def measure(lab: Lab, key: MisalignmentKey) -> dict[str, Any]:
    """Curves in all contexts, which share their circuits; and how three of the Dn circuits overlap with Ns."""
    ns, dns = fitting_circuits(lab, key)
    setting = Setting(lab.model, lab.held_out(key.task)[: key.fitting.pairs])
    sampling = Sampling(samples=key.fitting.sets, draws=key.fitting.draws)
    curves = {
        context: plain(
            misalignment_curve(setting.model, setting, ns, dns, context=context, sampling=sampling, offset=_OFFSET)
        )
        for context in CONTEXTS
    }
    equal = min(dns, key=lambda dn: abs(len(dn) - len(ns)))
    three = dict.fromkeys((dns[0], equal, dns[-1]))
    splits = [[len(ns), len(dn), len(ns & dn)] for dn in three]
    return {"curves": curves, "splits": splits, "indices": index_gaps(lab, key, ns, dns)}


def index_gaps(lab: Lab, key: MisalignmentKey, ns: Circuit, dns: Sequence[Circuit]) -> list[float | None]:
    """For each Dn circuit, the mean gate index of AND edges less that of OR edges; None without edges of both."""
    every = reduce(operator.or_, dns, ns)
    exact = edge_indices(lab.model, lab.gate_pairs(key.task, key.seed), every)
    gamma = torch.full((lab.model.graph.n_edges,), math.nan, dtype=torch.float64)
    gamma[list(exact.edges)] = exact.gamma(0.0)
    gaps = [float(gamma[(ns - dn).mask].nanmean() - gamma[(dn - ns).mask].nanmean()) for dn in dns]
    return [None if math.isnan(gap) else gap for gap in gaps]


def plain(curve: MisalignmentCurve) -> Curve:
    """Sizes of Dn; for each type mean and standard error, None without a score; the best ratio, and its rivals."""
    known = not all(math.isnan(point.misalignment.total) for point in curve.points)
    return {
        "sizes": [point.dn_edges for point in curve.points],
        **{kind: [_value(point.misalignment.scores[kind]) for point in curve.points] for kind in MISALIGNED_TYPES},
        "best": [curve.best_ratio, len(curve.rivals)] if known else None,
    }


def _value(score: MisalignmentScore) -> list[float] | None:
    if score.reason is not None:
        return None
    known = score.samples and not math.isnan(score.std)
    return [score.mean, score.std / math.sqrt(score.samples) if known else 0.0]


def _measurements(lab: Lab) -> Iterator[Measurement]:
    preset = lab.preset
    more: dict[str, Any] = {"size": lab.gate_size, "fitting": preset.fitting, "start": preset.pool}
    yield from map(ends_to_measure, preset.tasks)
    yield from lab.cells(measure, MisalignmentKey, ("ns", "dn"), seeds=preset.seeds_for("misalignment"), **more)


def _judge(lab: Lab, measured: Measured) -> Result:
    floor, measured = floors(lab, measured), of_kind(measured, MisalignmentKey)
    first = {key: found for key, found in measured.items() if key.seed == 0}
    task, fitting = lab.preset.tasks[0], lab.preset.fitting
    venns = {key.method: found["splits"] for key, found in first.items() if key.task == task}
    curves = {(key.task, key.method): found["curves"] for key, found in first.items()}
    return Result(
        tables=[
            _ratios(lab, curves),
            *(_scores(lab, curves, name) for name in lab.preset.tasks),
            _index_table(lab, measured),
        ],
        rulings=[ruling for method in lab.preset.methods for ruling in _rulings(lab, measured, method, floor)],
        paper=(RATIOS,),
        figures={
            "Misalignment scores of a Ns circuit with Dn circuits of 0.6 to 1.4 times as many edges "
            "(figmisalignmentscore), in the sound circuit; OR without its offset of 1.5. Bars are standard errors over "
            "samples of K.": lambda: _figure(lab, {at: found["sound"] for at, found in curves.items()}),
            f"Edges of real Ns and Dn circuits, {task_name(task)} (figvennintersection); areas are in proportion to "
            "numbers of edges.": lambda: draw_venn(venns),
        },
        notes=[
            f"Tables and figures: seed 0. {min(fitting.pairs, lab.preset.held_out)} held-out pairs; {fitting.sets} "
            f"samples of K for each size, each {Sampling().share:.0%} of the type's edges, {fitting.draws} draws of "
            "two edges each. The paper does not say how it samples.",
            "Dn circuits of all sizes around the middle come from one search: Edge Pruning trains once, for the "
            "smallest, and ranks; ACDC starts from the tau found for equal sizes.",
            "Alone, the AND (or OR) circuit seldom has a path to the logits; then the scores are exactly 0 and 1.5, "
            "and all sizes are equally good.",
        ],
    )


def _ratios(lab: Lab, curves: dict[tuple[str, str], dict[str, Curve]]) -> Table:
    """tabratio."""
    tasks = lab.preset.tasks
    return Table(
        "Best |Ns| : |Dn|",
        ("method", "context", *(task_name(task) for task in tasks)),
        [
            [METHOD_NAMES[method], context, *(_ratio_in_words(curves[task, method][context]) for task in tasks)]
            for context in CONTEXTS
            for method in lab.preset.methods
        ],
        f"By the smallest sum of both scores; Ns has {_edges(lab)} edges, seed 0. In brackets: how many of the "
        "other sizes are as good within two standard errors (over samples of K). Of equal sums, the one nearest to "
        "1 : 1.",
    )


def _edges(lab: Lab) -> str:
    return ", ".join(f"{lab.gate_size(task):,} ({task_name(task)})" for task in lab.preset.tasks)


def _index_table(lab: Lab, measured: Measured) -> Table:
    columns: dict[str, dict[int, str]] = {}
    for (task, method), some in group(measured, "task", "method").items():
        for place, scale in enumerate(lab.preset.fitting.scales):
            known = [one["indices"][place] for one in some if place < len(one["indices"])]
            values = [value for value in known if value is not None]
            if values:
                name = f"{METHOD_NAMES[method]}, {task_name(task)}"
                columns.setdefault(name, {})[round(100 * scale)] = mean_and_deviation(values)
    note = (
        f"Mean ± deviation over seeds; {lab.preset.gate_pairs} pairs of their own for each. Ns has {_edges(lab)} edges."
    )
    title = "Mean exact gate index of AND edges less that of OR edges, by the size of Dn"
    return by_size(title, columns, note, first="edges of Dn, % of Ns")


def _ratio_in_words(curve: Curve) -> str | None:
    if curve["best"] is None:
        return None
    ratio, rivals = curve["best"]
    return f"{ratio:.2f}:1 ({rivals} of {len(curve['sizes']) - 1})"


def _scores(lab: Lab, curves: dict[tuple[str, str], dict[str, Curve]], task: str) -> Table:
    sound = {method: curves[task, method]["sound"] for method in lab.preset.methods}
    columns = {
        f"{METHOD_NAMES[method]} {kind}": {
            size: None if score is None else f"{score[0]:.3g} ± {score[1]:.1g}"
            for size, score in zip(curve["sizes"], curve[kind], strict=True)
        }
        for method, curve in sound.items()
        for kind in MISALIGNED_TYPES
    }
    edges = f"Ns has {lab.gate_size(task):,} edges, seed 0."
    note = f"{edges} ± is the standard error over samples of K. OR has the offset 1.5."
    return by_size(f"{task_name(task)}: misalignment scores in the sound circuit", columns, note, first="edges of Dn")


def slope(curve: Curve, kind: str) -> float:
    """Rank correlation of a score with the size of the Dn circuit; NaN for fewer than three scores."""
    known = [(size, score[0]) for size, score in zip(curve["sizes"], curve[kind], strict=True) if score is not None]
    if len(known) < 3:
        return math.nan
    sizes, scores = (torch.tensor(column, dtype=torch.float64) for column in zip(*known, strict=True))
    return rank_correlation(sizes, scores)


def range_of_sums(curve: Curve) -> float:
    """The largest less the smallest sum of both scores over all sizes; NaN without scores."""
    known = [(a[0], b[0]) for a, b in zip(curve["AND"], curve["OR"], strict=True) if a is not None and b is not None]
    sums = [a + b for a, b in known]
    return max(sums) - min(sums) if sums else math.nan


def best_ratio(curve: Curve, floor: float = 0.0) -> float:
    """NaN if a curve does not say which ratio is best.

    Without scores, if half of all sizes are as good as the best, or if all sums are within the floor.
    """
    if curve["best"] is None or (floor and range_of_sums(curve) < floor):
        return math.nan
    ratio, rivals = curve["best"]
    return float(ratio) if rivals < _TOLD * max(1, len(curve["sizes"]) - 1) else math.nan


def best_by_index(sizes: Sequence[int], gaps: Sequence[float | None], ns: int) -> float:
    """Ns to Dn where AND edges are farthest above OR edges; NaN if there are none of both."""
    known = {size: gap for size, gap in zip(sizes, gaps, strict=True) if gap is not None}
    return ns / max(known, key=known.__getitem__) if known else math.nan


def _rulings(lab: Lab, measured: Measured, method: str, floor: Mapping[str, float]) -> list[Ruling]:
    mine = {task: some for (task, of), some in group(measured, "task", "method").items() if of == method}
    seeds: dict[str, list[Curve]] = {
        task_name(task): [found["curves"]["sound"] for found in some] for task, some in mine.items()
    }
    ratios = {
        task_name(task): [best_ratio(found["curves"]["sound"], floor[task]) for found in some]
        for task, some in mine.items()
    }
    told = [ratio for some in ratios.values() for ratio in some]
    known = [ratio for ratio in told if not math.isnan(ratio)]
    median = f"; the median best ratio is {statistics.median(known):.2f} : 1" if known else ""
    return rules(
        METHOD_NAMES[method],
        Above(lab.preset.smallest),
        Claim(
            "The best ratio of Ns to Dn edges is about 1 : 1, slightly above.",
            "best ratio",
            ratios,
            Between(*_NEAR),
            paper="1.03 to 1.12",
        ),
        Claim(
            "The scores depend on how many edges Dn has (implied: else there is no best ratio).",
            "largest less smallest sum of both scores over sizes of Dn, to which noise adds, as a share of the KL "
            "between the runs",
            {
                task_name(task): [
                    lab.preset.floor * range_of_sums(found["curves"]["sound"]) / floor[task] for found in some
                ]
                for task, some in mine.items()
            },
            Between(lab.preset.floor, math.inf),
            paper="a figure",
        ),
        Claim(
            "The misalignment of AND is high if the Dn circuit is much smaller, and falls as it grows.",
            "minus the rank correlation of score and size of Dn",
            {task: [-slope(curve, "AND") for curve in some] for task, some in seeds.items()},
            paper="a figure",
        ),
        Claim(
            "The misalignment of OR rises as the Dn circuit grows beyond the Ns circuit.",
            "rank correlation of score and size of Dn",
            {task: [slope(curve, "OR") for curve in some] for task, some in seeds.items()},
            paper="a figure",
        ),
        Claim(
            "By test, too, Ns and Dn fit best at about 1 : 1.",
            "ratio at which the exact gate index of AND edges is farthest above that of OR edges",
            {
                task_name(task): [
                    best_by_index(one["curves"]["sound"]["sizes"], one["indices"], lab.gate_size(task)) for one in some
                ]
                for task, some in mine.items()
            },
            Between(*_NEAR),
        ),
        Claim(
            "AND edges have a larger gate index at their receivers than OR edges (implied: labels are about gates).",
            "mean exact gate index of AND edges less that of OR edges, mean over sizes of Dn",
            {
                task_name(task): [
                    statistics.fmean([gap for gap in one["indices"] if gap is not None] or [math.nan]) for one in some
                ]
                for task, some in mine.items()
            },
        ),
        besides="The sum of both scores tells sizes apart (fewer than half of them within two standard errors of the "
        f"best) for {len(known)} of {len(told)} curves{median}.",
    )


def _figure(lab: Lab, curves: dict[tuple[str, str], Curve]) -> Figure:
    def fill(at: Any, task: str, kind: str) -> None:
        offset = _OFFSET if kind == "OR" else 0.0
        largest: list[float] = []
        some = {method: curves[task, method] for method in lab.preset.methods}
        for method, curve in some.items():
            known = [(n, *score) for n, score in zip(curve["sizes"], curve[kind], strict=True) if score is not None]
            sizes, means, errors = ([one[i] for one in known] for i in range(3))
            values = [mean - offset for mean in means]
            style = {"color": METHOD_COLOURS[method], "marker": MARKERS[method], "markersize": 4, "capsize": 2}
            at.errorbar(sizes, values, errors, label=METHOD_NAMES[method], **style)
            largest += [size for size in (max(map(abs, values), default=0.0),) if size > 0]
        every = [size for curve in some.values() for size in curve["sizes"]]
        at.set_xlim(0.97 * min(every), 1.03 * max(every))
        if largest and max(largest) > 10 * min(largest):  # so that the smallest curves can be seen too
            wide_axis(at, max(1e-3 * max(largest), min(largest)))
        at.axvline(lab.gate_size(task), color=BASELINE_COLOUR, linestyle=":", linewidth=1, label="edges of Ns")
        at.set_title(f"{kind}, {task_name(task)}")
        at.set_xlabel("edges of Dn")

    return filled(lab.preset.tasks, MISALIGNED_TYPES, fill, "misalignment", width=3.8, height=2.4)


EXPERIMENT = Experiment(
    name="misalignment",
    title="Misalignment of Ns and Dn circuits",
    claim="the sum of the misalignment scores of AND and OR is smallest if Ns and Dn have about the same number of "
    "edges.",
    labels=("figmisalignmentscore", "tabratio", "figvennintersection"),
    measurements=_measurements,
    judge=_judge,
)
