"""What is in a store: listed, verified, and rid of what nobody needs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gatewise.errors import GatewiseError
from gatewise.store.checkpoints import Checkpoint
from gatewise.store.entries import RESULT, DamagedError, kind_of, read_entry, unpack_circuits, unpack_value
from gatewise.store.keys import SCHEMA
from gatewise.store.litter import abandoned, remove
from gatewise.store.runs import Store

Kind = Literal["circuits", "json", "checkpoint", "outdated", "damaged", "unreadable", "temporary"]
_LENGTH = 32  # of a key
_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class Entry:
    """Something in a store. `circuits` and `json` are results; `checkpoint`s belong to searches that have not ended."""

    key: str
    kind: Kind
    path: Path
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
    if not store.root.is_dir():
        raise GatewiseError(f"there is no store in {store.root}; give the folder that --store or --out was given.")
    found = []
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
    if len(results) == 1:
        return results[0]
    how_many = f"{len(results)} entries" if results else "no entry"
    raise GatewiseError(f"{how_many} of {store.root} begin with {start!r}; `gatewise runs list` shows their keys.")


def content(entry: Entry) -> dict[str, Any]:
    """What an entry says, verified: of circuits without their arrays."""
    try:
        if entry.kind == "checkpoint":
            return {"key": entry.key, "kind": entry.kind, "record": {}}
        result, arrays = read_entry(entry.path, entry.key)
        if kind_of(result) == "json":
            return result
        return {**result, "arrays": {name: list(array.shape) for name, array in arrays.items()}}
    except DamagedError as damage:
        raise GatewiseError(f"the entry {entry.path} is damaged: {damage}. It will be computed again.") from damage


def verify(store: Store) -> Iterator[tuple[Entry, str]]:
    """Every entry with what is wrong with it, or with "". Changes nothing."""
    for entry in list_entries(store):
        yield entry, _problem(entry)


def _problem(entry: Entry) -> str:
    if entry.kind == "damaged":
        return "it was set aside before"
    if entry.kind == "outdated":
        return f"it is of another schema than {SCHEMA}, and is never read"
    try:
        if entry.kind == "checkpoint":
            Checkpoint(entry.path, entry.key).check()
        else:
            result, arrays = read_entry(entry.path, entry.key)
            unpack_value(result) if kind_of(result) == "json" else unpack_circuits(result, arrays)
    except DamagedError as damage:
        return str(damage)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return ""


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
        remove(entry.path)
    left = [entry.path for entry in found if entry.path.exists()]
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
        result = json.loads((path / RESULT).read_bytes())
        if result["schema"] != SCHEMA:
            return _described(path, key, "outdated", {})
        kind = kind_of(result)
        record = dict(result["record"])
        if kind == "circuits":
            record["made"] = result["circuits"][0]["provenance"]
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return _described(path, key, "unreadable", {})
    return _described(path, key, "json" if kind == "json" else "circuits", record)


def _described(path: Path, key: str, kind: Kind, record: Mapping[str, Any]) -> Entry:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return Entry(key, kind, path, sum(file.stat().st_size for file in files), path.stat().st_mtime, record)
