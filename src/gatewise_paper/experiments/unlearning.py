"""Unlearning: remove a circuit from the model; is the behaviour gone, and is the rest still there? (tabunlearning)

Circuits are searched on pairs of what is to be forgotten and removed (G-C, by patching); accuracy is measured on
held-out pairs of the same kind and on what is to be kept. `unlearning_data` says what these are.

Some edges are bottlenecks of every task, such as that from the input into the first MLP: removing one of them forgets
everything. They are named, and everything is measured a second time with them left in place, so that what is specific
to the behaviour shows. Whether an edge is one is asked on the pairs that searches use.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gatewise.engine import run_circuits
from gatewise.engine.setting import Setting
from gatewise.methods.base import SearchDirection
from gatewise_paper.bottlenecks import BOTTLENECK, bottlenecks_among
from gatewise_paper.claims import Between, Claim, Ruling, rules
from gatewise_paper.experiment import Experiment, Measurement, Outcome, Search
from gatewise_paper.experiments.baselines import Baselines, baseline_measurement, read_baselines
from gatewise_paper.experiments.curves import ACCURACIES, TOP1
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured, of_kind
from gatewise_paper.naming import DIRECTION_NAMES, METHOD_NAMES, mean_and_deviation, seeds_note, task_name
from gatewise_paper.presets import FORGET, Preset
from gatewise_paper.tables import Cell, Table, printed
from gatewise_paper.unlearning_data import FILES, check_data, to_forget, to_keep

_DIRECTIONS: tuple[SearchDirection, ...] = ("ns", "ns+dn")
_CANDIDATES = 200  # edges of a circuit that may be bottlenecks, the strongest
_GONE = 0.8  # of the way from the whole model to the corrupted run: then a behaviour counts as gone
_MAY_BE_LOST = 0.1  # accuracy that may be lost of what is to be kept
_LEFT = "bottleneck edges left in place"


class BottleneckKey(NamedTuple):
    task: str  # that the circuits are of
    method: str
    direction: SearchDirection
    seed: int
    tasks: tuple[str, ...]
    smallest: float  # normalised effect
    pairs: int  # of each task


class UnlearningKey(NamedTuple):
    task: str  # that is measured
    method: str
    direction: SearchDirection
    seed: int
    left: BottleneckKey | None  # the bottlenecks that are left in place, if they are


class Removed(NamedTuple):
    """What circuits were removed, for what is measured."""

    method: str
    direction: str
    left: bool  # whether the bottlenecks are left in place


Accuracies = Mapping[str, Sequence[float]]  # top-1 and pairwise, for each size
Seeds = Mapping[tuple[Removed, str], Sequence[Accuracies]]  # by what was removed, and on what it is measured


def accuracies_without(lab: Lab, key: UnlearningKey) -> dict[str, list[float]]:
    """Of the model without the circuits of each size that were found to forget."""
    circuits, setting = lab.circuits(FORGET, key.method, key.direction, key.seed), lab.setting(key.task)
    edges = [] if key.left is None else list(lab.measure(_bottleneck_measurement(key.left)))
    left = lab.model.graph.circuit(edges)
    logits = run_circuits(lab.model, setting, [~(circuit - left) for circuit in circuits.values()])
    correct = {TOP1: setting.pairs.top1_accuracy(logits), "accuracy": setting.pairs.pairwise_accuracy(logits)}
    return {name: of_examples.double().mean(dim=-1).tolist() for name, of_examples in correct.items()}


def bottlenecks(lab: Lab, key: BottleneckKey) -> dict[str, list[float]]:
    """Of a circuit's strongest edges those that are bottlenecks of every task, and their normalised effects.

    Edges that do not cost one task enough are not asked of the next.
    """
    *_, largest = lab.circuits(FORGET, key.method, key.direction, key.seed).values()
    effects: dict[str, list[float]] = {edge: [] for edge in largest.top(_CANDIDATES)}
    for task in key.tasks:
        setting = Setting.of(lab.model, lab.pairs(task, "eap", key.seed)[: key.pairs])
        of_task = bottlenecks_among(setting, list(effects), key.smallest)
        effects = {edge: [*effects[edge], effect] for edge, effect in of_task.items()}
    return effects


def _bottleneck_measurement(key: BottleneckKey) -> Measurement:
    return Measurement(bottlenecks, key, (Search(FORGET, key.method, key.seed, (key.direction,)),))


def _bottleneck_key(preset: Preset, method: str, direction: SearchDirection, seed: int) -> BottleneckKey:
    return BottleneckKey(FORGET, method, direction, seed, preset.tasks, BOTTLENECK, _bottleneck_pairs(preset))


def _bottleneck_pairs(preset: Preset) -> int:
    return preset.ablating.pairs_of(preset.setups["eap"].pairs)


def _seeds(lab: Lab) -> dict[str, int]:
    """By method, the paper's two as far as the preset has them: as many as there are pairs for, each with its own."""
    preset, pairs = lab.preset, lab.available_pairs(FORGET)
    methods = [method for method in ("eap", "edge-pruning") if method in preset.methods] or preset.methods
    wanted = preset.seeds_for("unlearning", methods)
    return {method: max(1, min(seeds, pairs // preset.setups[method].pairs)) for method, seeds in wanted.items()}


def _measured_on(lab: Lab) -> dict[str, str]:
    """What is measured, with titles."""
    return {FORGET: "to be forgotten", **{name: f"kept: {title}" for name, title in to_keep(lab.preset).items()}}


def _measurements(lab: Lab) -> Iterator[Measurement]:
    """What is measured on the same pairs stands together, so that their runs are done once."""
    seeds, circuits = _seeds(lab), list[BottleneckKey]()
    for _, method, seed in lab.grid(tasks=[FORGET], methods=list(seeds), seeds=seeds):
        circuits += [_bottleneck_key(lab.preset, method, direction, seed) for direction in _DIRECTIONS]
    yield from map(_bottleneck_measurement, circuits)
    for task in _measured_on(lab):
        yield baseline_measurement(task)
        for left in circuits:
            for in_place in (None, left):
                key = UnlearningKey(task, left.method, left.direction, left.seed, in_place)
                search = Search(FORGET, left.method, left.seed, (left.direction,))
                yield Measurement(accuracies_without, key, (search,))


def _judge(lab: Lab, measured: Measured) -> Outcome:
    without: dict[tuple[Removed, str], list[Accuracies]] = {}
    for key, accuracies in of_kind(measured, UnlearningKey).items():
        removed = Removed(key.method, key.direction, key.left is not None)
        without.setdefault((removed, key.task), []).append(accuracies)
    ends, forgotten = read_baselines(measured, TOP1), to_forget(lab.preset)
    files = ", ".join(f"unlearning/{FILES[name]}" for name in FILES if name in _measured_on(lab))
    return Outcome(
        tables=[
            *(_table(lab, without, read_baselines(measured, name), name) for name in ACCURACIES),
            _bottleneck_table(lab, measured),
        ],
        rulings=[ruling for method in _seeds(lab) for ruling in _rulings(lab, without, ends, method)],
        paper=(printed("tabunlearning"),),
        notes=[
            f"To be forgotten: {forgotten}; pairs: {files}.",
            "Every set is ablated with its own corrupted prompts. The paper names neither sizes nor what its accuracy "
            "is; its own code counts an answer as correct if it is the most probable of all tokens.",
        ],
    )


def _bottleneck_table(lab: Lab, measured: Measured) -> Table:
    """The bottlenecks of every task, and in how many of the circuits they are."""
    circuits = list(of_kind(measured, BottleneckKey).values())
    effects: dict[str, list[Sequence[float]]] = {}
    for of_circuit in circuits:
        for edge, of_tasks in of_circuit.items():
            effects.setdefault(edge, []).append(of_tasks)
    rows: list[list[Cell]] = []
    for edge, seen in sorted(effects.items(), key=lambda edge_and_effects: -len(edge_and_effects[1])):
        rows.append([edge, len(seen), *(statistics.fmean(of_task) for of_task in zip(*seen, strict=True))])
    if not rows:
        rows.append(["none", 0, *[None] * len(lab.preset.tasks)])
    note = (
        f"Removing one of them alone changes every task by at least {BOTTLENECK:.0%} of the KL between the runs, on "
        f"{_bottleneck_pairs(lab.preset)} pairs; the {_CANDIDATES} strongest edges of each circuit were asked. Of "
        f"{len(circuits)} circuits (all methods, directions and seeds)."
    )
    columns = ("edge", "circuits that have it", *(f"effect on {task_name(task)}" for task in lab.preset.tasks))
    return Table("Bottleneck edges of every task", columns, rows, note)


def _table(lab: Lab, without: Seeds, ends: Baselines, accuracy: str) -> Table:
    names = _measured_on(lab)
    full, empty = zip(*(ends[name] for name in names), strict=True)
    rows: list[list[Cell]] = [["whole model", 0, *full], ["corrupted run", lab.model.graph.n_edges, *empty]]
    for removed in dict.fromkeys(removed for removed, _ in without):
        ours = f"{DIRECTION_NAMES[removed.direction]}{', ours' if removed.direction == 'ns+dn' else ''}"
        label = f"{METHOD_NAMES[removed.method]} ({ours}{f', {_LEFT}' if removed.left else ''})"
        for i, size in enumerate(lab.sizes.of(removed.method, FORGET)):
            seeds = [[seed[accuracy][i] for seed in without[removed, name]] for name in names]
            rows.append([label, size, *map(mean_and_deviation, seeds)])
    columns = ("circuit removed", "edges removed", *names.values())
    note = f"Mean ± standard deviation over seeds ({seeds_note(_seeds(lab))})."
    return Table(f"Accuracy of G-C, {ACCURACIES[accuracy]}", columns, rows, note)


def _rulings(lab: Lab, without: Seeds, ends: Baselines, method: str) -> list[Ruling]:
    claims: list[Claim] = []
    for left in (False, True):
        removed = Removed(method, "ns+dn", left)
        alone, ours = (without[removed._replace(direction=direction), FORGET] for direction in _DIRECTIONS)
        losses = []
        for seed, accuracies in enumerate(ours):
            kept_tasks = [(ends[name][0], without[removed, name][seed][TOP1]) for name in to_keep(lab.preset)]
            losses.append(largest_loss(accuracies[TOP1], ends[FORGET], kept_tasks))
        claims += [
            Claim(
                "Without the Ns+Dn circuit the model does less of what it is to forget than without the Ns circuit"
                f"{f' ({_LEFT})' if left else ''}.",
                "accuracy on what is to be forgotten without the Ns circuit less that without Ns+Dn, mean over sizes",
                {"": [statistics.fmean(a[TOP1]) - statistics.fmean(b[TOP1]) for a, b in zip(alone, ours, strict=True)]},
                paper=f"0.13 against {'0.31' if method == 'edge-pruning' else '0.29'}",
            ),
            Claim(
                "A complete circuit pinpoints what is to be forgotten: the rest stays (the paper names this as a "
                f"potential{f'; {_LEFT}' if left else ''}).",
                "the largest loss of accuracy elsewhere, with the smallest Ns+Dn circuit whose removal takes "
                f"{_GONE:.0%} of the behaviour",
                {"": losses},
                Between(-math.inf, _MAY_BE_LOST),
                paper="not measured",
            ),
        ]
    return rules(METHOD_NAMES[method], *claims, besides=f"With the whole model it is {ends[FORGET][0]:.2f}.")


def largest_loss(
    forgotten: Sequence[float], ends: tuple[float, float], kept_tasks: Sequence[tuple[float, Sequence[float]]]
) -> float:
    """Elsewhere, at the smallest size at which the behaviour is gone; NaN if there is none, or nothing to lose.

    ends: accuracy of the whole model and of the corrupted run. kept_tasks: of each what the whole model has, and what
    is left without each size.
    """
    full, empty = ends
    target = full - _GONE * (full - empty)
    gone = next((i for i, left in enumerate(forgotten) if left <= target), None)
    if gone is None or not kept_tasks or full <= empty:
        return math.nan
    return float(max(whole - without[gone] for whole, without in kept_tasks))


EXPERIMENT = Experiment(
    name="unlearning",
    title="Unlearning",
    claim="accuracy of G-C falls lower with the Ns+Dn circuit (13 %) than with EAP's (29 %) or Edge Pruning's (31 %).",
    labels=("tabunlearning",),
    measurements=_measurements,
    judge=_judge,
    check=check_data,
)
