"""`gatewise reproduce` as a user meets it, and all experiments once, small."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gatewise.cli import main as cli
from gatewise_paper.experiments import EXPERIMENTS
from gatewise_paper.presets import PRESETS, Fitting, Forgetting, Testing


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run `gatewise reproduce` in this process; gives the exit code."""
    monkeypatch.setattr(sys, "argv", ["gatewise", "reproduce", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    code = stop.value.code
    return code if isinstance(code, int) else 0


def test_without_names_it_lists_the_experiments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()] == list(EXPERIMENTS)
    assert "tabklcompleteness" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope",), "got 'nope'; the experiments are"),
        (("completeness", "--preset", "huge"), "there is no preset 'huge'"),
        (("completeness", "--sizes", "many"), "expected whole numbers"),
        (("completeness", "--seeds", "0"), "expected 1 or more"),
        (("completeness", "--set", "steps=3"), "METHOD.key=value"),
        (("completeness", "--model", "nowhere/at/all"), "--model FOLDER"),
    ],
)
def test_user_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    assert run(monkeypatch, *arguments, "--out", str(tmp_path)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_all_experiments_small(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Every experiment ends with tables, verdicts and figures; a second call computes nothing and says the same."""
    few: dict[str, Any] = {  # what has no option; one threshold serves both sizes
        "sampled_pairs": 2,
        "fitting": Fitting(pairs=2, sets=2),
        "testing": Testing(pairs=16),
        "forgetting": Forgetting(sizes=(1, 5)),
        "parameters": {"acdc": {"tolerance": 20.0, "first_threshold": 1e-4}},
    }
    monkeypatch.setitem(PRESETS, "quick", PRESETS["quick"].changed(**few))
    arguments = (
        "all",
        "--tasks",
        "ioi",
        "--methods",
        "acdc",  # the others have every experiment in test_experiments
        "--sizes",
        "20,60",
        "--seeds",
        "2",
        "--pairs",
        "2",
        "--held-out",
        "4",
        "--repeats",
        "2",
    )
    arguments += ("--json", "--out", str(tmp_path))  # type: ignore[assignment]
    assert run(monkeypatch, *arguments, "--workers", "2") == 0
    first = json.loads(capsys.readouterr().out)
    assert set(first["experiments"]) == set(EXPERIMENTS) - {"redundancy"}  # which needs a method that ranks all edges
    assert first["failed"] == {}
    for name, outcome in first["experiments"].items():
        assert outcome["options"] == list(arguments[1 : arguments.index("--json")]), name
        assert outcome["tables"], name
        assert outcome["verdicts"], name
        assert all(verdict["because"].strip() for verdict in outcome["verdicts"]), name
    drawn = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert drawn == {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    summary = (tmp_path / "summary.md").read_text()
    assert all(f"(figures/{name}.svg)" in summary for name in drawn)
    stored = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*.safetensors")}
    assert run(monkeypatch, *arguments, "--workers", "1") == 0
    second = json.loads(capsys.readouterr().out)
    assert second == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*.safetensors")} == stored
