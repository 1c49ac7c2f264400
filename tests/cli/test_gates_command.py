"""`gatewise gates` and `gatewise test-gate` as a user meets them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gatewise.cli import main as cli
from gatewise.gates import Gates


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run `gatewise` in this process; gives the exit code."""
    monkeypatch.setattr(sys, "argv", ["gatewise", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    code = stop.value.code
    return code if isinstance(code, int) else 0


def test_gates_of_a_synthetic_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "gates.safetensors"
    options = ("synthetic:combined", "--method", "acdc", "--threshold", 0.01, "--rule", "repaired", "--out", file)
    assert run(monkeypatch, "gates", *options, "--test", "--draw", tmp_path / "gates.svg") == 0
    assert "A1-&gt;B1" in (tmp_path / "gates.svg").read_text()
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 AND, 2 OR, 2 ADDER edges" in shown
    assert "agree on 100.0% of 6 edges" in shown
    gates = Gates.load(file)
    assert gates.label("A1->B1") == "AND"
    assert gates.joint is not None


def test_gates_of_tiny_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("tiny", "--edges", 40, "--examples", 4, "--no-joint", "--test")
    assert run(monkeypatch, "gates", *options, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["edges"]["ns"], found["edges"]["dn"], found["joint_outside"]) == (40, 40, None)
    assert sum(found["by_type"].values()) == found["edges"]["sound"]
    assert found["agreement"]["edges"] + found["agreement"]["untested"] == found["edges"]["sound"]
    assert set(found["tested_labels"]) <= {edge for gate in found["gates"] for edge in gate["edges"]}


def test_gates_refuses_unknown_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "gates", "synthetic:and", "--set", "speed=9") == cli.EXIT_USER_ERROR
    assert "no parameter 'speed'" in capsys.readouterr().err


def test_a_gate_of_a_head_of_tiny(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "test-gate", "tiny", "a1.h0", "--examples", 8) == 0
    assert "a1.h0 is " in capsys.readouterr().out
    options = ("-g", "K=<k>", "-g", "V=m0->a1.h0<v>,input->a1.h0<v>", "--rest", "clean", "--examples", 8, "--json")
    assert run(monkeypatch, "test-gate", "tiny", "a1.h0", *options) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rest"], list(found["groups"]), found["pairs"]) == ("clean", ["K", "V"], 8)
    assert run(monkeypatch, "test-gate", "tiny", "a1.h0", "-g", "K") == cli.EXIT_USER_ERROR
    assert "NAME=EDGE" in capsys.readouterr().err
