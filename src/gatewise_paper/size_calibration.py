"""Which sizes verdicts are about: chosen by EAP on pairs of a seed of its own, before any experiment is run.

A size says something where a circuit of that many edges neither does nothing nor everything: where the mean of EAP's
Ns and Dn circuits lies between 10 and 90 % of the range from the empty circuit to the full graph. That is asked once
for each model, task and measure, on pairs that no experiment searches or measures on. Redundancy is completeness with
all bottleneck edges left in place; its range ends where all others are removed. `gatewise reproduce --calibrate FILE`
writes it; `size_calibration.json` has it for the models of the presets, from before their results.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypedDict

from gatewise.circuits.circuit import Circuit
from gatewise.evaluation import evaluate
from gatewise.methods import discover_all
from gatewise.methods.provenance import versions
from gatewise.tasks import Task, task
from gatewise_paper.bottlenecks import BOTTLENECK, CANDIDATES, best_of_others, find_bottlenecks

if TYPE_CHECKING:
    from gatewise_paper.lab import Lab

MEASURES = ("faithfulness", "completeness")
REDUNDANCY = "redundancy"
SEED = 1_000  # of the pairs; experiments have 0
MOST_SHARE = 5_000 / 32_491  # of the graph: the paper's largest circuits
_RANGE = (0.1, 0.9)
_MOST = 4  # sizes for each measure, besides the primary one


class MeasureSizes(TypedDict):
    """What a calibration chose for one measure of one task."""

    sizes: Sequence[int]  # that were tried
    shares: Sequence[float]  # normalised KL at each
    judged: Sequence[int]  # those that verdicts are about
    primary: int  # the one nearest to half of the effect


TaskSizes = Mapping[str, MeasureSizes]  # by measure
ChosenSizes = Mapping[str, Any]  # of one model: "tasks" has TaskSizes by task


def committed(model: str) -> ChosenSizes | None:
    """What was chosen for a model, if it was."""
    text = files("gatewise_paper").joinpath("size_calibration.json").read_text(encoding="utf-8")
    chosen: ChosenSizes | None = json.loads(text).get(model)
    return chosen


def calibrate(lab: Lab) -> dict[str, Any]:
    """Choose sizes for the lab's model."""
    preset, model, pairs = lab.preset, lab.model, lab.preset.setups["eap"].pairs
    sizes = grid(round(MOST_SHARE * model.graph.n_edges))
    tasks: dict[str, TaskSizes] = {}
    for name in preset.tasks:
        calibration = calibration_task(lab, name)
        circuits = discover_all(model, calibration.train, "eap", ("ns", "dn"), sizes=sizes, seed=SEED)
        faithfulness, completeness = [], []
        for of_direction in circuits.values():
            evaluations = evaluate(model, calibration.test, of_direction, random_circuits=0)
            faithfulness.append([float(e.faithfulness) / float(e.empty.kl_from_full) for e in evaluations])
            completeness.append([evaluation.destroyed for evaluation in evaluations])
        redundancy = redundancy_curves(lab, calibration, [ranked[0] for ranked in circuits.values()], sizes)
        tasks[name] = {
            "faithfulness": choose(sizes, mean_curve(faithfulness)),
            "completeness": choose(sizes, mean_curve(completeness)),
            REDUNDANCY: choose(sizes, mean_curve(redundancy)),
        }
    about = {"pairs": pairs, "held_out": preset.held_out, "seed": SEED}
    return {"weights": model.fingerprint, **about, "versions": versions(), "tasks": tasks}


def calibration_task(lab: Lab, name: str) -> Task:
    """Pairs that no experiment searches or measures on."""
    examples, held_out = lab.preset.setups["eap"].pairs, lab.preset.held_out
    return task(name, lab.model, examples=examples, test_examples=held_out, seed=SEED)


def redundancy_curves(
    lab: Lab, calibration: Task, rankings: Iterable[Circuit], sizes: Sequence[int]
) -> list[list[float]]:
    """What removing the best edges of each ranking destroys, bottlenecks left in place, as a share of what all do."""
    model, pairs = lab.model, lab.preset.ablating.pairs_of(len(calibration.train))
    left = find_bottlenecks(
        model, calibration.train, "eap", removed_on=pairs, candidates=CANDIDATES, smallest=BOTTLENECK
    )
    (end,) = evaluate(model, calibration.test, [~model.graph.circuit(list(left))], random_circuits=0)
    curves = []
    for ranking in rankings:
        circuits = best_of_others(ranking, left, sizes)
        evaluations = evaluate(model, calibration.test, circuits, random_circuits=0)
        curves.append([evaluation.destroyed / end.destroyed for evaluation in evaluations])
    return curves


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(values) for values in zip(*curves, strict=True)]


def grid(largest: int) -> list[int]:
    """Sizes up to the largest, each about 1.4 times the one before."""
    return list(dict.fromkeys(round(2 ** (i / 2)) for i in range(64) if round(2 ** (i / 2)) <= largest))


def choose(sizes: Sequence[int], shares: Sequence[float]) -> MeasureSizes:
    """The sizes within the range, a few of them; and the one nearest to its middle, which need not be within."""
    low, high = _RANGE
    inside = [size for size, share in zip(sizes, shares, strict=True) if low <= share <= high]
    distance = {size: abs(share - 0.5) for size, share in zip(sizes, shares, strict=True)}
    primary = min(inside or sizes, key=distance.__getitem__)
    if len(inside) > _MOST:
        spread = {inside[round(i * (len(inside) - 1) / (_MOST - 1))] for i in range(_MOST)}
        inside = sorted({*spread, primary})
    return {"sizes": list(sizes), "shares": [round(share, 3) for share in shares], "judged": inside, "primary": primary}
