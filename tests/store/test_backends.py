"""Stores at URLs: the same results as in a folder, found from elsewhere; damage is never trusted, nothing is lost."""

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
from gatewise.store.backends import Folder, Root
from gatewise.store.format import checkpoint_name, entry_name
from gatewise.store.maintenance import collect, list_entries
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


def outbox(store: Store) -> Folder:
    assert store.shelf.outbox is not None
    return store.shelf.outbox


def unsent(store: Store) -> list[str]:
    """Names of all files in the outbox of this machine."""
    return [path.name for path in outbox(store).folder.rglob("*") if path.is_file()]


# What is stored


def test_found_again_from_another_machine_equal_to_a_folder_store(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, folder = Store(url), Store(tmp_path / "folder")
    for store in (here, folder):
        assert store.get(KEY) is None
        store.check_writable()
        store.put(KEY, some_circuits(), {"why": "test"})
        assert store.remember({"a": 1}, lambda: [float("inf"), 0.1]) == [float("inf"), 0.1]
    assert unsent(here) == []
    another_machine(monkeypatch, tmp_path)
    there = Store(url + "/")
    assert outbox(there).folder != outbox(here).folder
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
    assert (store.shelf.outbox, store.location) == (None, str(tmp_path / "runs"))
    assert same(store.get(KEY) or [], some_circuits())


def test_two_writers_leave_the_whole_entry_of_one(url: str) -> None:
    """Times differ, so the files do: of two files by two writers, one could have been of each."""
    Store(url).put(KEY, some_circuits(), {"writer": "first, and its record is longer"})
    Store(url).put(KEY, some_circuits()[:1], {"writer": "second"})
    assert same(Store(url).get(KEY) or [], some_circuits()[:1])


# Damage


@pytest.mark.parametrize("damage", ["empty", "half", "one byte more", "one bit", "wrong name"])
def test_damage_is_never_trusted_and_is_replaced(url: str, damage: str) -> None:
    store, remote = Store(url), Root(url)
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
    store.shelf.root.write(f"{KEY[:2]}/{KEY}.entry", b"{}")
    store.shelf.root.write(".gatewise-store", b"A run store of gatewise.\n")
    with pytest.raises(GatewiseError, match=r"earlier version of gatewise.*give another place"):
        store.remember({}, lambda: pytest.fail("worked"))


# Nothing is lost


class Down:
    """Stands for a network that fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.down, real = True, Bucket.pipe_file

        def pipe(system: Bucket, *arguments: Any, **more: Any) -> Any:
            if self.down:
                raise ConnectionError("the network is down\nand more lines")
            return real(system, *arguments, **more)

        monkeypatch.setattr(Bucket, "pipe_file", pipe)


def test_what_cannot_be_sent_is_kept_found_and_sent_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"bucket://{tmp_path}/shared/runs"
    Store(url).check_writable()
    network = Down(monkeypatch)
    monkeypatch.setattr(Root, "check_writable", lambda _: None)  # it broke down after that
    with pytest.warns(GatewiseWarning, match=r"the network is down\).*kept in .*sends them"):
        assert Store(url).remember({"a": 1}, lambda: 5) == 5
    assert Store(url).recall({"a": 1}) == 5
    with pytest.warns(GatewiseWarning, match="still to be sent"):
        assert Store(url).remember({"a": 1}, lambda: 6) == 5
    network.down = False
    store = Store(url)
    assert [entry.path.startswith("bucket://") for entry in list_entries(store)] == [False]
    store.tidy()
    assert unsent(store) == []
    assert [entry.path.startswith("bucket://") for entry in list_entries(store)] == [True]
    another_machine(monkeypatch, tmp_path)
    assert Store(url).recall({"a": 1}) == 5


def test_damage_in_the_outbox_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"bucket://{tmp_path}/shared/runs"
    network, store = Down(monkeypatch), Store(url)
    with pytest.warns(GatewiseWarning, match="kept in"):
        store.put(KEY, some_circuits(), {})
    outbox(store).write(entry_name(KEY), b"x")
    network.down = False
    store.tidy()
    assert store.shelf.root.read(entry_name(KEY)) is None
    with pytest.warns(GatewiseWarning, match="is damaged"):
        assert Store(url).get(KEY) is None
    assert [entry.kind for entry in collect(store)] == ["damaged"]
    assert unsent(store) == []


def test_a_search_goes_on_while_the_network_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, whole = f"bucket://{tmp_path}/shared/runs", found("edge-pruning threshold")
    Store(url).check_writable()
    seen: list[int] = []
    with stopped_after(1, seen), pytest.raises(StoppedError):
        found("edge-pruning threshold", compute=Compute(store=url))
    network = Down(monkeypatch)
    monkeypatch.setattr(Root, "check_writable", lambda _: None)
    with (
        stopped_after(1, seen),
        pytest.warns(GatewiseWarning, match="network is down.*kept in"),
        pytest.raises(StoppedError),
    ):
        found("edge-pruning threshold", compute=Compute(store=url))
    network.down, seen = False, []
    with stopped_after(0, seen):
        assert same_search(found("edge-pruning threshold", compute=Compute(store=url)), whole)
    everything: list[int] = []
    with stopped_after(0, everything):
        found("edge-pruning threshold", compute=Compute(store=tmp_path / "folder"))
    assert len(seen) == len(everything) - 2  # went on from the later state, which was not sent
    assert unsent(Store(url)) == []


# Checkpoints


def test_a_search_goes_on_elsewhere(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, seen = found("acdc sizes"), []
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


def test_the_later_state_is_used(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(url).checkpoint(KEY).save({"step": 1}, {"x": torch.zeros(1)})
    another_machine(monkeypatch, tmp_path)
    there = Store(url).checkpoint(KEY)
    saved = there.load()
    assert saved is not None
    assert saved.state == {"step": 1}
    there.save({"step": 2}, {})
    store = Store(url)
    first, second = Store(tmp_path / "a").checkpoint(KEY), store.checkpoint(KEY)
    first.save({"step": "unsent"}, {})  # of a time without a network, before the other machine went on
    (kept,) = (content for _, content in Store(tmp_path / "a").shelf.copies(checkpoint_name(KEY)))
    outbox(store).write(checkpoint_name(KEY), kept)
    later = second.load()
    assert later is not None
    assert later.state == {"step": 2}
    Root(url).write(checkpoint_name(KEY), b"half")
    with pytest.warns(GatewiseWarning, match=r"checkpoint .* is not used: it cannot be understood"):
        left = Store(url).checkpoint(KEY).load()
    assert left is not None
    assert left.state == {"step": "unsent"}
    assert sorted(bool(entry.problem) for entry in list_entries(Store(url))) == [False, True]
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
    store.put(
        KEY, some_circuits(), {"method": {"name": "eap"}, "directions": ["ns"], "sizes": {"ns": [1, 5]}, "seed": 0}
    )
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
    Root(url).write(entry_name("ef" + "2" * 30), pack({"schema": SCHEMA - 1}, {}))
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


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    store = Store("memory://someone:secret@host/runs/")
    assert repr(store) == "<Store in memory://someone:***@host/runs>"
    assert store.location == "memory://someone:secret@host/runs"
    assert "secret" not in outbox(store).location


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
    assert unsent(Store(url)) == []
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
