"""`gatewise tasks`, on the built-in model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gatewise.cli.tasks import tasks_app
from gatewise.errors import GatewiseError
from gatewise.evaluation.task_check import Ability, bos_problem
from gatewise.models import load_model
from gatewise.tasks import task
from gatewise.tasks.registry import RECIPES, all_task_names


def run(*arguments: str) -> str:
    result = CliRunner().invoke(tasks_app, arguments, catch_exceptions=False, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list() -> None:
    assert [entry["name"] for entry in json.loads(run("list", "--json"))] == list(RECIPES)
    assert "greater than" in run("list")
    assert "corruption: second-name, or all-names" in run("list")


@pytest.mark.parametrize("name", list(RECIPES))
def test_show_prints_probabilities(name: str) -> None:
    found = json.loads(run("show", name, "--model", "tiny", "--examples", "4", "--json"))
    assert (found["task"], found["model"], found["bos"], len(found["examples"])) == (name, "tiny", True, 4)
    for example in found["examples"]:
        assert example["right_on_clean"] > example["wrong_on_clean"]
        assert 0 <= example["right_on_corrupted"] + example["wrong_on_corrupted"] <= 1 + 1e-5
    table = run("show", name, "--model", "tiny", "--examples", "4")
    assert found["examples"][0]["clean"].split()[-1] in table
    assert f"{found['examples'][0]['right_on_clean']:.3f}" in table


def test_show_takes_options_behind_the_name() -> None:
    found = json.loads(run("show", "sa:number=singular", "--model", "tiny", "--examples", "2", "--json"))
    assert found["task"] == "sa:number=singular"
    assert all(example["incorrect"] == ["themselves"] for example in found["examples"])


def test_measure() -> None:
    names = ["ioi", "gt:difference=probability"]
    found = json.loads(run("measure", *names, "--model", "tiny", "--examples", "8", "--json"))
    assert list(found) == names
    assert all(one["pairs"] == 8 and one["logit_diff_clean"] > one["logit_diff_corrupted"] for one in found.values())
    table = run("measure", *names, "--model", "tiny", "--examples", "8")
    assert f"{found['ioi']['logit_diff_clean']:.2f}" in table
    everything = json.loads(run("measure", "--model", "tiny", "--examples", "1", "--json"))
    assert list(everything) == all_task_names()


def test_check_tells_what_is_doubtful(tmp_path: Path) -> None:
    good, doubtful, broken = (tmp_path / f"{name}.csv" for name in ("good", "doubtful", "broken"))
    header = "clean,corrupted,right,wrong\n"
    pairs = [("The girls helped", "The girl helped"), ("The queens blamed", "The queen blamed")]
    sa = task("sa", load_model("tiny"), examples=8)
    texts = [text for half in (sa.train, sa.test) for text in zip(half.clean_text, half.corrupted_text, strict=True)]
    good.write_text(header + "".join(f"{a},{b},themselves,herself|himself\n" for a, b in texts))
    doubtful.write_text(header + "".join(f"{a},{a},herself,themselves\n" for a, _ in pairs))
    broken.write_text(header + "The girls helped,The other girl helped,themselves,herself\n")
    said = run("check", str(good), "--model", "tiny")
    assert "No objections" in said
    assert "pairs to search on: pairwise accuracy 100.0%" in said
    assert "pairs to test on, with BOS (chosen): pairwise accuracy 100.0%" in said
    assert "pairs to test on, without BOS: pairwise accuracy" in said
    assert "P(right)" in said  # a few examples
    found = json.loads(run("check", str(doubtful), "--model", "tiny", "--json"))
    assert (found["train"], found["test"], len(found["warnings"])) == (1, 1, 8)
    assert run("check", str(doubtful), "--model", "tiny").count("warning: ") == 8
    result = CliRunner().invoke(tasks_app, ["check", str(broken), "--model", "tiny"])
    assert result.exit_code == 1
    assert "broken.csv, line 2: the clean prompt has" in result.stdout


def test_check_names_every_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    good = "The girls helped,The girl helped,themselves,herself"
    bad = ["The girls helped,The other girl helped,themselves,herself", ",b,c,d", "a,b", "The girls helped,x,y z,w"]
    path.write_text("\n".join(["Clean,CORRUPTED,right,wrong", good, *bad, good]))
    result = CliRunner().invoke(tasks_app, ["check", str(path), "--model", "tiny"])
    assert result.exit_code == 1
    assert re.findall(r"own.csv, line (\d+): ", result.stdout) == ["3", "4", "5", "6", "7"]  # in the file's order
    assert f"warning: {path}, line 7: the same pair as {path}, line 2." in result.stdout
    assert "4 bad lines" in result.stdout
    listed = CliRunner().invoke(tasks_app, ["check", str(path), "--model", "tiny", "--json"])
    assert len(json.loads(listed.stdout)["bad_lines"]) == 4
    path.write_text("\n".join(["clean,corrupted,right,wrong", good, good.replace("girl", "queen"), good]))
    said = run("check", str(path), "--model", "tiny")
    assert f"{path}, line 4: the same pair as {path}, line 2." in said
    assert "too few pairs" in said


def test_check_reads_the_file_before_the_model(tmp_path: Path) -> None:
    with pytest.raises(GatewiseError, match="there is no such file"):
        run("check", str(tmp_path / "none.csv"), "--model", "no-such-model")


def test_check_warns_of_the_wrong_choice_about_bos() -> None:
    good, bad = Ability(64, 1.0, 0.9, 5.0, -0.1), Ability(64, 0.15, 0.1, -0.2, -0.3)
    assert bos_problem(good, bad, bos=True) is None
    warned = bos_problem(bad, good, bos=False)
    assert warned == (
        "the model prefers the correct answer on 15% of the held-out prompts without BOS, and on 100% with it; "
        "use --bos (bos=True)."
    )
