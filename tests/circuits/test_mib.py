"""Submissions to MIB: folder names, the schema to the letter, rankings, and reading them back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.circuits.mib import SHARES, SubmittedCircuit, write_submission
from gatewise.cli import main as cli
from gatewise.errors import GatewiseError

GRAPH = Graph.transformer(3, 4, 16)


def scored(edges: int = 20, graph: Graph = GRAPH, *, by_size: bool = True, **provenance: Any) -> Circuit:
    """A circuit of the edges with the largest scores (by size or by sign)."""
    scores = torch.randn(graph.n_edges, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = (scores.abs() if by_size else scores).argsort(descending=True)
    mask = torch.zeros(graph.n_edges, dtype=torch.bool)
    mask[order[:edges]] = True
    return Circuit(graph, mask, scores, {"task": "ioi", "model": "gpt2", **provenance})


def eap_ig_edges(layers: int, heads: int, parallel: bool) -> list[str]:
    """All edges in EAP-IG's order of construction, written from the description of the format alone."""
    edges, stream = [], ["input"]
    for layer in range(layers):
        mine = [f"a{layer}.h{head}" for head in range(heads)]
        into_heads = {node: [f"{node}->{head}<{kind}>" for head in mine for kind in "qkv"] for node in stream}
        for node in stream:
            edges += into_heads[node] + ([f"{node}->m{layer}"] if parallel else [])
        stream = [*stream, *mine]
        if not parallel:
            edges += [f"{node}->m{layer}" for node in stream]
        stream.append(f"m{layer}")
    return edges + [f"{node}->logits" for node in stream]


def check_schema(content: dict[str, Any], *, parallel: bool, scores: bool = True) -> None:
    """{"cfg": {...}, "nodes": {name: {"in_graph": bool}}, "edges": {name: {"score": float, "in_graph": bool}}}"""
    assert list(content) == ["cfg", "nodes", "edges"]
    cfg = content["cfg"]
    assert {key: type(value) for key, value in cfg.items()} == {
        "n_layers": int,
        "n_heads": int,
        "parallel_attn_mlp": bool,
        "d_model": int,
    }
    layers, heads = cfg["n_layers"], cfg["n_heads"]
    assert cfg["parallel_attn_mlp"] is parallel
    per_layer = [[*(f"a{layer}.h{head}" for head in range(heads)), f"m{layer}"] for layer in range(layers)]
    assert list(content["nodes"]) == ["input", *(node for nodes in per_layer for node in nodes), "logits"]
    assert all(set(node) == {"in_graph"} and type(node["in_graph"]) is bool for node in content["nodes"].values())
    assert list(content["edges"]) == eap_ig_edges(layers, heads, parallel)
    fields = {"score": float, "in_graph": bool} if scores else {"in_graph": bool}
    for edge in content["edges"].values():
        assert {key: type(value) for key, value in edge.items()} == fields


@pytest.mark.parametrize("parallel", [False, True])
def test_importances_have_the_schema_and_read_back(tmp_path: Path, parallel: bool) -> None:
    circuit = scored(graph=Graph.transformer(3, 4, 16, parallel=parallel))
    written = write_submission([SubmittedCircuit(circuit, "c.json")], tmp_path)
    assert written == {"ioi_gpt2": [tmp_path / "ioi_gpt2" / "importances.json"]}
    assert sorted(p.name for p in (tmp_path / "ioi_gpt2").iterdir()) == ["importances.json"]
    content = json.loads((tmp_path / "ioi_gpt2" / "importances.json").read_text())
    check_schema(content, parallel=parallel)
    found = Circuit.load(tmp_path / "ioi_gpt2" / "importances.json")
    assert found == circuit
    assert found.scores is not None
    assert circuit.scores is not None
    assert torch.equal(found.scores, circuit.scores.abs())


def test_the_largest_importances_are_the_circuit_whichever_order_it_was_chosen_by(tmp_path: Path) -> None:
    for by_size in (True, False):
        circuit = scored(by_size=by_size)
        write_submission([SubmittedCircuit(circuit, "c.json")], tmp_path)
        edges = json.loads((tmp_path / "ioi_gpt2" / "importances.json").read_text())["edges"]
        best = sorted(edges, key=lambda name: -edges[name]["score"])[:20]
        assert set(best) == set(circuit.edges)
    odd = Circuit(GRAPH, ~scored(20).mask, scored().scores, {"task": "ioi", "model": "gpt2"})
    with pytest.raises(GatewiseError, match="--rank"):
        write_submission([SubmittedCircuit(odd, "odd.json")], tmp_path)
    write_submission([SubmittedCircuit(odd, "odd.json")], tmp_path, rank="signed")


def test_several_sizes_become_circuits(tmp_path: Path) -> None:
    graph = Graph.transformer(6, 8, 16)  # 3,628 edges
    sizes = [int(share * graph.n_edges) for share in SHARES]
    entries = [SubmittedCircuit(scored(size, graph), f"{size}.json") for size in reversed(sizes)]
    write_submission(entries, tmp_path)
    files = sorted((tmp_path / "ioi_gpt2").iterdir())
    assert [path.name for path in files] == sorted(f"{share:g}.json" for share in SHARES)
    for share, size in zip(SHARES, sizes, strict=True):
        path = tmp_path / "ioi_gpt2" / f"{share:g}.json"
        check_schema(json.loads(path.read_text()), parallel=False, scores=False)
        found = Circuit.load(path)
        assert found == scored(size, graph)
        assert found.scores is None
    with pytest.raises(GatewiseError, match="is needed"):
        write_submission(entries[:-1], tmp_path)


@pytest.mark.parametrize(
    ("task", "model", "folder"),
    [
        ("arc_easy", "meta-llama/Llama-3.1-8B", "arc-easy_llama3"),
        ("ioi", "Qwen/Qwen2.5-0.5B", "ioi_qwen2.5"),
        ("my task.csv", "my_model", "my-task_my-model"),
        ("../x", "../../etc", "x_etc"),
    ],
)
def test_names_of_folders(tmp_path: Path, task: str, model: str, folder: str) -> None:
    assert list(write_submission([SubmittedCircuit(scored(), "c", task, model)], tmp_path)) == [folder]
    assert (tmp_path / folder / "importances.json").exists()


@pytest.mark.parametrize(
    ("circuit", "says"),
    [
        (Circuit(GRAPH, GRAPH.full().mask, None, {"task": "ioi", "model": "gpt2"}), "no scores"),
        (Circuit(GRAPH, GRAPH.full().mask, torch.ones(GRAPH.n_edges)), "which task"),
        (scored(graph=Graph.transformer(3, 4, 16, qkv="merged")), "qkv='split'"),
        (scored(5, graph=Graph.layered(["A1", "A2"], [["B"]], 4)), "cannot be submitted"),
    ],
)
def test_what_cannot_be_submitted(tmp_path: Path, circuit: Circuit, says: str) -> None:
    with pytest.raises(GatewiseError, match=says):
        write_submission([SubmittedCircuit(circuit, "c.json")], tmp_path)
    assert not list(tmp_path.iterdir())


def test_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = []
    for model in ("gpt2", "qwen2.5"):
        scored(model=model).save(tmp_path / f"{model}.json", all_scores=True)
        files.append(str(tmp_path / f"{model}.json"))
    monkeypatch.setattr(sys, "argv", ["gatewise", "mib", *files, "--out", str(tmp_path / "sub"), "--json"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    out, err = capsys.readouterr()
    assert set(json.loads(out)) == {"ioi_gpt2", "ioi_qwen2.5"}
    assert "at least 2 tasks" in err
    assert "eap" not in (tmp_path / "sub" / "README.md").read_text()
