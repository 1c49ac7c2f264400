"""Stores of other versions and of others' making: newer ones stay as they are, pipes and devices are not waited for,
nothing outside is written or removed, and no password is shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from stored_circuits import some_circuits

from gatewise import files
from gatewise.archive import pack
from gatewise.circuits.formats import load_circuit
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.files import UnfitFileError, is_abandoned, read_regular, temporary_path
from gatewise.store import SCHEMA, Store
from gatewise.store.backends import Backend
from gatewise.store.checkpoints import Checkpoint
from gatewise.store.format import checkpoint_name, entry_name
from gatewise.store.maintenance import collect, garbage, list_entries

pytestmark = pytest.mark.attack
KEY = "ab" + "0" * 30
MARK = ".gatewise-store"
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "runs")
    store.put(KEY, some_circuits(), {})
    store.check_writable()
    return store


def root(store: Store) -> Path:
    return Path(store.location)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Other versions


def test_a_newer_store_is_refused_and_stays_as_it_is(store: Store) -> None:
    (root(store) / MARK).write_bytes(b"A run store of gatewise, format 3.\n")
    before = contents(root(store))
    actions: list[Callable[[], object]] = [
        lambda: Store(root(store)).remember({"a": 1}, lambda: 2),
        lambda: Store(root(store)).check_writable(),
        lambda: list_entries(Store(root(store))),
        lambda: collect(Store(root(store))),
    ]
    for action in actions:
        with pytest.raises(GatewiseError, match="format 3, of a newer version"):
            action()
    assert contents(root(store)) == before


@pytest.mark.parametrize("name", [entry_name(KEY), checkpoint_name(KEY)])
def test_entries_of_a_newer_schema_are_neither_read_nor_replaced_nor_removed(store: Store, name: str) -> None:
    newer = pack({"schema": SCHEMA + 1, "key": KEY, "kind": "circuits"}, {})
    (root(store) / name).write_bytes(newer)
    assert "newer" in [entry.kind for entry in list_entries(store)]
    assert garbage(store, checkpoints=True) == []
    assert collect(store) == []
    with pytest.raises(GatewiseError, match=f"of schema {SCHEMA + 1}, of a newer version"):
        Checkpoint(store.backend, KEY).load() if "checkpoint" in name else store.get(KEY)
    assert (root(store) / name).read_bytes() == newer


def test_entries_of_an_older_schema_are_still_garbage(store: Store) -> None:
    (root(store) / entry_name(KEY)).write_bytes(pack({"schema": SCHEMA - 1}, {}))
    assert [entry.kind for entry in collect(store)] == ["outdated"]


def test_a_result_that_was_put_in_place_since_the_listing_is_not_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = root(store) / entry_name(KEY)
    sound = path.read_bytes()
    path.write_bytes(sound[:-1])

    def listed_and_then_replaced(listed: Store, *, checkpoints: bool = False) -> object:
        entries = garbage(listed, checkpoints=checkpoints)
        path.write_bytes(sound)  # another process computes the damaged result again
        return entries

    monkeypatch.setattr("gatewise.store.maintenance.garbage", listed_and_then_replaced)
    assert collect(store) == []
    assert path.read_bytes() == sound


# What is no regular file


@needs_pipes
@pytest.mark.parametrize("name", [entry_name(KEY), checkpoint_name(KEY)])
def test_pipes_in_the_place_of_entries_are_damaged_ones(store: Store, name: str) -> None:
    path = root(store) / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.warns(GatewiseWarning, match="no regular file"):
        assert (Checkpoint(store.backend, KEY).load() if "checkpoint" in name else store.get(KEY)) is None
    assert [(entry.kind, entry.problem) for entry in collect(store)] == [("damaged", "it is no regular file")]
    assert not path.exists()


@needs_pipes
def test_a_pipe_in_the_place_of_the_mark_is_refused(store: Store) -> None:
    (root(store) / MARK).unlink()
    os.mkfifo(root(store) / MARK)
    with pytest.raises(GatewiseError, match="no mark of a store: it is no regular file"):
        store.check_writable()


@needs_pipes
def test_a_pipe_or_a_device_is_no_circuit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "circuit.json")
    for path in (tmp_path / "circuit.json", Path("/dev/zero")):
        with pytest.raises(GatewiseError, match="it is no regular file"):
            load_circuit(path)


def test_a_huge_sparse_file_is_not_read(store: Store, tmp_path: Path) -> None:
    path = root(store) / entry_name(KEY)
    with path.open("r+b") as stream:
        stream.truncate(1 << 40)
    with pytest.warns(GatewiseWarning, match="larger than"):
        assert store.get(KEY) is None
    with (tmp_path / "circuit.json").open("wb") as stream:
        stream.write(b'{"nodes"')
        stream.truncate(1 << 40)
    with pytest.raises(GatewiseError, match="larger than"):
        load_circuit(tmp_path / "circuit.json")
    with pytest.raises(UnfitFileError):
        read_regular(path, 10)


# Places


def test_a_folder_of_the_store_that_is_a_link_elsewhere_is_refused(store: Store, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (root(store) / "ab").rename(elsewhere)
    (root(store) / "ab").symlink_to(elsewhere)
    before = contents(elsewhere)
    for action in (lambda: store.put(KEY, some_circuits(), {}), lambda: store.get(KEY), lambda: collect(store)):
        with pytest.raises(GatewiseError, match="is a link to"):
            action()
    assert contents(elsewhere) == before


@pytest.mark.parametrize("address", ["", " "])
def test_a_store_without_a_name_is_refused(address: str) -> None:
    with pytest.raises(GatewiseError, match="names no folder"):
        Store(address)


@pytest.mark.parametrize(
    "url", ["memory://user:geheim/nis@host/runs", "memory://user:geh@eimnis@host/runs", "memory://:geheimnis@host/runs"]
)
def test_no_part_of_a_password_is_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(url)
    assert "geh" not in store.shown
    assert "nis" not in store.shown
    assert "geh" not in repr(store)

    def refuse(*_: object) -> bytes:
        raise OSError(f"cannot log in at {url}")

    assert isinstance(store.backend, Backend)
    monkeypatch.setattr(type(store.backend._system), "cat_file", refuse)
    with pytest.raises(GatewiseError) as error:
        store.get(KEY)
    assert "geh" not in str(error.value)


# Clocks


def test_a_living_writers_file_is_not_abandoned_after_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock went back an hour after the process began: its file seems to be from before it."""
    path = temporary_path(tmp_path / "result")
    path.write_bytes(b"half of a resu")
    monkeypatch.setattr(os, "getpid", lambda: 1)  # seen by another process
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: path.stat().st_mtime + 3600)
    assert not is_abandoned(path)


def test_a_file_is_abandoned_if_its_number_went_to_a_later_process(tmp_path: Path) -> None:
    number = os.getppid()  # a living process
    begun = files._begun(number)
    name = temporary_path(tmp_path / "result").name.replace(f"-{os.getpid()}-b{files._begun(os.getpid())}-", "-{}-b{}-")
    for said, abandoned in ((begun, False), (begun - 1, True)):
        path = tmp_path / name.format(number, said)
        path.write_bytes(b"")
        assert is_abandoned(path) == abandoned
