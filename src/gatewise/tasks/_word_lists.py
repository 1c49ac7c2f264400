"""Word lists are written as running text; this cuts them into words."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


def word_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Words written `one/other`, as pairs."""
    return tuple((one, other) for one, _, other in (word.partition("/") for word in text.split()))
