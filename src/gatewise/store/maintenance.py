"""What is in a store: listed, verified, and rid of what nobody needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gatewise.archive import DamagedError, unpack
from gatewise.errors import GatewiseError
from gatewise.progress import progress_bar
from gatewise.store.backends import File
from gatewise.store.format import SCHEMA, circuits_in, parse, value_in
from gatewise.store.results import Store

EntryKind = Literal["circuits", "json", "checkpoint", "outdated", "damaged", "temporary"]


@dataclass(frozen=True)
class Entry:
    """Something in a store. `circuits` and `json` are results; `checkpoint`s belong to searches that have not ended."""

    key: str
    kind: EntryKind
    path: str  # or URL
    bytes: int
    modified: float  # seconds since 1970
    content: Mapping[str, Any] = field(default_factory=dict)  # what it says, without arrays; empty if it is not sound
    problem: str = ""  # what is wrong with it

    @property
    def record(self) -> Mapping[str, Any]:
        """What was asked."""
        return dict(self.content.get("record", {}))

    @property
    def summary(self) -> str:
        """What it is, in one line for people."""
        if self.problem:
            return self.problem
        record, method = self.record, self.record.get("method")
        if isinstance(method, str):
            sizes = record.get("sizes")
            asked = [size for some in sizes.values() for size in some] if isinstance(sizes, Mapping) else []
            size = f"{_listed(asked)} edges" if asked else f"threshold {record.get('threshold')}"
            made = self.content["circuits"][0]["provenance"] if self.kind == "circuits" else {}
            where = f"{made['task']} in {made.get('model')}, " if "task" in made else ""
            what = "unfinished search" if self.kind == "checkpoint" else "circuits"
            return f"{what} by {method} {record.get('direction')}, {size}: {where}seed {record.get('seed')}"
        cell = record.get("cell")
        if isinstance(cell, Mapping):
            size = f"{_listed(cell['sizes'])} edges" if cell.get("sizes") else f"threshold {cell.get('threshold')}"
            named = " ".join(str(cell.get(name)) for name in ("method", "direction"))
            where = f"{cell.get('task')} in {cell.get('model')}, seed {cell.get('seed')}"
            return f"{record.get('what')}: {named}, {size}: {where}"
        return str(record["what"]) if "what" in record else json.dumps(record)[:200] if record else ""


def _listed(values: object) -> str:
    return ", ".join(map(str, dict.fromkeys(values))) if isinstance(values, (list, tuple)) else str(values)


def list_entries(store: Store) -> list[Entry]:
    """All results and checkpoints, the newest last, each of them read and verified. Changes nothing."""
    found, files = [], store.shelf.files()
    if not files and not store.shelf.root.exists():
        raise GatewiseError(f"there is no store in {store.shown}; give the folder or URL that --store was given.")
    store.shelf.root.check_format()
    with progress_bar("reading the store", len(files)) as bar:
        for file in files:
            content = file.root.read(file.name)
            if content is not None:  # else it is gone since it was listed
                found.append(_entry(file, content))
            bar.advance()
    return sorted(found, key=lambda entry: (entry.modified, entry.key))


def find_entry(store: Store, start: str) -> Entry:
    """The one sound entry whose key begins so."""
    found = [entry for entry in list_entries(store) if not entry.problem and entry.key.startswith(start.lower())]
    results = [entry for entry in found if entry.kind != "checkpoint"] or found
    keys = {entry.key for entry in results}  # in the outbox and at the URL there may be one of the same key
    if len(keys) == 1:
        return results[-1]
    how_many = f"{len(keys)} entries" if results else "no sound entry"
    raise GatewiseError(f"{how_many} of {store.shown} begin with {start!r}; `gatewise runs list` shows their keys.")


def garbage(store: Store, *, checkpoints: bool = False) -> list[Entry]:
    """What nobody needs: temporary files of processes that have ended, what is damaged, results of other schemas,
    checkpoints whose result is there; if asked for, all checkpoints."""
    entries = list_entries(store)
    results = {entry.key for entry in entries if entry.kind in ("circuits", "json")}
    unneeded = [
        entry
        for entry in entries
        if entry.problem or (entry.kind == "checkpoint" and (checkpoints or entry.key in results))
    ]
    left = [(path, path.stat()) for path in store.shelf.abandoned()]
    return [Entry("", "temporary", str(path), about.st_size, about.st_mtime) for path, about in left] + unneeded


def collect(store: Store, *, checkpoints: bool = False) -> list[Entry]:
    """Remove the garbage, and say what it was."""
    found = garbage(store, checkpoints=checkpoints)
    files = {file.where: file for file in store.shelf.files()}
    for entry in found:
        try:
            if entry.kind == "temporary":
                Path(entry.path).unlink(missing_ok=True)
            elif entry.path in files:  # else it is gone already
                files[entry.path].root.remove(files[entry.path].name)
        except OSError as error:
            raise GatewiseError(f"cannot remove {entry.path}: {error.strerror}. May you write there?") from error
    return found


def _entry(file: File, content: bytes) -> Entry:
    key, _, ending = file.name.rpartition("/")[2].partition(".")
    kind: EntryKind = "checkpoint"
    plain: dict[str, Any] = {}
    problem = ""
    try:
        plain, _ = unpack(content)
        if plain.get("schema") != SCHEMA:
            kind, problem = "outdated", f"it is of schema {plain.get('schema')}, not {SCHEMA}, and is never read"
        elif ending == "checkpoint":
            parse(content, key, "checkpoint")
        elif plain.get("kind") == "json":
            kind = "json"
            value_in(content, key)
        else:
            kind = "circuits"
            circuits_in(content, key)
    except DamagedError as damage:
        kind, problem = "damaged", str(damage)
    return Entry(key, kind, file.where, file.bytes, file.modified, {} if problem else plain, problem)
