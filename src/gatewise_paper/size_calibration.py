"""Which sizes verdicts are about: chosen by EAP on pairs of a seed of its own, before any experiment is run.

A size says something where a circuit of that many edges neither does nothing nor everything: where the mean of EAP's
Ns and Dn circuits lies between 10 and 90 % of the range from the empty circuit to the full graph. That is asked once
for each model, task and measure, on pairs that no experiment searches or measures on. Redundancy is completeness with
all edges left in place that are costly alone; its range ends where all others are removed. `gatewise reproduce
--calibrate FILE` writes it; `size_calibration.json` has it for the models of the presets, from before their results.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from gatewise.circuits.circuit import Circuit
from gatewise.evaluation import evaluate
from gatewise.methods import discover_all
from gatewise.methods.provenance import versions
from gatewise.tasks import Task, task
from gatewise_paper.bottlenecks import costly_edges, strongest_others

if TYPE_CHECKING:
    from gatewise_paper.lab import Lab

MEASURES = ("faithfulness", "completeness")
REDUNDANCY = "redundancy"
SEED = 1_000  # of the pairs; experiments have 0
MOST_SHARE = 5_000 / 32_491  # of the graph: the paper's largest circuits
_RANGE = (0.1, 0.9)
_MOST = 4  # sizes for each measure, besides the primary one
ChosenSizes = Mapping[str, Any]  # of one model; by task and measure "sizes", "shares", "judged", "primary"


def committed(model: str) -> ChosenSizes | None:
    """What was chosen for a model, if it was."""
    text = files("gatewise_paper").joinpath("size_calibration.json").read_text(encoding="utf-8")
    found: ChosenSizes | None = json.loads(text).get(model)
    return found


def calibrate(lab: Lab) -> dict[str, Any]:
    """Choose for the lab's model."""
    preset, model = lab.preset, lab.model
    sizes = grid(round(MOST_SHARE * model.graph.n_edges))
    tasks: dict[str, Any] = {}
    for name in preset.tasks:
        own = calibration_task(lab, name)
        circuits = discover_all(model, own.train, "eap", ("ns", "dn"), sizes=sizes, seed=SEED)
        both = [evaluate(model, own.test, some, random_circuits=0) for some in circuits.values()]
        curves = {
            "faithfulness": [
                [float(one.faithfulness) / float(one.empty.kl_from_full) for one in some] for some in both
            ],
            "completeness": [[one.destroyed for one in some] for some in both],
            REDUNDANCY: redundancy_curves(lab, own, [some[0] for some in circuits.values()], sizes),
        }
        tasks[name] = {measure: choose(sizes, mean_curve(some)) for measure, some in curves.items()}
    about = {"pairs": preset.pairs["eap"], "held_out": preset.held_out, "seed": SEED}
    return {"weights": model.fingerprint, **about, "versions": versions(), "tasks": tasks}


def calibration_task(lab: Lab, name: str) -> Task:
    """Pairs that no experiment searches or measures on."""
    preset = lab.preset
    return task(name, lab.model, examples=preset.pairs["eap"], test_examples=preset.held_out, seed=SEED)


def redundancy_curves(lab: Lab, own: Task, ranked: Iterable[Circuit], sizes: Sequence[int]) -> list[list[float]]:
    """What is destroyed by removing the best edges of each ranking that are not costly, of what all of them do."""
    preset, model = lab.preset, lab.model
    limits: dict[str, Any] = {"candidates": preset.candidates, "smallest": preset.costly}
    left = costly_edges(model, own.train, "eap", removed_on=preset.for_removals(preset.pairs["eap"]), **limits)
    some = [strongest_others(circuit, left, sizes) for circuit in ranked]
    (end,) = evaluate(model, own.test, [~model.graph.circuit(list(left))], random_circuits=0)
    curves = [evaluate(model, own.test, circuits, random_circuits=0) for circuits in some]
    return [[one.destroyed / end.destroyed for one in curve] for curve in curves]


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(values) for values in zip(*curves, strict=True)]


def grid(largest: int) -> list[int]:
    """Each about 1.4 times the one before."""
    return list(dict.fromkeys(round(2 ** (i / 2)) for i in range(64) if round(2 ** (i / 2)) <= largest))


def choose(sizes: Sequence[int], shares: Sequence[float]) -> dict[str, Any]:
    """The sizes within the range, a few of them; and the one nearest to its middle, which need not be within."""
    low, high = _RANGE
    inside = [size for size, share in zip(sizes, shares, strict=True) if low <= share <= high]
    distance = {size: abs(share - 0.5) for size, share in zip(sizes, shares, strict=True)}
    primary = min(inside or sizes, key=distance.__getitem__)
    if len(inside) > _MOST:
        spread = {inside[round(i * (len(inside) - 1) / (_MOST - 1))] for i in range(_MOST)}
        inside = sorted({*spread, primary})
    return {"sizes": list(sizes), "shares": [round(one, 3) for one in shares], "judged": inside, "primary": primary}
