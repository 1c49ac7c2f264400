"""Circuits: set algebra, views, and files that others read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.formats import save_edge_list
from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError

GRAPH = Graph.transformer(2, 2, 8)
edge_sets = st.sets(st.integers(0, GRAPH.n_edges - 1))


def of(indices: set[int]) -> Circuit:
    return Circuit.from_indices(GRAPH, indices)


@given(edge_sets, edge_sets)
def test_algebra_is_that_of_sets(a: set[int], b: set[int]) -> None:
    everything = set(range(GRAPH.n_edges))
    assert of(a) & of(b) == of(a & b)
    assert of(a) | of(b) == of(a | b)
    assert of(a) - of(b) == of(a - b)
    assert of(a) ^ of(b) == of(a ^ b)
    assert ~of(a) == of(everything - a)
    assert (of(a) <= of(b)) == (a <= b)
    assert len(of(a)) == len(a)
    assert set(of(a).indices) == a
    assert (hash(of(a)) == hash(of(b))) or a != b


@given(edge_sets)
def test_connected_keeps_exactly_the_edges_on_paths(indices: set[int]) -> None:
    circuit = of(indices)
    arrows = [(name, *(part.partition("<")[0] for part in name.split("->"))) for name in circuit.edges]

    def reaches(node: str, goal: str) -> bool:
        return node == goal or any(s == node and reaches(r, goal) for _, s, r in arrows)

    expected = {name for name, s, r in arrows if reaches("input", s) and reaches(r, "logits")}
    assert set(circuit.connected().edges) == expected


def test_membership_views_and_repr() -> None:
    circuit = GRAPH.circuit(["input->a0.h1<q>", "input->a0.h1<k>", "a0.h1->logits"])
    assert "input->a0.1.q" in circuit
    assert "input->logits" not in circuit
    assert circuit.nodes == ["input", "a0.h1", "logits"]
    assert "3 of" in repr(circuit)
    assert "input->a0.h1<q>" in repr(circuit)
    with pytest.raises(GatewiseError, match="no '->'"):
        assert "m0" in circuit


def test_circuits_of_other_graphs_do_not_mix() -> None:
    with pytest.raises(GatewiseError, match="different graphs"):
        GRAPH.full() & Graph.transformer(3, 2, 8).full()
    with pytest.raises(TypeError):
        GRAPH.full() & {"input->logits"}  # type: ignore[operator]


@settings(max_examples=20)
@given(edge_sets, st.booleans(), st.booleans())
def test_round_trip(indices: set[int], scored: bool, all_scores: bool) -> None:
    scores = torch.arange(GRAPH.n_edges, dtype=torch.float64) / 7 if scored else None
    circuit = Circuit(GRAPH, of(indices).mask, scores, {"method": "eap", "seed": 3})
    path = Path("circuit.json")
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "circuit.json"
        circuit.save(path, all_scores=all_scores)
        found, alone = Circuit.load(path, GRAPH), Circuit.load(path)
        assert [p.name for p in Path(folder).iterdir()] == ["circuit.json"]
    assert found == alone == circuit
    assert found.provenance.items() >= circuit.provenance.items()
    if scores is None or not (indices or all_scores):
        assert found.scores is None
    else:
        assert torch.equal(found.scores, scores if all_scores else torch.where(circuit.mask, scores, 0.0))  # type: ignore[arg-type]


def test_a_circuit_of_60_edges_is_kilobytes_in_a_large_graph(tmp_path: Path) -> None:
    graph = Graph.transformer(24, 16, 64)
    circuit = Circuit(graph, graph.random_circuit(60).mask, torch.rand(graph.n_edges))
    circuit.save(tmp_path / "c.json")
    assert (tmp_path / "c.json").stat().st_size < 10_000
    assert Circuit.load(tmp_path / "c.json") == circuit
    content = json.loads((tmp_path / "c.json").read_text())
    for key, value, message in (
        ("graph_edges", 10**12, "expected a number of at most"),
        ("graph_edges", "many", "expected a number of at most"),
        ("graph_edges", 5, "its 'cfg' implies"),
        ("qkv", "both", "expected 'split' or 'merged'"),
    ):
        changed = {**content, "gatewise": {**content["gatewise"], key: value}}
        (tmp_path / "bad.json").write_text(json.dumps(changed))
        with pytest.raises(GatewiseError, match=message):
            Circuit.load(tmp_path / "bad.json")


def test_a_list_of_our_own_names_is_read_and_a_name_without_a_port_means_all(tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text('["input->a0.h1", "a0.h1->a1.h0.q", ["m1", "logits"]]')
    found = Circuit.load(tmp_path / "names.json", GRAPH)
    assert found.edges == ["input->a0.h1<q>", "input->a0.h1<k>", "input->a0.h1<v>", "a0.h1->a1.h0<q>", "m1->logits"]
    assert GRAPH.indices("a0.h1->a1.h0") == [GRAPH.index(f"a0.h1->a1.h0<{port}>") for port in "qkv"]
    with pytest.raises(GatewiseError, match="writes after"):
        GRAPH.circuit(["a1.h0->a0.h1"])


@pytest.mark.parametrize(
    "graph",
    [
        Graph.transformer(2, 3, 8, parallel=True),
        Graph.transformer(2, 3, 8, qkv="merged"),
        Graph.layered(["A1", "A2"], [["B"], ["C", "D"]], 5),
    ],
)
def test_every_kind_of_graph_round_trips(graph: Graph, tmp_path: Path) -> None:
    circuit = graph.random_circuit(5)
    circuit.save(tmp_path / "c.json")
    assert Circuit.load(tmp_path / "c.json") == circuit


def test_the_file_has_the_schema_others_read(tmp_path: Path) -> None:
    circuit = GRAPH.circuit(["input->a0.h1<q>", "m1->logits"])
    circuit.save(tmp_path / "c.json", all_scores=True)
    content = json.loads((tmp_path / "c.json").read_text())
    assert content["cfg"] == {"n_layers": 2, "n_heads": 2, "parallel_attn_mlp": False, "d_model": 8}
    assert list(content["edges"]) == list(GRAPH.edges)
    assert all(set(edge) == {"score", "in_graph"} for edge in content["edges"].values())
    assert all(type(e["score"]) is float and type(e["in_graph"]) is bool for e in content["edges"].values())
    assert list(content["nodes"]) == [*GRAPH.senders, "logits"]
    assert content["nodes"]["m1"] == {"in_graph": True}


def test_edge_pruning_list(tmp_path: Path) -> None:
    circuit = GRAPH.circuit(["input->a0.h1<q>", "a0.h1->m1", "m1->logits"])
    save_edge_list(circuit, tmp_path / "edges.json")
    assert json.loads((tmp_path / "edges.json").read_text())[0] == ["input", "a0.h1.q"]
    assert Circuit.load(tmp_path / "edges.json", GRAPH) == circuit
    for names, first in (("edge-pruning-gpt2", "tok_embeds"), ("edge-pruning-llama", "embeds")):
        save_edge_list(circuit, tmp_path / "named.json", names=names)  # type: ignore[arg-type]
        listed = json.loads((tmp_path / "named.json").read_text())
        assert listed[0] == [first, "a0.h1.q"]
        assert listed[-1] == ["m1", "resid_post"]
        assert Circuit.load(tmp_path / "named.json", GRAPH) == circuit
    (tmp_path / "theirs.json").write_text('[["embeds", "a0.h1.q"], ["m1", "resid_post"]]')
    assert Circuit.load(tmp_path / "theirs.json", GRAPH).edges == ["input->a0.h1<q>", "m1->logits"]
    with pytest.raises(GatewiseError, match="Circuit.load"):
        Circuit.load(tmp_path / "edges.json")


def broken(change: Any) -> dict[str, Any]:
    from gatewise.circuits.formats import circuit_to_json

    content = circuit_to_json(GRAPH.full())
    change(content)
    return content


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.pop("cfg"), "'cfg' is missing"),
        (lambda c: c.pop("edges"), "'edges' is missing"),
        (lambda c: c["cfg"].pop("n_layers"), "'n_layers' is missing"),
        (lambda c: c["cfg"].update(n_layers="two"), "expected int"),
        (lambda c: c["cfg"].update(n_heads=10**9), "expected 1 to"),
        (lambda c: c["edges"].pop("input->m0"), "has to be listed"),
        (lambda c: c["edges"].update({"input->m7": c["edges"].pop("input->m0")}), "no edge of"),
        (lambda c: c["edges"].update({"input->m0": 3}), "edge 'input->m0' holds 3"),
        (lambda c: c["edges"]["input->m0"].pop("in_graph"), "'in_graph' is missing"),
        (lambda c: c["edges"]["input->m0"].update(score="high"), "expected a finite number"),
        (lambda c: c.update(gatewise=[]), "expected an object"),
    ],
)
def test_malformed_files_name_the_file_and_the_key(change: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(broken(change)))
    with pytest.raises(GatewiseError, match=says) as caught:
        Circuit.load(path)
    assert "broken.json" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "3", "null", '"text"', "[[1, 2]]", "[" * 100_000, '{"edges": {}}'])
def test_other_content_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(GatewiseError, match=r"other\.json"):
        Circuit.load(path, GRAPH)
    with pytest.raises(GatewiseError, match="absent"):
        Circuit.load(tmp_path / "absent.json")
