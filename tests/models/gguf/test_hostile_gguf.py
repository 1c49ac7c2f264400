"""GGUF files that were made to harm: tokenizers that take for ever or change text, tensors that share bytes."""

from __future__ import annotations

import struct
import time
from typing import Any

import numpy as np
import pytest

from gatewise.errors import GatewiseError
from gatewise.models.gguf.file import parse_gguf
from gatewise.models.gguf.tokenizer import tokenizer_parts

pytestmark = pytest.mark.attack


def pieces(tokens: list[str], bos: int = 0, **fields: Any) -> dict[str, Any]:
    """The metadata of a tokenizer of SentencePiece's kind, whose first token is a control token."""
    kinds = np.array([3] + [1] * (len(tokens) - 1))
    metadata: dict[str, Any] = {"model": "llama", "tokens": tokens, "token_type": kinds}
    metadata |= {"scores": -np.arange(len(tokens), dtype="<f4")}
    metadata |= {"bos_token_id": bos, "unknown_token_id": 0, **fields}
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def test_a_token_of_a_megabyte() -> None:
    """All ways to cut it were made: more than 25 seconds."""
    with pytest.raises(GatewiseError, match="a token of 1,000,000 characters; tokens have at most 1,024"):
        tokenizer_parts(pieces(["<s>", "a" * 1_000_000]), 16)


def test_a_megabyte_of_tokens_as_long_as_they_may_be() -> None:
    tokens = ["<s>", *(f"{number:04}" + "a" * 1_020 for number in range(1_000))]
    started = time.process_time()
    tokenizer_parts(pieces(tokens), 16)
    assert time.process_time() - started < 10


def test_merges_are_all_ways_to_cut_a_token() -> None:
    tokenizer = tokenizer_parts(pieces(["<s>", "abc", "ab", "bc", "a", "b", "c"], add_space_prefix=False), 16).tokenizer
    assert tokenizer.encode("abc", add_special_tokens=False).tokens == ["abc"]


@pytest.mark.parametrize("text", ["$A", "$B", "$", "$0", "$A:1", "<s>:1"])
def test_a_bos_that_stands_for_the_text(text: str) -> None:
    """`$A` put the whole text in the place of BOS."""
    with pytest.raises(GatewiseError, match="its BOS token is .*, which cannot begin a text"):
        tokenizer_parts(pieces([text, "a", "b"]), 16)


def test_a_usual_bos_begins_every_text() -> None:
    tokenizer = tokenizer_parts(pieces(["<s>", "▁", "a", "▁a"]), 16).tokenizer
    assert tokenizer.encode("a").tokens == ["<s>", "▁a"]


@pytest.mark.parametrize("field", ["model", "pre", "add_bos_token", "add_space_prefix", "bos_token_id"])
def test_an_array_in_the_place_of_a_value(field: str) -> None:
    """An array of numbers is neither true nor false, and equal to nothing."""
    tokenizers: list[dict[str, Any]] = [{}, {"model": "gpt2", "merges": ["a b"]}]
    for tokenizer in tokenizers:
        metadata = pieces(["<s>", "a", "b", "ab"], **(tokenizer | {field: np.arange(2)}))
        if field not in ("pre", "add_space_prefix") or ("merges" in tokenizer) == (field == "pre"):
            with pytest.raises(GatewiseError, match="array"):
                tokenizer_parts(metadata, 16)


def file_of(*offsets: int) -> np.ndarray:
    """A file with a tensor of 8 bytes at each of these offsets, and room for them."""
    names = [f"t{number}".encode() for number in range(len(offsets))]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(offsets), 0)
    for name, offset in zip(names, offsets, strict=True):
        head += struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, 2, 0, offset)
    content = head + b"\0" * (-len(head) % 32) + bytes(256)
    return np.frombuffer(content, dtype=np.uint8)


@pytest.mark.parametrize("offsets", [(0, 4), (64, 64), (0, 32, 28), (96, 0, 100)])
def test_tensors_that_share_bytes(offsets: tuple[int, ...]) -> None:
    with pytest.raises(GatewiseError, match=r"its tensors 't\d' and 't\d' overlap"):
        parse_gguf(file_of(*offsets), "model.gguf")


def test_tensors_side_by_side_in_any_order() -> None:
    _, tensors = parse_gguf(file_of(32, 8, 0), "model.gguf")
    assert [tensor.name for tensor in tensors] == ["t0", "t1", "t2"]
