"""`Store`: results below one folder or at one URL, found again by what was asked."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from gatewise.archive import DamagedError
from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.store.backends import open_backend
from gatewise.store.checkpoints import Checkpoint
from gatewise.store.format import SCHEMA, circuits_in, encode, entry_name, key_of, pack_result, pack_value, value_in

_NOTHING = object()
_Found = TypeVar("_Found")


class Store:
    """Results below one folder, which is made when the first one is written, or at one URL that fsspec knows."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.backend = open_backend(root)
        self._tidy = False

    @property
    def location(self) -> str:
        """What other processes make the same store of."""
        return self.backend.location

    @property
    def shown(self) -> str:
        """Where it is, for people."""
        return self.backend.shown

    # Circuits

    def key(self, ingredients: Mapping[str, Any]) -> str:
        """The name of the result that these ingredients determine."""
        return key_of(dict(ingredients))

    def get(self, key: str) -> list[Circuit] | None:
        """The circuits stored under this key; None if there are none, or only damaged ones (with a warning)."""
        found = self._read(key, circuits_in)
        if found is not None:
            self.checkpoint(key).clear()  # of a search that was killed between storing its result and this
        return found

    def put(self, key: str, circuits: Sequence[Circuit], record: Mapping[str, Any]) -> None:
        """Store circuits of one graph; the state of their search is then no longer needed.

        `record`: plain data to keep beside them, such as the key's ingredients.
        """
        self.backend.write(entry_name(key), pack_result(key, circuits, record))
        self.checkpoint(key).clear()

    def checkpoint(self, key: str) -> Checkpoint:
        """Where the search for this key keeps its state until its result is stored."""
        return Checkpoint(self.backend, key)

    # Plain data

    def remember(self, ingredients: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """What `compute` gave for these ingredients before, or else gives now; then it is stored.

        Both are plain data: numbers, texts, lists, dicts with texts as keys, True, False, None. Every number comes back
        exactly, also NaN and infinities; tuples come back as lists. The ingredients have to say everything that
        determines the result: weights, pairs, settings, seed, threads.
        """
        key, record = _named(ingredients)
        self.tidy()
        found = self.recall(ingredients, _NOTHING)
        if found is not _NOTHING:
            return found
        self.check_writable()
        content = pack_value(key, compute(), record)
        try:
            self.backend.write(entry_name(key), content)
        except GatewiseError as error:  # the work is done: hand it over all the same
            warnings.warn(f"the result was computed but not stored: {error}", GatewiseWarning, stacklevel=2)
        return value_in(content, key)

    def recall(self, ingredients: Mapping[str, Any], default: Any = None) -> Any:
        """What `remember` has stored for these ingredients, or else the default."""
        key, _ = _named(ingredients)
        found = self._read(key, lambda content, key: [value_in(content, key)])
        return default if found is None else found[0]

    # Both

    def check_writable(self) -> None:
        """An error if nothing can be stored here: better before hours of work than after."""
        self.backend.check_writable()

    def tidy(self) -> None:
        """Before the work, once for each Store: refuse the store of an earlier version, and remove what killed
        processes have left behind."""
        if self._tidy:
            return
        self.backend.check_format()
        for path in self.backend.abandoned():
            with suppress(OSError):  # what is left over does no harm
                path.unlink()
        self._tidy = True

    def _read(self, key: str, unpack: Callable[[bytes, str], _Found]) -> _Found | None:
        """None if there is no entry, or only a damaged one."""
        content = self.backend.read(entry_name(key))
        try:
            return None if content is None else unpack(content, key)
        except DamagedError as damage:
            where = f"{self.shown}/{entry_name(key)}"
            message = f"the stored result {where} is damaged: {damage}. It is computed again and replaced."
            warnings.warn(message, GatewiseWarning, stacklevel=4)
        return None

    def __repr__(self) -> str:
        return f"<Store in {self.shown}>"


def _named(ingredients: Mapping[str, Any]) -> tuple[str, Any]:
    """The key of a plain result, and the ingredients as they are recorded beside it."""
    record = encode(dict(ingredients), "the ingredients")
    return key_of({"schema": SCHEMA, "kind": "json", "ingredients": record}), record
