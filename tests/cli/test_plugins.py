"""Commands that other packages add: those of docs/own-command.md, and those that do not work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-command.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The only block of code in this language on the page."""
    (code,) = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    return str(code)


def install(folder: Path, name: str, code: str, entries: str) -> None:
    """As much of an installed distribution as Python needs to find its entry points."""
    (folder / f"{name}.py").write_text(code)
    (folder / f"{name}-1.0.dist-info").mkdir()
    (folder / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(f"[gatewise.commands]\n{entries}\n")


def gatewise(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "100"}
    command = [sys.executable, "-m", "gatewise", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def documented(tmp_path: Path) -> Path:
    entry = re.search(r'^hello = "(.*)"$', block("toml"), flags=re.MULTILINE)
    assert entry is not None
    install(tmp_path, "hello", block("python"), f"hello = {entry[1]}")
    return tmp_path


def test_the_documented_command_runs_as_printed(documented: Path) -> None:
    command, expected = block("console").splitlines()
    done = gatewise(documented, *command.split()[2:])
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr
    listed = gatewise(documented, "--help").stdout
    assert re.search(r"My commands.*hello +Say hello to a model", listed, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("code", "entries", "warning"),
    [
        ("import no_such_module\n", "bad = bad:run", "'bad' of bad is left out: ModuleNotFoundError: No module named"),
        ("def run(): ...\n", "bad = bad:other", "'bad' of bad is left out: AttributeError"),
        ("def run(x: int | str): ...\n", "bad = bad:run", "'bad' of bad is left out: AssertionError"),
        ("def run(): ...\n", "models = bad:run", "'models' of bad is left out: ValueError: gatewise has a command"),
    ],
)
def test_what_does_not_work_is_one_line_and_breaks_nothing_else(
    documented: Path, code: str, entries: str, warning: str
) -> None:
    install(documented, "bad", code, entries)
    done = gatewise(documented, "models")
    assert done.returncode == 0
    assert "built in" in done.stdout
    assert done.stderr.startswith(f"warning: the command {warning}")
    assert done.stderr.count("\n") == 1
    assert "hello" in gatewise(documented, "--help").stdout


def test_without_a_panel_of_its_own_the_package_is_named(tmp_path: Path) -> None:
    install(tmp_path, "plain", 'def run() -> None:\n    """Do nothing."""\n', "nothing = plain:run")
    assert re.search(r"Added by plain.*nothing +Do nothing", gatewise(tmp_path, "--help").stdout, flags=re.DOTALL)
    assert "Repeat the paper" in gatewise(tmp_path, "--help").stdout
