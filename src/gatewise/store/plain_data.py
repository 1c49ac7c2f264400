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
    """Turn dataclasses, tensors, tuples, sets and mappings into lists and dicts of numbers and texts."""
    if isinstance(value, Tensor):
        return [str(value.dtype).removeprefix("torch."), list(value.shape), value.flatten().tolist()]
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):  # as pairs, since keys need not be texts
        return [[to_plain(key), to_plain(element)] for key, element in value.items()]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [to_plain(element) for element in value]
    return value


def from_plain(kind: type[_Kind], plain: Any) -> _Kind:
    """Return what `to_plain` was given, if it was of this kind: as `get_type_hints` gives it."""
    value: _Kind = _value(kind, plain)
    return value


def _value(kind: Any, plain: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (kind,) = (option for option in inner if option is not types.NoneType)  # only `X | None`
        return None if plain is None else _value(kind, plain)
    if kind is Tensor:
        dtype, shape, values = plain
        return torch.tensor(values, dtype=getattr(torch, dtype)).reshape(shape)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{name: _value(hints[name], element) for name, element in plain.items()})
    if origin in (Mapping, dict):
        return {_value(inner[0], key): _value(inner[1], element) for key, element in plain}
    if origin is frozenset:
        return frozenset(plain)
    if origin in (tuple, Sequence):
        kinds = inner if origin is tuple and inner[-1] is not ... else inner[:1] * len(plain)
        return tuple(_value(of_element, element) for of_element, element in zip(kinds, plain, strict=True))
    if kind not in (str, int, float, bool) and origin is not Literal:
        raise TypeError(f"no plain form of {kind}")
    return plain


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
