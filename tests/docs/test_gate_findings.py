"""The script behind docs/findings.md, on a small model: what it writes can be told as tables."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
SMALL = ["--edges", "30", "--sizes", "20", "--test-examples", "16", "--most", "2", "--nodes", "2", "--tau", "0.2"]


def test_a_cell_is_measured_once_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    script = importlib.import_module("gate_findings")
    cell = ["--model", "tiny", "--task", "ioi", "--folder", str(tmp_path)]
    script.main([*cell, *SMALL])
    path = tmp_path / "tiny-ioi.json"
    found = json.loads(path.read_text())
    assert found["split"]["eap"]["ns"] == found["split"]["eap"]["dn"] == 30
    for method in ("eap", "acdc"):
        by_label, where = found["split"][method]["by_label"], found["partners"][method]
        for kind in ("AND", "OR"):
            assert sum(where[kind]["where"].values()) == by_label[kind]["edges"]
    assert set(found["gates"]["replication"]) == {"other pairs", "second corruption", "other templates"}
    for one in found["minimal"].values():
        assert 0 <= one["saved"] < one["edges"]
        assert one["saved"] == 0 or one["thinned"]
    written = path.read_text()
    script.main([*cell, *SMALL])
    assert path.read_text() == written
    capsys.readouterr()
    script.main(["--folder", str(tmp_path), "--table"])
    told = capsys.readouterr().out
    assert told.count("| tiny, ioi |") >= 11
