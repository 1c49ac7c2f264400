"""`gatewise misalignment`, `ablate-gates` and `truth` as a user meets them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gatewise.cli import main as cli
from gatewise.gates import Gates
from gatewise.models import load_model
from gatewise.tasks import task
from gatewise_paper.measures.gate_ablation import ablate_gates
from gatewise_paper.measures.misalignment import misalignment
from gatewise_paper.truth.gate_kinds import KindRow


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run `gatewise` in this process; gives the exit code."""
    monkeypatch.setattr(sys, "argv", ["gatewise", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    code = stop.value.code
    return code if isinstance(code, int) else 0


def test_misalignment_and_ablation_of_tiny(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "gates.safetensors"
    assert run(monkeypatch, "gates", "tiny", "--edges", 60, "--examples", 2, "--no-joint", "--out", file) == 0
    capsys.readouterr()
    model = load_model("tiny")
    pairs = task("ioi", model, examples=2).train
    gates = Gates.load(file)
    on = (file, "--model", "tiny", "--examples", 2)
    assert run(monkeypatch, "misalignment", *on, "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    for context in ("alone", "sound"):
        expected = misalignment(model, pairs, gates, context=context)
        assert scores[context]["AND"]["mean"] == pytest.approx(expected["AND"].mean, abs=1e-6)
        assert scores[context]["AND"]["edges"] == len(gates.by_type["AND"])
    assert run(monkeypatch, "ablate-gates", *on, "--repeats", 3, "--json") == 0
    changes = ablate_gates(model, pairs, gates, repeats=3)
    shown = json.loads(capsys.readouterr().out)
    assert shown["ADDER"]["two"] == pytest.approx(changes["ADDER"].quartiles[1], abs=1e-6)
    assert run(monkeypatch, "ablate-gates", *on, "--repeats", 3) == 0
    text = capsys.readouterr().out
    for quartiles in changes["ADDER"].quartiles:
        assert f"{quartiles[2]:+.2g} (" in text


def test_measures_of_a_type_without_gates_are_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "gates.safetensors"
    assert run(monkeypatch, "gates", "synthetic:and", "--threshold", 0.01, "--out", file) == 0
    capsys.readouterr()
    assert run(monkeypatch, "misalignment", file, "--model", "synthetic:and", "--json") == 0
    scores = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert scores["sound"]["OR"]["mean"] is None
    assert "no receiver" in scores["sound"]["OR"]["reason"]
    assert run(monkeypatch, "misalignment", file, "--model", "synthetic:and") == 0
    assert "no receiver has two OR edges" in " ".join(capsys.readouterr().out.split())
    assert run(monkeypatch, "ablate-gates", file, "--model", "synthetic:and", "--repeats", 2, "--json") == 0
    changes = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert changes["OR"] == {"gates": 0, "single": 0, "one": None, "two": None, "kept": None}
    assert changes["AND"]["one"] == pytest.approx(changes["AND"]["two"])


def test_gates_of_groups_are_judged_on_synthetic_kinds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = KindRow("k-and-v", gate=True, gamma_error=0.0, right_label=1.0, discovered=1.0, rand_index=None)
    monkeypatch.setattr("gatewise_paper.truth.gate_kinds.kind_rows", lambda models, noise, seed: [row] * models)
    assert run(monkeypatch, "truth", "--gates", "--models", 2, "--json") == 0
    assert [one["kind"] for one in json.loads(capsys.readouterr().out)] == ["k-and-v"] * 2
    assert run(monkeypatch, "truth", "--gates", "--models", 1) == 0
    assert "100%" in capsys.readouterr().out


def test_truth(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # wide enough for tables that are not folded
    assert run(monkeypatch, "truth", "--models", 2, "--nested", "--baselines", "orders") == 0
    shown = capsys.readouterr().out
    assert "precision" in shown
    assert "tested in G" in shown
    assert run(monkeypatch, "truth", "--models", 2, "--methods", "eap", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["study"]["models"] == 2
    assert [row["rule"] for row in report["labels"]] == ["plain", "repaired", "tested", "tested in G"]
    assert run(monkeypatch, "truth", "--methods", "guess") == cli.EXIT_USER_ERROR
    assert "got 'guess'" in capsys.readouterr().err
