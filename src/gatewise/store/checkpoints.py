"""Checkpoints: the state of a search that has not ended, in one file beside the place of its result.

A new state replaces the old one: whenever a process is killed, one of the two is there. The file is removed when the
result is stored. A damaged one, or one of other versions, is not used: the search begins anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

from torch import Tensor

from gatewise.archive import DamagedError, pack
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.store.backends import Backend
from gatewise.store.format import SCHEMA, NewerSchemaError, checkpoint_name, decode, encode, key_of, parse


@dataclass(frozen=True, eq=False)
class Saved:
    """What a search needs to resume."""

    state: Any  # plain data
    arrays: Mapping[str, Tensor]


class Checkpoint:
    """Where one search keeps its state. Without a backend: nowhere."""

    def __init__(self, backend: Backend | None = None, key: str = "") -> None:
        self._backend, self._key, self._name = backend, key, checkpoint_name(key)

    @cached_property
    def _versions(self) -> dict[str, str]:
        """Versions that must match for a resumed search to be identical."""
        return {"gatewise": version("gatewise"), "torch": version("torch")}

    def load(self) -> Saved | None:
        """Read the last state.

        Returns:
            The state; None if there is none that can be trusted.
        """
        if self._backend is None:
            return None
        where = f"{self._backend.shown}/{self._name}"
        try:
            content = self._backend.read(self._name)
            return None if content is None else self._unpacked(content)
        except NewerSchemaError as error:
            raise GatewiseError(f"the checkpoint {where} is not ours to replace: {error}.") from error
        except DamagedError as damage:
            message = f"the checkpoint {where} is not used: {damage}. The search begins anew."
            warnings.warn(message, GatewiseWarning, stacklevel=3)
            return None

    def save(self, state: Any, arrays: Mapping[str, Tensor]) -> None:
        """Replace the last state. If that fails, the last state is still there.

        Args:
            state: Plain data.
            arrays: Tensors by name.

        Raises:
            GatewiseError: If it cannot be written.
        """
        if self._backend is None:
            return
        try:
            self._backend.write(self._name, self._packed(state, arrays))
        except GatewiseError as error:
            raise GatewiseError(
                f"cannot save a checkpoint: {error} Start again then, and the search resumes from the one before."
            ) from error

    def part(self, name: str) -> Checkpoint:
        """Make a checkpoint for a part of the search, done by a worker.

        Args:
            name: Of the part.

        Returns:
            Where it keeps its own state.
        """
        return Checkpoint(self._backend, key_of({"search": self._key, "part": name}))

    def clear(self) -> None:
        """Remove the state once the result is stored. One that may not be removed is left over and does no harm."""
        if self._backend is not None:
            with suppress(GatewiseError):
                self._backend.remove(self._name)

    def _packed(self, state: Any, arrays: Mapping[str, Tensor]) -> bytes:
        head = {"schema": SCHEMA, "key": self._key, "kind": "checkpoint", **self._versions}
        return pack({**head, "state": encode(state, "the state")}, arrays)

    def _unpacked(self, content: bytes) -> Saved:
        plain, arrays = parse(content, self._key, "checkpoint")
        for name, expected in self._versions.items():
            if plain.get(name) != expected:
                raise DamagedError(f"its {name} is {plain.get(name)}, not {expected}")
        try:
            return Saved(decode(plain["state"]), arrays)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise DamagedError(f"its state cannot be understood ({error})") from error
