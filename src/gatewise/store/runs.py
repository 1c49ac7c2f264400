"""`Store`: results below one folder, found again by what was asked."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gatewise.circuit import Circuit
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.store.checkpoints import Checkpoint
from gatewise.store.entries import (
    DamagedError,
    kind_of,
    pack_circuits,
    pack_value,
    read_entry,
    unpack_circuits,
    unpack_value,
    value_in,
    write_entry,
)
from gatewise.store.keys import SCHEMA, ingredients, key_of
from gatewise.store.litter import abandoned, remove, temporary_path
from gatewise.store.values import encode

if TYPE_CHECKING:
    from gatewise.methods.contract import Problem

_NOTHING = object()


class Store:
    """Results below one folder, which is made when the first one is written."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).expanduser()
        self._tidy = False

    def folder(self, key: str) -> Path:
        return self.root / key[:2] / key

    # Circuits

    def key(self, problem: Problem, method: str, config: Any) -> str:
        """The name of the result of this search: a hash of `ingredients`."""
        return key_of(ingredients(problem, method, config))

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

    def checkpoint(self, key: str) -> Checkpoint:
        """Where the search for this key keeps its state until its result is stored."""
        return Checkpoint(self.folder(key).with_name(f"{key}.checkpoint"), key)

    def tidy(self) -> None:
        """Remove what killed processes have left behind; once for each Store, as it lists all of its folders."""
        if self._tidy:
            return
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

    def _read(self, key: str, kind: str, unpack: Callable[[dict[str, Any], dict[str, Tensor]], Any]) -> Any:
        """None if there is no entry, or only a damaged one."""
        folder = self.folder(key)
        try:
            if not folder.is_dir():
                return None
            result, arrays = read_entry(folder, key)
            if kind_of(result) != kind:
                raise DamagedError(f"it is of the kind {kind_of(result)}, not {kind}")
            return unpack(result, arrays)
        except DamagedError as damage:
            self._set_aside(folder, str(damage))
            return None
        except OSError as error:
            raise GatewiseError(
                f"cannot read the stored result {folder}: {error.strerror}. Give a store that you may read."
            ) from error

    def _cannot_write(self, error: OSError) -> GatewiseError:
        return GatewiseError(
            f"cannot store a result in {self.root}: {error.strerror}. What was stored before is untouched; "
            f"free some space, or give another folder that you may write to."
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
        return f"<Store in {self.root}>"


def _named(ingredients: Mapping[str, Any]) -> tuple[str, Any]:
    """The key of a plain result, and the ingredients as they are recorded beside it."""
    record = encode(dict(ingredients), "the ingredients")
    return key_of({"schema": SCHEMA, "kind": "json", "ingredients": record}), record
