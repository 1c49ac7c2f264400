"""`Store`: results below one folder or at one URL, recalled by what was asked; and the one way to compute or recall.

    rows = store.remember({"what": "rows of a table", "weights": ..., "pairs": ...}, compute)            # plain data
    curve = store.remember({"what": "curve", ...}, compute, dataclass_codec(Curve))                      # a dataclass

`remember_all` does the same for several results that one computation may give together, as directions of a search do.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from gatewise.archive import DamagedError
from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.store.backends import open_backend
from gatewise.store.checkpoints import Checkpoint
from gatewise.store.format import (
    SCHEMA,
    NewerSchemaError,
    array_in,
    circuits_in,
    encode,
    entry_name,
    key_of,
    pack_array,
    pack_result,
    pack_value,
    value_in,
)
from gatewise.store.plain_data import from_plain, to_plain

_NOTHING = object()
Value = TypeVar("Value")
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Codec(Generic[Value]):
    """How values of one type become the content of a file, and are made of it again."""

    kind: str  # of the file's entry, and part of the key
    pack: Callable[[str, Value, Mapping[str, Any]], bytes]  # key, value, what was asked
    unpack: Callable[[bytes, str], Value]  # content, key; raises DamagedError


# Numbers, texts, lists, dicts with texts as keys, True, False, None. Every number comes back exactly, also NaN and
# infinities; tuples come back as lists.
PLAIN: Codec[Any] = Codec("json", pack_value, value_in)
CIRCUITS: Codec[Sequence[Circuit]] = Codec("circuits", pack_result, circuits_in)  # of one graph
ARRAY: Codec[Tensor] = Codec("array", pack_array, array_in)  # large ones: bytes, not text


def dataclass_codec(kind: Any) -> Codec[Any]:
    """Return a codec for dataclasses, tensors, tuples and mappings, given the type as a type hint has it."""
    return Codec(
        PLAIN.kind,
        lambda key, value, record: pack_value(key, to_plain(value), record),
        lambda content, key: from_plain(kind, value_in(content, key)),
    )


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

    def key(self, ingredients: Mapping[str, Any], codec: Codec[Any] = PLAIN) -> str:
        """Return the name of a result.

        Args:
            ingredients: Plain data that determines the result.
            codec: How it is stored.

        Returns:
            32 hexadecimal digits.
        """
        plain = encode(dict(ingredients), "the ingredients")
        return key_of({"schema": SCHEMA, "kind": codec.kind, "ingredients": plain})

    def get(self, key: str, codec: Codec[Any] = CIRCUITS, default: Any = None) -> Any:
        """Read a result. A damaged file is not used, with a warning.

        Args:
            key: Its name.
            codec: How it is stored.
            default: Returned if nothing is stored under this key, or only something damaged.

        Returns:
            What the codec gives back.
        """
        path = f"{self.shown}/{entry_name(key)}"
        try:
            content = self.backend.read(entry_name(key))
            if content is None:
                return default
            value = codec.unpack(content, key)
        except NewerSchemaError as error:
            raise GatewiseError(f"the stored result {path} is not ours to replace: {error}.") from error
        except DamagedError as damage:
            message = f"the stored result {path} is damaged: {damage}. It is computed again and replaced."
            warnings.warn(message, GatewiseWarning, stacklevel=4)
            return default
        if codec is CIRCUITS:
            self.checkpoint(key).clear()  # of a search that was killed between storing its result and this
        return value

    def put(self, key: str, circuits: Sequence[Circuit], record: Mapping[str, Any]) -> None:
        """Store circuits.

        Args:
            key: Their name.
            circuits: Of one graph.
            record: Plain data that says what was asked.
        """
        self._write(key, CIRCUITS.pack(key, circuits, record), CIRCUITS)

    def _write(self, key: str, content: bytes, codec: Codec[Any]) -> None:
        self.backend.write(entry_name(key), content)
        if codec is CIRCUITS:
            self.checkpoint(key).clear()  # the state of their search is no longer needed

    def checkpoint(self, key: str) -> Checkpoint:
        """Return where a search saves its state until its result is stored.

        Args:
            key: The result's name.

        Returns:
            The checkpoint, which may be empty.
        """
        return Checkpoint(self.backend, key)

    def remember(
        self, ingredients: Mapping[str, Any], compute: Callable[[], Value], codec: Codec[Value] = PLAIN
    ) -> Value:
        """Recall what `compute` gave for these ingredients before, or else compute it now and store it.

        Args:
            ingredients: Plain data that says everything that determines the result: weights, pairs, settings, seed,
                threads.
            compute: Called if the result is not in the store.
            codec: How the result is stored: `PLAIN`, `CIRCUITS`, `ARRAY`, or `dataclass_codec` of a type.

        Returns:
            The result as the codec gives it back, whether or not it was stored before.

        Raises:
            GatewiseError: Nothing can be stored here, said before the work; or the result is not what the codec takes.
        """
        return remember_all(self, {"": ingredients}, lambda _: [({"": compute()}, ())], codec)[""]

    def recall(self, ingredients: Mapping[str, Any], default: Any = None) -> Any:
        """Return plain data that `remember` has stored.

        Args:
            ingredients: As they were given to `remember`.
            default: Returned if there is none.

        Returns:
            The data, or the default.
        """
        return self.get(self.key(ingredients), PLAIN, default)

    def check_writable(self) -> None:
        """Raise an error if nothing can be stored here: better before hours of work than after."""
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

    def __repr__(self) -> str:
        return f"<Store in {self.shown}>"


def remember_all(
    store: Store | None,
    ingredients: Mapping[Name, Mapping[str, Any]],
    compute: Callable[[list[Name]], Iterable[tuple[Mapping[Name, Value], Iterable[Checkpoint]]]],
    codec: Codec[Value],
) -> dict[Name, Value]:
    """Recall several results, compute those that are missing, and store each as soon as it is there.

    Args:
        store: Where results are; None: everything is computed and nothing stored.
        ingredients: By a name of the caller's, what determines each result, as for `Store.remember`.
        compute: Given the names of the missing results, yields some of them at a time, with the checkpoints that are
            no longer needed once these are stored.
        codec: How results are stored.

    Returns:
        The results by name, in the order of `ingredients`.
    """
    results: dict[Name, Value] = {}
    keys: dict[Name, str] = {}
    if store is not None:
        keys = {name: store.key(determining, codec) for name, determining in ingredients.items()}
        store.tidy()
        known = {name: store.get(key, codec, _NOTHING) for name, key in keys.items()}
        results = {name: value for name, value in known.items() if value is not _NOTHING}
    missing = [name for name in ingredients if name not in results]
    if missing and store is not None:
        store.check_writable()
    for values, checkpoints in compute(missing) if missing else ():
        if store is None:
            results |= values
            continue
        # Packed before anything is written: what the codec refuses is an error. What comes back is what is read later.
        packed = {name: codec.pack(keys[name], value, ingredients[name]) for name, value in values.items()}
        results |= {name: codec.unpack(content, keys[name]) for name, content in packed.items()}
        try:
            for name, content in packed.items():
                store._write(keys[name], content, codec)
            for checkpoint in checkpoints:
                checkpoint.clear()
        except GatewiseError as error:  # the work is done: hand it over all the same
            warnings.warn(f"the result was found but not stored: {error}", GatewiseWarning, stacklevel=3)
    return {name: results[name] for name in ingredients}
