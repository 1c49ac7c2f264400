"""What is in the file of a stored result, exactly, and what the file is called."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from gatewise.archive import DamagedError, pack, unpack
from gatewise.circuits.circuit import Circuit
from gatewise.circuits.serialization import pack_circuits, unpack_circuits
from gatewise.errors import GatewiseError
from gatewise.files import as_plain

SCHEMA = 2  # raise it when a method or an entry changes its meaning: older entries are then no longer found
_TAG = "$float"  # {"$float": "nan"}: JSON has no NaN and no infinities
_NOT_FINITE = ("nan", "inf", "-inf")


def key_of(plain: Any) -> str:
    """Return a name for plain data: 32 hexadecimal digits."""
    text = json.dumps(plain, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def entry_name(key: str) -> str:
    return f"{key[:2]}/{key}.safetensors"


def checkpoint_name(key: str) -> str:
    return f"{key[:2]}/{key}.checkpoint"


def pack_result(key: str, circuits: Sequence[Circuit], record: Mapping[str, Any]) -> bytes:
    """Return the content of a file of circuits of one graph."""
    plain, arrays = pack_circuits(circuits)
    return pack({**_head(key, "circuits", record), **plain}, arrays)


def pack_value(key: str, value: Any, record: Mapping[str, Any]) -> bytes:
    """Return the content of a file of plain data."""
    return pack({**_head(key, "json", record), "value": encode(value, "the result")}, {})


def pack_array(key: str, array: Tensor, record: Mapping[str, Any]) -> bytes:
    """Return the content of a file of one array."""
    return pack(_head(key, "array", record), {"array": array})


def _head(key: str, kind: str, record: Mapping[str, Any]) -> dict[str, Any]:
    return {"schema": SCHEMA, "key": key, "kind": kind, "record": as_plain(record)}


class NewerSchemaError(GatewiseError):
    """A file of a newer version of gatewise, which is left as it is."""


def check_schema(plain: Mapping[str, Any]) -> None:
    """Refuse what a newer version of gatewise has written: it is neither read nor replaced nor removed."""
    schema = plain.get("schema")
    if isinstance(schema, int) and not isinstance(schema, bool) and schema > SCHEMA:
        raise NewerSchemaError(
            f"it is of schema {schema}, of a newer version of gatewise; this one knows schema {SCHEMA}. Use the newer "
            f"version, or give another store"
        )


def parse(content: bytes, key: str, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what a file holds, if it is the one of this key and kind. Raises DamagedError, NewerSchemaError."""
    plain, arrays = unpack(content)
    check_schema(plain)
    written = tuple(plain.get(name) for name in ("schema", "key", "kind"))
    if written != (SCHEMA, key, kind):
        raise DamagedError(f"it is the {written[2]} {written[1]} of schema {written[0]}")
    return plain, arrays


def circuits_in(content: bytes, key: str) -> list[Circuit]:
    """Return the circuits in a file's content. Raises DamagedError."""
    return unpack_circuits(*parse(content, key, "circuits"))


def array_in(content: bytes, key: str) -> Tensor:
    """Return the array in a file's content. Raises DamagedError."""
    _, arrays = parse(content, key, "array")
    if set(arrays) != {"array"}:
        raise DamagedError(f"it holds {', '.join(sorted(arrays)) or 'nothing'}, not one array")
    return arrays["array"]


def value_in(content: bytes, key: str) -> Any:
    """Return the plain data in a file's content. Raises DamagedError."""
    plain, _ = parse(content, key, "json")
    try:
        return decode(plain["value"])
    except (ValueError, KeyError, RecursionError) as error:
        raise DamagedError(f"its value cannot be understood ({error})") from error


def encode(value: Any, where: str = "the value") -> Any:
    """Turn a value into what JSON holds and `decode` gives back: numbers exactly, tuples as lists. Refuse all else."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_TAG: str(float(value))}
    if isinstance(value, list | tuple):
        return [encode(element, f"{where}[{i}]") for i, element in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _TAG:
                raise GatewiseError(
                    f"{where} has the key {key!r}; keys of stored values are texts other than {_TAG!r}."
                )
        return {key: encode(element, f"{where}[{key!r}]") for key, element in value.items()}
    kind = type(value).__name__
    raise GatewiseError(f"{where} is a {kind}; stored values are numbers, texts, lists, dicts, True, False and None.")


def decode(value: Any) -> Any:
    """Return what `encode` was given. Anything it cannot have made is a ValueError."""
    if isinstance(value, list):
        return [decode(element) for element in value]
    if isinstance(value, dict):
        if _TAG not in value:
            return {key: decode(element) for key, element in value.items()}
        if len(value) > 1 or value[_TAG] not in _NOT_FINITE:
            raise ValueError(f"{json.dumps(value)[:80]} is no number")
        return float(value[_TAG])
    return value
