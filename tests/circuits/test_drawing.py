"""Figures show the circuit and nothing else, in the colours of the gates, in all three formats."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.drawing import draw
from gatewise.circuits.gate_drawing import DrawnGate, draw_gate
from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_COLOURS
from gatewise.gates.labels import Gates, label_gates

GRAPH = Graph.transformer(3, 4, 8)
SVG = "{http://www.w3.org/2000/svg}"


def scored(graph: Graph, edges: list[str]) -> Circuit:
    """A circuit whose edges have the scores 1, 2, 3, ... in the order given."""
    scores = torch.zeros(graph.n_edges, dtype=torch.float64)
    for rank, edge in enumerate(edges):
        scores[graph.index(edge)] = -(rank + 1.0)
    return Circuit(graph, graph.circuit(edges).mask, scores)


@pytest.fixture
def gates() -> Gates:
    ns = scored(GRAPH, ["input->a0.h1<k>", "a0.h1->m2", "m0->m2", "m2->logits"])
    dn = scored(GRAPH, ["input->m0", "a0.h1->a2.h3<q>", "m2->logits"])
    return label_gates(ns, dn)


def edges_of(path: Path) -> dict[str, ET.Element]:
    """Edge name -> the SVG path that draws it."""
    groups = ET.parse(path).getroot().iter(f"{SVG}g")
    return {g.attrib["id"]: g[0] for g in groups if "->" in g.attrib.get("id", "")}


def texts_of(path: Path) -> set[str]:
    return {"".join(text.itertext()).strip() for text in ET.parse(path).getroot().iter(f"{SVG}text")}


def test_every_edge_in_the_colour_of_its_gate(gates: Gates, tmp_path: Path) -> None:
    gates.draw(tmp_path / "c.svg")
    drawn = edges_of(tmp_path / "c.svg")
    assert set(drawn) == set(gates.sound.edges)
    for edge, shape in drawn.items():
        kind = gates.label(edge)
        assert kind is not None
        assert GATE_COLOURS[kind].lower() in shape.attrib["style"]


def test_only_nodes_of_the_circuit(gates: Gates, tmp_path: Path) -> None:
    gates.draw(tmp_path / "c.svg")
    shown = texts_of(tmp_path / "c.svg")
    assert shown & set(GRAPH.nodes) == set(gates.sound.nodes)
    assert {"AND (3)", "OR (2)", "ADDER (1)", "6 edges, width by |score|, set-difference labels"} <= shown


def width(shape: ET.Element) -> float:
    return float(shape.attrib["style"].partition("stroke-width: ")[2].partition(";")[0])


def test_width_grows_with_the_size_of_the_score(tmp_path: Path) -> None:
    edges = ["input->m0", "input->m1", "m0->m1", "m1->logits"]
    scored(GRAPH, edges).draw(tmp_path / "c.svg")
    drawn = edges_of(tmp_path / "c.svg")
    widths = [width(drawn[edge]) for edge in edges]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_large_circuits_are_thinned_to_the_strongest_edges_and_say_so(tmp_path: Path) -> None:
    edges = ["input->m0", "input->m1", "m0->m1", "m1->logits"]
    scored(GRAPH, edges).draw(tmp_path / "c.svg", max_edges=2)
    assert set(edges_of(tmp_path / "c.svg")) == set(edges[2:])
    assert any("strongest 2 of 4" in text for text in texts_of(tmp_path / "c.svg"))
    with pytest.raises(GatewiseError, match="no scores"):
        GRAPH.full().draw(tmp_path / "c.svg", max_edges=2)


@pytest.mark.parametrize(
    ("suffix", "start"), [(".svg", b"<?xml"), (".pdf", b"%PDF"), (".png", b"\x89PNG"), (".PNG", b"\x89PNG")]
)
def test_formats_by_suffix_and_the_same_file_again(gates: Gates, tmp_path: Path, suffix: str, start: bytes) -> None:
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    gates.draw(first, title="a < b")
    draw(gates.labelled, second, title="a < b")
    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    "graph",
    [
        Graph.layered(["A1", "A2", "A3"], [["B1", "B2"], ["C"]], 8),
        Graph.transformer(2, 3, 8, parallel=True, qkv="merged"),
        Graph.transformer(40, 32, 8),
    ],
)
def test_every_kind_of_graph(graph: Graph, tmp_path: Path) -> None:
    circuit = graph.random_circuit(min(60, graph.n_edges))
    circuit.draw(tmp_path / "c.svg")
    assert set(edges_of(tmp_path / "c.svg")) == set(circuit.edges)


def test_an_empty_circuit_is_a_figure_too(tmp_path: Path) -> None:
    GRAPH.empty().draw(tmp_path / "c.svg")
    assert texts_of(tmp_path / "c.svg") >= {"input", "logits", "0 edges"}


def test_without_matplotlib_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(GatewiseError, match=r"gatewise\[figures\]"):
        GRAPH.empty().draw(tmp_path / "c.svg")


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GatewiseError, match=r"\.svg, \.pdf, \.png"):
        GRAPH.empty().draw(tmp_path / "c.gif")


def test_a_gate_with_its_groups(tmp_path: Path) -> None:
    worth = {
        frozenset({"K"}): (0.0, -0.1, 0.1),
        frozenset({"V"}): (0.4, 0.3, 0.5),
        frozenset({"K", "V"}): (0.9, 0.8, 1.0),
    }
    many = tuple(f"m{i}->a2.h3<v>" for i in range(9))
    gate = DrawnGate(
        "a2.h3", "mixed", {"K": ("m0->a2.h3<k>", "a0.h1->a2.h3<k>"), "V": many}, {"K": "AND", "V": "ADDER"}, worth
    )
    path = draw_gate(gate, tmp_path / "gate.svg", title="a title")
    drawn, shown = edges_of(path), texts_of(path)
    assert set(drawn) == {"K->a2.h3", "V->a2.h3"}
    assert GATE_COLOURS["AND"].lower() in drawn["K->a2.h3"].attrib["style"]
    assert {"a2.h3", "mixed", "K", "V", "m0 into k", "a0.h1", "9 edges into v", "0.90", "a title"} <= shown
    again = draw_gate(gate, tmp_path / "again.svg", title="a title")
    assert again.read_bytes() == path.read_bytes()
    with pytest.raises(GatewiseError, match="ends in"):
        draw_gate(gate, tmp_path / "gate.jpg")
