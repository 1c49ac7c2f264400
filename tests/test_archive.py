"""Plain data and arrays in one file: what goes in comes out, and any other bytes are damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewise.archive import DamagedError, is_arrays, pack, unpack

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float64]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
SHAPES = st.lists(st.integers(0, 3), max_size=3)


@given(st.dictionaries(st.text().filter(lambda name: name != "sha256"), PLAIN), st.lists(SHAPES, max_size=3), st.data())
def test_round_trip(plain: dict[str, Any], shapes: list[list[int]], data: st.DataObject) -> None:
    arrays = {
        f"array {i}": torch.arange(torch.Size(shape).numel()).reshape(shape).to(data.draw(st.sampled_from(DTYPES)))
        for i, shape in enumerate(shapes)
    }
    packed = pack(plain, arrays)
    found, tensors = unpack(packed)
    assert found == plain
    assert tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        assert tensors[name].dtype == array.dtype
        assert torch.equal(tensors[name], array)
    assert pack(plain, arrays) == packed


def with_length(head: bytes, rest: bytes) -> bytes:
    return len(head).to_bytes(8, "little") + head + rest


@given(st.binary() | st.builds(with_length, st.binary(), st.binary()))
def test_other_bytes_are_damage(content: bytes) -> None:
    with pytest.raises(DamagedError):
        unpack(content)


@given(st.integers(0), st.integers(1, 255))
def test_no_byte_can_change_unseen(place: int, by: int) -> None:
    packed = bytearray(pack({"x": [1, 2.5, "text"]}, {"a": torch.arange(5)}))
    packed[place % len(packed)] ^= by
    with pytest.raises(DamagedError):
        unpack(bytes(packed))


def test_arrays_are_told_from_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content, arrays in ((pack({}, {}), True), (b"", False), (b'{"cfg": {}}', False), (b"[]", False)):
        path.write_bytes(content)
        assert is_arrays(path) == arrays
    path.unlink()
    assert not is_arrays(path)
