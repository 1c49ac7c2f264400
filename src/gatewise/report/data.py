"""A report as plain data: what the page shows, small enough to travel inside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.evaluation import Evaluation
from gatewise.evaluation.verdicts import faithful
from gatewise.gate_types import FOUND_BY, GATE_SIGNS, GATE_TYPES, SPLIT, TESTED_LABELS
from gatewise.gates.testing.gate_test import GateTest
from gatewise.report.headline import AGAINST, CIRCUIT_NAMES, doubts, facts, headline, next_steps, trust
from gatewise.report.trust import drawn_edges

if TYPE_CHECKING:
    from gatewise.report.report import Report

TABLES_PER_PORT = 40  # in the page; `tables.json` has all
_INTERVAL = ("value", "low", "high")
_MEASURE = ("mean", "error")


def report_data(report: Report) -> dict[str, Any]:
    """All that the page shows. Edges are numbered by their place in the columns of `edges`."""
    searched = [circuit.mask for circuits in report.searches.values() for circuit in circuits]
    edges = torch.stack(searched).any(dim=0).nonzero().flatten()
    names = report.graph.edges
    place_of = {names[edge]: i for i, edge in enumerate(edges.tolist())}
    record = report.gates.ns.provenance
    return {
        "format": 3,
        "title": f"{record.get('task', 'circuit')} in {report.model}",
        "headline": headline(report),
        "model": report.model,
        "circuits": dict(CIRCUIT_NAMES),
        "found_by": dict(FOUND_BY),
        "set_difference_labels": dict(SPLIT),
        "directed": report.directed,
        "signs": dict(GATE_SIGNS),
        "tested_labels": list(TESTED_LABELS),
        "graph": _graph(report.graph),
        "sizes": list(report.sizes),
        "faithfulness": None if report.choice is None else _short(report.choice.record()),
        "edges": _edges(report, edges, place_of),
        "drawn": _drawn(report, place_of),
        "effect_pairs": report.tested_pairs,
        "against": AGAINST,
        "doubts": [asdict(remark) for remark in doubts(report)],
        "facts": [asdict(remark) for remark in facts(report)],
        "trust": [asdict(remark) for remark in trust(report)],
        "next": [{"why": step.why, "changes": step.arguments} for step in next_steps(report)],
        "curves": {name: [_evaluation(size) for size in curve] for name, curve in report.curves.items()},
        "proportions": [{"type": kind, "edges": len(edges)} for kind, edges in report.gates.by_type.items()],
        "agreement": report.agreement.to_json(),
        "tables": _page_tables(report.tables, place_of),
        "gates": _gates(report, place_of),
        "nodes": _short(asdict(report.nodes)),
        "examples": [asdict(example) for example in report.examples],
        "provenance": dict(record),
        "seconds": round(report.seconds, 1),
    }


def _graph(graph: Graph) -> dict[str, Any]:
    """Sublayers in order; the page derives senders, ports and all edges from them."""
    return {
        "config": graph.config(),
        "qkv": graph.qkv,
        "edges": graph.n_edges,
        "layered": all(sublayer.kind != "attention" for sublayer in graph.sublayers),
        "sublayers": [asdict(sublayer) for sublayer in graph.sublayers],
    }


def _edges(report: Report, edges: torch.Tensor, place_of: Mapping[str, int]) -> dict[str, Any]:
    """One column per property. `in`: for each circuit, bit k is set if the edge is in that of size k."""
    graph = report.graph
    tested = [-1] * len(edges)
    for name, label in report.tested_labels.items():
        tested[place_of[name]] = TESTED_LABELS.index(label)
    exact: dict[str, dict[int, float]] = {}
    for direction, calibration in (report.calibration or {}).items():
        exact[direction] = {place_of[graph.edges[edge]]: _digits(x, 5) for edge, x in calibration.exact.items()}
    bits, scores = {}, {}
    for name, circuits in report.searches.items():
        held = [circuit.mask[edges].long() << k for k, circuit in enumerate(circuits)]
        bits[name] = torch.stack(held).sum(dim=0).tolist()
        scores[name] = _scores(circuits[-1], edges)
    return {
        "sender": graph.edge_sender[edges].tolist(),
        "port": graph.edge_port[edges].tolist(),
        "in": bits,
        "score": scores,
        "tested": tested,
        "exact": exact,
    }


def _drawn(report: Report, place_of: Mapping[str, int]) -> dict[str, Any] | None:
    """The edges that the page opens with, and what they keep alone."""
    if report.drawn is None:
        return None
    edges = [place_of[report.graph.edges[edge]] for edge in drawn_edges(report.gates)]
    return {"edges": edges, "kept": _interval(report.drawn)}


def _interval(evaluation: Evaluation) -> list[float | None]:
    share = evaluation.logit_diff_interval
    numbers: list[float | None] = _short([share.value, share.low, share.high])
    return numbers


def _scores(circuit: Circuit, edges: torch.Tensor) -> list[float]:
    values = circuit.mask if circuit.scores is None else circuit.scores
    return [_digits(value, 5) for value in values[edges].double().tolist()]


def table_data(table: GateTest) -> dict[str, Any]:
    """A truth table of two edges; `beyond`: what both do beyond the sum of either."""
    return {
        "receiver": table.receiver,
        "edges": [edge for (edge,) in table.groups.values()],
        "rest": table.rest,
        "values": list(table.effects.values()),
        "beyond": [getattr(table.strongest_interaction[1], name) for name in _INTERVAL],
        "label": table.label,
    }


def _page_tables(tables: Sequence[GateTest], place_of: Mapping[str, int]) -> list[dict[str, Any]]:
    """The largest tables of each port."""
    by_port: dict[str, list[dict[str, Any]]] = {}
    for table in map(table_data, tables):
        by_port.setdefault(table["edges"][0].partition("->")[2], []).append(table)
    shown = []
    for rows in by_port.values():
        rows.sort(key=lambda row: -max(map(abs, row["values"])))
        for row in rows[:TABLES_PER_PORT]:
            shown.append(_short(row) | {"edges": [place_of[edge] for edge in row["edges"]]})
    return shown


def _gates(report: Report, place_of: Mapping[str, int]) -> dict[str, Any] | None:
    """Tested gates as `GateTests.to_json` has them, and for each group what is known of its edges.

    `edges`: how many; `shown`: those that the page has; `labels`: how many have each set-difference label.
    """
    if report.gate_tests is None:
        return None
    content = report.gate_tests.to_json()
    labels = report.gates.labelled.kinds
    for gate in content["tested"]:
        for group in gate["groups"].values():
            edges = group.pop("edges")
            if not edges:  # the rest of the receiver's edges
                continue
            kinds = [labels.get(report.graph.index(edge)) for edge in edges]
            group |= {
                "edges": len(edges),
                "ports": sorted({edge.partition("->")[2] for edge in edges}),
                "shown": [place_of[edge] for edge in edges if edge in place_of],
                "labels": {kind: kinds.count(kind) for kind in GATE_TYPES if kind in kinds},
            }
    short: dict[str, Any] = _short(content)
    return short


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    short: dict[str, Any] = _short(evaluation.to_json())
    return short | {"faithful": asdict(faithful(evaluation)), "kept": _interval(evaluation)}


def _short(value: Any) -> Any:
    """The same with few digits; intervals and measures as lists, numbers that are none as null."""
    if isinstance(value, Mapping):
        for names in (_INTERVAL, _MEASURE):
            if value.keys() == set(names):
                return [_short(value[name]) for name in names]
        return {key: _short(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_short(part) for part in value]
    if isinstance(value, float):
        return _digits(value, 4) if math.isfinite(value) else None
    return value


def _digits(value: float, digits: int) -> float:
    """Rounded to so many significant digits: the page shows fewer."""
    return float(f"{value:.{digits}g}")
