"""The options about model and machine: the same in every command that loads a model, and what they do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from gatewise.circuits.circuit import Circuit
from gatewise.cli import main as cli
from gatewise.cli.options import Machine, Workers, option_words
from gatewise.errors import GatewiseError
from gatewise.plan import ACCELERATORS, forecast

COMMAND: Any = typer.main.get_command(cli.app)
OPTIONS = {"--device", "--dtype", "--bos", "--first-token", "--memory"}
WITH_MODEL = ["run", "discover", "gates", "evaluate", "test-gate", "plan", "sweep"]
SHARED = {"run", "discover", "gates", "evaluate", "sweep"}
WITH_MODEL += ["tasks show", "tasks check", "tasks measure"]


@pytest.mark.parametrize("words", WITH_MODEL)
def test_every_command_with_a_model_has_them_in_one_group(words: str) -> None:
    command = COMMAND
    for word in words.split():
        command = command.commands[word]
    group = {
        name
        for parameter in command.params
        if getattr(parameter, "rich_help_panel", None) == "Model and machine"
        for name in parameter.opts
    }
    assert group >= OPTIONS | ({"--workers", "--ray"} if words in SHARED else set())
    assert not OPTIONS & {name for one in command.params if one.rich_help_panel is None for name in one.opts}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gatewise", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code if isinstance(stop.value.code, int) else 0


def test_options_reach_the_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ["discover", "tiny", "--edges", 5, "-n", 2, "--out", tmp_path]
    assert run(monkeypatch, *asked, "--dtype", "float64", "--no-bos", "--device", "cpu", "--memory", "1GB") == 0
    record = Circuit.load(tmp_path / "eap-ns-5.json").provenance
    assert (record["dtype"], record["bos"], record["device"]) == ("float64", False, "cpu")
    assert run(monkeypatch, *asked) == 0
    record = Circuit.load(tmp_path / "eap-ns-5.json").provenance
    assert (record["dtype"], record["bos"]) == ("float32", True)
    assert run(monkeypatch, *asked, "--workers", 0) == 2
    assert "workers is a number of processes" in capsys.readouterr().err


def test_answers_of_several_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pairs = ["The girls helped,The girl helped", "The queens blamed,The queen blamed"]
    lines = [f"{pair},themselves helped,herself helped" for pair in pairs]
    (tmp_path / "my.csv").write_text("\n".join(["clean,corrupted,right,wrong", *lines]))
    asked = ["discover", "tiny", "--task", tmp_path / "my.csv", "--edges", 5, "-n", 2, "--out", tmp_path]
    assert run(monkeypatch, *asked) == 2
    assert "--first-token" in capsys.readouterr().err
    assert run(monkeypatch, *asked, "--first-token") == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "toaster"], "cannot use device 'toaster'"),
        (["--dtype", "int8"], "dtype 'int8' was given; expected one of float32, bfloat16, float64"),
        (["--memory", "much"], "memory is a positive number of bytes or text such as '8GB'"),
    ],
)
@pytest.mark.parametrize("command", [["discover", "tiny", "--edges", "5", "--out", "here"], ["plan", "tiny"]])
def test_what_is_wrong_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: list[str],
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *command, *options) == 2
    error = capsys.readouterr().err.removeprefix("loading tiny ...\n")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"GGUF\x03\x00\x00\x00", "model.gguf is no GGUF file that can be read"), (b"", "is no GGUF file")],
)
@pytest.mark.parametrize(
    "command", [["tasks", "measure", "ioi", "--model"], ["tasks", "show", "ioi", "--model"], ["plan"]]
)
def test_a_truncated_gguf_file_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: list[str],
    content: bytes,
    said: str,
) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    assert run(monkeypatch, *command, tmp_path / "model.gguf") == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("error:") == 1


def test_synthetic_models_read_no_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "gates", "synthetic:and", "--bos") == 2
    assert "synthetic:and reads no text" in capsys.readouterr().err


def test_words() -> None:
    assert Machine().given == Workers().given == {}
    assert option_words(Workers(workers=2).given) == ["--workers", "2"]
    assert option_words({"set": ["a=1", "b=2"], "sizes": None}) == ["--set", "a=1", "--set", "b=2"]
    chosen = Machine(device="cuda", bos=False, first_token=True, memory="1GB")
    assert option_words(chosen.given) == ["--device", "cuda", "--no-bos", "--first-token", "--memory", "1GB"]


def test_a_sweep_takes_them_from_its_grid_and_from_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = ['models = "tiny"', 'tasks = "ioi"', 'methods = "eap"', "sizes = 5", "examples = 2", "test_examples = 2"]
    lines += ["random_circuits = 1", "bos = false", 'dtype = "float64"', 'device = "cpu"']
    (tmp_path / "grid.toml").write_text("\n".join(lines))
    rows = []
    for options in ([], ["--bos", "--dtype", "float32"]):
        assert run(monkeypatch, "sweep", tmp_path / "grid.toml", "--out", tmp_path, *options) == 0
        header, row = (tmp_path / "table.csv").read_text().splitlines()
        rows.append(dict(zip(header.split(","), row.split(","), strict=True)))
    assert [(row["bos"], row["dtype"]) for row in rows] == [("False", "float64"), ("True", "float32")]
    assert rows[0]["full_logit_diff"] != rows[1]["full_logit_diff"]


def test_a_plan_for_an_accelerator(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "llama-3.1-8b", "--examples", 600, "--memory", "200GB", "--json"]
    assert run(monkeypatch, *asked, "--dtype", "bfloat16", "--on", "h100") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["device"], found["free"], found["micro_batch"]) == ("H100-80GB", 80 << 30, 256)
    assert found["seconds"] < 60
    assert "never measured" in found["advice"][0]
    for name, said in (("A100", "did you mean A100-40GB or A100-80GB"), ("GTX-9", "known are T4")):
        with pytest.raises(GatewiseError, match=said):
            forecast("gpt2", accelerator=name)
    with pytest.raises(GatewiseError, match="T4 was asked to compute in bfloat16; .* is made for float32"):
        forecast("gpt2", accelerator="T4", dtype="bfloat16")
    with pytest.raises(GatewiseError, match="either an accelerator"):
        forecast("gpt2", accelerator="T4", device="cpu")
    assert all(one.memory * 2**30 > 10e9 and one.float32 > 1 for one in ACCELERATORS.values())
