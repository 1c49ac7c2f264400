"""Plain data and arrays in one file: safetensors, with the data as JSON in its metadata. No pickle.

    {"__metadata__": {"gatewise": "{\\"sha256\\": ..., the data}"}, array: {dtype, shape, ...}, ...}   then the arrays

The checksum is that of the whole file with zeros in the checksum's place, so that no byte can change unseen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from gatewise.errors import GatewiseError
from gatewise.files import parse_json

_NAME = "gatewise"
_BLANK = b"0" * 64


class DamagedError(Exception):
    """Content that is not what was written."""


def pack(plain: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> bytes:
    """Return the content of a file. The same plain data and arrays give the same bytes."""
    text = json.dumps({"sha256": _BLANK.decode(), **plain}, allow_nan=False)
    owned = {name: array.detach().cpu().contiguous().clone() for name, array in arrays.items()}
    blank: bytes = save(owned, {_NAME: text})
    return blank.replace(_BLANK, _checksum(blank), 1)


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what `pack` was given. Raises DamagedError."""
    try:
        size = int.from_bytes(content[:8], "little")
        header = parse_json(content[8 : 8 + size], "its header", "safetensors")
        plain = parse_json(header["__metadata__"][_NAME].encode(), "its metadata", "a file of gatewise")
        written = plain.pop("sha256").encode()
        if len(written) != len(_BLANK) or _checksum(content.replace(written, _BLANK, 1)) != written:
            raise DamagedError("its checksum does not hold")
        return plain, load(content)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, SafetensorError, GatewiseError) as error:
        raise DamagedError(f"it cannot be understood ({error})") from error


def is_arrays(path: Path) -> bool:
    """Whether a file is one of arrays and not of text: it begins with the length of its header, eight bytes."""
    with suppress(OSError):  # whoever reads it says what is wrong
        if path.is_file():  # not a pipe, which would be waited for
            with path.open("rb") as stream:
                return b"\0" in stream.read(8)
    return False


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
