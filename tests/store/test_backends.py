"""Stores at URLs: the same results as in a folder, found from elsewhere; damage is never trusted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.registry import known_implementations
from interrupted_searches import StoppedError, found, stopped_after
from interrupted_searches import same as same_search
from store.shared_bucket import Bucket, install
from stored_circuits import KEY, same, some_circuits
from typer.testing import CliRunner

from gatewise.archive import pack
from gatewise.cli.main import app
from gatewise.compute import Compute
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.store import SCHEMA, Store
from gatewise.store.backends import Backend
from gatewise.store.format import checkpoint_name, entry_name
from gatewise.store.maintenance import list_entries
from gatewise.sweep import run_sweep
from gatewise.sweep.grid import grid_from

OTHER = "cd" + "1" * 30


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's own cache."""
    monkeypatch.setenv("GATEWISE_CACHE", str(tmp_path / "first"))
    fsspec.register_implementation("bucket", Bucket, clobber=True)


def another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str = "second") -> None:
    monkeypatch.setenv("GATEWISE_CACHE", str(tmp_path / name))


@pytest.fixture(params=["memory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a store that is not there yet."""
    if request.param == "bucket":
        yield f"bucket://{tmp_path}/shared/runs"
        return
    yield "memory://shared/runs"
    fsspec.filesystem("memory").store.clear()


# What is stored


def test_found_again_from_another_machine_equal_to_a_folder_store(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Store(tmp_path / "folder")
    for store in (Store(url), folder):
        assert store.get(KEY) is None
        store.check_writable()
        store.put(KEY, some_circuits(), {"why": "test"})
        assert store.remember({"a": 1}, lambda: [float("inf"), 0.1]) == [float("inf"), 0.1]
    another_machine(monkeypatch, tmp_path)
    there = Store(url + "/")
    expected = folder.get(KEY)
    assert expected is not None
    assert same(there.get(KEY) or [], expected)
    assert there.remember({"a": 1}, lambda: pytest.fail("computed again")) == folder.recall({"a": 1})


def test_a_search_is_the_same_as_in_a_folder_and_done_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, folder = (
        found("acdc sizes", compute=Compute(store=url)),
        found("acdc sizes", compute=Compute(store=tmp_path / "folder")),
    )
    assert same_search(first, folder)
    another_machine(monkeypatch, tmp_path)
    seen: list[int] = []
    with stopped_after(0, seen):
        again = found("acdc sizes", compute=Compute(store=url))
    assert same(again, first)
    assert seen == []
    assert sorted(entry.kind for entry in list_entries(Store(url))) == ["circuits"]  # no checkpoint is left


def test_a_file_url_is_another_name_of_a_folder(tmp_path: Path) -> None:
    Store(tmp_path / "runs").put(KEY, some_circuits(), {})
    store = Store(f"file://{tmp_path}/runs")
    assert store.location == str(tmp_path / "runs")
    assert same(store.get(KEY) or [], some_circuits())


def test_two_writers_leave_the_whole_entry_of_one(url: str) -> None:
    """Times differ, so the files do: of two files by two writers, one could have been of each."""
    Store(url).put(KEY, some_circuits(), {"writer": "first, and its record is longer"})
    Store(url).put(KEY, some_circuits()[:1], {"writer": "second"})
    assert same(Store(url).get(KEY) or [], some_circuits()[:1])


# Damage


@pytest.mark.parametrize("damage", ["empty", "half", "one byte more", "one bit", "wrong name"])
def test_damage_is_never_trusted_and_is_replaced(url: str, damage: str) -> None:
    store, remote = Store(url), Backend(url)
    store.put(KEY, some_circuits(), {})
    store.put(OTHER, some_circuits()[:1], {})
    whole = remote.read(entry_name(KEY))
    assert whole is not None
    broken = {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "one byte more": whole + b" ",
        "one bit": whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
        "wrong name": remote.read(entry_name(OTHER)),
    }[damage]
    assert broken is not None
    remote.write(entry_name(KEY), broken)
    assert [bool(entry.problem) for entry in list_entries(store)].count(True) == 1
    with pytest.warns(GatewiseWarning, match=r"is damaged: .*computed again and replaced"):
        assert store.get(KEY) is None
    store.put(KEY, some_circuits(), {})
    assert same(store.get(KEY) or [], some_circuits())
    assert not any(entry.problem for entry in list_entries(store))


# Copies


def test_a_folder_is_copied_to_a_bucket_and_back(tmp_path: Path) -> None:
    here, url = tmp_path / "here", f"bucket://{tmp_path}/shared/runs"
    Store(here).put(KEY, some_circuits(), {})
    Store(here).remember({"a": 1}, lambda: [0.1])
    Store(here).checkpoint(OTHER).save({"step": 1}, {"x": torch.ones(2)})
    shutil.copytree(here, tmp_path / "shared" / "runs")
    there = Store(url)
    assert same(there.get(KEY) or [], some_circuits())
    assert there.recall({"a": 1}) == [0.1]
    saved = there.checkpoint(OTHER).load()
    assert saved is not None
    assert saved.state == {"step": 1}
    there.remember({"a": 2}, lambda: [0.2])
    shutil.copytree(tmp_path / "shared" / "runs", tmp_path / "back", ignore=shutil.ignore_patterns(".*"))
    back = Store(tmp_path / "back")  # without its hidden files, which many ways to copy leave out
    back.tidy()
    assert back.recall({"a": 2}) == [0.2]
    assert sorted(entry.kind for entry in list_entries(back)) == ["checkpoint", "circuits", "json", "json"]


def test_the_store_of_an_earlier_version_is_named(url: str) -> None:
    store = Store(url)
    store.backend.write(f"{KEY[:2]}/{KEY}.entry", b"{}")
    store.backend.write(".gatewise-store", b"A run store of gatewise.\n")
    with pytest.raises(GatewiseError, match=r"earlier version of gatewise.*give another place"):
        store.remember({}, lambda: pytest.fail("worked"))


# A network that fails is as a disk that is full


@pytest.fixture
def network_down(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """From when `check_writable` has been asked on; `undo` mends it."""

    def pipe(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the network is down\nand more lines")

    monkeypatch.setattr(Bucket, "pipe_file", pipe)
    monkeypatch.setattr(Backend, "check_writable", lambda _: None)
    return monkeypatch


def test_what_cannot_be_sent_is_handed_over_with_a_warning(tmp_path: Path, network_down: pytest.MonkeyPatch) -> None:
    url = f"bucket://{tmp_path}/shared/runs"
    with pytest.warns(GatewiseWarning, match=r"not stored: .*the network is down\)"):
        assert Store(url).remember({"a": 1}, lambda: 5) == 5
    assert Store(url).recall({"a": 1}) is None
    with pytest.raises(GatewiseError, match=r"the network is down\)"):
        Store(url).put(KEY, some_circuits(), {})
    network_down.undo()
    assert Store(url).remember({"a": 1}, lambda: 6) == 6


def test_a_search_that_cannot_save_its_state_stops_and_loses_nothing(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, whole = f"bucket://{tmp_path}/shared/runs", found("edge-pruning threshold")
    seen: list[int] = []
    with stopped_after(1, seen), pytest.raises(StoppedError):
        found("edge-pruning threshold", compute=Compute(store=url))
    network: pytest.MonkeyPatch = request.getfixturevalue("network_down")
    with pytest.raises(GatewiseError, match=r"cannot save a checkpoint.*network is down.*untouched.*resumes"):
        found("edge-pruning threshold", compute=Compute(store=url))
    network.undo()
    seen = []
    with stopped_after(0, seen):
        assert same_search(found("edge-pruning threshold", compute=Compute(store=url)), whole)
    everything: list[int] = []
    with stopped_after(0, everything):
        found("edge-pruning threshold", compute=Compute(store=tmp_path / "folder"))
    assert len(seen) == len(everything) - 1  # resumed from the state before


# Checkpoints


def test_a_search_goes_on_elsewhere(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, seen = found("acdc sizes"), []  # type: ignore[var-annotated]
    with stopped_after(0, seen):
        found("acdc sizes", compute=Compute(store=tmp_path / "folder"))
    saves, seen = len(seen), []
    with stopped_after(saves - 1, seen), pytest.raises(StoppedError):
        found("acdc sizes", compute=Compute(store=url))
    another_machine(monkeypatch, tmp_path)
    seen = []
    with stopped_after(0, seen):
        assert same_search(found("acdc sizes", compute=Compute(store=url)), whole)
    assert len(seen) == 1
    assert [entry.kind for entry in list_entries(Store(url))] == ["circuits"]


def test_a_state_is_read_elsewhere_and_a_damaged_one_never(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(url).checkpoint(KEY).save({"step": 1}, {"x": torch.zeros(1)})
    another_machine(monkeypatch, tmp_path)
    there = Store(url).checkpoint(KEY)
    saved = there.load()
    assert saved is not None
    assert saved.state == {"step": 1}
    Backend(url).write(checkpoint_name(KEY), b"half")
    with pytest.warns(GatewiseWarning, match=r"checkpoint .* is not used: it cannot be understood"):
        assert Store(url).checkpoint(KEY).load() is None
    assert [bool(entry.problem) for entry in list_entries(Store(url))] == [True]
    Store(url).checkpoint(KEY).clear()
    assert Store(url).checkpoint(KEY).load() is None


def test_a_checkpoint_whose_result_is_there_is_removed(url: str) -> None:
    """Killed between storing the result and removing the checkpoint."""
    store = Store(url)
    store.put(KEY, some_circuits(), {})
    store.checkpoint(KEY).save({}, {})
    assert Store(url).get(KEY) is not None
    assert [entry.kind for entry in list_entries(store)] == ["circuits"]


# Care


def run(*words: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["runs", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_list_show_verify_and_gc(url: str) -> None:
    store = Store(url)
    store.put(KEY, some_circuits(), {"method": "eap", "direction": "ns", "sizes": {"ns": [1, 5]}, "seed": 0})
    store.checkpoint(OTHER).save({"step": 3}, {"x": torch.arange(3)})
    code, text = run("list", "--store", url)
    assert code == 0
    assert "circuits by eap ns, 1, 5 edges" in text
    listed = json.loads(run("list", "--store", url, "--json")[1])
    assert {f"{url}/{entry_name(KEY)}", f"{url}/{checkpoint_name(OTHER)}"} == {entry["path"] for entry in listed}
    assert all(entry["bytes"] > 0 and entry["modified"] > "2020" for entry in listed)
    shown = json.loads(run("show", KEY[:4], "--store", url, "--json")[1])
    assert [circuit["edges"] for circuit in shown["circuits"]][:2] == [1, 5]
    assert run("verify", "--store", url)[0] == 0
    Backend(url).write(entry_name("ef" + "2" * 30), pack({"schema": SCHEMA - 1}, {}))
    assert "removed 1," in run("gc", "--store", url)[1]
    assert {entry.kind for entry in list_entries(store)} == {"circuits", "checkpoint"}
    run("gc", "--store", url, "--checkpoints")
    assert [entry.kind for entry in list_entries(store)] == ["circuits"]
    with pytest.raises(GatewiseError, match=f"no store in {url}-not"):
        run("list", "--store", f"{url}-not")


# Before the work


@pytest.mark.parametrize(
    ("store", "match"),
    [
        ("nosuch://bucket/runs", r"protocol 'nosuch', which fsspec does not know.*s3://bucket/runs"),
        ("missing://bucket/runs", r"needs a package that is not there: install missingfs"),
        ("memory://", "names no folder"),
        ("simplecache::memory://runs", "not a plain URL"),
        (Path("s3://bucket/runs"), "give it as text: s3://"),
    ],
)
def test_addresses_that_lead_nowhere(
    store: str | Path, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = {"class": "no_such_package.Files", "err": "install missingfs"}
    monkeypatch.setitem(known_implementations, "missing", unknown)
    with pytest.raises(GatewiseError, match=match):
        Store(store)
    if isinstance(store, str):
        command = ["discover", "no-such-model", "--edges", "5", "--out", str(tmp_path), "--store", store]
        assert "the store" in str(CliRunner().invoke(app, command).exception)  # said before the model is looked for


def test_paths_stay_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store("runs/a:b").shown == "runs/a:b"
    assert Store("runs::old").shown == "runs::old"
    assert Store("~/runs").location == str(tmp_path / "runs")
    assert Store(tmp_path).location == str(tmp_path)


def test_no_permission_is_said_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(Bucket, "pipe_file", refuse)
    with pytest.raises(GatewiseError, match=r"cannot write to the store bucket://.*Access Denied.*credentials"):
        Store(f"bucket://{tmp_path}/shared").remember({}, lambda: pytest.fail("worked"))


def test_buckets_are_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(Bucket, "mkdir", lambda _, path, **__: made.append(path))
    with pytest.raises(GatewiseError, match=r"cannot write to .*FileNotFoundError"):
        Store("bucket:///no-such-bucket/runs").check_writable()
    assert made == ["/no-such-bucket/runs"]
    assert not os.path.exists("/no-such-bucket")


def test_passwords_are_not_shown() -> None:
    store = Store("memory://someone:secret@host/runs/")
    assert repr(store) == "<Store in memory://someone:***@host/runs>"
    assert store.location == "memory://someone:secret@host/runs"


# Sweeps


def small_grid() -> Any:
    return grid_from(
        {
            "models": ["tiny"], "tasks": ["ioi"], "sizes": [20, [30, 60]], "seeds": [0], "examples": 4,
            "test_examples": 4, "random_circuits": 1, "methods": ["eap"], "directions": ["ns", "dn"],
        }
    )  # fmt: skip


def test_a_sweep_of_two_workers_equals_the_serial_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "installed")
    monkeypatch.syspath_prepend(tmp_path / "installed")  # workers are given this path, too
    url = f"bucket://{tmp_path}/shared/runs"
    serial = run_sweep(small_grid(), tmp_path / "serial")
    shared = run_sweep(small_grid(), tmp_path / "shared-table", compute=Compute(store=url, workers=2))
    assert (shared.failures, serial.failures) == ((), ())
    assert shared.forecast.missing == 4
    assert (tmp_path / "shared-table/table.csv").read_bytes() == (tmp_path / "serial/table.csv").read_bytes()
    assert not any(entry.problem for entry in list_entries(Store(url)))
    another_machine(monkeypatch, tmp_path)
    again = run_sweep(small_grid(), tmp_path / "again", compute=Compute(store=url))
    assert again.forecast.missing == 0
    assert (tmp_path / "again/table.csv").read_bytes() == (tmp_path / "serial/table.csv").read_bytes()
    as_file = run_sweep(
        small_grid(), tmp_path / "as-file", compute=Compute(store=f"file://{tmp_path}/serial/store", workers=2)
    )
    assert as_file.forecast.missing == 0  # the folder of the serial run


def test_memory_of_one_process_is_no_place_for_workers(tmp_path: Path) -> None:
    with pytest.raises(GatewiseError, match="memory of one process"):
        run_sweep(small_grid(), tmp_path, compute=Compute(store="memory://runs", workers=2))
