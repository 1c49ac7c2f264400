"""The preset `paper` from end to end: with weights in a folder it runs, without them it says how to get them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gatewise.circuits.literature import PUBLISHED_IOI
from gatewise.errors import GatewiseError
from gatewise_paper.presets import PRESETS, Ablating, Forgetting, Testing
from gatewise_paper.runner import reproduce

NAMES = ("completeness", "graph-study", "unlearning")


def test_with_weights_in_a_folder(random_gpt2: Path, answers_file: Path, tmp_path: Path) -> None:
    preset = PRESETS["paper"].changed(
        model=str(random_gpt2),
        methods=("eap",),
        sizes=[50, 400],
        pairs=2,
        seeds=1,
        held_out=4,
        testing=Testing(pairs=16, seeds=1),
        forgetting=Forgetting(str(answers_file), (10, 40)),
    )
    summary = reproduce(NAMES, preset, out=tmp_path, workers=1, log=False)
    results = json.loads(summary.with_name("results.json").read_text())
    assert results["failed"] == {}
    assert tuple(results["experiments"]) == NAMES
    study = results["experiments"]["graph-study"]
    roles = {row[0]: row[1] for row in study["tables"][0]["rows"]}
    assert roles["name mover"] == "a9.h6, a9.h9, a10.h0"
    assert sum(heads.count("a") for heads in roles.values()) == len(PUBLISHED_IOI)
    forgotten = results["experiments"]["unlearning"]["tables"][0]
    assert forgotten["columns"] == ["circuit removed", "edges removed", "to be forgotten", "kept: GT", "kept: SA"]
    assert (tmp_path / "figures" / "graph-study-1.png").stat().st_size > 1_000


@pytest.mark.slow
def test_all_experiments_with_all_methods(random_gpt2: Path, answers_file: Path, tmp_path: Path) -> None:
    preset = PRESETS["paper"].changed(
        model=str(random_gpt2),
        tasks=("ioi",),
        sizes=[50, 100],
        pairs=2,
        seeds=2,
        held_out=4,
        ablating=Ablating(repeats=2),
        testing=Testing(pairs=16, seeds=2),
        parameters={"acdc": {"tolerance": 20.0, "first_threshold": 1e-4}, "edge-pruning": {"steps": 3}},
        forgetting=Forgetting(str(answers_file), (10, 40)),
    )
    summary = reproduce(["all"], preset, out=tmp_path, workers=2, log=False)
    results = json.loads(summary.with_name("results.json").read_text())
    assert results["failed"] == {}
    assert len(results["experiments"]) == 13


def test_without_weights_and_network_it_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(GatewiseError, match=r"preset paper cannot load its model.*--model FOLDER.*hf download gpt2"):
        reproduce(["completeness"], "paper", out=tmp_path, log=False)


def test_without_data_only_unlearning_is_left_out(
    random_gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # not installed
    preset = PRESETS["paper"].changed(
        model=str(random_gpt2), methods=("eap",), sizes=[50], pairs=2, seeds=1, held_out=2
    )
    with pytest.raises(GatewiseError, match="unlearning needs the dataset"):
        reproduce(["unlearning"], preset, out=tmp_path, log=False)
    with pytest.raises(GatewiseError, match="1 of 2 experiments failed: unlearning"):
        reproduce(["faithfulness", "unlearning"], preset, out=tmp_path, workers=1)
    assert capsys.readouterr().err.startswith("unlearning cannot run and is left out")
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["experiments"]) == ["faithfulness"]
    assert "--unlearn FILE" in results["failed"]["unlearning"]
