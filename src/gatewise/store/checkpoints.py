"""Checkpoints: the state of a search that has not ended, in one file beside the place of its result.

    root/ab/abcdef....checkpoint    sha256 of the rest; one line of JSON; arrays as safetensors

A new state replaces the old one by a rename: whenever a process is killed, one of the two is there. The file is removed
when the result is stored. A damaged one, or one of other versions, is set aside: the search begins anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_arrays
from safetensors.torch import save as save_arrays
from torch import Tensor

from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.store import entries
from gatewise.store.keys import SCHEMA
from gatewise.store.litter import remove, temporary_path
from gatewise.store.values import decode, encode


@dataclass(frozen=True, eq=False)
class Saved:
    """What a search needs to go on from where it was."""

    state: Any  # plain data
    arrays: Mapping[str, Tensor]
    number: int = 0  # how many times the search has saved its state, in all of its starts


class Checkpoint:
    """Where one search keeps its state. Without a path: nowhere."""

    def __init__(self, path: Path | None = None, key: str = "") -> None:
        self.path, self._key = path, key
        self._number = 0

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """What has to be the same for the rest of the search to be what it would have been."""
        return {"schema": SCHEMA, "key": self._key, "gatewise": version("gatewise"), "torch": version("torch")}

    def load(self) -> Saved | None:
        """The last state saved, if there is one that can be trusted."""
        if self.path is None:
            return None
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise GatewiseError(f"cannot read the checkpoint {self.path}: {error.strerror}.") from error
        try:
            saved = self._unpacked(content)
        except entries.DamagedError as damage:
            self._set_aside(self.path, str(damage))
            return None
        self._number = saved.number
        return saved

    def check(self) -> None:
        """Raise DamagedError if the file is not what was written. Other versions are no damage."""
        if self.path is not None:
            self.check_content(self.path.read_bytes())

    def check_content(self, content: bytes) -> None:
        """The same of a file's content."""
        self._parsed(content)

    def save(self, state: Any, arrays: Mapping[str, Tensor]) -> None:
        """Replace the last state. If that fails, the last state is still there."""
        if self.path is None:
            return
        self._number += 1
        self._keep(self.path, self._packed(state, arrays))

    def _keep(self, path: Path, content: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = temporary_path(path)
            try:
                entries._write(temporary, content)
                os.replace(temporary, path)
                entries._flush_folder(path.parent)
            finally:
                remove(temporary)
        except OSError as error:
            raise GatewiseError(
                f"cannot save a checkpoint in {path.parent}: {error.strerror}. The checkpoint before it and all "
                f"stored results are untouched: free some space, start again, and the search goes on from there."
            ) from error

    def clear(self) -> None:
        """The result is stored: the state is no longer needed."""
        if self.path is not None:
            remove(self.path)

    def _packed(self, state: Any, arrays: Mapping[str, Tensor]) -> bytes:
        header = {**self._identity, "number": self._number, "state": encode(state, "the state")}
        line = json.dumps(header, allow_nan=False)
        plain = {name: array.detach().cpu().contiguous().clone() for name, array in arrays.items()}
        body: bytes = line.encode() + b"\n" + save_arrays(plain)
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body

    def _parsed(self, content: bytes) -> tuple[dict[str, Any], Saved]:
        checksum, _, body = content.partition(b"\n")
        if checksum != hashlib.sha256(body).hexdigest().encode():
            raise entries.DamagedError("its checksum does not hold")
        line, _, arrays = body.partition(b"\n")
        try:
            header = json.loads(line)
            owned = {name: array.clone() for name, array in load_arrays(arrays).items()}
            return header, Saved(decode(header["state"]), owned, int(header.get("number", 0)))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, SafetensorError) as error:
            raise entries.DamagedError(f"it cannot be understood ({error})") from error

    def _unpacked(self, content: bytes) -> Saved:
        header, saved = self._parsed(content)
        for name, expected in self._identity.items():
            if header.get(name) != expected:
                raise entries.DamagedError(f"its {name} is {header.get(name)}, not {expected}")
        return saved

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_name(f"{path.name}.damaged-{uuid.uuid4().hex[:8]}")
        try:
            path.rename(aside)
            done = f"It was set aside as {aside.name}"
        except OSError as error:
            done = f"It could not be set aside ({error.strerror})"
        warnings.warn(
            f"the checkpoint {path} is not used: {why}. {done}; the search begins anew.", GatewiseWarning, stacklevel=4
        )
