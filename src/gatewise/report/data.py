"""An investigation as plain data: what the page shows, small enough to travel inside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.evaluation.verdicts import faithful
from gatewise.gate_types import FOUND_BY, GATE_SIGNS, GATE_TYPES, SPLIT, TESTED_LABELS
from gatewise.gates.testing.gate_test import GateTest
from gatewise.report.headline import doubts, facts, headline, next_steps, trust
from gatewise.report.investigation import CIRCUIT_NAMES, Report

if TYPE_CHECKING:
    from gatewise.evaluation import Evaluation
    from gatewise.evaluation.evaluations import Behaviour

TABLES_PER_PORT = 40  # in the page; `tables.json` has all


Command = Callable[[Mapping[str, Any]], str]  # arguments that differ from this investigation's -> how to run it


def report_data(found: Report, command: Command | None = None) -> dict[str, Any]:
    """Everything the page shows. command: what to type to repeat the investigation, with changed arguments or none."""
    write = command or _as_arguments
    edges = union([circuit for circuits in found.searches.values() for circuit in circuits])
    index = {edge: place for place, edge in enumerate(edges)}
    names = found.graph.edges
    by_name = {names[edge]: place for edge, place in index.items()}
    record = found.gates.ns.provenance
    return {
        "format": 1,
        "title": f"{record.get('task', 'circuit')} in {found.model}",
        "headline": headline(found),
        "model": found.model,
        "circuits": dict(CIRCUIT_NAMES),
        "found_by": dict(FOUND_BY),
        "split": dict(SPLIT),
        "directed": found.directed,
        "signs": dict(GATE_SIGNS),
        "tested_labels": list(TESTED_LABELS),
        "graph": graph_data(found.graph),
        "sizes": list(found.sizes),
        "edges": _edges_data(found, edges, by_name),
        "doubts": [asdict(remark) for remark in doubts(found)],
        "facts": [asdict(remark) for remark in facts(found)],
        "trust": [asdict(remark) for remark in trust(found)],
        "next": [
            {"why": step.why, "command": write(step.changes) if step.changes else None} for step in next_steps(found)
        ],
        "curves": {name: [_evaluation(one) for one in curve] for name, curve in found.curves.items()},
        "proportions": _proportions(found),
        "agreement": found.agreement.to_json(),
        "tables": _page_tables(tables_data(found), by_name),
        "gates": _gates(found, by_name),
        "nodes": None if found.nodes is None else _short_spans(asdict(found.nodes)),
        "examples": [asdict(example) for example in found.examples],
        "provenance": dict(record),
        "seconds": round(found.seconds, 1),
        "command": write({}),
    }


def _as_arguments(changes: Mapping[str, Any]) -> str:
    """For those who investigate in Python."""
    return ", ".join(f"{name}={value!r}" for name, value in changes.items())


def graph_data(graph: Graph) -> dict[str, Any]:
    """Stages in order; the page derives senders, ports and all edges from them."""
    return {
        "config": graph.config(),
        "qkv": graph.qkv,
        "edges": graph.n_edges,
        "layered": all(sublayer.kind != "attention" for sublayer in graph.sublayers),
        "sublayers": [
            {
                "kind": sublayer.kind,
                "layer": sublayer.layer,
                "nodes": list(sublayer.nodes),
                "ports": list(sublayer.ports),
            }
            for sublayer in graph.sublayers
        ],
    }


def union(circuits: Iterable[Circuit]) -> list[int]:
    """Edges of any of the circuits, in order."""
    return torch.stack([circuit.mask for circuit in circuits]).any(dim=0).nonzero().flatten().tolist()


def tables_data(found: Report) -> list[dict[str, Any]]:
    """All truth tables, for `tables.json`."""
    return [
        {
            "receiver": table.receiver,
            "edges": [edge for (edge,) in table.groups.values()],
            "rest": table.rest,
            "values": list(table.effects.values()),
            "beyond": _span(table),
            "label": table.label,
        }
        for table in found.tables
    ]


def _edges_data(found: Report, edges: Sequence[int], by_name: dict[str, int]) -> dict[str, Any]:
    """One column per property. `in`: for each circuit, bit k is set if the edge is in that of size k."""
    graph, chosen = found.graph, torch.tensor(edges, dtype=torch.long)
    tested = [-1] * len(edges)
    for name, label in found.tested.items():
        tested[by_name[name]] = TESTED_LABELS.index(label)
    exact = {
        direction: {by_name[graph.edges[edge]]: _digits(value) for edge, value in one.exact.items()}
        for direction, one in (found.calibration or {}).items()
    }
    return {
        "sender": graph.edge_sender[chosen].tolist(),
        "port": graph.edge_port[chosen].tolist(),
        "in": {name: _bits(circuits, chosen) for name, circuits in found.searches.items()},
        "score": {name: _column(circuits[-1], chosen) for name, circuits in found.searches.items()},
        "tested": tested,
        "exact": exact,
    }


def _bits(circuits: Sequence[Circuit], chosen: Tensor) -> list[int]:
    total = torch.zeros(len(chosen), dtype=torch.long)
    for place, circuit in enumerate(circuits):
        total += circuit.mask[chosen].long() << place
    return total.tolist()


def _column(circuit: Circuit, chosen: Tensor) -> list[float]:
    values = circuit.mask.double() if circuit.scores is None else circuit.scores.double()
    return [_digits(value) for value in values[chosen].tolist()]


def _page_tables(tables: Sequence[dict[str, Any]], by_name: dict[str, int]) -> list[dict[str, Any]]:
    """The largest tables of each port: edges by their place in the page."""
    by_port: dict[str, list[dict[str, Any]]] = {}
    for table in tables:
        by_port.setdefault(table["edges"][0].partition("->")[2], []).append(table)
    shown = []
    for some in by_port.values():
        for table in sorted(some, key=lambda one: -max(map(abs, one["values"])))[:TABLES_PER_PORT]:
            shown.append(_short_spans(table) | {"edges": [by_name[edge] for edge in table["edges"]]})
    return shown


def _span(table: GateTest) -> list[float]:
    """What two edges are worth beyond the sum of either."""
    beyond = table.strongest_interaction[1]
    return [beyond.value, beyond.low, beyond.high]


def _gates(found: Report, by_name: dict[str, int]) -> dict[str, Any] | None:
    """Tested gates as `GateTests.to_json` has them, spans as [value, low, high]; groups with what is known of edges.

    `edges` of a group: how many; `shown`: their places in the page; `split`: how many of each type by direction.
    """
    if found.interactions is None:
        return None
    data = found.interactions.to_json()
    types = found.gates.labelled.kinds
    for gate in data["tested"]:
        for group in gate["groups"].values():
            edges = group.pop("edges")
            if not edges:  # the rest of the receiver's edges
                continue
            kinds = [types.get(found.graph.index(edge)) for edge in edges]
            group |= {
                "edges": len(edges),
                "ports": sorted({edge.partition("->")[2] for edge in edges}),
                "shown": [by_name[edge] for edge in edges if edge in by_name],
                "split": {kind: kinds.count(kind) for kind in GATE_TYPES if kind in kinds},
            }
    spans: dict[str, Any] = _short_spans(data)
    return spans


def _short_spans(value: Any) -> Any:
    """The same data with spans as lists and numbers of few digits."""
    if isinstance(value, Mapping):
        if set(value) == {"value", "low", "high"}:
            return [_short_spans(value[key]) for key in ("value", "low", "high")]
        return {key: _short_spans(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_short_spans(one) for one in value]
    return _digits(value, 3) if isinstance(value, float) else value


def _proportions(found: Report) -> list[dict[str, Any]]:
    spans = found.gates.layer_span()
    return [
        {
            "type": kind,
            "edges": len(found.gates.by_type[kind]),
            "share": found.gates.proportions()[kind],
            "gates": sum(gate.type == kind for gate in found.gates),
            "span": spans[kind] if math.isfinite(spans[kind]) else None,
        }
        for kind in GATE_TYPES
    ]


def _evaluation(one: Evaluation) -> dict[str, Any]:
    named = {"circuit": one.circuit, "complement": one.complement, "full": one.full, "empty": one.empty}
    behaviours: dict[str, Behaviour | None] = {
        **named,
        "random": one.random_circuit,
        "random_complement": one.random_complement,
    }
    return {
        "edges": one.edges,
        "random_circuits": one.random_circuits,
        "on_path": one.on_path,
        "faithful": asdict(faithful(one)),
        "recovered": _finite(one.recovered),
        "recovered_logit_diff": _finite(one.recovered_logit_diff),
        "destroyed": _finite(one.destroyed),
        **{name: None if value is None else _behaviour(value) for name, value in behaviours.items()},
    }


def _behaviour(value: Behaviour) -> dict[str, list[float]]:
    return {key: [_digits(one["mean"]), _digits(one["error"])] for key, one in asdict(value).items()}


def _finite(value: float) -> float | None:
    return _digits(value) if math.isfinite(value) else None


def _digits(value: float, digits: int = 5) -> float:
    """Rounded to so many significant digits: the page shows fewer."""
    return float(f"{value:.{digits}g}")
