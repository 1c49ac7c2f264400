"""Files know what they are: commands take task, model and pairs from them, and say where something else is asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gatewise as gw
from gatewise.cli.circuit_files import differences
from gatewise.cli.main import app
from gatewise.errors import GatewiseError

NOUNS = ("girl", "queen", "mother", "sister", "woman", "lady", "aunt", "wife", "nurse", "bride")


@dataclass(frozen=True)
class Said:
    out: str
    err: str
    error: BaseException | None


def gatewise(*words: object) -> Said:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return Said(result.stdout, result.stderr, result.exception)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task of one's own, and circuits of it and of another task."""
    path = tmp_path_factory.mktemp("own")
    model = gw.load_model("tiny")
    made = gw.task("sa", model, examples=10, test_examples=6, seed=5)
    rows = [
        f"{pair.clean},{pair.corrupted},{'|'.join(pair.correct)},{'|'.join(pair.incorrect)}"
        for pairs in (made.train, made.test)
        for pair in pairs
    ]
    (path / "own.csv").write_text("\n".join(["clean,corrupted,correct,incorrect", *rows]))
    own = gw.task(path / "own.csv", model, examples=8, seed=3)
    gw.discover(model, own, "eap", edges=60, seed=3).save(path / "own.json")
    gw.discover(model, own, "eap-ig", edges=80).save(path / "ig.json")
    gw.discover(model, gw.task("sa", model, examples=8), "eap", edges=60).save(path / "sa.json")
    (path / "bare.json").write_text('[["m0", "logits"]]')
    return path


def test_a_circuit_is_measured_on_the_held_out_pairs_of_its_own_task(folder: Path) -> None:
    said = gatewise("evaluate", folder / "own.json", "--json", "--random", 0)
    assert said.error is None, said.error
    assert "warning" not in said.err
    model = gw.load_model("tiny")
    own = gw.task(folder / "own.csv", model, examples=8, seed=3)
    expected = gw.evaluate(model, own, gw.Circuit.load(folder / "own.json"), random_circuits=0)
    (row,) = json.loads(said.out)["circuits"]
    assert row["examples"] == len(own.test)
    assert row["recovered_logit_diff"] == pytest.approx(expected.recovered_logit_diff)


def test_another_task_is_warned_of_and_files_that_differ_are_refused(folder: Path) -> None:
    assert (
        "own.json is of the task own.csv, and is measured on sa"
        in gatewise("evaluate", folder / "own.json", "--task", "sa", "-n", 2, "--random", 0).err
    )
    refused = gatewise("evaluate", folder / "own.json", folder / "sa.json").error
    assert isinstance(refused, GatewiseError)
    assert "differ in their task: own.csv" in str(refused)
    silent = gatewise("evaluate", folder / "bare.json").error
    assert "does not say which model it is for; say it with --model" in str(silent)
    assert gatewise("evaluate", folder / "bare.json", "-m", "tiny", "-t", "sa", "-n", 2, "--random", 0).error is None


def test_pairs_that_were_not_searched_on_are_pointed_out(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "own.csv").read_text().splitlines()
    (tmp_path / "own.csv").write_text("\n".join(lines[:-2]))
    err = gatewise("evaluate", folder / "own.json", "--task", tmp_path / "own.csv", "--random", 0).err
    assert "was searched on other pairs of own.csv" in err


def test_a_submission_is_of_one_kind_of_search(folder: Path, tmp_path: Path) -> None:
    mixed = gatewise("mib", folder / "own.json", folder / "ig.json", "--out", tmp_path).error
    assert isinstance(mixed, GatewiseError)
    assert "their method are eap and eap-ig" in str(mixed)


def test_compare_says_in_what_searches_differ(folder: Path) -> None:
    said = gatewise("compare", folder / "own.json", folder / "sa.json")
    assert "different searches: task own.csv and sa" in said.err
    first: dict[str, Any] = {"metric": None, "parameters": {"steps": 5}, "weights": "a"}
    second: dict[str, Any] = {"metric": {"name": "kl"}, "parameters": {"steps": 7}, "weights": "b"}
    assert differences(first, second) == [
        "weights differ",
        "parameters steps=5 and steps=7",
        "metric the method's own and kl",
    ]
