"""What every command has in common: help that teaches and parses, --json, completion, errors of one line."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from gatewise.circuits import Circuit, Graph
from gatewise.cli import main as cli
from gatewise.compute import Compute
from gatewise.gates import label_gates
from gatewise.methods import discover, discover_all
from gatewise.models import load_model
from gatewise.tasks import task

COMMAND: Any = typer.main.get_command(cli.app)  # typer vendors click, whose classes have no types here


def leaves(command: Any = COMMAND, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something: its words, and the command."""
    members = getattr(command, "commands", None)
    if members is None or getattr(command, "invoke_without_command", False):
        yield path, command
    for name, member in (members or {}).items():
        yield from leaves(member, (*path, name))


LEAVES = dict(leaves())
EXAMPLES = dict.fromkeys(
    line
    for command in [COMMAND, *LEAVES.values()]
    for line in (command.help or "").splitlines()
    if line.startswith("gatewise ")
)


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_prints_json_if_asked(words: tuple[str, ...]) -> None:
    options = {option for parameter in LEAVES[words].params for option in parameter.opts}
    assert "--json" in options


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_has_examples_each_on_a_line(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    own = [line for line in (LEAVES[words].help or "").splitlines() if line.startswith(" ".join(("gatewise", *words)))]
    assert own
    monkeypatch.setenv("COLUMNS", "80")
    shown = [line.strip() for line in CliRunner().invoke(cli.app, [*words, "--help"]).stdout.splitlines()]
    assert set(own) <= set(shown)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples speak of: circuits, gates, a file of pairs, a grid, a store."""
    place = tmp_path_factory.mktemp("examples")
    model = load_model("tiny")
    made = task("sa", model, examples=8)
    texts = [
        text for half in (made.train, made.test) for text in zip(half.clean_text, half.corrupted_text, strict=True)
    ]
    rows = [{"clean": a, "corrupted": b, "correct": "themselves", "incorrect": "herself"} for a, b in texts]
    lines = [",".join(row.values()) for row in rows]
    (place / "my.csv").write_text("\n".join(["clean,corrupted,right,wrong", *lines]))
    (place / "my.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (place / "found").mkdir()
    pairs = task("ioi", model, examples=2)
    found = discover_all(
        model, pairs.train, "eap", ["ns"], sizes=[50, 100], compute=Compute(store=place / "runs/store")
    )["ns"]
    for circuit in found:
        circuit.save(place / f"found/eap-ns-{len(circuit)}.json")
    gates = label_gates(found[0], discover(model, pairs.train, direction="dn", edges=50))
    for name in ("gates", "ioi", "gt"):
        gates.save(place / f"{name}.safetensors")
    found[0].save(place / "removal.json")
    graph = Graph.transformer(n_layers=12, n_heads=12, d_model=768)
    scores = torch.arange(float(graph.n_edges))
    Circuit(graph, scores >= graph.n_edges - 50, scores).save(place / "found/gpt2.json", all_scores=True)
    (place / "grid.toml").write_text(
        'models = ["tiny"]\ntasks = ["ioi"]\nmethods = ["eap"]\ndirections = ["ns"]\nsizes = [20]\nexamples = 4\n'
    )
    return place


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_help_run(example: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    words = shlex.split(example)[1:]
    if words[:2] == ["runs", "show"]:  # whose key depends on what is stored
        words[2] = json.loads(CliRunner().invoke(cli.app, ["runs", "list", *words[3:], "--json"]).stdout)[0]["key"][:6]
    result = CliRunner().invoke(cli.app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    if "--json" in words:
        assert json.loads(result.stdout)
    else:
        assert "…" not in result.stdout  # nothing clipped


def test_help_says_how_it_ends() -> None:
    for code in ("0 done", "1 done with failures", "2 something you can fix", "130 interrupted"):
        assert code in " ".join((COMMAND.help or "").split())


def complete(words: str, place: int) -> list[str]:
    """What bash offers for the last of the words."""
    environment = {"_GATEWISE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    done = subprocess.run(
        [sys.executable, "-m", "gatewise.cli.main"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_shell_completion() -> None:
    assert complete("gatewise dis", 1) == ["discover"]
    assert complete("gatewise discover synthetic:o", 2) == ["synthetic:or"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gatewise", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code if isinstance(stop.value.code, int) else 0


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("boom\nand more")

    monkeypatch.setattr("gatewise.cli.models.entries", fail)


@pytest.mark.usefixtures("broken")
def test_unexpected_errors_are_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "models", "--json") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: RuntimeError: boom.")
    assert "--debug" in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("words", [("--debug", "models"), ("models", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setattr(sys, "argv", ["gatewise", *words])
    with pytest.raises(RuntimeError, match="boom"):
        cli.main()


def test_a_full_memory_names_the_way_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr("gatewise.cli.models.entries", fail)
    assert run(monkeypatch, "models") == 1
    assert "--memory" in capsys.readouterr().err


def test_progress_and_notes_stay_out_of_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "discover", "tiny", "--edges", "5", "-n", "2", "--json", "--out", str(tmp_path)) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["circuits"][0]["edges"] == 5
    assert "loading tiny" in err
