"""`make_report`: from a model and a task to circuits, gates, measures and the evidence for them, in one pass."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, get_type_hints

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.selection import number_of_edges
from gatewise.compute import Compute, current_compute
from gatewise.engine.runs.activations import Direction
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.evaluation import Evaluation, Evaluations, evaluate
from gatewise.evaluation.evaluations import VERSION
from gatewise.evaluation.prompts import shown_examples
from gatewise.gates.labels import Gates, label_gates
from gatewise.gates.testing.gate_test import GateTest
from gatewise.gates.testing.measurement import FEWEST
from gatewise.gates.testing.pair_tables import test_edge_pairs
from gatewise.gates.testing.search import GateTests, test_receivers
from gatewise.limits import MOST_RANDOM_CIRCUITS, check_count
from gatewise.methods.base import Method, SearchDirection
from gatewise.methods.discovery import discover_all
from gatewise.methods.registry import find_method
from gatewise.methods.smallest import SmallestCircuit, check_faithfulness, rank_directions
from gatewise.models.model import Model
from gatewise.report.headline import CIRCUIT_NAMES
from gatewise.report.node_behaviour import shown_nodes
from gatewise.report.report import Report
from gatewise.report.trust import (
    Calibration,
    calibrate,
    compare_halves,
    drawn_edges,
    strongest_gates,
    strongest_nodes,
)
from gatewise.store import Store
from gatewise.store.results import dataclass_codec
from gatewise.tasks import Task

SEARCHES: tuple[SearchDirection, ...] = ("ns", "dn", "ns+dn")
_EDGES, _MOST_EDGES = 500, 2000  # of each circuit, and the most by faithfulness, unless others are asked for
_SMALLEST = 16  # edges of the smallest circuit of the slider
_TESTED_PAIRS = 16  # held-out pairs for truth tables and exact effects
_EFFECTS = 3  # version of what is measured of single edges
_TESTED_RECEIVERS, _TESTED_SENDERS = 12, 8
_GATE_PAIRS = 16  # held-out pairs for gates of groups
_GATE_HEADS, _GATE_OTHERS, _CONFIRMED = 20, 5, 6
_CURVE_PAIRS = 8  # held-out pairs for the smaller sizes
_NODES, _NODE_PROMPTS = 100, 3  # whose behaviour is shown, and on how many prompts
_HALVES = 4  # pairs that are needed to search on either half


def make_report(
    model: Model,
    task: Task,
    method: str | Method = "eap",
    *,
    edges: int | float | None = None,
    faithfulness: float | None = None,
    sizes: Sequence[int] | None = None,
    all_gates: bool = False,
    random_circuits: int = 1,
    examples: int = 6,
    seed: int = 0,
    seeds: int = 1,
    compute: Compute | None = None,
) -> Report:
    """Find a task's circuits and gates in a model, and measure and test how far to trust them.

    Args:
        model: The model to search in.
        task: The task; circuits are searched on its `train` pairs and measured on its `test` pairs.
        method: How to search: a name that `gatewise methods` lists, or a method with its parameters, as in
            `gatewise.methods`.
        edges: Edges of each circuit, or their share of all edges; by default 500. With `faithfulness` the most that are
            allowed, by default 2,000.
        faithfulness: Instead: the smallest size at which the noising circuit keeps this share of the KL, on a third of
            the training pairs that the search does not see. If none does, the closest one; the report says so.
        sizes: Further, smaller sizes for the curves; by default halved down to 16 for methods that rank once, none for
            methods that would have to search again.
        all_gates: Test all gates, not only the strongest (slow).
        random_circuits: Random circuits of the same size to compare with.
        examples: How many prompts to show.
        seed: Seed of everything random.
        seeds: Searches with different seeds on which edges have to agree to have a label, as for `find_gates`; matters
            for methods that train from random draws, and costs as many trainings more.
        compute: Where to run, by default the innermost `with gw.Compute(...)`. With a store, parts that were computed
            before are read there.

    Returns:
        What was found; `save(folder)` writes it as a page and as files.

    Raises:
        GatewiseError: If a size goes beyond `edges`, or the method or the pairs do not allow to ask for faithfulness.
    """
    check_count("random_circuits", random_circuits, 0, MOST_RANDOM_CIRCUITS)
    started = time.time()
    compute = current_compute(compute)
    alone = replace(compute, workers=None, ray=None)  # for what is too small to be shared
    chosen = find_method(method)
    other_seeds = range(seed + 1, seed + seeds) if chosen.seeded and chosen.directed else range(0)
    searched = _search(model, task, chosen, edges, faithfulness, sizes, seed, other_seeds, compute)
    searches = searched.circuits
    largest: dict[str, Circuit] = {direction: circuits[-1] for direction, circuits in searches.items()}
    gates = _label(largest, chosen.directed, searched.other_seeds)
    exact = Setting.of(model, task.test[:_TESTED_PAIRS], compute=alone)
    shown = task.test[:examples]
    recall = _Parts(
        compute.open_store(),
        {
            "circuits": _record(searches),
            "other seeds": [[circuit.fingerprint for circuit in pair] for pair in searched.other_seeds],
            "method": chosen.version,
            "held out": {"pairs": task.test.fingerprint, "seed": seed, "memory": compute.memory},
            "evaluation": VERSION,
            "effects": _EFFECTS,
        },
    )
    return Report(
        model=model.name,
        sizes=searched.sizes,
        choice=searched.choice,
        searches=searches,
        gates=gates,
        curves=recall(
            "curves",
            lambda: _curves(model, task, searches, chosen.directed, random_circuits, seed, compute),
            random=random_circuits,
        ),
        tables=recall("tables", lambda: _tables(exact, gates, all_gates), all=all_gates),
        gate_tests=recall(
            "gate_tests",
            lambda: _gate_tests(model, task, gates, all_gates, alone) if chosen.directed else None,
            all=all_gates,
        ),
        stability=_stability(model, task, gates, chosen, seed, alone),
        calibration=recall("calibration", lambda: _calibration(exact, gates, chosen)),
        drawn=recall("drawn", lambda: _drawn(model, task, gates, compute)),
        examples=recall(
            "examples",
            lambda: shown_examples(model, shown, {"ns|dn": gates.sound, **largest}, compute=compute),
            shown=examples,
        ),
        nodes=recall(
            "nodes", lambda: shown_nodes(model, shown[:_NODE_PROMPTS], strongest_nodes(gates, _NODES)), shown=examples
        ),
        problems=tuple(task.problems()),
        used_up=task.used_up,
        all_gates=all_gates,
        directed=chosen.directed,
        seeded=chosen.seeded,
        testable=model.changes_singly,
        tested_pairs=len(exact),
        seconds=time.time() - started,
    )


@dataclass(frozen=True)
class _Parts:
    """Fields of a report, read from the store if they are there, so that a second look costs nothing."""

    store: Store | None
    ingredients: Mapping[str, Any]  # that all parts depend on

    def __call__(self, field: str, compute: Callable[[], Any], **ingredients: Any) -> Any:
        """The value of this field of `Report`: its type says how it is stored."""
        if self.store is None:
            return compute()
        facts = {"what": f"report: {field}", **self.ingredients, **ingredients}
        return self.store.remember(facts, compute, dataclass_codec(get_type_hints(Report)[field]))


def _record(searches: Mapping[SearchDirection, Sequence[Circuit]]) -> dict[str, Any]:
    """Which edges were found, and all that decided it: weights, pairs, method, versions, threads."""
    record: dict[str, Any] = {}
    for direction, circuits in searches.items():
        record[direction] = []
        for circuit in circuits:
            facts = {name: fact for name, fact in circuit.provenance.items() if name != "time"}
            record[direction].append([circuit.fingerprint, facts])
    return record


def _all_sizes(edges: int, smaller: Sequence[int] | None, method: Method) -> tuple[int, ...]:
    """The sizes in order; by default halved again and again, for methods that rank once."""
    if any(size > edges for size in smaller or ()):
        raise GatewiseError(f"the sizes {list(smaller or ())} go beyond edges={edges}, which is the largest of all.")
    sizes = {edges, *(smaller or ())}
    least = _SMALLEST if edges >= 2 * _SMALLEST else max(1, edges // 4)  # a small circuit has smaller parts
    while smaller is None and method.ranks_once and min(sizes) // 2 >= least:
        sizes.add(min(sizes) // 2)
    return tuple(sorted(sizes))


@dataclass(frozen=True, eq=False)
class _Searched:
    """The circuits of a report."""

    sizes: tuple[int, ...]
    circuits: dict[SearchDirection, tuple[Circuit, ...]]  # of all three searches, one per size
    other_seeds: tuple[tuple[Circuit, Circuit], ...]  # of the largest size, by ns and dn, where seeds matter
    choice: SmallestCircuit | None  # how the size was chosen, by faithfulness


def _search(
    model: Model,
    task: Task,
    method: Method,
    edges: int | float | None,
    faithfulness: float | None,
    sizes: Sequence[int] | None,
    seed: int,
    other_seeds: Sequence[int],
    compute: Compute,
) -> _Searched:
    """Search in all directions; the same circuit for all if the method has no direction."""
    directions = SEARCHES if method.directed else SEARCHES[:1]
    singles: tuple[SearchDirection, ...] = ("ns", "dn")
    choice, other_circuits = None, []
    with warnings.catch_warnings():  # the report says it of the largest circuit, and draws the smaller ones as they are
        warnings.filterwarnings("ignore", ".* has no path from the input to the logits", GatewiseWarning)
        if faithfulness is None:
            size = number_of_edges(_EDGES if edges is None else edges, model.graph)
            all_sizes = _all_sizes(size, sizes, method)
            setting = Setting.of(model, task, "train", seed=seed, compute=compute)
            circuits = discover_all(model, setting, method, directions, sizes=all_sizes, seed=seed, compute=compute)
            for other in other_seeds:
                again = discover_all(model, setting, method, singles, sizes=[size], seed=other, compute=compute)
                other_circuits.append((again["ns"][0], again["dn"][0]))
        else:
            check_faithfulness(faithfulness)
            most = min(_MOST_EDGES, model.graph.n_edges) if edges is None else edges
            search = rank_directions(model, task, method, directions, edges=most, seed=seed, compute=compute)
            choice = search.smallest("ns", faithfulness)
            size = choice.chosen.edges
            all_sizes = _all_sizes(size, sizes, method)
            circuits = {direction: search.circuits(direction, all_sizes) for direction in directions}
            for other in other_seeds:
                reseeded = search.with_seed(other, singles)
                other_circuits.append((reseeded.circuits("ns", [size])[0], reseeded.circuits("dn", [size])[0]))
    by_direction = {direction: circuits.get(direction, circuits["ns"]) for direction in SEARCHES}
    return _Searched(all_sizes, by_direction, tuple(other_circuits), choice)


def _label(circuits: Mapping[str, Circuit], directed: bool, other_seeds: Sequence[tuple[Circuit, Circuit]]) -> Gates:
    """The gates of both directions; a method without a direction has a circuit and no gates."""
    if directed:
        return label_gates(circuits["ns"], circuits["dn"], joint=circuits["ns+dn"], other_seeds=other_seeds)
    none, circuit = circuits["ns"].graph.empty(), circuits["ns"]
    return Gates(circuit, circuit, {"AND": none, "OR": none, "ADDER": none}, "plain", "port", circuit)


def _curves(
    model: Model,
    task: Task,
    searches: Mapping[SearchDirection, Sequence[Circuit]],
    directed: bool,
    random_circuits: int,
    seed: int,
    compute: Compute,
) -> dict[str, Evaluations]:
    """Every circuit of every size, the largest ones on all held-out pairs and beside random circuits of their size."""
    circuits: dict[str, Sequence[Circuit]] = dict(searches.items())
    unions = [ns | dn for ns, dn in zip(searches["ns"], searches["dn"], strict=True)]
    # A union of both directions has to be faithful on both sides.
    circuits["ns|dn"] = [union.with_provenance(direction="ns|dn") for union in unions] if directed else unions
    names = list(CIRCUIT_NAMES) if directed else ["ns|dn"]  # without a direction all four are the same
    # All circuits in two calls, so that they share the runs of the pairs and the random circuits of their size.
    smaller = [circuit for name in names for circuit in circuits[name][:-1]]
    on_few = iter(evaluate(model, task.test[:_CURVE_PAIRS], smaller, random_circuits=0, seed=seed, compute=compute))
    largest = [circuits[name][-1] for name in names]
    on_all = evaluate(
        model, task.test, largest, random_circuits=random_circuits, names=names, seed=seed, compute=compute
    )
    curves = {}
    for name, evaluation in zip(names, on_all, strict=True):
        curves[name] = Evaluations((*islice(on_few, len(circuits[name]) - 1), evaluation))
    return {name: curves.get(name, curves["ns|dn"]) for name in CIRCUIT_NAMES}


def _tables(setting: Setting, gates: Gates, all_gates: bool) -> tuple[GateTest, ...]:
    if not gates.labelled.kinds or not setting.model.changes_singly:
        return ()
    tested = gates.sound if all_gates else strongest_gates(gates, _TESTED_RECEIVERS, _TESTED_SENDERS)
    return tuple(test_edge_pairs(setting.model, setting, None, of=tested))


def _gate_tests(model: Model, task: Task, gates: Gates, all_gates: bool, compute: Compute) -> GateTests | None:
    """The inputs of the strongest heads and the edges into the strongest other nodes, on held-out pairs."""
    pairs = task.test[:_GATE_PAIRS]
    if len(pairs) < FEWEST or not model.changes_singly:
        return None
    graph = gates.graph
    strongest = strongest_nodes(gates, len(graph.senders))
    inputs = {name: len(graph.ports_of_sender[graph.senders.index(name)]) for name in strongest}
    heads = [name for name in strongest if inputs[name] > 1]
    others = [name for name in strongest if inputs[name] == 1]
    receivers = [*heads, *others] if all_gates else [*heads[:_GATE_HEADS], *others[:_GATE_OTHERS]]
    return test_receivers(model, pairs, gates, [*receivers, "logits"], confirm=_CONFIRMED, compute=compute)


def _by_direction(gates: Gates, method: Method) -> dict[Direction, Circuit]:
    return {"ns": gates.ns, "dn": gates.dn} if method.directed else {"ns": gates.ns}


def _stability(
    model: Model, task: Task, gates: Gates, method: Method, seed: int, compute: Compute
) -> dict[Direction, float] | None:
    if not method.ranks_once or method.seeded or len(task.train) < _HALVES:  # of seeds the labels tell
        return None
    return compare_halves(model, task.train, method, _by_direction(gates, method), seed=seed, compute=compute)


def _calibration(setting: Setting, gates: Gates, method: Method) -> dict[Direction, Calibration] | None:
    """Exact effects in the whole model, on held-out pairs, of the edges that the page opens with."""
    if not setting.model.changes_singly or not gates.sound:
        return None
    edges = drawn_edges(gates)
    estimates = method.ranks_once and not method.seeded  # learned scores are no effects
    circuits = _by_direction(gates, method)
    return {name: calibrate(setting, circuit, name, edges, estimates=estimates) for name, circuit in circuits.items()}


def _drawn(model: Model, task: Task, gates: Gates, compute: Compute) -> Evaluation | None:
    """What the edges that the page opens with do alone; None if these are all."""
    edges = drawn_edges(gates)
    if len(edges) == len(gates.sound):
        return None
    return evaluate(model, task.test, gates.graph.circuit(edges), random_circuits=0, denoise=False, compute=compute)
