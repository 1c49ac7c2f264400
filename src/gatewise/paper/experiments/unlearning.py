"""Unlearning: remove a circuit from the model; is the behaviour gone, and is the rest still there? (tabunlearning)

Circuits are searched on pairs of what is to be forgotten and removed (G-C, by interchange); accuracy is measured on
held-out pairs of the same kind and on what is to be kept. `unlearning_data` says what these are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gatewise.engine import run_circuits
from gatewise.methods import discover
from gatewise.methods.contract import SearchDirection
from gatewise.paper.contract import (
    DIRECTION_NAMES,
    METHOD_NAMES,
    Experiment,
    Job,
    Judgement,
    Outcome,
    Table,
    Verdict,
)
from gatewise.paper.experiments.curves import Comparison, judge
from gatewise.paper.experiments.statistics import mean_and_deviation
from gatewise.paper.figures import BASELINE_COLOUR, LINES, panels, size_axis
from gatewise.paper.published import UNLEARNING
from gatewise.paper.unlearning_data import Plan, check_data, make_plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.circuits.circuit import Circuit
    from gatewise.paper.lab import Lab
    from gatewise.paper.presets import Preset
    from gatewise.tasks.pairs import Pairs

_DIRECTIONS: tuple[SearchDirection, ...] = ("ns", "ns+dn")
_FORGET = "forget"
_FEW = (1, 2, 5)  # edges
_GONE = 0.8  # of the way from the whole model to the corrupted run: then a behaviour counts as gone
_KEPT = 0.1  # accuracy that may be lost of what is to be kept
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")

# accuracies of one search: set -> {"full", "empty": [over wrong, arg-max], "without": {size: the same}}
Found = Mapping[str, Mapping[str, Any]]


def _methods(preset: Preset) -> list[str]:
    """The paper's two, as far as the preset has them."""
    return [m for m in ("eap", "edge-pruning") if m in preset.methods] or list(preset.methods)


@lru_cache(maxsize=1)
def _plan(lab: Lab) -> Plan:
    return make_plan(lab)


def _sizes(lab: Lab, method: str) -> tuple[int, ...]:
    """The paper's; for the stand-in the smallest, and some below: a family of prompts hangs on few edges."""
    sizes = lab.sizes(method)
    return sizes if lab.preset.name == "paper" else tuple(sorted({*_FEW, *sizes}))[: len(_FEW) + 3]


def _seeds(lab: Lab, method: str) -> range:
    """As many as there are pairs for, each with its own."""
    enough = len(_plan(lab).forget.train) // lab.preset.pairs[method]
    return range(max(1, min(lab.preset.seeds[method], enough)))


def _circuits(lab: Lab, method: str, direction: SearchDirection, seed: int) -> dict[int, Circuit]:
    size = lab.preset.pairs[method]
    pairs = _plan(lab).forget.train[seed * size : (seed + 1) * size]
    sizes, parameters = _sizes(lab, method), lab.preset.parameters.get(method, {})
    found = discover(lab.model, pairs, method, direction, edges=sizes, seed=seed, store=lab.store, **parameters)
    return dict(zip(sizes, found, strict=True))


def measure_search(lab: Lab, method: str, direction: SearchDirection, seed: int) -> Found:
    """Search on what is to be forgotten, remove, and measure on all sets."""
    plan = _plan(lab)
    if seed not in _seeds(lab, method):
        return {}
    circuits = _circuits(lab, method, direction, seed)
    sets = {_FORGET: plan.forget.test, **plan.retain}
    asked = {
        "circuits": [circuit.fingerprint for circuit in circuits.values()],
        "sets": {name: pairs.fingerprint for name, pairs in sets.items()},
    }
    found: Found = lab.remember(
        "unlearning", asked, lambda: {name: _accuracies(lab, pairs, circuits) for name, pairs in sets.items()}
    )
    return found


def _accuracies(lab: Lab, pairs: Pairs, circuits: Mapping[int, Circuit]) -> dict[str, Any]:
    graph = lab.model.graph
    logits = run_circuits(lab.model, pairs, [graph.full(), graph.empty(), *(~circuit for circuit in circuits.values())])
    over, top = (
        measure(logits).double().mean(dim=-1).tolist() for measure in (pairs.right_over_wrong, pairs.top_is_right)
    )
    both = [list(one) for one in zip(over, top, strict=True)]
    return {"full": both[0], "empty": both[1], "without": {str(size): both[2 + i] for i, size in enumerate(circuits)}}


def _jobs(preset: Preset) -> list[Job]:
    return [
        Job(measure_search, (method, direction, seed))
        for method in reversed(_methods(preset))  # the slow one first
        for seed in range(preset.seeds[method])
        for direction in _DIRECTIONS
    ]


def _run(lab: Lab) -> Outcome:
    plan, methods = _plan(lab), _methods(lab.preset)
    found = {
        (method, direction): [measure_search(lab, method, direction, seed) for seed in _seeds(lab, method)]
        for method in methods
        for direction in _DIRECTIONS
    }
    some = found[methods[0], "ns"][0]
    sets = list(some)
    ends = {which: {name: some[name][which] for name in sets} for which in ("full", "empty")}
    return Outcome(
        tables=[
            _table(lab, found, sets, ends, 1, "the most probable token is right"),
            _table(lab, found, sets, ends, 0, "right is more probable than wrong"),
        ],
        verdicts=[_forgetting(lab, found, ends), _keeping(lab, found, sets, ends)],
        paper=(UNLEARNING,),
        figures={
            f"Accuracy (the most probable token is right) without the circuit. To be forgotten: {plan.what}.": lambda: (
                _figure(lab, found, sets, ends)
            )
        },
        notes=[
            f"To be forgotten: {plan.what}; pairs: {', '.join(f'unlearning/{path.name}' for path in plan.files)}.",
            "Every set is ablated with its own corrupted prompts. The paper names neither sizes nor what its accuracy "
            "is; its own code counts an answer as right if it is the most probable of all tokens.",
            "The paper's table does not say with which method “ours” was found; here Ns+Dn stands beside Ns for each.",
        ],
    )


def _values(found: Sequence[Found], name: str, size: int, which: int) -> list[float]:
    return [float(seed[name]["without"][str(size)][which]) for seed in found]


def _mean(found: Sequence[Found], name: str, size: int, which: int) -> float:
    values = _values(found, name, size, which)
    return sum(values) / len(values)


def _label(method: str, direction: str) -> str:
    return f"{METHOD_NAMES[method]} ({DIRECTION_NAMES[direction]}{', ours' if direction == 'ns+dn' else ''})"


def _table(
    lab: Lab,
    found: Mapping[tuple[str, SearchDirection], Sequence[Found]],
    sets: Sequence[str],
    ends: Mapping[str, Mapping[str, Sequence[float]]],
    which: int,
    reading: str,
) -> Table:
    rows: list[list[str | int | float | None]] = [
        ["whole model", 0, *(ends["full"][name][which] for name in sets)],
        ["corrupted run", lab.model.graph.n_edges, *(ends["empty"][name][which] for name in sets)],
    ]
    for (method, direction), seeds in found.items():
        for size in _sizes(lab, method):
            cells = [mean_and_deviation(_values(seeds, name, size, which)) for name in sets]
            rows.append([_label(method, direction), size, *cells])
    counts = ", ".join(f"{METHOD_NAMES[m]} {len(seeds)}" for (m, d), seeds in found.items() if d == "ns")
    columns = ("circuit removed", "edges removed", "to be forgotten", *(f"kept: {name}" for name in sets[1:]))
    return Table(f"Accuracy of G-C: {reading}", columns, rows, f"Mean ± deviation over seeds ({counts}).")


def _forgetting(
    lab: Lab, found: Mapping[tuple[str, SearchDirection], Sequence[Found]], ends: Mapping[str, Any]
) -> Verdict:
    """Cells in which both are at the corrupted run's accuracy cannot differ and are left out."""
    floor = ends["empty"][_FORGET][1]
    differences, saturated = [], 0
    for method in _methods(lab.preset):
        for size in _sizes(lab, method):
            ours, theirs = (_mean(found[method, direction], _FORGET, size, 1) for direction in ("ns+dn", "ns"))
            if max(ours, theirs) <= floor:
                saturated += 1
            else:
                differences.append(ours - theirs)
    comparison = Comparison(tuple(differences), saturated)
    return Verdict(
        "Without the Ns+Dn circuit the model does less of what it is to forget than without the Ns circuit.",
        judge(comparison, larger=False),
        f"Accuracy on what is to be forgotten is {ends['full'][_FORGET][1]:.2f} with the whole model; without the "
        f"Ns+Dn circuit, against without the Ns circuit, it is {comparison}.",
    )


def _keeping(
    lab: Lab,
    found: Mapping[tuple[str, SearchDirection], Sequence[Found]],
    sets: Sequence[str],
    ends: Mapping[str, Any],
) -> Verdict:
    """At the smallest Ns+Dn circuit that takes the behaviour away: what else does it take?"""
    full, empty = ends["full"], ends["empty"]
    target = full[_FORGET][1] - _GONE * (full[_FORGET][1] - empty[_FORGET][1])
    words, judgements = [], []
    for method in _methods(lab.preset):
        seeds = found[method, "ns+dn"]
        size = next((s for s in _sizes(lab, method) if _mean(seeds, _FORGET, s, 1) <= target), None)
        if size is None:
            words.append(f"{METHOD_NAMES[method]}: no circuit takes it away")
            continue
        losses = {name: full[name][1] - _mean(seeds, name, size, 1) for name in sets[1:]}
        left = _mean(seeds, _FORGET, size, 1)
        lost = ", ".join(f"{name} {-loss:+.2f}" for name, loss in losses.items())
        words.append(f"{METHOD_NAMES[method]}, {size:,} edges: {left:.2f} left of it; change elsewhere: {lost}")
        judgements.append([loss <= _KEPT for loss in losses.values()])
    if not judgements or full[_FORGET][1] <= empty[_FORGET][1]:
        judgement: Judgement = "cannot be judged"
    elif all(all(kept) for kept in judgements):
        judgement = "holds"
    else:
        judgement = "holds partly" if any(any(kept) for kept in judgements) else "does not hold"
    return Verdict(
        "A complete circuit pinpoints what is to be forgotten: the rest stays (the paper names this as a potential).",
        judgement,
        f"Smallest Ns+Dn circuit whose removal takes {_GONE:.0%} of the behaviour: {'; '.join(words)}.",
    )


def _figure(
    lab: Lab,
    found: Mapping[tuple[str, SearchDirection], Sequence[Found]],
    sets: Sequence[str],
    ends: Mapping[str, Any],
) -> Figure:
    methods = _methods(lab.preset)
    figure, axes = panels(1, len(methods), width=4.2, height=3.2, sharey=True)
    for at, method in zip(axes[0], methods, strict=True):
        sizes = _sizes(lab, method)
        for direction in _DIRECTIONS:
            for colour, name in zip(_COLOURS, sets, strict=False):
                means = [_mean(found[method, direction], name, size, 1) for size in sizes]
                width = 2.2 if name == _FORGET else 1.2
                at.plot(sizes, means, color=colour, linestyle=LINES[direction], marker=".", linewidth=width)
        at.axhline(
            ends["empty"][_FORGET][1], color=BASELINE_COLOUR, linewidth=0.8, linestyle=":", label="corrupted run"
        )
        size_axis(at, sizes)
        at.set_xlabel("edges removed")
        at.set_title(METHOD_NAMES[method])
    axes[0][0].set_ylim(-0.03, 1.03)
    axes[0][0].set_ylabel("accuracy of G-C")
    figure.legend(handles=_legend(sets), loc="outside lower center", ncols=4)
    return figure


def _legend(sets: Sequence[str]) -> list[Any]:
    from matplotlib.lines import Line2D

    names = ["to be forgotten", *(f"kept: {name}" for name in sets[1:])]
    lines = [
        Line2D([], [], color=colour, marker=".", label=name) for colour, name in zip(_COLOURS, names, strict=False)
    ]
    styles: dict[str, Any] = dict(LINES)
    lines += [Line2D([], [], color="#333333", linestyle=styles[d], label=DIRECTION_NAMES[d]) for d in _DIRECTIONS]
    return [*lines, Line2D([], [], color=BASELINE_COLOUR, linestyle=":", label="to be forgotten, corrupted run")]


EXPERIMENT = Experiment(
    name="unlearning",
    title="Unlearning",
    claim="accuracy of G-C falls lower with the Ns+Dn circuit (13 %) than with EAP's (29 %) or Edge Pruning's (31 %).",
    labels=("tabunlearning",),
    run=_run,
    jobs=_jobs,
    check=check_data,
)
