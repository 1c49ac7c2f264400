"""Mutations of valid files: of their bytes, and of the values of their JSON."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

_TOKENS = (
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"\n", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"|", b"->", b"<q>",
    b"=", b"null", b"true", b"NaN", b"Infinity", b"-1", b"1e999", b"\\ud800", b'""', b"[[", b"9" * 5000, b"[" * 2000,
)  # fmt: skip
_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 9, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 1000, 10**9, 2**63, 10**400, 0.5, -0.0, 1e308, 1e-320, float("nan"),
    float("inf"), "", " ", "x", "input", "logits", "m0", "a0.h0", "a0.h0<q>", "A0.0", "a" + "1" * 5000 + ".h0",
    "input->logits", "\ud800", "\0", "eap", "AND", "ns", [], {}, [[]], [None], {"": None}, ["a", "b"], {"edges": {}},
)  # fmt: skip


def mutated(rng: random.Random, seeds: Sequence[bytes], structured: bool) -> bytes:
    """A seed with a few changes; structured ones are made to the values in it, if it is JSON."""
    content = rng.choice(seeds)
    if structured and rng.random() < 0.6:
        changed = _json_changed(rng, content)
        if changed is not None:
            content = changed
            if rng.random() < 0.8:
                return content
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        content = _bytes_changed(rng, content, seeds)
    return content


def _bytes_changed(rng: random.Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    size = len(content)
    at, other = rng.randint(0, size), rng.randint(0, size)
    first, last = min(at, other), max(at, other)
    kind = rng.randrange(9)
    if kind == 0:  # another byte
        return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
    if kind == 1:  # a bit the other way
        return (
            content if at == size else content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
        )
    if kind == 2:  # without a part
        return content[:first] + content[last if last - first < 64 else first + rng.randrange(64) :]
    if kind == 3:  # a part twice
        part = content[first : min(last, first + 200)]
        return content[:last] + part * rng.choice((1, 1, 2, 20)) + content[last:]
    if kind == 4:  # cut off
        return content[:at]
    if kind == 5:  # the rest of another seed
        donor = rng.choice(seeds)
        return content[:at] + donor[rng.randint(0, len(donor)) :]
    if kind == 6:  # another number, as files of bytes hold them
        width = rng.choice((1, 2, 4, 8))
        number = rng.choice(_NUMBERS) % (1 << 8 * width)
        return content[:at] + number.to_bytes(width, "little") + content[at + width :]
    token = rng.choice(_TOKENS)
    return content[:at] + token + content[at + (len(token) if kind == 7 else 0) :]


def _json_changed(rng: random.Random, content: bytes) -> bytes | None:
    try:
        root = [json.loads(content)]
    except (ValueError, RecursionError):  # jsonl of several lines, for one
        lines = content.split(b"\n")
        chosen = rng.randrange(len(lines))
        try:
            root = [json.loads(lines[chosen])]
        except (ValueError, RecursionError):
            return None
        changed = _values_changed(rng, root)
        return b"\n".join([*lines[:chosen], changed, *lines[chosen + 1 :]])
    return _values_changed(rng, root)


def _values_changed(rng: random.Random, root: list[Any]) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(root))
        holder, key = rng.choice(places)
        kind = rng.randrange(6)
        if kind == 0 and isinstance(holder, dict):  # another name
            holder[str(rng.choice(("x", "edges", "m0->logits", "input->logits", key + " ", key.upper(), "")))] = (
                holder.pop(key)
            )
        elif kind == 1 and (isinstance(holder, dict) or holder is not root):  # gone
            del holder[key]
        elif kind == 2:  # what stands elsewhere
            source, other = rng.choice(places)
            if other in source if isinstance(source, dict) else other < len(source):
                holder[key] = copy.deepcopy(source[other])
        elif kind == 3 and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = rng.choice(
                (holder[key] + 1, holder[key] - 1, -holder[key], holder[key] * 2, str(holder[key]))
            )
        else:
            holder[key] = copy.deepcopy(rng.choice(_VALUES))
        if not root:
            break
    return json.dumps(root[0] if root else None).encode("utf-8", "surrogatepass")


def _places(value: Any) -> Any:
    """Every (holder, key) in nested lists and dicts."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])
