"""One pair as text, and one pair as tokens. Plain data."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

Difference = Literal["logit", "probability"]  # of what correct and incorrect answers are compared by
DIFFERENCES: tuple[Difference, ...] = get_args(Difference)


@dataclass(frozen=True)
class Example:
    """A pair as text. Answers are written as they follow the prompt, leading space included."""

    clean: str
    corrupted: str
    correct: tuple[str, ...]
    incorrect: tuple[str, ...]
    template: str = ""  # the sentence it was made from, if there are several
    split: str = ""  # `train` or `test` if its row says for which it is


@dataclass(frozen=True)
class TokenExample:
    """The same pair as token ids."""

    text: Example
    clean: Sequence[int]
    corrupted: Sequence[int]
    correct: list[int]
    incorrect: list[int]

    def compact(self) -> TokenExample:
        """Return the same in a fifth of the memory, for those who keep thousands."""
        return replace(self, clean=array("q", self.clean), corrupted=array("q", self.corrupted))
