"""`gatewise discover` and `gatewise methods`, on the model that comes with the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gatewise.circuits.circuit import Circuit
from gatewise.cli import main as cli
from gatewise.methods.registry import methods


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run `gatewise` in this process; gives the exit code."""
    monkeypatch.setattr(sys, "argv", ["gatewise", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    code = stop.value.code
    return code if isinstance(code, int) else 0


def test_several_directions_connected_circuits_and_other_ablations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert discover(monkeypatch, tmp_path, "--edges", "10", "--direction", "ns,dn", "--select", "connected") == 0
    for direction in ("ns", "dn"):
        found = Circuit.load(tmp_path / f"eap-{direction}-10.json")
        assert found.connected() == found
    more = ("--edges", 10, "--ablation", "zero", "--metric", "logit_diff")
    assert discover(monkeypatch, tmp_path / "zero", *more) == 0
    assert Circuit.load(tmp_path / "zero" / "eap-ns-10.json").provenance["ablation"] == "zero"
    assert discover(monkeypatch, tmp_path / "none", *more, "--direction", "dn") == 2


def discover(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: object) -> int:
    return run(monkeypatch, "discover", "tiny", "--method", "eap", "--examples", 4, "--out", out, *arguments)


def test_several_sizes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "new" / "circuits"
    assert discover(monkeypatch, out, "--edges", "10,20", "--edges", 100, "--direction", "dn") == 0
    assert sorted(path.name for path in out.iterdir()) == ["eap-dn-10.json", "eap-dn-100.json", "eap-dn-20.json"]
    circuits = {size: Circuit.load(out / f"eap-dn-{size}.json") for size in (10, 20, 100)}
    assert all(len(circuit) == size for size, circuit in circuits.items())
    assert circuits[10] <= circuits[20] <= circuits[100]
    assert circuits[10].provenance["direction"] == "dn"
    shown = capsys.readouterr().out
    assert "eap dn on 4 pairs of ioi for tiny" in shown


def test_json_settings_and_store(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    settings = ("--set", "combine=max", "--set", "rule=gim")
    options = ("--edges", 50, "--direction", "ns+dn", *settings, "--store", tmp_path / "runs", "--json")
    printed = []
    for _ in range(2):
        assert discover(monkeypatch, tmp_path / "out", *options) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0] == printed[1]  # the time, too: it was read, not found again
    assert printed[0]["parameters"] == {"rule": "gim", "combine": "max"}
    assert [entry["edges"] for entry in printed[0]["circuits"]] == [50]
    assert Path(printed[0]["circuits"][0]["file"]).name == "eap-ns+dn-50.json"


def test_threshold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert discover(monkeypatch, tmp_path, "--threshold", "1e9") == 0
    assert len(Circuit.load(tmp_path / "eap-ns-t1e+09.json")) == 0
    assert "warning: the threshold 1000000000.0 keeps no edge" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --edges"),
        (["--edges", "10", "--threshold", "1"], "not both"),
        (["--edges", "ten"], "expected whole numbers"),
        (["--edges", "10", "--method", "nope"], "there is no method 'nope'"),
        (["--edges", "10", "--set", "combine"], "has no '='"),
        (["--edges", "10", "--set", "steps=1"], "eap has no parameter 'steps'"),
        (["--edges", "10", "--set", "combine=mean"], "expected sum or max"),
        (["--edges", "10", "--set", "rule=grim"], "rule=grim: expected plain or constant-norm or gim or relp"),
        (["--edges", "1000000"], "a circuit of 1,000,000 edges was asked for"),
        (["--edges", "10", "--direction", "up"], "direction is"),
    ],
)
def test_user_errors(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    assert discover(monkeypatch, tmp_path / "out", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


def test_a_file_in_the_place_of_the_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("")
    assert discover(monkeypatch, tmp_path / "out", "--edges", 10) == 2
    assert "cannot make the folder" in capsys.readouterr().err


def test_methods(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "methods") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in methods())
    assert "--set combine=" in shown
    assert run(monkeypatch, "methods", "--json") == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert list(listed) == list(methods())
    combine = listed["eap"]["parameters"]["combine"]
    assert combine["default"] == "sum"
    assert combine["values"] == "sum or max"
    assert "sum" in combine["meaning"]


def test_a_size_by_faithfulness(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("discover", "tiny", "--examples", 24, "--out", tmp_path, "--faithfulness")
    assert run(monkeypatch, *words, 0.6, "--direction", "ns,ns+dn", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    for entry in content["circuits"]:
        record = content["faithfulness"][entry["direction"]]
        assert record["edges"] == entry["edges"] == len(Circuit.load(Path(entry["file"])))
    assert run(monkeypatch, *words, 0.999, "--edges", 5) == 1
    assert "a faithfulness of 100% is not reached below 5 edges" in capsys.readouterr().out
    for wrong, message in (
        ((1.5,), "between 0 and 1, such as 0.85; got 1.5"),
        ((0.5, "--threshold", 1), "leave out --threshold"),
        ((0.5, "--edges", "10,20"), "one --edges at most"),
        ((0.5, "--method", "acdc"), "acdc searches anew for every size"),
        ((0.5, "--edges", 10**9), "tiny has"),
    ):
        assert run(monkeypatch, *words, *wrong) == 2
        assert message in capsys.readouterr().err
