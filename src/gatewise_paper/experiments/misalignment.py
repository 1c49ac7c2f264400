"""Misalignment: do Ns and Dn circuits of equal size fit (figmisalignmentscore, tabratio, figvennintersection)?

One Ns circuit of the middle size stays, and gates are its set differences with Dn circuits of 0.6 to 1.4 times as many
edges. The score is run in both readings: "sound", within everything that either circuit has, and "alone", the AND (or
OR) circuit by itself, as printed. Dn circuits of such close sizes come from one search for all of them: EAP ranks edges
once anyway, Edge Pruning with `rank_all`, and ACDC starts at the tau of the Dn circuit of equal size.

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
from gatewise.gate_types import GATE_COLOURS, GateType
from gatewise.gates.labels import label_gates
from gatewise.statistics import rank_correlation
from gatewise_paper.claims import EFFECT_FLOOR, Between, Claim, Ruling, rules
from gatewise_paper.experiment import Experiment, Measurement, Outcome, Search
from gatewise_paper.experiments.baselines import baseline_measurement, effect_floors
from gatewise_paper.figures import BASELINE_COLOUR, MARKERS, METHOD_COLOURS, Figure, filled, wide_axis
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured, Seeds, group, of_kind, values_by_task
from gatewise_paper.measures.edge_indices import edge_indices
from gatewise_paper.measures.misalignment import CONTEXTS, OFFSET, TYPES, Sampling, Score, Scores, misalignment
from gatewise_paper.naming import METHOD_NAMES, mean_and_deviation, mean_known, task_name
from gatewise_paper.presets import Fitting
from gatewise_paper.tables import Table, printed, size_table

_NEAR = (0.9, 1.15)  # ratios that count as about 1 : 1; the paper's are 1.03 to 1.12
_TOLD_APART = 0.5  # share of sizes that may be as good as the best: with more, a curve does not tell sizes apart
Curve = Mapping[str, Any]  # what `make_curve` gives
Fit = Mapping[str, Any]  # what `measure` gives


class MisalignmentKey(NamedTuple):
    task: str
    method: str
    seed: int
    size: int  # of the Ns circuit
    fitting: Fitting
    start: int  # of the gate pairs, see Preset.search_pairs


def fitting_circuits(lab: Lab, key: MisalignmentKey) -> tuple[Circuit, list[Circuit]]:
    """The Ns circuit, and the Dn circuits around its size by growing size, all on the same pairs."""
    ns, dn = (lab.circuits(key.task, key.method, d, key.seed)[key.size] for d in ("ns", "dn"))
    changes: dict[str, Any] = {}
    if key.method == "acdc":
        changes["first_threshold"] = dn.provenance["notes"]["tau"]
    if key.method == "edge-pruning":
        changes["rank_all"] = True
    sizes = sorted({max(1, round(scale * key.size)) for scale in key.fitting.scales})
    search = Search(key.task, key.method, key.seed, ("dn",))
    return ns, sorted(lab.search(search, sizes=sizes, **changes)["dn"], key=len)


def measure(lab: Lab, key: MisalignmentKey) -> dict[str, Any]:
    """Curves in all contexts, which share their circuits; and how three of the Dn circuits overlap with Ns."""
    ns, dns = fitting_circuits(lab, key)
    setting = Setting(lab.model, lab.held_out(key.task)[: key.fitting.pairs])
    sampling = Sampling(samples=key.fitting.sets, draws=key.fitting.draws)
    curves = {}
    for context in CONTEXTS:
        scores = [
            misalignment(lab.model, setting, label_gates(ns, dn), context=context, sampling=sampling) for dn in dns
        ]
        curves[context] = make_curve(len(ns), list(map(len, dns)), scores)
    equal = min(dns, key=lambda dn: abs(len(dn) - len(ns)))
    three = dict.fromkeys((dns[0], equal, dns[-1]))
    overlaps = [[len(ns), len(dn), len(ns & dn)] for dn in three]
    return {"curves": curves, "overlaps": overlaps, "indices": index_gaps(lab, key, ns, dns)}


def make_curve(ns: int, sizes: Sequence[int], scores: Sequence[Scores]) -> dict[str, Any]:
    """As plain data: sizes of Dn; for each type mean and standard error, None without a score; what is best.

    The best size has the smallest sum of both scores; of equal ones it is the one nearest to 1 : 1. "best": Ns : Dn
    there, and how many other sizes have a sum within two standard errors (of the difference). ns: edges of Ns.
    """
    totals = {size: sum(score.mean for score in both.values()) for size, both in zip(sizes, scores, strict=True)}
    errors = {s: math.hypot(*(score.error for score in both.values())) for s, both in zip(sizes, scores, strict=True)}
    known = [size for size, total in totals.items() if not math.isnan(total)]
    best_and_rivals = None
    if known:
        best = min(known, key=lambda size: (totals[size], abs(ns - size)))
        near = [s for s in known if totals[s] - totals[best] <= 2 * math.hypot(errors[s], errors[best])]
        best_and_rivals = [ns / best, len(set(near) - {best})]
    by_type: dict[str, Any] = {kind: [_mean_and_error(both[kind]) for both in scores] for kind in TYPES}
    return {"sizes": list(sizes), **by_type, "best": best_and_rivals}


def _mean_and_error(score: Score) -> list[float] | None:
    return None if score.reason else [score.mean, 0.0 if math.isnan(score.error) else score.error]


def index_gaps(lab: Lab, key: MisalignmentKey, ns: Circuit, dns: Sequence[Circuit]) -> list[float | None]:
    """For each Dn circuit, the mean gate index of AND edges less that of OR edges; None without edges of both."""
    everything = reduce(operator.or_, dns, ns)
    exact = edge_indices(lab.model, lab.gate_pairs(key.task, key.seed), everything)
    gamma = torch.full((lab.model.graph.n_edges,), math.nan, dtype=torch.float64)
    gamma[list(exact.edges)] = exact.gamma(0.0)
    gaps = [float(gamma[(ns - dn).mask].nanmean() - gamma[(dn - ns).mask].nanmean()) for dn in dns]
    return [None if math.isnan(gap) else gap for gap in gaps]


def _measurements(lab: Lab) -> Iterator[Measurement]:
    preset = lab.preset
    yield from map(baseline_measurement, preset.tasks)
    for task, method, seed in lab.grid(seeds=preset.seeds_for("misalignment")):
        key = MisalignmentKey(task, method, seed, lab.sizes.of_gates(task), preset.fitting, preset.search_pairs)
        yield Measurement(measure, key, (Search(task, method, seed, ("ns", "dn")),))


def _judge(lab: Lab, measured: Measured) -> Outcome:
    seeds: Seeds[Fit] = group(of_kind(measured, MisalignmentKey), "task", "method")
    task, fitting, floors = lab.preset.tasks[0], lab.preset.fitting, effect_floors(measured)
    return Outcome(
        tables=[_ratios(lab, seeds), *(_scores(lab, seeds, name) for name in lab.preset.tasks), _indices(lab, seeds)],
        rulings=[ruling for method in lab.preset.methods for ruling in _rulings(lab, seeds, method, floors)],
        paper=(printed("tabratio"),),
        figures={
            "Misalignment scores of a Ns circuit with Dn circuits of 0.6 to 1.4 times as many edges "
            f"(figmisalignmentscore), in the sound circuit; OR without its offset of {OFFSET}. Bars are standard "
            "errors over samples of K.": lambda: _figure(lab, seeds),
            f"Edges of real Ns and Dn circuits, {task_name(task)} (figvennintersection): in one of them, or in "
            "both.": lambda: _overlap_figure({m: seeds[task, m][0]["overlaps"] for m in lab.preset.methods}),
        },
        notes=[
            f"Tables and figures: seed 0. {min(fitting.pairs, lab.preset.held_out)} held-out pairs; {fitting.sets} "
            f"samples of K for each size, each {Sampling().share:.0%} of the type's edges, {fitting.draws} draws of "
            "two edges each. The paper does not say how it samples.",
            "Alone, the AND (or OR) circuit seldom has a path to the logits; then the scores are exactly 0 and "
            f"{OFFSET}, and all sizes are equally good.",
        ],
    )


def _edges(lab: Lab) -> str:
    return ", ".join(f"{lab.sizes.of_gates(task):,} ({task_name(task)})" for task in lab.preset.tasks)


def _ratios(lab: Lab, seeds: Seeds[Fit]) -> Table:
    """tabratio."""
    tasks = lab.preset.tasks
    rows = []
    for context in CONTEXTS:
        for method in lab.preset.methods:
            curves = [seeds[task, method][0]["curves"][context] for task in tasks]
            rows.append([METHOD_NAMES[method], context, *map(_ratio_in_words, curves)])
    return Table(
        "Best |Ns| : |Dn|",
        ("method", "context", *map(task_name, tasks)),
        rows,
        f"By the smallest sum of both scores; Ns has {_edges(lab)} edges, seed 0. In brackets: how many of the "
        "other sizes are as good within two standard errors (over samples of K). Of equal sums, the one nearest to "
        "1 : 1.",
    )


def _ratio_in_words(curve: Curve) -> str | None:
    if curve["best"] is None:
        return None
    ratio, rivals = curve["best"]
    return f"{ratio:.2f}:1 ({rivals} of {len(curve['sizes']) - 1})"


def _scores(lab: Lab, seeds: Seeds[Fit], task: str) -> Table:
    columns: dict[str, dict[int, str | None]] = {}
    for method in lab.preset.methods:
        curve = seeds[task, method][0]["curves"]["sound"]
        for kind in TYPES:
            shown = [None if score is None else f"{score[0]:.3g} ± {score[1]:.1g}" for score in curve[kind]]
            columns[f"{METHOD_NAMES[method]} {kind}"] = dict(zip(curve["sizes"], shown, strict=True))
    edges = f"Ns has {lab.sizes.of_gates(task):,} edges, seed 0."
    note = f"{edges} ± is the standard error over samples of K. OR has the offset {OFFSET}."
    return size_table(
        f"{task_name(task)}: misalignment scores in the sound circuit", columns, note, first="edges of Dn"
    )


def _indices(lab: Lab, seeds: Seeds[Fit]) -> Table:
    columns: dict[str, dict[int, str]] = {}
    for (task, method), of_seeds in seeds.items():
        for number, scale in enumerate(lab.preset.fitting.scales):
            gaps = [seed["indices"][number] for seed in of_seeds if number < len(seed["indices"])]
            known = [gap for gap in gaps if gap is not None]
            if known:
                column = columns.setdefault(f"{METHOD_NAMES[method]}, {task_name(task)}", {})
                column[round(100 * scale)] = mean_and_deviation(known)
    note = (
        f"Mean ± standard deviation over seeds; {lab.preset.testing.pairs} pairs of their own for each. Ns has "
        f"{_edges(lab)} edges."
    )
    title = "Mean exact gate index of AND edges less that of OR edges, by the size of Dn"
    return size_table(title, columns, note, first="edges of Dn, % of Ns")


def slope(curve: Curve, kind: str) -> float:
    """Rank correlation of a score with the size of the Dn circuit; NaN for fewer than three scores."""
    known = [(size, score[0]) for size, score in zip(curve["sizes"], curve[kind], strict=True) if score is not None]
    if len(known) < 3:
        return math.nan
    sizes, scores = (torch.tensor(column, dtype=torch.float64) for column in zip(*known, strict=True))
    return rank_correlation(sizes, scores)


def range_of_sums(curve: Curve) -> float:
    """The largest less the smallest sum of both scores over all sizes; NaN without scores."""
    both = zip(curve["AND"], curve["OR"], strict=True)
    sums = [and_score[0] + or_score[0] for and_score, or_score in both if and_score and or_score]
    return max(sums) - min(sums) if sums else math.nan


def best_ratio(curve: Curve, floor: float = 0.0) -> float:
    """NaN if a curve does not say which ratio is best.

    Without scores, if half of all sizes are as good as the best, or if all sums are within the floor.
    """
    if curve["best"] is None or (floor and range_of_sums(curve) < floor):
        return math.nan
    ratio, rivals = curve["best"]
    return float(ratio) if rivals < _TOLD_APART * max(1, len(curve["sizes"]) - 1) else math.nan


def best_by_index(fit: Fit, ns: int) -> float:
    """Ns to Dn where AND edges are farthest above OR edges; NaN if there are none of both."""
    gaps = zip(fit["curves"]["sound"]["sizes"], fit["indices"], strict=True)
    known = {size: gap for size, gap in gaps if gap is not None}
    return ns / max(known, key=known.__getitem__) if known else math.nan


def _rulings(lab: Lab, seeds: Seeds[Fit], method: str, floors: Mapping[str, float]) -> list[Ruling]:
    sound = {at: [seed["curves"]["sound"] for seed in of_seeds] for at, of_seeds in seeds.items()}
    ratios = values_by_task(sound, method, lambda task, curve: best_ratio(curve, floors[task]))
    every = [ratio for of_task in ratios.values() for ratio in of_task]
    known = [ratio for ratio in every if not math.isnan(ratio)]
    median = f"; the median best ratio is {statistics.median(known):.2f} : 1" if known else ""
    return rules(
        METHOD_NAMES[method],
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
            values_by_task(sound, method, lambda task, curve: EFFECT_FLOOR * range_of_sums(curve) / floors[task]),
            Between(EFFECT_FLOOR, math.inf),
            paper="a figure",
        ),
        Claim(
            "The misalignment of AND is high if the Dn circuit is much smaller, and falls as it grows.",
            "minus the rank correlation of score and size of Dn",
            values_by_task(sound, method, lambda _, curve: -slope(curve, "AND")),
            paper="a figure",
        ),
        Claim(
            "The misalignment of OR rises as the Dn circuit grows beyond the Ns circuit.",
            "rank correlation of score and size of Dn",
            values_by_task(sound, method, lambda _, curve: slope(curve, "OR")),
            paper="a figure",
        ),
        Claim(
            "By test, too, Ns and Dn fit best at about 1 : 1.",
            "ratio at which the exact gate index of AND edges is farthest above that of OR edges",
            values_by_task(seeds, method, lambda task, seed: best_by_index(seed, lab.sizes.of_gates(task))),
            Between(*_NEAR),
        ),
        Claim(
            "AND edges have a larger gate index at their receivers than OR edges (implied: labels are about gates).",
            "mean exact gate index of AND edges less that of OR edges, mean over sizes of Dn",
            values_by_task(seeds, method, lambda _, seed: mean_known(g for g in seed["indices"] if g is not None)),
        ),
        besides="The sum of both scores tells sizes apart (fewer than half of them within two standard errors of the "
        f"best) for {len(known)} of {len(every)} curves{median}.",
    )


def _figure(lab: Lab, seeds: Seeds[Fit]) -> Figure:
    """Of seed 0."""

    def fill(axes: Any, task: str, kind: str) -> None:
        offset = OFFSET if kind == "OR" else 0.0
        largest: list[float] = []  # of each curve that is not 0
        every_size: list[int] = []
        for method in lab.preset.methods:
            curve = seeds[task, method][0]["curves"]["sound"]
            known = [(n, *score) for n, score in zip(curve["sizes"], curve[kind], strict=True) if score is not None]
            sizes, means, errors = ([point[i] for point in known] for i in range(3))
            values = [mean - offset for mean in means]
            style = {"color": METHOD_COLOURS[method], "marker": MARKERS[method], "markersize": 4, "capsize": 2}
            axes.errorbar(sizes, values, errors, label=METHOD_NAMES[method], **style)
            largest += [max(map(abs, values))] if any(values) else []
            every_size += curve["sizes"]
        axes.set_xlim(0.97 * min(every_size), 1.03 * max(every_size))
        if largest and max(largest) > 10 * min(largest):  # so that the smallest curves can be seen too
            wide_axis(axes, max(1e-3 * max(largest), min(largest)))
        axes.axvline(lab.sizes.of_gates(task), color=BASELINE_COLOUR, linestyle=":", linewidth=1, label="edges of Ns")
        axes.set_title(f"{kind}, {task_name(task)}")
        axes.set_xlabel("edges of Dn")

    return filled(lab.preset.tasks, TYPES, fill, "misalignment", width=3.8, height=2.4)


def _overlap_figure(overlaps: Mapping[str, Sequence[Sequence[int]]]) -> Figure:
    """A bar for each pair of circuits: edges of Ns alone, of both, of Dn alone."""

    def fill(axes: Any, _: str, method: str) -> None:
        for row, (ns, dn, shared) in enumerate(overlaps[method]):
            start = 0
            parts: dict[GateType, tuple[str, int]] = {"AND": ("Ns only", ns - shared), "ADDER": ("both", shared)}
            for kind, (where, edges) in (parts | {"OR": ("Dn only", dn - shared)}).items():
                axes.barh(row, edges, left=start, color=GATE_COLOURS[kind], label=f"{kind} ({where})")
                axes.text(start + edges / 2, row, f"{edges:,}" if edges else "", ha="center", va="center")
                start += edges
        axes.set_yticks(range(len(overlaps[method])), [f"Ns {ns:,}\nDn {dn:,}" for ns, dn, _ in overlaps[method]])
        axes.set_title(METHOD_NAMES[method])
        axes.set_xlabel("edges")

    return filled([""], list(overlaps), fill, width=3.6, height=2.2)


EXPERIMENT = Experiment(
    name="misalignment",
    title="Misalignment of Ns and Dn circuits",
    claim="the sum of the misalignment scores of AND and OR is smallest if Ns and Dn have about the same number of "
    "edges.",
    labels=("figmisalignmentscore", "tabratio", "figvennintersection"),
    measurements=_measurements,
    judge=_judge,
)
