"""The command line as a user meets it: exit codes, one-line errors, a fast start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gatewise.cli import main as cli
from gatewise.errors import GatewiseError
from gatewise.models.download import DOWNLOADS
from gatewise.models.loader import BUILT_IN


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run `gatewise` in this process; gives the exit code."""
    monkeypatch.setattr(sys, "argv", ["gatewise", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    code = stop.value.code
    return code if isinstance(code, int) else 0


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATEWISE_CACHE", str(tmp_path))
    return tmp_path


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("gatewise 0.")
    module = subprocess.run([sys.executable, "-m", "gatewise", "--version"], capture_output=True, text=True, check=True)
    assert module.stdout.startswith("gatewise 0.")


def test_models_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], empty_cache: Path) -> None:
    assert run(monkeypatch, "models", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["cache"] == str(empty_cache)
    assert [model["name"] for model in listed["models"]] == list(BUILT_IN)
    states = {model["name"]: model["state"] for model in listed["models"]}
    assert (states["smollm2-135m"], states["tiny"]) == ("not fetched", "built in")


def test_models_as_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "models") == 0
    shown = capsys.readouterr().out
    assert "123,211" in shown
    assert all(name in shown for name in BUILT_IN)


def test_get_what_is_built_in(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "models", "get", "tiny") == 0
    assert "nothing to fetch" in capsys.readouterr().out


def test_get_fetches(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fetched = []
    monkeypatch.setattr("gatewise.cli.models.fetch", lambda name: fetched.append(name) or Path("somewhere"))  # type: ignore[func-returns-value]
    assert run(monkeypatch, "models", "get", next(iter(DOWNLOADS))) == 0
    assert fetched == ["smollm2-135m"]
    assert "somewhere" in capsys.readouterr().out


def test_user_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "models", "get", "nope") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: there is no built-in model 'nope'")
    assert err.count("\n") == 1


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gatewise", "--debug", "models", "get", "nope"])
    with pytest.raises(GatewiseError, match="nope"):
        cli.main()


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gatewise.cli.models.fetch", interrupted)
    assert run(monkeypatch, "models", "get", "smollm2-135m") == 130
    assert capsys.readouterr().err.strip() == "interrupted"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run tiny", "interrupted; the same command resumes where it was"),
        ("sweep grid.toml", "interrupted; the same command resumes where it was"),
        ("discover tiny --store=runs", "interrupted; the same command resumes where it was"),
        ("discover tiny", "interrupted; the same command starts again; --store keeps states"),
        ("evaluate circuit.json", "interrupted"),
    ],
)
def test_an_interrupted_command_says_whether_it_would_resume(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gatewise.cli.main.app", interrupted)
    assert run(monkeypatch, *words.split()) == 130
    assert capsys.readouterr().err.strip() == message


def test_unknown_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "nope") == 2
    assert "nope" in capsys.readouterr().err


LISTS = ("--help", "--version", "run --help", "models", "tasks list", "tasks list --json")


def test_lists_are_shown_without_anything_heavy() -> None:
    program = f"""
import sys
from gatewise.cli.main import app
for words in {LISTS}:
    try:
        app(words.split())
    except SystemExit as stop:
        assert not stop.code, words
    heavy = {{"torch", "transformers", "numpy", "gguf"}} & sys.modules.keys()
    assert not heavy, (words, heavy)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(shown in done.stdout for shown in ("synthetic:or", "corruption"))
