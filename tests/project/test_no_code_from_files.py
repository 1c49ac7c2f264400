"""Grids, circuits, gates and results that name code: they are data, and nothing of it runs unless the user says so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.cli.main import app
from gatewise.errors import GatewiseError
from gatewise.gates.labels import Gates, label_gates
from gatewise.store import Store
from gatewise.store.maintenance import list_entries
from gatewise.sweep.grid import read_grid

pytestmark = pytest.mark.attack

HELPER = """
from pathlib import Path
from gatewise.methods import Eap

Path("it-ran").touch()

class Mine(Eap):
    name = "mine"
"""


@pytest.fixture(autouse=True)
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module in the working folder that leaves a file when it is imported."""
    (tmp_path / "attack_helper.py").write_text(HELPER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "it-ran"
    sys.modules.pop("attack_helper", None)


GRIDS = ('[methods."attack_helper:Mine"]', 'methods = ["eap", "attack_helper:Mine"]', 'methods = "attack_helper:Mine"')


def write_grid(methods: str) -> Path:
    content = "models = 'tiny'\ntasks = 'ioi'\nsizes = 5\n"
    Path("grid.toml").write_text(f"{content}{methods}\n")
    return Path("grid.toml")


@pytest.mark.parametrize("methods", GRIDS)
def test_a_grid_runs_no_code(methods: str, helper: Path) -> None:
    with pytest.raises(GatewiseError, match="names the method 'attack_helper:Mine', which is code .*--trust-code"):
        read_grid(write_grid(methods))
    for options in (["--dry-run"], []):
        outcome = CliRunner().invoke(app, ["sweep", "grid.toml", "--out", "sweep", *options])
        assert isinstance(outcome.exception, GatewiseError)
    assert not helper.exists()


@pytest.mark.parametrize("methods", GRIDS)
def test_a_grid_that_is_trusted(methods: str, helper: Path) -> None:
    grid = read_grid(write_grid(methods), trust_code=True)
    assert "attack_helper:Mine" in grid.methods
    assert helper.exists()


def test_circuits_gates_and_results_run_no_code(helper: Path) -> None:
    """They say which method found them; nobody looks for it."""
    graph = Graph.transformer(1, 1, 4)
    record = {"method": "attack_helper:Mine", "direction": "ns", "metric": "attack_helper:Mine", "parameters": {}}
    circuit = Circuit(graph, graph.full().mask, None, record)
    circuit.save("circuit.json")
    assert Circuit.load("circuit.json").provenance["method"] == "attack_helper:Mine"
    CliRunner().invoke(app, ["compare", "circuit.json", "circuit.json"])
    other = Circuit(graph, graph.full().mask, None, {**record, "direction": "dn"})
    label_gates(circuit, other).save("gates.safetensors")
    repr(Gates.load("gates.safetensors"))
    store = Store("store")
    key = "0" * 64
    store.put(key, [circuit], record)
    assert [str(entry) for entry in list_entries(store)]
    CliRunner().invoke(app, ["runs", "list", "--store", "store"])
    assert not helper.exists()
