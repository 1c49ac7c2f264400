"""From a model and a task to circuits in both directions, gates, measures and the evidence for them, in one call."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.circuits.selection import number_of_edges
from gatewise.compute import Compute, current_compute
from gatewise.engine.runs.activations import Direction
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.evaluation import Evaluations, evaluate
from gatewise.gate_types import TestedLabel
from gatewise.gates.discovery import Agreement, label_agreement
from gatewise.gates.labels import Gates, label_gates
from gatewise.gates.testing.gate_test import FEWEST, GateTest
from gatewise.gates.testing.pair_tables import labels_by_test, test_edge_pairs
from gatewise.gates.testing.search import GateTests, test_receivers
from gatewise.methods.base import Method, SearchDirection
from gatewise.methods.discovery import discover_all
from gatewise.methods.registry import find_method
from gatewise.models.model import Model
from gatewise.report.node_behaviour import ShownNodes, shown_nodes
from gatewise.report.prompts import ShownExample, shown_examples
from gatewise.report.trust import BOTH, Calibration, calibrated, halves, strongest_gates, strongest_nodes
from gatewise.store import Store
from gatewise.store.plain_data import from_plain, to_plain
from gatewise.tasks import Task

if TYPE_CHECKING:
    from gatewise.report.data import Command

SEARCHES: tuple[SearchDirection, ...] = ("ns", "dn", "ns+dn")
# What is drawn and measured, as people read it: the union holds what either direction found; the joint circuit comes
# from one search that adds both effects up.
CIRCUIT_NAMES = {"ns|dn": "union", "ns": "noising", "dn": "denoising", "ns+dn": "joint"}
CIRCUITS = tuple(CIRCUIT_NAMES)
_SMALLEST = 16  # edges of the smallest circuit of the slider
_TESTED_PAIRS = 8  # pairs of prompts for truth tables and exact effects
_TESTED_RECEIVERS, _TESTED_SENDERS = 12, 8
_GATE_PAIRS = 16  # held-out pairs for gates of groups
_GATE_HEADS, _GATE_OTHERS, _CONFIRMED = 20, 5, 6
_CALIBRATED = 16  # edges per direction
_CURVE_PAIRS = 8  # held-out pairs for the smaller sizes
_NODES, _NODE_PROMPTS = 100, 3  # whose doing is shown, and on how many prompts


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """What was found about one task in one model. `save(folder)` writes the circuits, the gates and the report."""

    model: str
    gates: Gates  # at the largest size
    sizes: tuple[int, ...]
    searches: Mapping[SearchDirection, tuple[Circuit, ...]]  # one circuit per size
    curves: Mapping[str, Evaluations]  # by name of CIRCUITS, one evaluation per size, the last beside random circuits
    tables: tuple[GateTest, ...]
    tested: Mapping[str, TestedLabel]  # edge -> label by test
    agreement: Agreement
    stability: Mapping[Direction, float] | None  # Jaccard of halves; None if it was not measured
    calibration: Mapping[Direction, Calibration] | None  # None if the scores are no estimates of effects
    examples: tuple[ShownExample, ...]
    problems: tuple[str, ...] = ()  # what makes the pairs doubtful
    seconds: float = 0.0
    seed: int = 0
    all_gates: bool = False  # whether all edges were tested, not only those of the strongest gates
    nodes: ShownNodes | None = None  # what the strongest nodes do on the first of the examples
    interactions: GateTests | None = None  # gates of groups, tested on held-out pairs; None: not asked
    used_up: bool = False  # whether there are no more pairs than these
    directed: bool = True  # False: the method has no direction, all circuits are the same one, and there are no gates
    testable: bool = True  # whether the model's edges can be changed one at a time

    @property
    def graph(self) -> Graph:
        return self.gates.graph

    def circuits(self, size: int = -1) -> dict[str, Circuit]:
        """The circuits of one place in `sizes`, by name."""
        found: dict[str, Circuit] = {name: circuits[size] for name, circuits in self.searches.items()}
        return {"ns|dn": found["ns"] | found["dn"], **found}

    def save(self, folder: str | Path, command: Command | None = None, *, export: bool = False) -> list[Path]:
        """Write `report.html`, `gates.safetensors`, `tables.json` and `evaluation.json`; returns the files, the report
        first. With `interactions` (what `test_gates` gives) the page begins with the tested gates, and
        `interactions.json` has them all.

        command: see `report_data`. export: also write the circuits, as JSON that EAP-IG and MIB tools read.
        """
        from gatewise.report.data import report_data, tables_data
        from gatewise.report.page import write_page
        from gatewise.report.saving import save_files

        folder = Path(folder)
        written = [folder / "report.html"]
        write_page(written[0], report_data(self, command))
        return written + save_files(self, folder, tables_data(self), export)

    def __repr__(self) -> str:
        from gatewise.report.headline import headline

        return f"<Investigation of {self.model}: {headline(self)}>"


def make_report(
    model: Model,
    task: Task,
    method: str | Method = "eap",
    *,
    edges: int | float = 500,
    sizes: Sequence[int] | None = None,
    all_gates: bool = False,
    random_circuits: int = 1,
    examples: int = 6,
    seed: int = 0,
    compute: Compute | None = None,
) -> Report:
    """Find circuits of `edges` edges by noising, denoising and both, their gates, and how good they are.

    `sizes`: further, smaller sizes for the curves (by default halved down to 16 for EAP, none for methods that would
    have to search again). `all_gates`: test all edges by truth tables, not only those of the strongest gates.
    `examples`: how many prompts to show. All else is as for `discover`.
    """
    started = time.time()
    how = find_method(method)
    edges = number_of_edges(edges, model.graph)
    _check(edges, sizes)
    chosen = tuple(sorted({edges, *(_default_sizes(how, edges) if sizes is None else sizes)}))
    chosen_compute = current_compute(compute)
    alone = replace(chosen_compute, workers=None, ray=None)  # of what is too small to be shared
    more: dict[str, Any] = {"seed": seed, "compute": alone}
    directions = SEARCHES if how.directed else SEARCHES[:1]
    with warnings.catch_warnings():  # the report says it of the largest circuit, and draws the smaller ones as they are
        warnings.filterwarnings("ignore", ".* has no path from the input to the logits", GatewiseWarning)
        ordered = discover_all(model, task.train, how, directions, sizes=chosen, seed=seed, compute=compute)
    searches: dict[SearchDirection, tuple[Circuit, ...]] = {one: ordered.get(one, ordered["ns"]) for one in SEARCHES}
    found: dict[str, Circuit] = {name: circuits[-1] for name, circuits in searches.items()}
    gates = _split(found, how.directed)
    held_out: dict[str, Any] = {"pairs": task.test.fingerprint, "seed": seed, "memory": chosen_compute.memory}
    kept = _Kept(
        chosen_compute.open_store(), {"circuits": _record(searches), "method": how.version, "held out": held_out}
    )
    exact = Setting.of(model, task.train[:_TESTED_PAIRS], compute=alone)
    tables = kept("truth tables", tuple[GateTest, ...], lambda: _tables(exact, gates, all_gates), all=all_gates)
    tested = labels_by_test(tables)
    measured = {"seed": seed, "compute": chosen_compute}
    shown = task.test[:examples]
    investigation = Report(
        model.name,
        gates,
        chosen,
        searches,
        kept(
            "curves",
            Mapping[str, Evaluations],
            lambda: _curves(model, task, searches, random_circuits, measured),
            random=random_circuits,
        ),
        tables,
        tested,
        label_agreement(gates, tested),
        _stability(model, task, gates, how, more),
        kept(
            "calibration",
            Mapping[Direction, Calibration] | None,
            lambda: _calibration(exact, gates, how, seed),
        ),
        kept(
            "examples",
            tuple[ShownExample, ...],
            lambda: shown_examples(model, shown, {"ns|dn": gates.sound, **found}, compute=compute),
            shown=examples,
        ),
        tuple(task.problems()),
        seed=seed,
        all_gates=all_gates,
        nodes=kept(
            "nodes",
            ShownNodes,
            lambda: shown_nodes(model, shown[:_NODE_PROMPTS], strongest_nodes(gates, _NODES)),
            shown=examples,
        ),
        used_up=task.used_up,
        interactions=kept(
            "interactions",
            GateTests | None,
            lambda: _interactions(model, task, gates, all_gates, alone) if how.directed else None,
            all=all_gates,
        ),
        directed=how.directed,
        testable=model.changes_singly,
    )
    return replace(investigation, seconds=time.time() - started)


@dataclass(frozen=True)
class _Kept:
    """Parts of an investigation: out of the store if they are there, so that a second look costs nothing."""

    store: Store | None
    about: Mapping[str, Any]  # that all parts depend on

    def __call__(self, part: str, kind: Any, compute: Callable[[], Any], **further: Any) -> Any:
        if self.store is None:
            return compute()
        asked = {"what": f"investigation: {part}", **self.about, **further}
        return from_plain(kind, self.store.remember(asked, lambda: to_plain(compute())))


def _record(searches: Mapping[SearchDirection, Sequence[Circuit]]) -> dict[str, Any]:
    """Which edges were found, and all that decided it: weights, pairs, method, versions, threads."""

    def of(circuit: Circuit) -> list[Any]:
        return [circuit.fingerprint, {name: entry for name, entry in circuit.provenance.items() if name != "time"}]

    return {direction: [of(circuit) for circuit in circuits] for direction, circuits in searches.items()}


def _check(edges: int, sizes: Sequence[int] | None) -> None:
    if any(size > edges for size in sizes or ()):
        raise GatewiseError(f"the sizes {list(sizes or ())} go beyond edges={edges}, which is the largest of all.")


def _split(found: Mapping[str, Circuit], directed: bool) -> Gates:
    """The gates of both directions; a method without a direction has a circuit and no gates."""
    if directed:
        return label_gates(found["ns"], found["dn"], joint=found["ns+dn"])
    none = found["ns"].graph.empty()
    return Gates(found["ns"], found["ns"], {"AND": none, "OR": none, "ADDER": none}, "plain", "port", found["ns"])


def _default_sizes(method: Method, edges: int) -> list[int]:
    """Halved again and again, for methods that rank once."""
    sizes = []
    while method.ranks_once and edges // 2 >= _SMALLEST:
        edges //= 2
        sizes.append(edges)
    return sizes


def _tables(setting: Setting, gates: Gates, all_gates: bool) -> tuple[GateTest, ...]:
    if not gates.labelled.kinds or not setting.model.changes_singly:
        return ()
    chosen = None if all_gates else strongest_gates(gates, _TESTED_RECEIVERS, _TESTED_SENDERS)
    return tuple(test_edge_pairs(setting.model, setting, gates.sound, of=chosen))


def _interactions(model: Model, task: Task, gates: Gates, all_gates: bool, compute: Compute) -> GateTests | None:
    """The ports of the strongest heads and the edges into the strongest other nodes, on held-out pairs."""
    pairs = task.test[:_GATE_PAIRS]
    if len(pairs) < FEWEST or not model.changes_singly:
        return None
    graph, strongest = gates.graph, strongest_nodes(gates, len(gates.graph.senders))
    ports = {name: len(graph.ports_of_sender[graph.senders.index(name)]) for name in strongest}
    heads, others = [name for name in strongest if ports[name] > 1], [name for name in strongest if ports[name] == 1]
    chosen = [*heads, *others] if all_gates else [*heads[:_GATE_HEADS], *others[:_GATE_OTHERS]]
    return test_receivers(model, pairs, gates, [*chosen, "logits"], confirm=_CONFIRMED, compute=compute)


def _stability(
    model: Model, task: Task, gates: Gates, method: Method, more: Mapping[str, Any]
) -> dict[Direction, float] | None:
    if not method.ranks_once or len(task.train) < 4:
        return None
    whole: dict[Direction, Circuit] = {"ns": gates.ns, **({"dn": gates.dn} if method.directed else {})}
    return halves(model, task.train, method, whole, **more)


def _calibration(setting: Setting, gates: Gates, method: Method, seed: int) -> dict[Direction, Calibration] | None:
    if not method.ranks_once or not setting.model.changes_singly:
        return None
    circuits, directions = {"ns": gates.ns, "dn": gates.dn}, BOTH if method.directed else BOTH[:1]
    return {d: calibrated(setting, circuits[d], d, edges=_CALIBRATED, seed=seed) for d in directions}


def _curves(
    model: Model,
    task: Task,
    searches: Mapping[SearchDirection, Sequence[Circuit]],
    random_circuits: int,
    more: Mapping[str, Any],
) -> dict[str, Evaluations]:
    """Every circuit of every size, the largest ones on all held-out pairs and beside random circuits of their size."""
    by_name: dict[str, Sequence[Circuit]] = dict(searches.items())
    by_name["ns|dn"] = [a | b for a, b in zip(searches["ns"], searches["dn"], strict=True)]
    names = CIRCUITS if searches["ns"] is not searches["dn"] else CIRCUITS[:1]  # one circuit, or four
    smaller = [circuit for name in names for circuit in by_name[name][:-1]]
    largest = [by_name[name][-1] for name in names]
    parts = [list(evaluate(model, task.test[:_CURVE_PAIRS], smaller, random_circuits=0, **more))] if smaller else [[]]
    parts.append(list(evaluate(model, task.test, largest, random_circuits=random_circuits, names=names, **more)))
    count = len(smaller) // len(names)
    found = {name: Evaluations((*parts[0][i * count : (i + 1) * count], parts[1][i])) for i, name in enumerate(names)}
    return {name: found.get(name, found[names[0]]) for name in CIRCUITS}
