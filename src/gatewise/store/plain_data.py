"""Results of the package's own dataclasses as plain data that a store keeps, and back again, by their type hints."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

_Kind = TypeVar("_Kind")


def to_plain(value: Any) -> Any:
    """Dataclasses, tensors, tuples, sets and mappings as lists and dicts of numbers and texts."""
    if isinstance(value, Tensor):
        return [str(value.dtype).removeprefix("torch."), list(value.shape), value.flatten().tolist()]
    if is_dataclass(value):
        return {one.name: to_plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return [[to_plain(key), to_plain(item)] for key, item in value.items()]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[_Kind], data: Any) -> _Kind:
    """What `to_plain` was given, if it was of this kind: as `get_type_hints` gives it."""
    made: _Kind = _made(kind, data)
    return made


def _made(kind: Any, data: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (kind,) = (one for one in inner if one is not types.NoneType)  # only `X | None`
        return None if data is None else _made(kind, data)
    if kind is Tensor:
        dtype, shape, values = data
        return torch.tensor(values, dtype=getattr(torch, dtype)).reshape(shape)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{name: _made(hints[name], item) for name, item in data.items()})
    if origin in (Mapping, dict):
        return {_made(inner[0], key): _made(inner[1], item) for key, item in data}
    if origin is frozenset:
        return frozenset(data)
    if origin in (tuple, Sequence):
        kinds = inner if origin is tuple and inner[-1] is not ... else inner[:1] * len(data)
        return tuple(_made(one, item) for one, item in zip(kinds, data, strict=True))
    if kind not in (str, int, float, bool) and origin is not Literal:
        raise TypeError(f"no plain form of {kind}")
    return data


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
