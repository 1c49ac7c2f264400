"""One pair as text, and one pair as tokens. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A pair as text. Answers are written as they follow the prompt, leading space included."""

    clean: str
    corrupted: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class TokenExample:
    """The same pair as token ids."""

    text: Example
    clean: list[int]
    corrupted: list[int]
    right: list[int]
    wrong: list[int]
