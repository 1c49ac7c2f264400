"""Commands write where they were told to, and nowhere else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Runs the command line and lists every path that was opened for writing, made, renamed to or linked.
WATCHED = """
import json, os, sys
seen = set()
def watch(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writing = any(c in (mode or "") for c in "wax+") or (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writing and isinstance(path, str | bytes):
            seen.add(os.path.abspath(os.fsdecode(path)))
    elif event in ("os.mkdir", "os.rename", "os.link", "os.symlink", "os.truncate"):
        place = 0 if event in ("os.mkdir", "os.truncate") else 1
        if isinstance(arguments[place], str | bytes | os.PathLike):
            seen.add(os.path.abspath(os.fsdecode(arguments[place])))
sys.addaudithook(watch)
sys.argv = ["gatewise", *sys.argv[2:]]
from gatewise.cli.main import main
try:
    main()
finally:
    found = sorted(seen)
    sys.__stderr__.write("\\nWROTE " + json.dumps(found) + "\\n")
"""


@pytest.mark.parametrize(
    "command",
    [
        ("discover", "tiny", "--examples", "2", "--edges", "20", "--out", "named/out", "--store", "named/store"),
        ("gates", "tiny", "--examples", "2", "--edges", "20", "--out", "named/gates", "--draw", "named/g.svg"),
        ("run", "tiny", "--examples", "4", "--edges", "20", "--out", "named/run"),
    ],
    ids=lambda command: command[0],
)
def test_nothing_is_written_but_where_the_user_said(command: tuple[str, ...], tmp_path: Path) -> None:
    here, cache, scratch = (tmp_path / name for name in ("here", "cache", "scratch"))
    for folder in (here, cache, scratch):
        folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-B", "-c", WATCHED, "watched", *command],
        cwd=here,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(cache),
            "TMPDIR": str(scratch),
            "GATEWISE_CACHE": str(cache),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wrote = [Path(path) for path in json.loads(done.stderr.rsplit("WROTE ", 1)[1])]
    allowed = (here / "named", cache, scratch, Path("/dev"))
    assert any(path.is_relative_to(here / "named") for path in wrote)
    assert [path for path in wrote if not any(path.is_relative_to(place) for place in allowed)] == []
    assert [path.name for path in here.iterdir()] == ["named"]
