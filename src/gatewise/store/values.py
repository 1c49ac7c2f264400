"""Values as JSON can hold them, exactly: results that are plain data, and the states of searches."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from gatewise.errors import GatewiseError

_TAG = "$float"  # {"$float": "nan"}: JSON has no NaN and no infinities
_NOT_FINITE = ("nan", "inf", "-inf")


def encode(value: Any, where: str = "the value") -> Any:
    """As JSON holds it and `decode` gives it back, numbers exactly, tuples as lists. Anything else is refused."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_TAG: str(float(value))}
    if isinstance(value, list | tuple):
        return [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _TAG:
                raise GatewiseError(
                    f"{where} has the key {key!r}; keys of stored values are texts other than {_TAG!r}."
                )
        return {key: encode(item, f"{where}[{key!r}]") for key, item in value.items()}
    kind = type(value).__name__
    raise GatewiseError(f"{where} is a {kind}; stored values are numbers, texts, lists, dicts, True, False and None.")


def decode(value: Any) -> Any:
    """What `encode` was given. Anything it cannot have made is a ValueError."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict):
        if _TAG not in value:
            return {key: decode(item) for key, item in value.items()}
        if len(value) > 1 or value[_TAG] not in _NOT_FINITE:
            raise ValueError(f"{json.dumps(value)[:80]} is no number")
        return float(value[_TAG])
    return value
