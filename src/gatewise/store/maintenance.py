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
from gatewise.store.format import SCHEMA, NewerSchemaError, array_in, check_schema, circuits_in, parse, value_in
from gatewise.store.results import Store

EntryKind = Literal["circuits", "json", "array", "checkpoint", "outdated", "newer", "damaged", "temporary"]
_UNSOUND = ("damaged", "outdated")


@dataclass(frozen=True)
class Entry:
    """A file of a store. `circuits`, `json`, `array` are results; `checkpoint`s belong to unfinished searches."""

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
        record = self.record
        if self.problem:
            return self.problem
        if isinstance(record.get("method"), str):
            return self._search_summary(record)
        if isinstance(record.get("cell"), Mapping):
            cell = record["cell"]
            named = f"{cell.get('method')} {cell.get('direction')}"
            where = f"{cell.get('task')} in {cell.get('model')}, seed {cell.get('seed')}"
            size = _size(cell.get("sizes"), cell.get("threshold"))
            if cell.get("faithfulness") is not None:
                size = f"faithfulness {cell['faithfulness']}"
            return f"{record.get('what')}: {named}, {size}: {where}"
        if "what" in record:
            return str(record["what"])
        return json.dumps(record)[:200] if record else ""

    def _search_summary(self, record: Mapping[str, Any]) -> str:
        sizes: list[Any] = []
        if isinstance(record.get("sizes"), Mapping):  # by direction
            sizes = [size for of_direction in record["sizes"].values() for size in of_direction]
        provenance = self.content["circuits"][0]["provenance"] if self.kind == "circuits" else {}
        where = f"{provenance['task']} in {provenance.get('model')}, " if "task" in provenance else ""
        what = "unfinished search" if self.kind == "checkpoint" else "circuits"
        size = _size(sizes, record.get("threshold"))
        return f"{what} by {record['method']} {record.get('direction')}, {size}: {where}seed {record.get('seed')}"


def _size(sizes: Any, threshold: Any) -> str:
    if not sizes and threshold is None:  # a ranking, which serves all sizes
        return "all edges"
    return f"{_listed(sizes)} edges" if sizes else f"threshold {threshold}"


def _listed(values: object) -> str:
    return ", ".join(map(str, dict.fromkeys(values))) if isinstance(values, (list, tuple)) else str(values)


def list_entries(store: Store) -> list[Entry]:
    """List all results and checkpoints, the newest last, each of them read and verified. Changes nothing."""
    entries, files = [], list(store.backend.files())
    if not files and not store.backend.exists():
        raise GatewiseError(f"there is no store in {store.shown}; give the folder or URL that --store was given.")
    store.backend.check_format()
    with progress_bar("reading the store", len(files)) as bar:
        for file in files:
            entry = _read_entry(store, file)
            entries += [] if entry is None else [entry]  # else it is gone since it was listed
            bar.advance()
    return sorted(entries, key=lambda entry: (entry.modified, entry.key))


def find_entry(store: Store, start: str) -> Entry:
    """Return the one sound entry whose key begins so; of a result and a checkpoint with the same key the result."""
    matching = [entry for entry in list_entries(store) if not entry.problem and entry.key.startswith(start.lower())]
    matching = [entry for entry in matching if entry.kind != "checkpoint"] or matching
    if len(matching) == 1:
        return matching[0]
    count = f"{len(matching)} entries" if matching else "no sound entry"
    raise GatewiseError(f"{count} of {store.shown} begin with {start!r}; `gatewise runs list` shows their keys.")


def garbage(store: Store, *, checkpoints: bool = False) -> list[Entry]:
    """List what nobody needs: temporary files of processes that have ended, what is damaged, results of older schemas,
    checkpoints whose result is there; if asked for, all checkpoints. What a newer version has written is not ours."""
    entries = list_entries(store)
    results = {entry.key for entry in entries if entry.kind in ("circuits", "json", "array")}
    unneeded = []
    for path in store.backend.abandoned():
        about = path.stat()
        unneeded.append(Entry("", "temporary", str(path), about.st_size, about.st_mtime))
    for entry in entries:
        if entry.kind in _UNSOUND or (entry.kind == "checkpoint" and (checkpoints or entry.key in results)):
            unneeded.append(entry)
    return unneeded


def collect(store: Store, *, checkpoints: bool = False) -> list[Entry]:
    """Remove the garbage, and return what it was."""
    removed = []
    for entry in garbage(store, checkpoints=checkpoints):
        try:
            if entry.kind == "temporary":
                Path(entry.path).unlink(missing_ok=True)
            elif _is_still(entry, store):
                store.backend.remove(_name_of(entry, store))
            else:
                continue
        except OSError as error:
            raise GatewiseError(f"cannot remove {entry.path}: {error.strerror}. May you write there?") from error
        removed.append(entry)
    return removed


def _is_still(entry: Entry, store: Store) -> bool:
    """Whether the file is what it was when it was listed: another process may have put a sound result in its place."""
    now = _read_entry(store, File(_name_of(entry, store), entry.bytes, entry.modified))
    return now is not None and (now.kind, now.problem) == (entry.kind, entry.problem)


def _name_of(entry: Entry, store: Store) -> str:
    return entry.path.removeprefix(f"{store.shown}/")


def _read_entry(store: Store, file: File) -> Entry | None:
    """An entry as it is now; None if there is no such file."""
    path, key = f"{store.shown}/{file.name}", file.name.rpartition("/")[2].partition(".")[0]
    try:
        content = store.backend.read(file.name)
    except DamagedError as damage:
        return Entry(key, "damaged", path, file.bytes, file.modified, problem=str(damage))
    return None if content is None else _entry(path, file, content)


def _entry(path: str, file: File, content: bytes) -> Entry:
    key, _, ending = file.name.rpartition("/")[2].partition(".")
    kind: EntryKind = "checkpoint"
    plain: dict[str, Any] = {}
    problem = ""
    try:
        plain, _ = unpack(content)
        check_schema(plain)
        if plain.get("schema") != SCHEMA:
            kind, problem = "outdated", f"it is of schema {plain.get('schema')}, not {SCHEMA}, and is never read"
        elif ending == "checkpoint":
            parse(content, key, "checkpoint")
        elif plain.get("kind") == "json":
            kind = "json"
            value_in(content, key)
        elif plain.get("kind") == "array":
            kind = "array"
            array_in(content, key)
        else:
            kind = "circuits"
            circuits_in(content, key)
    except NewerSchemaError as newer:
        kind, problem = "newer", str(newer)
    except DamagedError as damage:
        kind, problem = "damaged", str(damage)
    return Entry(key, kind, path, file.bytes, file.modified, {} if problem else plain, problem)
