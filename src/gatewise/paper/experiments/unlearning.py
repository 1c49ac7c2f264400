"""Unlearning: remove a circuit from the model; is the behaviour gone, and is the rest still there? (tabunlearning)

Circuits are searched on pairs of what is to be forgotten and removed (G-C, by interchange); accuracy is measured on
held-out pairs of the same kind and on what is to be kept. `unlearning_data` says what these are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gatewise.engine import run_circuits
from gatewise.methods.contract import SearchDirection
from gatewise.paper.claims import Above, Between, Ruling, rules
from gatewise.paper.contract import Experiment, Measured, Measurement, Result, Search, Table, group
from gatewise.paper.figures import BASELINE_COLOUR, LINES, Figure, filled, size_axis
from gatewise.paper.lab import Lab
from gatewise.paper.presets import FORGET, Preset
from gatewise.paper.published import UNLEARNING
from gatewise.paper.unlearning_data import FILES, check_data, to_forget, to_keep
from gatewise.paper.words import DIRECTION_NAMES, METHOD_NAMES, mean_and_deviation, seeds_note

_DIRECTIONS: tuple[SearchDirection, ...] = ("ns", "ns+dn")
_GONE = 0.8  # of the way from the whole model to the corrupted run: then a behaviour counts as gone
_KEPT = 0.1  # accuracy that may be lost of what is to be kept
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
_READINGS = {"top": "the most probable token is right", "over": "right is more probable than wrong"}


class UnlearningKey(NamedTuple):
    task: str  # that is measured
    method: str
    direction: SearchDirection
    seed: int


Accuracies = Mapping[str, Mapping[str, Any]]  # reading -> "full", "empty": accuracy; "without": one for each size
Seeds = Mapping[tuple[str, str, str], Sequence[Accuracies]]  # by method, direction, what is measured


def accuracies(lab: Lab, key: UnlearningKey) -> dict[str, Any]:
    """Of the whole model, of the corrupted run, and without the circuits of each size that were found to forget."""
    circuits, pairs = lab.circuits(FORGET, key.method, key.direction, key.seed), lab.held_out(key.task)
    graph = lab.model.graph
    logits = run_circuits(lab.model, pairs, [graph.full(), graph.empty(), *(~circuit for circuit in circuits.values())])
    found = {}
    for reading, measure in (("top", pairs.top_is_right), ("over", pairs.right_over_wrong)):
        full, empty, *without = measure(logits).double().mean(dim=-1).tolist()
        found[reading] = {"full": full, "empty": empty, "without": without}
    return found


def _methods(preset: Preset) -> list[str]:
    """The paper's two, as far as the preset has them."""
    return [m for m in ("eap", "edge-pruning") if m in preset.methods] or list(preset.methods)


def _seeds(lab: Lab) -> dict[str, int]:
    """As many as there are pairs for, each with its own."""
    pairs, preset = lab.available_pairs(FORGET), lab.preset
    return {m: max(1, min(preset.seeds[m], pairs // preset.pairs[m])) for m in _methods(preset)}


def _measurements(lab: Lab) -> Iterator[Measurement]:
    for _, method, seed in lab.grid(tasks=[FORGET], methods=_methods(lab.preset), seeds=_seeds(lab)):
        for direction in _DIRECTIONS:
            for measured in (FORGET, *to_keep(lab.preset)):
                key = UnlearningKey(measured, method, direction, seed)
                yield Measurement(accuracies, key, (Search(FORGET, method, seed, (direction,)),))


def _judge(lab: Lab, measured: Measured) -> Result:
    found: Seeds = group(measured, "method", "direction", "task")
    what = to_forget(lab.preset)
    return Result(
        tables=[_table(lab, found, reading) for reading in _READINGS],
        rulings=[ruling for method in _methods(lab.preset) for ruling in _rulings(lab, found, method)],
        paper=(UNLEARNING,),
        figures={
            f"Accuracy (the most probable token is right) without the circuit. To be forgotten: {what}.": lambda: (
                _figure(lab, found)
            )
        },
        notes=[
            f"To be forgotten: {what}; pairs: {', '.join(f'unlearning/{FILES[n]}' for n in FILES if n in _sets(lab))}.",
            "Every set is ablated with its own corrupted prompts. The paper names neither sizes nor what its accuracy "
            "is; its own code counts an answer as right if it is the most probable of all tokens.",
            "The paper's table does not say with which method “ours” was found; here Ns+Dn stands beside Ns for each.",
        ],
    )


def _sets(lab: Lab) -> dict[str, str]:
    """What is measured, with titles."""
    return {FORGET: "to be forgotten", **{name: f"kept: {title}" for name, title in to_keep(lab.preset).items()}}


def _label(method: str, direction: str) -> str:
    return f"{METHOD_NAMES[method]} ({DIRECTION_NAMES[direction]}{', ours' if direction == 'ns+dn' else ''})"


def _table(lab: Lab, found: Seeds, reading: str) -> Table:
    sets = _sets(lab)
    some = {name: next(seeds[0][reading] for (_, _, task), seeds in found.items() if task == name) for name in sets}
    rows: list[list[str | int | float | None]] = [
        ["whole model", 0, *(some[name]["full"] for name in sets)],
        ["corrupted run", lab.model.graph.n_edges, *(some[name]["empty"] for name in sets)],
    ]
    for method, direction in dict.fromkeys((method, direction) for method, direction, _ in found):
        for place, size in enumerate(lab.sizes(method, FORGET)):
            cells = [[seed[reading]["without"][place] for seed in found[method, direction, name]] for name in sets]
            rows.append([_label(method, direction), size, *map(mean_and_deviation, cells)])
    counts = seeds_note(_seeds(lab), _methods(lab.preset))
    columns = ("circuit removed", "edges removed", *sets.values())
    note = f"Mean ± deviation over seeds ({counts})."
    return Table(f"Accuracy of G-C: {_READINGS[reading]}", columns, rows, note)


def _rulings(lab: Lab, found: Seeds, method: str) -> list[Ruling]:
    alone, ours = (found[method, direction, FORGET] for direction in _DIRECTIONS)
    kept = [found[method, "ns+dn", name] for name in to_keep(lab.preset)]
    losses = [
        largest_loss(one["top"], [others["top"] for others in elsewhere])
        for one, *elsewhere in zip(ours, *kept, strict=True)
    ]
    return rules(
        METHOD_NAMES[method],
        Above(lab.preset.smallest),
        (
            "Without the Ns+Dn circuit the model does less of what it is to forget than without the Ns circuit.",
            "accuracy on what is to be forgotten without the Ns circuit less that without Ns+Dn, mean over sizes",
            {"": [_mean(one) - _mean(other) for one, other in zip(alone, ours, strict=True)]},
        ),
        (
            "A complete circuit pinpoints what is to be forgotten: the rest stays (the paper names this as a "
            "potential).",
            f"the largest loss of accuracy elsewhere, with the smallest Ns+Dn circuit whose removal takes {_GONE:.0%} "
            "of the behaviour",
            {"": losses},
            Between(-math.inf, _KEPT),
        ),
        besides=f"With the whole model it is {ours[0]['top']['full']:.2f}.",
    )


def _mean(one: Accuracies) -> float:
    return statistics.fmean(one["top"]["without"])


def largest_loss(forget: Mapping[str, Any], kept: Sequence[Mapping[str, Any]]) -> float:
    """Elsewhere, at the smallest size at which the behaviour is gone; NaN if there is none, or nothing to lose."""
    target = forget["full"] - _GONE * (forget["full"] - forget["empty"])
    place = next((i for i, left in enumerate(forget["without"]) if left <= target), None)
    if place is None or not kept or forget["full"] <= forget["empty"]:
        return math.nan
    return float(max(one["full"] - one["without"][place] for one in kept))


def _figure(lab: Lab, found: Seeds) -> Figure:
    from matplotlib.lines import Line2D

    sets = dict(zip(_sets(lab).items(), _COLOURS, strict=False))

    def fill(at: Any, _: str, method: str) -> None:
        sizes = lab.sizes(method, FORGET)
        for direction in _DIRECTIONS:
            for (name, _title), colour in sets.items():
                seeds = [seed["top"]["without"] for seed in found[method, direction, name]]
                means = [statistics.fmean(values) for values in zip(*seeds, strict=True)]
                width = 2.2 if name == FORGET else 1.2
                at.plot(sizes, means, color=colour, linestyle=LINES[direction], marker=".", linewidth=width)
        empty = found[method, "ns", FORGET][0]["top"]["empty"]
        at.axhline(empty, color=BASELINE_COLOUR, linewidth=0.8, linestyle=":")
        size_axis(at, sizes)
        at.set_xlabel("edges removed")
        at.set_ylim(-0.03, 1.03)
        at.set_title(METHOD_NAMES[method])

    figure = filled([""], _methods(lab.preset), fill, "accuracy of G-C", width=4.2, height=3.2, sharey=True)
    looks: dict[str, dict[str, Any]] = {title: {"color": colour, "marker": "."} for (_, title), colour in sets.items()}
    looks |= {DIRECTION_NAMES[d]: {"color": "#333333", "linestyle": LINES[d]} for d in _DIRECTIONS}
    looks["to be forgotten, corrupted run"] = {"color": BASELINE_COLOUR, "linestyle": ":"}
    handles = [Line2D([], [], label=label, **look) for label, look in looks.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


EXPERIMENT = Experiment(
    name="unlearning",
    title="Unlearning",
    claim="accuracy of G-C falls lower with the Ns+Dn circuit (13 %) than with EAP's (29 %) or Edge Pruning's (31 %).",
    labels=("tabunlearning",),
    measurements=_measurements,
    judge=_judge,
    check=check_data,
)
