"""Comparing circuits: counts by hand, other tools' files, the published circuits, and the commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.comparison import compare
from gatewise.circuits.formats import save_edge_list
from gatewise.circuits.graph import Graph
from gatewise.circuits.literature import compare_with_published
from gatewise.cli import main as cli
from gatewise.errors import GatewiseError
from gatewise.gates.labels import label_gates, load_two

GRAPH = Graph.transformer(2, 2, 8)
A = GRAPH.circuit(["input->a0.h1<q>", "a0.h1->m1", "m1->logits"])
B = GRAPH.circuit(["input->a0.h1<k>", "a0.h1->m1", "m1->logits", "m0->m1"])


def test_overlap_by_hand() -> None:
    found = compare(A, B)
    assert (found.total.only_a, found.total.shared, found.total.only_b) == (1, 2, 2)
    assert found.jaccard == 2 / 5
    assert found.hamming == 3
    assert found.nodes["m1"].shared == 2
    assert next(iter(found.nodes)) in ("input", "a0.h1")  # two edges differ, most different first
    assert {name: (c.only_a, c.shared, c.only_b) for name, c in found.layers.items()} == {
        "0": (1, 0, 1),
        "1": (0, 1, 1),
        "logits": (0, 1, 0),
    }
    assert compare(A, A).jaccard == 1
    assert compare(GRAPH.empty(), GRAPH.empty()).jaccard == 1


def test_every_edge_is_counted_once_by_layer_and_twice_by_node() -> None:
    a, b = GRAPH.random_circuit(30, seed=0), GRAPH.random_circuit(20, seed=1)
    found = compare(a, b)
    assert sum(counts.different for counts in found.layers.values()) == found.hamming == len(a ^ b)
    assert sum(counts.different for counts in found.nodes.values()) == 2 * found.hamming


def test_rank_correlation_is_spearmans() -> None:
    scores = torch.arange(GRAPH.n_edges, dtype=torch.float64)
    one = Circuit(GRAPH, A.mask, scores)
    assert compare(one, Circuit(GRAPH, B.mask, scores**3)).rank_correlation == pytest.approx(1)
    assert compare(one, Circuit(GRAPH, B.mask, -scores)).rank_correlation == pytest.approx(1)  # |score|
    assert compare(one, Circuit(GRAPH, B.mask, 1e9 - scores)).rank_correlation == pytest.approx(-1)
    assert compare(one, Circuit(GRAPH, B.mask, torch.ones(GRAPH.n_edges))).rank_correlation == 0
    assert compare(one, A).rank_correlation is None


def test_gate_types_side_by_side() -> None:
    gates = label_gates(A, B).labelled
    assert compare(gates, gates).types == {"AND": {"AND": 1}, "OR": {"OR": 2}, "ADDER": {"ADDER": 2}}
    assert compare(gates, A).types == {"AND": {"edge": 1}, "OR": {"-": 2}, "ADDER": {"edge": 2}}


def test_other_tools_files(tmp_path: Path) -> None:
    A.save(tmp_path / "mib.json", all_scores=True)
    content = json.loads((tmp_path / "mib.json").read_text())
    del content["gatewise"]  # what another tool writes
    (tmp_path / "mib.json").write_text(json.dumps(content))
    save_edge_list(B, tmp_path / "list.json")
    label_gates(A, B).save(tmp_path / "gates.safetensors")
    assert compare(*load_two(tmp_path / "list.json", tmp_path / "mib.json")).hamming == 3
    assert compare(*load_two(tmp_path / "mib.json", tmp_path / "gates.safetensors")).total.only_a == 0
    with pytest.raises(GatewiseError, match="bare list"):
        load_two(tmp_path / "list.json", tmp_path / "list.json")


def test_recall_of_the_published_circuits() -> None:
    gpt2 = Graph.transformer(12, 12, 768)
    circuit = gpt2.circuit(["a9.h9->logits", "a9.h6->logits", "a5.h5->a8.h6<q>", "a0.h0->m0", "m9->logits"])
    recall = compare_with_published(circuit)
    assert recall.present["name mover"] == ("a9.h6", "a9.h9")
    assert recall.missing["name mover"] == ("a10.h0",)
    assert recall.recall == 4 / 26
    assert recall.precision == 4 / 5
    assert recall.chance == 5 / 144
    assert compare_with_published(gpt2.full()).recall == 1
    assert "m9" in compare_with_published(circuit, "gt-published").present["greater-than"]
    with pytest.raises(GatewiseError, match="GPT-2 small"):
        compare_with_published(A)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gatewise", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code if isinstance(stop.value.code, int) else 0


def test_compare_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    A.save(tmp_path / "a.json")
    B.save(tmp_path / "b.json")
    assert run(monkeypatch, "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["jaccard"], found["hamming"]) == (0.4, 3)
    assert run(monkeypatch, "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")) == 0
    assert "Jaccard 0.400" in capsys.readouterr().out
    assert run(monkeypatch, "compare", str(tmp_path / "a.json"), "ioi-published") == 2
    assert "GPT-2 small" in capsys.readouterr().err
