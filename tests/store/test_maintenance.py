"""Care of a store: what is listed and verified, what is garbage, and that nothing alive is ever removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from stored_circuits import some_circuits
from typer.testing import CliRunner

from gatewise.archive import pack
from gatewise.cli.main import app
from gatewise.errors import GatewiseError
from gatewise.files import temporary_path
from gatewise.store import SCHEMA, Store
from gatewise.store.backends import Folder
from gatewise.store.checkpoints import Checkpoint
from gatewise.store.format import entry_name
from gatewise.store.maintenance import collect, find_entry, garbage, list_entries

KEY, OTHER, THIRD = "ab" + "0" * 30, "ab" + "1" * 30, "cd" + "2" * 30


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Circuits, plain data, and the checkpoint of a search that has not ended."""
    store = Store(tmp_path / "runs")
    record = {"method": "eap", "direction": "ns", "sizes": {"ns": [1, 5]}, "seed": 0}
    store.put(KEY, some_circuits(), record)
    store.remember({"experiment": "table 1"}, lambda: {"kl": float("nan")})
    store.checkpoint(THIRD).save({"step": 3}, {"x": torch.arange(3)})
    return store


def root(store: Store) -> Path:
    return Path(store.location)


def results_in(store: Store) -> set[Path]:
    return set(root(store).glob("*/*"))


def run(*words: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["runs", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_list(store: Store) -> None:
    assert sorted(entry.kind for entry in list_entries(store)) == ["checkpoint", "circuits", "json"]
    code, text = run("list", "--store", root(store))
    assert code == 0
    assert "circuits by eap ns, 1, 5 edges" in text
    assert "experiment" in text
    assert "3 entries" in text
    listed = json.loads(run("list", "--store", root(store), "--json")[1])
    assert {entry["key"] for entry in listed} >= {KEY, THIRD}
    assert all(Path(entry["path"]).exists() and entry["bytes"] > 0 for entry in listed)


def test_show(store: Store) -> None:
    code, text = run("show", KEY[:4], "--store", root(store), "--json")
    shown = json.loads(text)
    assert code == 0
    assert shown["record"]["method"] == "eap"
    assert [circuit["edges"] for circuit in shown["circuits"]][:2] == [1, 5]
    plain = next(entry for entry in list_entries(store) if entry.kind == "json")
    assert '"nan"' in run("show", plain.key, "--store", root(store))[1]
    with pytest.raises(GatewiseError, match=r"no sound entry of .* begin with 'ff'"):
        find_entry(store, "ff")
    store.put(OTHER, some_circuits(), {})
    with pytest.raises(GatewiseError, match="2 entries"):
        find_entry(store, "ab")


def test_show_trusts_nothing_that_is_damaged(store: Store) -> None:
    path = root(store) / entry_name(KEY)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(GatewiseError, match="no sound entry"):
        run("show", KEY, "--store", root(store))
    assert "damaged" in run("list", "--store", root(store))[1]


def test_verify_finds_every_damage_and_changes_nothing(store: Store) -> None:
    assert run("verify", "--store", root(store)) == (0, "3 sound, 0 bad\n")
    victims = results_in(store)
    assert len(victims) == 3
    for file in victims:
        sound = file.read_bytes()
        file.write_bytes(sound[:-2] + bytes([sound[-2] ^ 1]) + sound[-1:])
        before = sorted(path.name for path in root(store).rglob("*"))
        assert [bool(entry.problem) for entry in list_entries(store)].count(True) == 1, file
        code, text = run("verify", "--store", root(store), "--json")
        assert code == 1
        assert json.loads(text)["sound"] == 2
        assert sorted(path.name for path in root(store).rglob("*")) == before
        file.write_bytes(sound)
    assert not any(entry.problem for entry in list_entries(store))


def test_gc_removes_garbage_and_nothing_else(store: Store) -> None:
    keep = results_in(store)
    assert run("gc", "--store", root(store)) == (0, "removed 0, 0 bytes\n")
    store.checkpoint(KEY).save({}, {"x": torch.zeros(1)})  # its result is there
    (root(store) / entry_name(OTHER)).write_bytes(b"half")
    old = root(store) / entry_name("ef" + "3" * 30)
    old.parent.mkdir()
    old.write_bytes(pack({"schema": SCHEMA - 1}, {}))
    dead = _part_of_a_process_that_ended(store)
    expected = {"temporary", "damaged", "outdated", "checkpoint"}
    assert {entry.kind for entry in garbage(store)} == expected
    before = results_in(store)
    assert "would remove 4" in run("gc", "--store", root(store), "--dry-run")[1]
    assert results_in(store) == before
    listed = json.loads(run("gc", "--store", root(store), "--json")[1])["entries"]
    assert {entry["kind"] for entry in listed} == expected
    assert not dead.exists()
    assert results_in(store) == keep
    assert [entry.kind for entry in collect(store, checkpoints=True)] == ["checkpoint"]
    assert len(results_in(store)) == 2


def _part_of_a_process_that_ended(store: Store) -> Path:
    program = (
        "import sys; from pathlib import Path; from gatewise.files import temporary_path\n"
        "path = temporary_path(Path(sys.argv[1])); path.write_text('half'); print(path)"
    )
    command = [sys.executable, "-c", program, str(root(store) / entry_name(OTHER))]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


_SLOW_WRITER = """
import sys, time
from gatewise import files
from gatewise.store import Store
real = files._write
def slow(path, content):
    if ".safetensors." not in path.name:
        return real(path, content)
    real(path, content[: len(content) // 2])
    print("half", flush=True)
    sys.stdin.readline()
    path.write_bytes(content)
files._write = slow
print(Store(sys.argv[1]).remember({"slow": True}, lambda: 42))
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_live_writer_is_left_alone_and_a_killed_one_cleaned_up_after(tmp_path: Path, killed: bool) -> None:
    command = [sys.executable, "-c", _SLOW_WRITER, str(tmp_path)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "half\n"
    Store(tmp_path).remember({"other": True}, lambda: 1)  # starts work: cleans up first
    assert len(list(tmp_path.glob("*/.*.part"))) == 1
    assert collect(Store(tmp_path)) == []
    if killed:
        writer.send_signal(signal.SIGKILL)
        while psutil.Process(writer.pid).status() != psutil.STATUS_ZOMBIE:  # not waited for: a zombie does not write
            time.sleep(0.01)
    else:
        rest, _ = writer.communicate("go\n", timeout=60)
        assert rest.splitlines()[-1] == "42"
    assert Store(tmp_path).remember({"slow": True}, lambda: 43) == (43 if killed else 42)
    writer.wait()
    assert list(tmp_path.glob("*/.*.part")) == []


def test_unknown_writers_get_a_day(tmp_path: Path) -> None:
    own = temporary_path(tmp_path / "probe")
    foreign = tmp_path / f".probe.{'0' * 8}-1-{'0' * 8}.part"
    nameless = tmp_path / ".something.part"
    for path in (own, foreign, nameless):
        path.touch()
    assert Folder(tmp_path).abandoned() == []
    for path in (own, foreign, nameless):
        os.utime(path, (0, path.stat().st_mtime - 25 * 3600))
    assert sorted(Folder(tmp_path).abandoned()) == sorted([foreign, nameless])


def test_no_store_there(tmp_path: Path) -> None:
    with pytest.raises(GatewiseError, match="no store in"):
        run("list", "--store", tmp_path / "nowhere")


def test_a_checkpoint_without_a_place_keeps_nothing() -> None:
    checkpoint = Checkpoint()
    checkpoint.save({"x": 1}, {})
    assert checkpoint.load() is None
    checkpoint.clear()
