"""What is in a store: listed, verified, and rid of what nobody needs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gatewise.errors import GatewiseError
from gatewise.progress import progress_bar
from gatewise.store.checkpoints import Checkpoint
from gatewise.store.entries import (
    RESULT,
    DamagedError,
    files_of,
    kind_of,
    parse_entry,
    unpack_circuits,
    unpack_value,
)
from gatewise.store.keys import SCHEMA
from gatewise.store.litter import abandoned, remove
from gatewise.store.remote import Remote, checkpoint_name, entry_name, split_files
from gatewise.store.runs import Store

Kind = Literal["circuits", "json", "checkpoint", "outdated", "damaged", "unreadable", "temporary"]
_LENGTH = 32  # of a key
_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class Entry:
    """Something in a store. `circuits` and `json` are results; `checkpoint`s belong to searches that have not ended."""

    key: str
    kind: Kind
    path: Path | str  # a URL in a store at a URL, but for what is still in the outbox
    bytes: int
    modified: float  # seconds since 1970
    record: Mapping[str, Any]  # what was asked; empty where it is not known

    @property
    def summary(self) -> str:
        """One line for people."""
        named = {name: self.record[name] for name in ("method", "direction") if name in self.record}
        if self.kind == "circuits" and named:
            made = self.record.get("made", {})
            asked = f"{self.record.get('sizes') or 'threshold ' + str(self.record.get('threshold'))}"
            where = " ".join(str(made[name]) for name in ("model", "task") if name in made)
            return f"{' '.join(map(str, named.values()))} {asked} {where} seed {self.record.get('seed')}".strip()
        return json.dumps(self.record)[:200] if self.record else ""


def list_entries(store: Store) -> list[Entry]:
    """All results, checkpoints and damaged entries, newest last. Nothing is verified: see `verify`."""
    if store.remote is None and not store.root.is_dir():
        raise GatewiseError(f"there is no store in {store.root}; give the folder that --store or --out was given.")
    found = [] if store.remote is None else list(_remote_entries(store.remote))
    try:
        for path in sorted(store.root.glob("[0-9a-f][0-9a-f]/*")):
            try:
                entry = _entry(path)
            except FileNotFoundError:  # gone since it was listed
                continue
            if entry is not None:
                found.append(entry)
    except OSError as error:
        raise GatewiseError(f"cannot read the store {store.root}: {error.strerror}.") from error
    return sorted(found, key=lambda entry: (entry.modified, entry.key))


def find_entry(store: Store, start: str) -> Entry:
    """The one entry whose key begins so."""
    known = [entry for entry in list_entries(store) if entry.kind != "damaged"]
    found = [entry for entry in known if entry.key.startswith(start.lower())]
    results = [entry for entry in found if entry.kind != "checkpoint"] or found
    keys = {entry.key for entry in results}  # in the outbox and at the URL there may be one of the same key
    if len(keys) == 1:
        return results[-1]
    how_many = f"{len(keys)} entries" if results else "no entry"
    raise GatewiseError(f"{how_many} of {store.shown} begin with {start!r}; `gatewise runs list` shows their keys.")


def content(store: Store, entry: Entry) -> dict[str, Any]:
    """What an entry says, verified: of circuits without their arrays."""
    try:
        if entry.kind == "checkpoint":
            return {"key": entry.key, "kind": entry.kind, "record": {}}
        result, arrays = parse_entry(_files(store, entry), entry.key)
        if kind_of(result) == "json":
            return result
        return {**result, "arrays": {name: list(array.shape) for name, array in arrays.items()}}
    except DamagedError as damage:
        raise GatewiseError(f"the entry {entry.path} is damaged: {damage}. It will be computed again.") from damage


def verify(store: Store) -> Iterator[tuple[Entry, str]]:
    """Every entry with what is wrong with it, or with "". Changes nothing."""
    for entry in list_entries(store):
        yield entry, _problem(store, entry)


def _problem(store: Store, entry: Entry) -> str:
    if entry.kind == "damaged":
        return "it was set aside before"
    if entry.kind == "outdated":
        return f"it is of another schema than {SCHEMA}, and is never read"
    try:
        if entry.kind == "checkpoint":
            _check_checkpoint(store, entry)
        else:
            result, arrays = parse_entry(_files(store, entry), entry.key)
            unpack_value(result) if kind_of(result) == "json" else unpack_circuits(result, arrays)
    except DamagedError as damage:
        return str(damage)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return ""


def _files(store: Store, entry: Entry) -> dict[str, bytes]:
    if isinstance(entry.path, Path):
        return files_of(entry.path)
    return split_files(_sent(store, entry_name(entry.key)))


def _check_checkpoint(store: Store, entry: Entry) -> None:
    if isinstance(entry.path, Path):
        Checkpoint(entry.path, entry.key).check()
    else:
        Checkpoint(key=entry.key).check_content(_sent(store, checkpoint_name(entry.key)))


def _sent(store: Store, name: str) -> bytes:
    found = None if store.remote is None else store.remote.read(name)
    if found is None:
        raise DamagedError("it is gone")
    return found


def garbage(store: Store, *, checkpoints: bool = False) -> list[Entry]:
    """What nobody needs: temporary files of processes that have ended, what was set aside, results of other schemas,
    checkpoints whose result is there; if asked for, all checkpoints."""
    entries = list_entries(store)
    results = {entry.key for entry in entries if entry.kind in ("circuits", "json")}
    unneeded = [
        entry
        for entry in entries
        if entry.kind in ("damaged", "outdated")
        or (entry.kind == "checkpoint" and (checkpoints or entry.key in results))
    ]
    return [_described(path, "", "temporary", {}) for path in abandoned(store.root)] + unneeded


def collect(store: Store, *, checkpoints: bool = False) -> list[Entry]:
    """Remove the garbage, and say what it was."""
    found = garbage(store, checkpoints=checkpoints)
    for entry in found:
        if isinstance(entry.path, Path):
            remove(entry.path)
        elif store.remote is not None:
            store.remote.remove((checkpoint_name if entry.kind == "checkpoint" else entry_name)(entry.key))
    left = [entry.path for entry in found if isinstance(entry.path, Path) and entry.path.exists()]
    if left:
        raise GatewiseError(
            f"{len(left)} of {len(found)} could not be removed, such as {left[0]}: may you write there?"
        )
    return found


def _entry(path: Path) -> Entry | None:
    key, _, more = path.name.partition(".")
    if len(key) != _LENGTH or not set(key) <= _DIGITS or path.parent.name != key[:2]:
        return None
    if "damaged-" in more:
        return _described(path, key, "damaged", {})
    if more == "checkpoint":
        return _described(path, key, "checkpoint", {})
    if more or not path.is_dir():
        return None
    try:
        kind, record = _told((path / RESULT).read_bytes())
    except OSError:
        kind, record = "unreadable", {}
    return _described(path, key, kind, record)


def _remote_entries(remote: Remote) -> Iterator[Entry]:
    """Every result is read, as what was asked is inside."""
    files = list(remote.files())
    with progress_bar("reading the store", len(files)) as bar:
        for file in files:
            kind: Kind = "checkpoint"
            record: Mapping[str, Any] = {}
            if file.kind == "entry":
                joined = remote.read(entry_name(file.key))
                if joined is None:  # gone since it was listed
                    continue
                try:
                    kind, record = _told(split_files(joined)[RESULT])
                except (DamagedError, KeyError):
                    kind = "unreadable"
            path = f"{remote.shown}/{file.key[:2]}/{file.key}.{file.kind}"
            yield Entry(file.key, kind, path, file.bytes, file.modified, record)
            bar.advance()


def _told(result: bytes) -> tuple[Kind, Mapping[str, Any]]:
    """What kind of entry it is, and what was asked."""
    try:
        told = json.loads(result)
        if told["schema"] != SCHEMA:
            return "outdated", {}
        record = dict(told["record"])
        if kind_of(told) == "json":
            return "json", record
        return "circuits", {**record, "made": told["circuits"][0]["provenance"]}
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return "unreadable", {}


def _described(path: Path, key: str, kind: Kind, record: Mapping[str, Any]) -> Entry:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return Entry(key, kind, path, sum(file.stat().st_size for file in files), path.stat().st_mtime, record)
