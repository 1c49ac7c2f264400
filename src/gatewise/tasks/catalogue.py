"""Tasks: named sources of pairs, built in or from a file, split into a part to search on and a part to test on.

Text becomes tokens here, once; everything after works on token ids. A new built-in task is a file with a `RECIPE`
and its name in `RECIPES`.
"""

from __future__ import annotations

import html
import os
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.tasks import files, gt, ioi, sa
from gatewise.tasks.encoder import Encoder, tokenizer_fingerprint
from gatewise.tasks.example import TokenExample
from gatewise.tasks.pairs import MarginKind, Pairs
from gatewise.tasks.recipe import Recipe
from gatewise.tasks.validation import find_problems

if TYPE_CHECKING:
    from gatewise.models.model import Model

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (ioi.RECIPE, gt.RECIPE, sa.RECIPE)}
_MISSES = 2000  # draws in a row without a new prompt after which a task counts as exhausted


@dataclass(frozen=True)
class Task:
    """Pairs to find circuits on, held-out pairs to measure them on, and how they were made."""

    name: str
    train: Pairs
    test: Pairs
    seed: int
    bos: bool

    def __repr__(self) -> str:
        bos = "with" if self.bos else "without"
        return f"<Task {self.name}: {len(self.train)} pairs to search on, {len(self.test)} to test on, {bos} BOS>"

    def _repr_html_(self) -> str:
        return f"<div>{html.escape(repr(self).strip('<>'))}{self.train._repr_html_()}</div>"

    def validate(self, model: Model) -> list[str]:
        """What makes numbers on this task doubtful for this model; each finding is also emitted as a warning."""
        from gatewise.engine import last_logits

        if self.train.vocabulary != tokenizer_fingerprint(_tokenizer(model)):
            raise GatewiseError(
                f"the task {self.name} was made for another tokenizer than that of {model.name}. "
                f"Make it again with task({self.name!r}, model)."
            )
        clean = last_logits(model, self.train, side="clean")
        corrupted = last_logits(model, self.train, side="corrupted")
        problems = find_problems(self.train, clean, corrupted)
        for problem in problems:
            warnings.warn(f"{self.name} on {model.name}: {problem}", GatewiseWarning, stacklevel=2)
        return problems


def task(
    name: str | os.PathLike[str],
    model: Model,
    *,
    examples: int = 64,
    test_examples: int | None = None,
    seed: int = 0,
    bos: bool | None = None,
    first_token: bool = False,
) -> Task:
    """Make a task for a model's tokenizer: "ioi", "gt", "sa", or the path of a .csv or .jsonl file.

    `examples` is the size of train, `test_examples` that of test (by default the same). No prompt of test occurs in
    train. A file with fewer pairs is divided in that proportion. `bos=None` does what the tokenizer does by
    default. `first_token` lets answers of a file be several tokens long, of which the first is compared.
    """
    tokenizer = _tokenizer(model)
    sizes = (_size(examples, "examples"), _size(examples if test_examples is None else test_examples, "test_examples"))
    longest = getattr(getattr(model.hf, "config", None), "max_position_embeddings", None)
    encoder = Encoder(tokenizer, bos, longest)
    margin: MarginKind = "logit"
    if (recipe := RECIPES.get(str(name))) is not None:
        train, test = _generate(recipe, encoder, sizes, seed)
        title, margin = recipe.name, recipe.margin
    else:
        path = _path(name)
        train, test = _divide(path, files.read_pairs(path, encoder, first_token=first_token), sizes, seed)
        title = path.name
    vocabulary = tokenizer_fingerprint(tokenizer)
    return Task(
        title, _pairs(train, title, margin, vocabulary), _pairs(test, title, margin, vocabulary), seed, encoder.bos
    )


def _generate(
    recipe: Recipe, encoder: Encoder, sizes: tuple[int, int], seed: int
) -> tuple[list[TokenExample], list[TokenExample]]:
    """Train and test are drawn from two streams, so that train does not depend on the size of test."""
    draw = recipe.prepare(encoder)
    parts: list[list[TokenExample]] = []
    taken: set[str] = set()  # prompts of train, none of which may occur in test
    for part, size in zip(("train", "test"), sizes, strict=True):
        rng = random.Random(f"{recipe.name}/{part}/{seed}")
        found: dict[str, TokenExample] = {}
        misses, reason = 0, "every further prompt was a repetition"
        while len(found) < size:
            example = draw(rng)
            new = example.clean not in found and not taken & {example.clean, example.corrupted}
            try:
                if new:
                    found[example.clean] = encoder.encode(example).compact()
                    misses = 0
                    continue
            except GatewiseError as error:
                reason = str(error)
            misses += 1
            if misses > _MISSES:
                raise GatewiseError(
                    f"{recipe.name} has only {len(found)} different {part} prompts for this tokenizer, {size} were "
                    f"asked for ({reason}). Ask for fewer examples."
                )
        parts.append(list(found.values()))
        taken = {text for pair in found.values() for text in (pair.text.clean, pair.text.corrupted)}
    return parts[0], parts[1]


def _divide(
    path: Path, pairs: list[TokenExample], sizes: tuple[int, int], seed: int
) -> tuple[list[TokenExample], list[TokenExample]]:
    """Shuffle a file's pairs and divide them. A corrupted prompt may serve many pairs, also across the two parts."""
    order = random.Random(f"file/{seed}").sample(pairs, len(pairs))
    size = sizes[0]
    if len(pairs) < sum(sizes):
        size = max(1, len(pairs) * sizes[0] // sum(sizes))
    train = order[:size]
    clean = {pair.text.clean for pair in train}
    corrupted = {pair.text.corrupted for pair in train}
    test = [p for p in order[size:] if p.text.clean not in clean | corrupted and p.text.corrupted not in clean]
    if not test:
        raise GatewiseError(
            f"{path}: {len(pairs)} pairs leave none to test on whose prompts are not in train as well. "
            f"Add pairs with other prompts (at least two in all)."
        )
    return train, test[: sizes[1]]


def _pairs(examples: Sequence[TokenExample], name: str, margin: MarginKind, vocabulary: str) -> Pairs:
    return Pairs.from_tokens(
        [example.clean for example in examples],
        [example.corrupted for example in examples],
        [example.right for example in examples],
        [example.wrong for example in examples],
        margin=margin,
        name=name,
        clean_text=[example.text.clean for example in examples],
        corrupted_text=[example.text.corrupted for example in examples],
        vocabulary=vocabulary,
    )


def _tokenizer(model: Model) -> PreTrainedTokenizerBase:
    if model.tokenizer is None:
        raise GatewiseError(
            f"the model {model.name} has no tokenizer, so no task can be made for it. "
            f"Bring token ids with Pairs.from_tokens, or load the model with its tokenizer."
        )
    tokenizer: PreTrainedTokenizerBase = model.tokenizer
    return tokenizer


def _path(name: str | os.PathLike[str]) -> Path:
    path = Path(name)
    if path.suffix.lower() not in files.SUFFIXES:
        raise GatewiseError(
            f"there is no task {str(name)!r}. The tasks are {', '.join(RECIPES)}; "
            f"your own is the path of a file that ends in .csv or .jsonl."
        )
    return path


def _size(value: int, argument: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise GatewiseError(f"{argument} is a whole number of at least 1, got {value!r}.")
    return value
