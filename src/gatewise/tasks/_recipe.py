"""What a built-in task is made of: a recipe draws examples as text. Knows no model; asks the encoder about tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gatewise.tasks.example import Example

Draw = Callable[[random.Random], Example]


@dataclass(frozen=True)
class Recipe:
    """A built-in task. `prepare` picks the words that suit a tokenizer and returns a function that draws examples.

    A drawn example may still turn out unfit for the tokenizer (say, of unequal length); it is then drawn again.
    """

    name: str
    summary: str
    prepare: Callable[..., Draw]  # takes an Encoder, and the options below by name
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what each may be; the default comes first
    templates: tuple[str, ...] = ()  # if there are several, they can be held out


def words(text: str) -> tuple[str, ...]:
    """Cut a word list, written as running text, into words."""
    return tuple(text.split())


def word_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Cut a list of words written `singular/plural` into pairs."""
    parts = [word.partition("/") for word in text.split()]
    return tuple((first, second) for first, _, second in parts)
