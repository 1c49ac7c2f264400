"""Checkpoints: the state of a search that has not ended, in one file beside the place of its result.

A new state replaces the old one: whenever a process is killed, one of the two is there. The file is removed when the
result is stored. A damaged one, or one of other versions, is not used: the search begins anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

from torch import Tensor

from gatewise.archive import DamagedError, pack
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.store.backends import Shelf
from gatewise.store.format import SCHEMA, checkpoint_name, decode, encode, key_of, parse


@dataclass(frozen=True, eq=False)
class Saved:
    """What a search needs to go on from where it was."""

    state: Any  # plain data
    arrays: Mapping[str, Tensor]
    number: int = 0  # how many times the search has saved its state, in all of its starts


class Checkpoint:
    """Where one search keeps its state. Without a shelf: nowhere."""

    def __init__(self, shelf: Shelf | None = None, key: str = "") -> None:
        self._shelf, self._key, self._name = shelf, key, checkpoint_name(key)
        self._number = 0

    @cached_property
    def _versions(self) -> dict[str, str]:
        """What has to be the same for the rest of the search to be what it would have been."""
        return {"gatewise": version("gatewise"), "torch": version("torch")}

    def load(self) -> Saved | None:
        """The last state saved, if there is one that can be trusted."""
        latest: Saved | None = None
        for where, content in self._shelf.copies(self._name) if self._shelf else ():
            try:
                saved = self._unpacked(content)
            except DamagedError as damage:
                message = f"the checkpoint {where} is not used: {damage}. Without another, the search begins anew."
                warnings.warn(message, GatewiseWarning, stacklevel=3)
                continue
            latest = saved if latest is None or saved.number > latest.number else latest
        self._number = 0 if latest is None else latest.number
        return latest

    def save(self, state: Any, arrays: Mapping[str, Tensor]) -> None:
        """Replace the last state. If that fails, the last state is still there."""
        if self._shelf is None:
            return
        self._number += 1
        try:
            self._shelf.write(self._name, self._packed(state, arrays))
        except GatewiseError as error:
            raise GatewiseError(
                f"cannot save a checkpoint: {error} Start again then, and the search goes on from the one before."
            ) from error

    def part(self, name: str) -> Checkpoint:
        """Where a part of the search, done by a worker, keeps its own state."""
        return Checkpoint(self._shelf, key_of({"search": self._key, "part": name}))

    def clear(self) -> None:
        """The result is stored: the state is no longer needed."""
        if self._shelf is not None:
            self._shelf.remove(self._name)

    def _packed(self, state: Any, arrays: Mapping[str, Tensor]) -> bytes:
        head = {"schema": SCHEMA, "key": self._key, "kind": "checkpoint", **self._versions}
        return pack({**head, "number": self._number, "state": encode(state, "the state")}, arrays)

    def _unpacked(self, content: bytes) -> Saved:
        plain, arrays = parse(content, self._key, "checkpoint")
        for name, expected in self._versions.items():
            if plain.get(name) != expected:
                raise DamagedError(f"its {name} is {plain.get(name)}, not {expected}")
        try:
            return Saved(decode(plain["state"]), arrays, int(plain["number"]))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise DamagedError(f"its state cannot be understood ({error})") from error
