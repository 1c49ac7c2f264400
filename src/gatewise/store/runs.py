"""`Store`: results below one folder or at one URL, found again by what was asked."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.store.checkpoints import Checkpoint
from gatewise.store.entries import (
    DamagedError,
    files_of,
    kind_of,
    pack_circuits,
    pack_value,
    parse_entry,
    unpack_circuits,
    unpack_value,
    value_in,
    write_entry,
)
from gatewise.store.keys import SCHEMA, key_of
from gatewise.store.litter import abandoned, discard, remove, temporary_path
from gatewise.store.remote import RemoteCheckpoint, entry_name, join_files, place_of, split_files
from gatewise.store.values import encode

_NOTHING = object()
_Unpack = Callable[[dict[str, Any], dict[str, Tensor]], Any]


class Store:
    """Results below one folder, which is made when the first one is written, or at one URL that fsspec knows.

    At a URL, `root` is the outbox: the folder of this machine where what was not sent yet is kept.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        place = place_of(root)
        self.remote = None if isinstance(place, Path) else place
        self.root = place if isinstance(place, Path) else place.outbox
        self._tidy = False

    @property
    def location(self) -> str:
        """What other processes make the same store of."""
        return str(self.root.absolute()) if self.remote is None else self.remote.url

    @property
    def shown(self) -> str:
        """Where it is, for people."""
        return str(self.root) if self.remote is None else self.remote.shown

    def folder(self, key: str) -> Path:
        return self.root / key[:2] / key

    # Circuits

    def key(self, ingredients: Mapping[str, Any]) -> str:
        """The name of the result that these ingredients determine."""
        return key_of(dict(ingredients))

    def get(self, key: str) -> list[Circuit] | None:
        """The circuits stored under this key; None if there are none, or only damaged ones (with a warning)."""
        found: list[Circuit] | None = self._read(key, "circuits", unpack_circuits)
        return found

    def put(self, key: str, circuits: Sequence[Circuit], record: Mapping[str, Any]) -> None:
        """Store circuits of one graph. `record`: plain data to keep beside them, such as the key's ingredients."""
        self._put(key, pack_circuits(key, circuits, record))

    # Plain data

    def remember(self, ingredients: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """What `compute` gave for these ingredients before, or else gives now; then it is stored.

        Both are plain data: numbers, texts, lists, dicts with texts as keys, True, False, None. Every number comes back
        exactly, also NaN and infinities; tuples come back as lists. The ingredients have to say everything that
        determines the result: weights, pairs, settings, seed, threads.
        """
        self.tidy()
        found = self.recall(ingredients, _NOTHING)
        if found is not _NOTHING:
            return found
        key, record = _named(ingredients)
        self.check_writable()
        content = pack_value(key, compute(), record)
        try:
            self._put(key, content)
        except GatewiseError as error:  # the work is done: hand it over all the same
            warnings.warn(f"the result was computed but not stored: {error}", GatewiseWarning, stacklevel=2)
        return value_in(content)

    def recall(self, ingredients: Mapping[str, Any], default: Any = None) -> Any:
        """What `remember` has stored for these ingredients, or else the default."""
        key, _ = _named(ingredients)
        found: list[Any] | None = self._read(key, "json", lambda result, _: [unpack_value(result)])
        return default if found is None else found[0]

    # Both

    def check_writable(self) -> None:
        """An error if nothing can be stored here: better before hours of work than after."""
        probe = temporary_path(self.root / "probe")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            raise self._cannot_write(error) from error
        if self.remote is not None:
            self.remote.check_writable()

    def checkpoint(self, key: str) -> Checkpoint:
        """Where the search for this key keeps its state until its result is stored."""
        path = self.folder(key).with_name(f"{key}.checkpoint")
        return Checkpoint(path, key) if self.remote is None else RemoteCheckpoint(path, key, self.remote)

    def tidy(self) -> None:
        """Remove what killed processes have left behind; once for each Store, as it lists all of its folders.

        At a URL: also send the results that could not be sent before.
        """
        if self._tidy:
            return
        if self.remote is not None:
            self._send_the_rest()
        for path in abandoned(self.root):
            remove(path)
        for path in self.root.glob("[0-9a-f][0-9a-f]/*.checkpoint"):
            if path.with_suffix("").is_dir():  # killed between storing the result and removing its checkpoint
                remove(path)
        self._tidy = True

    def _put(self, key: str, content: Mapping[str, bytes]) -> None:
        try:
            write_entry(self.folder(key), content)
        except OSError as error:
            raise self._cannot_write(error) from error
        if self.remote is not None:
            try:
                self._send(key, content)
            except GatewiseError as error:
                raise GatewiseError(
                    f"{error} Until it can be sent, the result is kept in {self.folder(key)}; this machine finds it "
                    f"there, and sends it when it next uses the store."
                ) from error

    def _send(self, key: str, content: Mapping[str, bytes]) -> None:
        """To the URL; what is in the outbox is then no longer needed."""
        if self.remote is not None:
            self.remote.write(entry_name(key), join_files(content))
            discard(self.folder(key))

    def _send_the_rest(self) -> None:
        for folder in sorted(self.root.glob("[0-9a-f][0-9a-f]/*")):
            key = folder.name
            if "." in key or not folder.is_dir():
                continue
            try:
                content = files_of(folder)
                parse_entry(content, key)
                self._send(key, content)
                self.checkpoint(key).clear()
            except (DamagedError, FileNotFoundError) as damage:
                if folder.is_dir():  # else another process has just sent it
                    self._set_aside(folder, str(damage))
            except (GatewiseError, OSError) as error:
                message = f"results of this machine are still to be sent, such as {folder}: {error}"
                warnings.warn(message, GatewiseWarning, stacklevel=4)
                return

    def _read(self, key: str, kind: str, unpack: _Unpack) -> Any:
        """None if there is no entry, or only a damaged one."""
        folder = self.folder(key)
        found = self._read_remote(key, kind, unpack)
        if found is not None:
            if folder.with_name(f"{key}.checkpoint").exists():  # killed between storing the result and removing it
                self.checkpoint(key).clear()
            return found
        try:
            return _parsed(files_of(folder), key, kind, unpack) if folder.is_dir() else None
        except DamagedError as damage:
            self._set_aside(folder, str(damage))
            return None
        except OSError as error:
            raise GatewiseError(
                f"cannot read the stored result {folder}: {error.strerror}. Give a store that you may read."
            ) from error

    def _read_remote(self, key: str, kind: str, unpack: _Unpack) -> Any:
        """None also if the store is a folder."""
        joined = None if self.remote is None else self.remote.read(entry_name(key))
        if joined is None:
            return None
        try:
            return _parsed(split_files(joined), key, kind, unpack)
        except DamagedError as damage:
            message = f"the stored result {entry_name(key)} of {self.shown} is damaged: {damage}."
            warnings.warn(f"{message} It is computed again and replaced.", GatewiseWarning, stacklevel=5)
            return None

    def _cannot_write(self, error: OSError) -> GatewiseError:
        another = "give" if self.remote is None else "set GATEWISE_CACHE to"
        return GatewiseError(
            f"cannot store a result in {self.root}: {error.strerror}. What was stored before is untouched; "
            f"free some space, or {another} another folder that you may write to."
        )

    def _set_aside(self, folder: Path, why: str) -> None:
        aside = folder.with_name(f"{folder.name}.damaged-{uuid.uuid4().hex[:8]}")
        try:
            folder.rename(aside)
            done = f"It was set aside as {aside.name}"
        except FileNotFoundError:  # another process was faster
            done = "Another process set it aside"
        except OSError as error:
            done = f"It could not be set aside ({error.strerror})"
        warnings.warn(
            f"the stored result {folder} is damaged: {why}. {done}; the result is computed again.",
            GatewiseWarning,
            stacklevel=5,
        )

    def __repr__(self) -> str:
        return f"<Store in {self.shown}>"


def _parsed(content: Mapping[str, bytes], key: str, kind: str, unpack: _Unpack) -> Any:
    """What an entry holds. Raises DamagedError."""
    result, arrays = parse_entry(content, key)
    if kind_of(result) != kind:
        raise DamagedError(f"it is of the kind {kind_of(result)}, not {kind}")
    return unpack(result, arrays)


def _named(ingredients: Mapping[str, Any]) -> tuple[str, Any]:
    """The key of a plain result, and the ingredients as they are recorded beside it."""
    record = encode(dict(ingredients), "the ingredients")
    return key_of({"schema": SCHEMA, "kind": "json", "ingredients": record}), record
