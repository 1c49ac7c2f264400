"""What every command has in common: help that teaches and parses, --json, completion, errors of one line."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from gatewise.cli import main as cli

COMMAND: Any = typer.main.get_command(cli.app)  # typer vendors click, whose classes have no types here


def leaves(command: Any = COMMAND, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something: its words, and the command."""
    members = getattr(command, "commands", None)
    if members is None or getattr(command, "invoke_without_command", False):
        yield path, command
    for name, member in (members or {}).items():
        yield from leaves(member, (*path, name))


LEAVES = dict(leaves())
EXAMPLES = [
    line.strip()
    for command in [COMMAND, *LEAVES.values()]
    for line in (command.help or "").splitlines()
    if line.startswith("    gatewise ")
]


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_prints_json_if_asked(words: tuple[str, ...]) -> None:
    options = {option for parameter in LEAVES[words].params for option in parameter.opts}
    assert "--json" in options


@pytest.mark.parametrize(
    "name", ["compare", "conflict", "discover", "evaluate", "gates", "mib", "tasks check", "tasks show", "truth", "toy"]
)
def test_help_has_examples(name: str) -> None:
    shown = LEAVES[tuple(name.split())].help or ""
    assert f"    gatewise {name}" in shown


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_help_parse(example: str) -> None:
    words = shlex.split(example)[1:]
    command = COMMAND
    while getattr(command, "commands", None) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    assert command is not COMMAND
    with command.make_context("gatewise", words) as context:  # parses, does not run
        assert context.params


def test_help_says_how_it_ends() -> None:
    for code in ("0 done", "1 done with failures", "2 something you can mend", "130 interrupted"):
        assert code in " ".join((COMMAND.help or "").split())


def complete(words: str, place: int) -> list[str]:
    """What bash offers for the last of the words."""
    environment = {"_GATEWISE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    done = subprocess.run(
        [sys.executable, "-m", "gatewise.cli.main"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_shell_completion() -> None:
    assert complete("gatewise dis", 1) == ["discover"]
    assert complete("gatewise discover planted:o", 2) == ["planted:or"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gatewise", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code if isinstance(stop.value.code, int) else 0


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("boom\nand more")

    monkeypatch.setattr("gatewise.cli.models.entries", fail)


@pytest.mark.usefixtures("broken")
def test_unexpected_errors_are_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "models", "--json") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: RuntimeError: boom.")
    assert "--debug" in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("words", [("--debug", "models"), ("models", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setattr(sys, "argv", ["gatewise", *words])
    with pytest.raises(RuntimeError, match="boom"):
        cli.main()


def test_a_full_memory_names_the_way_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr("gatewise.cli.models.entries", fail)
    assert run(monkeypatch, "models") == 1
    assert "--memory" in capsys.readouterr().err


def test_progress_and_notes_stay_out_of_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import json

    assert run(monkeypatch, "discover", "tiny", "--edges", "5", "-n", "2", "--json", "--out", str(tmp_path)) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["circuits"][0]["edges"] == 5
    assert "loading tiny" in err
