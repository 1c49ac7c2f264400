"""Pages are written from results.json, and what an earlier run recorded there stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gatewise.errors import GatewiseError
from gatewise_paper import runner
from gatewise_paper.experiments import cost
from gatewise_paper.presets import QUICK, Preset
from gatewise_paper.records import Records
from gatewise_paper.runner import reproduce
from gatewise_paper.summary import write_summary

SMALL = QUICK.changed(sizes=(8, 20), seeds=1, pairs=2, held_out=4, tasks=("ioi",), tested_tasks=(), methods=("eap",))


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
    assert "EAP: 1 seed, 2 pairs each; edges: IOI 8, 20." in page
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
    with pytest.raises(GatewiseError, match="has results of the weights others.*Name another folder by --out"):
        _run(tmp_path, "cost")
    assert json.loads(path.read_text()) == content


def test_results_of_other_methods_are_not_replaced(tmp_path: Path) -> None:
    before = _run(tmp_path, "cost")
    with pytest.raises(GatewiseError, match=r"has results of cost with EAP on IOI, which this run would replace"):
        _run(tmp_path, "cost", preset=SMALL.changed(methods=("edge-pruning",)))
    with pytest.raises(GatewiseError, match=r"has results of cost with EAP on IOI"):
        _run(tmp_path, "cost", preset=SMALL.changed(tasks=("gt",)))
    assert json.loads((tmp_path / "results.json").read_text()) == before


def test_what_failed_stays_until_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(lab: object, key: object) -> None:
        raise GatewiseError("there is no clock")

    _run(tmp_path, "proportion")
    with monkeypatch.context() as broken:
        broken.setattr(cost, "seconds", fail)
        with pytest.raises(GatewiseError, match="there is no clock"):
            _run(tmp_path, "cost")
    assert "there is no clock" in _run(tmp_path, "proportion")["failed"]["cost"]
    done = _run(tmp_path, "cost")
    assert (list(done["experiments"]), done["failed"]) == (["proportion", "cost"], {})


def test_all_leaves_out_what_has_no_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redundancy has no use for ACDC: asked for by name that is an error, as one of all it is left out."""
    two = {name: runner.EXPERIMENTS[name] for name in ("redundancy", "capabilities")}  # type: ignore[attr-defined]
    monkeypatch.setattr(runner, "EXPERIMENTS", two)
    acdc = SMALL.changed(methods=("acdc",), parameters={"acdc": {"tolerance": 20.0, "first_threshold": 1e-4}})
    assert list(_run(tmp_path, "all", preset=acdc)["experiments"]) == ["capabilities"]
    with pytest.raises(GatewiseError, match="redundancy needs a method that ranks all edges"):
        _run(tmp_path, "redundancy", preset=acdc)


@pytest.mark.parametrize("name", ["laptop", "laptop-edge-pruning", "quick", "smollm2"])
def test_committed_pages_are_those_of_their_records(name: str, tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "docs" / "results" / name
    content = json.loads((folder / "results.json").read_text())
    records = Records(content["experiments"], content["failed"])
    write_summary(tmp_path, records, content["about"], len(runner.EXPERIMENTS))  # type: ignore[attr-defined]
    for page in ("results.json", "summary.md"):
        assert (tmp_path / page).read_text() == (folder / page).read_text()
