"""`gatewise gates` and `gatewise truth` as a user meets them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gatewise.cli import main as cli
from gatewise.logic import Gates, ablate_gates, find_gates, misalignment
from gatewise.models import load_model
from gatewise.models.planted import planted_pairs
from gatewise.paper.gate_truth import KindRow
from gatewise.tasks import task


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run `gatewise` in this process; gives the exit code."""
    monkeypatch.setattr(sys, "argv", ["gatewise", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    code = stop.value.code
    return code if isinstance(code, int) else 0


def test_gates_of_a_planted_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "gates.safetensors"
    options = ("planted:combined", "--method", "acdc", "--threshold", 0.01, "--rule", "repaired", "--out", file)
    assert run(monkeypatch, "gates", *options, "--test", "--draw", tmp_path / "gates.svg") == 0
    assert "A1-&gt;B1" in (tmp_path / "gates.svg").read_text()
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 AND, 2 OR, 2 ADDER edges" in shown
    assert "agree on 100.0% of 6 edges" in shown
    gates = Gates.load(file)
    assert gates.label("A1->B1") == "AND"
    assert gates.joint is not None


def test_gates_of_tiny_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("tiny", "--edges", 40, "--ratio", 1.25, "--examples", 4, "--no-joint", "--by", "node", "--test")
    assert run(monkeypatch, "gates", *options, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["edges"]["ns"], found["edges"]["dn"], found["joint_outside"]) == (40, 32, None)
    assert sum(found["by_type"].values()) == found["edges"]["sound"]
    assert found["agreement"]["edges"] + found["agreement"]["only_split"] == found["edges"]["sound"]
    assert set(found["tested_labels"]) <= {edge for gate in found["gates"] for edge in gate["edges"]}


def test_misalignment_and_ablation_of_tiny(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ("tiny", "--edges", 60, "--examples", 2, "--no-joint", "--misalignment", "--ablate", "--repeats", 3)
    options += ("--out", tmp_path / "gates.safetensors")
    assert run(monkeypatch, "gates", *options, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    model = load_model("tiny")
    pairs = task("ioi", model, examples=2).train
    gates = Gates.load(tmp_path / "gates.safetensors")
    for context in ("alone", "sound"):
        score = found["misalignment"][context]["AND"]
        expected = misalignment(model, pairs, gates, context=context)
        assert score["mean"] == pytest.approx(expected.scores["AND"].mean, abs=1e-6)
        assert score["edges"] == found["by_type"]["AND"]
    changes = ablate_gates(model, pairs, gates, repeats=3)
    assert found["ablation"]["ADDER"]["two"] == pytest.approx(changes["ADDER"].quartiles(2), abs=1e-6)


def test_misalignment_and_ablation_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("planted:adder", "--threshold", 0.01, "--misalignment", "--ablate", "--repeats", 2)
    assert run(monkeypatch, "gates", *options) == 0
    shown = capsys.readouterr().out
    model, pairs = load_model("planted:adder"), planted_pairs()
    changes = ablate_gates(model, pairs, find_gates(model, pairs, threshold=0.01), repeats=2)
    for removed in (1, 2):
        assert f"{changes['ADDER'].quartiles(removed)[2]:+.2g} (" in shown
    assert "no receiver has two AND edges" in " ".join(shown.split())


def test_measures_of_a_type_without_gates_are_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("planted:and", "--threshold", 0.01, "--misalignment", "--ablate", "--repeats", 2)
    assert run(monkeypatch, "gates", *options, "--json") == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["misalignment"]["sound"]["OR"]["mean"] is None
    assert "no receiver" in found["misalignment"]["sound"]["OR"]["reason"]
    assert found["ablation"]["OR"] == {"gates": 0, "single": 0, "one": None, "two": None, "kept": None}
    assert found["ablation"]["AND"]["one"] == pytest.approx(found["ablation"]["AND"]["two"])


def test_gates_refuses_unknown_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "gates", "planted:and", "--set", "speed=9") == cli.EXIT_USER_ERROR
    assert "no parameter 'speed'" in capsys.readouterr().err


def test_interaction_of_a_head_of_tiny(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "interaction", "tiny", "a1.h0", "--examples", 8) == 0
    assert "a1.h0 is " in capsys.readouterr().out
    options = ("-g", "K=<k>", "-g", "V=m0->a1.h0<v>,input->a1.h0<v>", "--rest", "clean", "--examples", 8, "--json")
    assert run(monkeypatch, "interaction", "tiny", "a1.h0", *options) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rest"], list(found["groups"]), found["pairs"]) == ("clean", ["K", "V"], 8)
    assert run(monkeypatch, "interaction", "tiny", "a1.h0", "-g", "K") == cli.EXIT_USER_ERROR
    assert "NAME=EDGE" in capsys.readouterr().err


def test_gates_of_groups_are_judged_on_planted_kinds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = KindRow("k-and-v", gate=True, gamma_error=0.0, right_label=1.0, found=1.0, rand_index=None)
    monkeypatch.setattr("gatewise.paper.gate_truth.kind_rows", lambda models, noise, seed: [row] * models)
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
