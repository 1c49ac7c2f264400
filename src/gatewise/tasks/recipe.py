"""What a built-in task is made of: a recipe draws examples as text. Knows no model; asks the encoder about tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from gatewise.tasks.encoder import Encoder
from gatewise.tasks.example import Example
from gatewise.tasks.pairs import MarginKind

Draw = Callable[[random.Random], Example]


@dataclass(frozen=True)
class Recipe:
    """A built-in task. `prepare` picks the words that suit a tokenizer and returns a function that draws examples.

    A drawn example may still turn out unfit for the tokenizer (say, of unequal length); it is then drawn again.
    """

    name: str
    summary: str
    margin: MarginKind
    prepare: Callable[[Encoder], Draw]
