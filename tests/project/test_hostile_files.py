"""Inputs that once broke a loader, or would have: found by fuzzing, or by reading while the fuzzers were written."""

from __future__ import annotations

import ast
import json
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gatewise import files
from gatewise.archive import DamagedError, pack, unpack
from gatewise.circuits.formats import circuit_from, circuit_to_json
from gatewise.circuits.graph import Graph
from gatewise.circuits.serialization import pack_circuits
from gatewise.errors import GatewiseError
from gatewise.files import parse_json, shown
from gatewise.gates.labels import Gates, label_gates
from gatewise.models.gguf.file import parse_gguf
from gatewise.sweep.grid import read_grid
from gatewise.tasks import task_files as pair_files
from gatewise.tasks.task_files import parse_rows

SOURCES = Path(__file__).parents[2] / "src"


def circuit_json(graph: Graph | None = None) -> Any:
    return json.loads(json.dumps(circuit_to_json((graph or Graph.transformer(1, 1, 4)).full())))


def test_score_of_hundreds_of_digits() -> None:
    """float() of it is an OverflowError."""
    content = circuit_json()
    content["edges"]["input->m0"]["score"] = 10**400
    with pytest.raises(GatewiseError, match="expected a finite number"):
        circuit_from(content, "c.json")


def test_layer_of_thousands_of_digits() -> None:
    """int() of them is a ValueError."""
    content = circuit_json()
    content["edges"]["a" + "1" * 5000 + ".h0->m0"] = content["edges"].pop("input->m0")
    with pytest.raises(GatewiseError, match="which is no edge of"):
        circuit_from(content, "c.json")


def test_an_edge_in_two_spellings_hides_a_missing_one() -> None:
    """The number of edges was right, and the missing one counted as outside the circuit."""
    content = circuit_json()
    content["edges"]["A0.0->m0"] = content["edges"].pop("input->m0")
    with pytest.raises(GatewiseError, match="'a0.h0->m0' twice, in two spellings"):
        circuit_from(content, "c.json")


@pytest.mark.parametrize("cfg", [{"n_layers": 1000, "n_heads": 1000}, {"n_layers": 1, "n_heads": 1000}])
def test_a_few_bytes_that_ask_for_a_large_graph(cfg: dict[str, int]) -> None:
    content = circuit_json()
    content["cfg"].update(cfg)
    started = time.perf_counter()
    with pytest.raises(GatewiseError, match="more nodes than the 8 edges listed"):
        circuit_from(content, "c.json")
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("names", [["x"] * 5, ["logits"], [f"n{i}" for i in range(3_000)]])
def test_nodes_of_a_logic_model(names: list[str]) -> None:
    """Their table of edges is as large as the square of their number; of one name there can be one."""
    content = circuit_json(Graph.layered(["a"], [["b"]], 1))
    content["gatewise"]["sublayers"][1] = names
    with pytest.raises(GatewiseError, match="different ones, none of them 'logits'"):
        circuit_from(content, "c.json")


LOGIC = Graph.layered(["a"], [["b"]], 1)


def gates_file(**changes: Any) -> bytes:
    """A gates file with other data, and a checksum that holds."""
    names = ["ns", "dn", "AND", "OR", "ADDER"]
    masks: list[list[int]] = [[0], [1], [0], [1], []]
    plain, arrays = pack_circuits([LOGIC.circuit(edges) for edges in masks])
    head = {"kind": "gates", "format": 2, "rule": "plain", "grouping": "port", "names": names}
    arrays = changes.pop("arrays", arrays)
    return pack({**head, **plain, **changes}, arrays)


def test_gates_that_are_sound() -> None:
    assert Gates.from_bytes(gates_file(), "g") == label_gates(LOGIC.circuit([0]), LOGIC.circuit([1]))


LARGE = {"n_layers": 1000, "n_heads": 1000, "d_model": 1, "parallel": False, "qkv": "split"}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"kind": "circuits"}, "it holds 'circuits' of format 2"),
        ({"format": 1}, "of format 1"),
        ({"rule": "guess"}, "'guess' is none of"),
        ({"names": ["ns"]}, "not a gates file"),
        ({"names": [["ns"], "dn", "AND", "OR", "ADDER"]}, "not a gates file"),
        ({"names": ["ns", "dn", "OR", "AND", "ns+dn"]}, "ADDER"),
        ({"names": ["ns", "ADDER", "AND", "OR", "dn"]}, "neither of its two circuits has"),
        ({"circuits": [None] * 5}, "cannot be understood"),
        ({"circuits": [{"scores": 3, "provenance": {}}] * 5}, "cannot be understood"),
        ({"circuits": [{"scores": None, "provenance": "x"}] * 5}, "cannot be understood"),
        ({"graph": {"sublayers": [["a", "a"], ["b"]], "d_model": 1}}, "different ones"),
        ({"graph": {"sublayers": [["a"], ["b"]], "d_model": 10**9}}, "its graph.d_model is 1000000000"),
        ({"graph": {"sublayers": [["a"], [f"n{i}" for i in range(1_000)]], "d_model": 1}}, "its masks have about 8"),
        ({"graph": LARGE}, "more nodes"),
        ({"graph": {**LARGE, "n_heads": 1.5}}, "n_heads is 1.5"),
        ({"arrays": {"masks": torch.zeros(5)}}, "cannot be understood"),
        ({"arrays": {"masks": torch.zeros(5, 1)}}, "cannot be understood"),
        ({"arrays": {}}, "masks"),
    ],
)
def test_gates_that_no_file_can_hold(changes: dict[str, Any], match: str) -> None:
    content = gates_file(**changes)
    started = time.perf_counter()
    with pytest.raises(GatewiseError, match=match):
        Gates.from_bytes(content, "g.safetensors")
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("header", [b"", b"{}", b"[]", b'{"__metadata__": {"gatewise": 3}}', b"[" * 50_000])
@pytest.mark.parametrize("size", [0, 1 << 62, None])
def test_headers_of_other_files(header: bytes, size: int | None) -> None:
    """A length beyond the file, and headers of other safetensors."""
    length = len(header) if size is None else size
    with pytest.raises(DamagedError):
        unpack(struct.pack("<Q", length) + header)


def test_json_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 100)
    monkeypatch.setattr(files, "MAX_JSON_VALUES", 20)
    assert parse_json(b"[" + b"1," * 10 + b"1]", "f", "a file") == [1] * 11
    with pytest.raises(GatewiseError, match="about 31 values"):
        parse_json(b"[" + b"1," * 30 + b"1]", "f", "a file")
    with pytest.raises(GatewiseError, match="larger than 100 bytes"):
        parse_json(b" " * 101, "f", "a file")


def test_a_value_too_deep_to_be_shown() -> None:
    """The parser allows more brackets than what is left of the stack when an error shows them."""
    deep: list[Any] = []
    for _ in range(sys.getrecursionlimit()):
        deep = [deep]
    assert shown(deep) == "a list"
    assert shown("x" * 1000) == "'" + "x" * 75 + " ..."


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl"])
def test_pairs_within_limits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        "p.csv": b"clean,corrupted,right,wrong\n" + b"a,b,c,d\n" * 3,
        "p.jsonl": b'{"clean": "a", "corrupted": "b", "right": "c", "wrong": "d"}\n' * 3,
    }[name]
    assert len(parse_rows(rows, Path(name))) == 3
    monkeypatch.setattr(pair_files, "MOST_PAIRS", 2)
    with pytest.raises(GatewiseError, match="more than 2 pairs"):
        parse_rows(rows, Path(name))
    monkeypatch.setattr(pair_files, "LARGEST_FILE", 10)
    with pytest.raises(GatewiseError, match="larger than the"):
        parse_rows(rows, Path(name))


def test_grid_with_a_threshold_beyond_floats(tmp_path: Path) -> None:
    grid = f'models = "tiny"\ntasks = "ioi"\nmethods = "eap"\nthresholds = {"9" * 500}\n'
    (tmp_path / "grid.toml").write_text(grid)
    with pytest.raises(GatewiseError, match="thresholds: expected a whole number of at most 18 digits, got one of 500"):
        read_grid(tmp_path / "grid.toml")


def test_grid_with_a_number_of_thousands_of_digits(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(f"seeds = {'9' * 5000}\n")
    with pytest.raises(GatewiseError, match="not valid TOML"):
        read_grid(tmp_path / "grid.toml")


GGUF = b"GGUF" + struct.pack("<I", 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "announces 4 more bytes"),
        (b"GGML" + bytes(20), "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version is 9"),
        (GGUF + struct.pack("<QQ", 0, 2**63), "announces 8 more bytes"),
        (GGUF + struct.pack("<QQQ", 0, 1, 2**63), "announces 9,223,372,036,854,775,808 more bytes"),
        (GGUF + struct.pack("<QQQ1sIIQ", 0, 1, 1, b"k", 9, 8, 2**62), "texts, more than it has room for"),
        (GGUF + struct.pack("<QQQ1sIIQ", 0, 1, 1, b"k", 9, 4, 2**62), "more bytes, and the file has"),
        (GGUF + struct.pack("<QQQ1sIIQ", 0, 1, 1, b"k", 9, 9, 2**62), "array of the type 9"),
        (GGUF + struct.pack("<QQQ1sIQQIQ", 1, 0, 1, b"t", 2, 2**63, 2**63, 0, 0), "does not fit the file"),
        (GGUF + struct.pack("<QQQ1sIQIQ", 1, 0, 1, b"t", 1, 0, 0, 0), "is there twice or impossible"),
        (GGUF + struct.pack("<QQQ1sI", 1, 0, 1, b"t", 2**31), "dimensions"),
    ],
)
def test_gguf_that_announces_more_than_it_has(content: bytes, message: str) -> None:
    """The gguf package reads past the end of a file, as often as the file says: for hours, into all memory."""
    started = time.perf_counter()
    with pytest.raises(GatewiseError, match=message):
        parse_gguf(np.frombuffer(content, dtype=np.uint8), "model.gguf")
    assert time.perf_counter() - started < 1


def test_gguf_tensors_share_no_bytes() -> None:
    """A thousand tensors over the same bytes would take a thousand times the file."""
    tensors = b"".join(struct.pack("<Q1sIQIQ", 1, name, 1, 64, 0, 0) for name in (b"s", b"t"))
    content = GGUF + struct.pack("<QQ", 2, 0) + tensors
    content += b"\0" * (-len(content) % 32) + bytes(64 * 4)
    with pytest.raises(GatewiseError, match="'t' of 256 bytes does not fit the file"):
        parse_gguf(np.frombuffer(content, dtype=np.uint8), "model.gguf")


def test_no_code_from_files() -> None:
    """No pickle, no marshal, no eval, no torch.load anywhere in the package, but for pickles in memory that our own
    processes hand each other: nothing of a file gets there."""
    forbidden = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
    calls = {"eval", "exec", "__import__"}
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                allowed = {"pickle"} if path == SOURCES / "gatewise" / "workers.py" else set()
                assert not (forbidden - allowed) & {name.split(".")[0] for name in names}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in calls, f"{path}:{node.lineno}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("torch", "load"), ("np", "load")}, f"{path}:{node.lineno}"
