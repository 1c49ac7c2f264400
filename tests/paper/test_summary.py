"""Pages are written from results.json, and what an earlier run recorded there stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gatewise.errors import GatewiseError
from gatewise.paper.presets import QUICK, Preset
from gatewise.paper.runner import reproduce

SMALL = QUICK.changed(sizes=(8, 20), seeds=1, pairs=2, held_out=4, tasks=("ioi",), gates_tested_on=(), methods=("eap",))


def _run(folder: Path, *names: str, preset: Preset = SMALL, **more: Any) -> dict[str, Any]:
    summary = reproduce(names, preset, out=folder, workers=1, log=False, **more)
    content: dict[str, Any] = json.loads(summary.with_name("results.json").read_text())
    return content


def test_experiments_can_be_run_one_by_one(tmp_path: Path) -> None:
    """In any order: the page is that of one run, but for the commands."""
    _run(tmp_path / "apart", "cost")
    apart = _run(tmp_path / "apart", "proportion")
    together = _run(tmp_path / "together", "proportion", "cost")
    assert list(apart["experiments"]) == list(together["experiments"]) == ["proportion", "cost"]
    assert apart["about"] == together["about"]
    assert apart["experiments"]["proportion"] == together["experiments"]["proportion"]
    page = (tmp_path / "apart" / "summary.md").read_text()
    assert page.startswith("# The paper's experiments, preset quick")
    assert "\n    gatewise reproduce proportion cost --preset quick\n" in page
    assert "EAP: 1 seed, 2 pairs each; edges: IOI 8, 20. 4 held-out pairs." in page
    assert page.count("\n## ") == 2


def test_an_experiment_that_is_run_again_replaces_what_it_had(tmp_path: Path) -> None:
    _run(tmp_path, "proportion")
    again = _run(tmp_path, "proportion", preset=SMALL.changed(seeds=2), options=["--preset", "quick", "--seeds", "2"])
    assert again["experiments"]["proportion"]["settings"]["methods"]["eap"]["seeds"] == 2
    assert "    gatewise reproduce proportion --preset quick --seeds 2\n" in (tmp_path / "summary.md").read_text()


def test_results_of_other_weights_are_not_written_over(tmp_path: Path) -> None:
    _run(tmp_path, "proportion")
    path = tmp_path / "results.json"
    content = json.loads(path.read_text())
    content["about"]["weights"] = "others"
    path.write_text(json.dumps(content))
    with pytest.raises(GatewiseError, match="has results of the weights others.*another folder by --out"):
        _run(tmp_path, "cost")
    assert json.loads(path.read_text()) == content
