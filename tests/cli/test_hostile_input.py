"""Numbers, names and files that break things: an error of one line that a user can act on, before the work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gatewise.cli.answers import circumstances
from gatewise.cli.main import app
from gatewise.cli.options import FoldingTable
from gatewise.errors import GatewiseError, printable
from gatewise.tasks.parsing import MOST_PROBLEMS
from gatewise.tasks.task_files import read_lines
from gatewise_paper.records import read_records

pytestmark = pytest.mark.attack
ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def refused(*words: str) -> str:
    """The message of a command that a user can mend."""
    outcome = CliRunner().invoke(app, list(words))
    assert isinstance(outcome.exception, GatewiseError), outcome.output
    return str(outcome.exception)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", str(2**70)], "seed is a whole number"),
        (["--seed", "-" + "9" * 60], "seed is a whole number"),
        (["--random", "-1"], "random_circuits is a whole number from 0 to 10,000, got -1"),
        (["--random", "1000000000"], "random_circuits is a whole number from 0 to 10,000"),
        (["--memory", "1" * 400], "memory is a positive number of bytes"),
        (["--examples", "10000000"], "examples is a whole number from 1 to 1,000,000"),
    ],
)
def test_numbers_out_of_range_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    said = refused("run", "tiny", "--edges", "20", "--out", str(tmp_path / "out"), *options)
    assert message in said
    assert len(said) < 300


def test_a_store_without_a_name_is_refused(tmp_path: Path) -> None:
    assert "names no folder" in refused("discover", "tiny", "--edges", "20", "--store", "", "--out", str(tmp_path))


def test_many_bad_rows_are_refused_soon(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("[1]\n" * 199_000)
    started = time.process_time()
    _, problems = read_lines(path)
    assert time.process_time() - started < 5
    assert len(problems) == MOST_PROBLEMS + 1
    assert "reading stopped here" in problems[-1]


def test_a_task_file_that_changed_with_its_time_and_size_is_another(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("clean,corrupted,correct,incorrect\na b,a c,d,e\n")
    about = path.stat()
    before = circumstances("run", "tiny", [str(path)], "eap")
    path.write_text("clean,corrupted,correct,incorrect\na b,a c,e,d\n")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert path.stat().st_size == about.st_size
    assert before is not None
    assert circumstances("run", "tiny", [str(path)], "eap") != before


@pytest.mark.parametrize("content", ['{"about": {"preset": "small"', "[]", '{"about": 3}', '{"about": {}}'])
def test_a_broken_results_file_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(GatewiseError, match="results.json"):
        read_records(tmp_path, {"preset": "small", "weights": "abc"})


# The terminal


def test_no_name_steers_the_terminal(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "gatewise", "compare", f"a{ESCAPE}.json", f"b{ESCAPE}.json"]
    done = subprocess.run(asked, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert b"\x1b" not in done.stderr
    assert b"\x07" not in done.stderr
    assert b"owned" in done.stderr


def test_cells_of_tables_do_not_steer_the_terminal() -> None:
    from rich.text import Text

    table = FoldingTable("name", "text")
    table.add_row(f"a{ESCAPE}", Text(f"b{ESCAPE}"))
    console = Console(force_terminal=True, width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(table)
    assert "\x1b]0" not in console.export_text(styles=True)
    assert "\x1b[2J" not in console.export_text(styles=True)


def test_text_of_all_languages_is_printable() -> None:
    text = "Grüße, Ελληνικά, 日本語, ½ → ∞\n\tindented"
    assert printable(text) == text
    assert printable("\x1b\x07\u202e") == "\\x1b\\x07\\u202e"


# Interrupts

_WORK = """
import signal, gatewise as gw
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored if the tests run in the background
model = gw.load_model("tiny")
task = gw.task("ioi", model, examples=4)
print("starting", flush=True)
gw.score_edges(model, task.train, compute=gw.Compute(memory="2MB", workers=2))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there is a fork server")
def test_an_interrupt_while_workers_start_ends_soon_and_leaves_no_folder(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(
        "import sys, time\nif any('forkserver' in word for word in sys.orig_argv): time.sleep(30)\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    source = str(Path(sys.modules["gatewise"].__file__ or "").parents[1])
    environment: dict[str, Any] = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": f"{slow}{os.pathsep}{source}"}
    process = subprocess.Popen([sys.executable, "-c", _WORK], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "starting\n"
    time.sleep(3)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=25)
    finally:
        process.kill()
    assert time.monotonic() - started < 15  # far less on an idle machine; the server would take 30
    left = [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]  # torch's cache
    assert left == []
