"""Reads GGUF files of unknown origin: every length is checked against what is left of the file before it is used.

Knows the container only: metadata by name, and tensors as raw blocks; what they mean is the business of `model.py`.

    magic, version, counts | metadata: name, type, value | tensors: name, shape, type, offset | padding | data
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gatewise.errors import GatewiseError

_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = dict(enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "<u1")))  # by type; bool is the last
_NUMBERS |= {10: "<u8", 11: "<i8", 12: "<f8"}
_VERSIONS = (2, 3)
_MOST_TEXTS = 1 << 22  # in an array: vocabularies have a twentieth of that
_MOST_DIMENSIONS = 4
_LARGEST_ALIGNMENT = 1 << 16


@dataclass(frozen=True, eq=False)
class RawTensor:
    """A tensor as the file holds it."""

    name: str
    kind: int  # number of its GGML type
    shape: tuple[int, ...]  # as numpy says it: the file has the reverse
    blocks: npt.NDArray[np.uint8]  # [..., bytes of a row]


class _Cursor:
    """A position in the file, which never passes its end."""

    def __init__(self, content: npt.NDArray[np.uint8]) -> None:
        self.content, self.at = content, 0

    @property
    def left(self) -> int:
        return len(self.content) - self.at

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        if size > self.left:
            raise GatewiseError(f"byte {self.at:,} announces {size:,} more bytes, and the file has {self.left:,}")
        self.at += size
        return self.content[self.at - size : self.at]

    def number(self, kind: str) -> Any:
        return struct.unpack(kind, self.take(struct.calcsize(kind)).tobytes())[0]

    def text(self) -> str:
        try:
            return self.take(self.number("<Q")).tobytes().decode()
        except UnicodeDecodeError as error:
            raise GatewiseError(f"the text before byte {self.at:,} is not UTF-8") from error


def parse_gguf(content: npt.NDArray[np.uint8], name: str) -> tuple[dict[str, Any], list[RawTensor]]:
    """Return metadata and tensors of a file's content, as views where they are large; `name` is for errors."""
    try:
        cursor = _Cursor(content)
        if cursor.take(4).tobytes() != b"GGUF":
            raise GatewiseError("it does not begin with GGUF")
        if (version := cursor.number("<I")) not in _VERSIONS:
            raise GatewiseError(f"its version is {version}; versions {_VERSIONS[0]} and {_VERSIONS[1]} are understood")
        n_tensors, n_fields = cursor.number("<Q"), cursor.number("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(n_fields):
            key = cursor.text()
            if key in metadata:
                raise GatewiseError(f"it has {key[:80]!r} twice")
            metadata[key] = _value(cursor, cursor.number("<I"))
        headers = [_header(cursor) for _ in range(n_tensors)]
        return metadata, _tensors(cursor, headers, metadata.get("general.alignment", 32))
    except GatewiseError as error:
        raise GatewiseError(f"{name} is no GGUF file that can be read: {error}. Download it again.") from error


def _value(cursor: _Cursor, kind: int) -> Any:
    """A number, a text, a numpy array of numbers, or a list of texts."""
    if kind == _STRING:
        return cursor.text()
    if kind == _ARRAY:
        return _array(cursor, cursor.number("<I"), cursor.number("<Q"))
    if kind not in _NUMBERS:
        raise GatewiseError(f"it has a value of the unknown type {kind}")
    number = cursor.take(np.dtype(_NUMBERS[kind]).itemsize).view(_NUMBERS[kind])[0].item()
    return bool(number) if kind == _BOOL else number


def _array(cursor: _Cursor, kind: int, count: int) -> Any:
    if kind == _STRING:
        if count > min(_MOST_TEXTS, cursor.left // 8):
            raise GatewiseError(f"it has a list of {count:,} texts, more than it has room for")
        return [cursor.text() for _ in range(count)]
    if kind not in _NUMBERS:
        raise GatewiseError(f"it has an array of the type {kind}; numbers and texts are understood")
    return cursor.take(count * np.dtype(_NUMBERS[kind]).itemsize).view(_NUMBERS[kind])


def _header(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type and offset of a tensor."""
    name, dimensions = cursor.text(), cursor.number("<I")
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise GatewiseError(f"its tensor {name[:80]!r} has {dimensions} dimensions")
    shape = tuple(cursor.number("<Q") for _ in range(dimensions))[::-1]
    return name, shape, cursor.number("<I"), cursor.number("<Q")


def _tensors(cursor: _Cursor, headers: list[tuple[str, tuple[int, ...], int, int]], alignment: Any) -> list[RawTensor]:
    from gguf.constants import GGML_QUANT_SIZES

    if not isinstance(alignment, int) or not 1 <= alignment <= _LARGEST_ALIGNMENT:
        raise GatewiseError(f"its alignment is {alignment!r:.80}")
    start = -(-cursor.at // alignment) * alignment
    sizes = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
    # All tensors together must fit: else a small file could make many large tensors of the same bytes.
    left = len(cursor.content) - start
    tensors: dict[str, RawTensor] = {}
    ranges = []  # of bytes
    for name, shape, kind, offset in headers:
        block, width = sizes.get(kind, (0, 0))
        if name in tensors or not block or not all(shape) or shape[-1] % block:
            raise GatewiseError(f"its tensor {name[:80]!r}, type {kind}, shape {shape}, is there twice or impossible")
        row = shape[-1] // block * width
        size = math.prod(shape[:-1]) * row
        left -= size
        if left < 0 or start + offset + size > len(cursor.content):
            raise GatewiseError(f"its tensor {name[:80]!r} of {size:,} bytes does not fit the file")
        ranges.append((offset, offset + size, name))
        blocks = cursor.content[start + offset : start + offset + size].reshape(*shape[:-1], row)
        tensors[name] = RawTensor(name, kind, shape, blocks)
    _check_apart(sorted(ranges))
    return list(tensors.values())


def _check_apart(ranges: list[tuple[int, int, str]]) -> None:
    """Refuse tensors that share bytes: no writer makes them, and one of them is not what it seems."""
    for (_, end, before), (begin, _, name) in pairwise(ranges):
        if begin < end:
            raise GatewiseError(f"its tensors {before[:80]!r} and {name[:80]!r} overlap")
