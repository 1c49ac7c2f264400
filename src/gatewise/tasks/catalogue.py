"""Tasks: named sources of pairs, built in or from a file, split into a part to search on and a part to test on.

Text becomes tokens here, once; everything after works on token ids.
"""

from __future__ import annotations

import html
import os
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from gatewise.errors import GatewiseError
from gatewise.tasks import task_files
from gatewise.tasks._recipe import Recipe
from gatewise.tasks.encoding import Encoder, tokenizer_fingerprint
from gatewise.tasks.example import DIFFERENCES, Difference, TokenExample
from gatewise.tasks.pairs import Pairs
from gatewise.tasks.parsing import encoded, records_of, sorted_out
from gatewise.tasks.registry import RECIPES, options_of
from gatewise.tasks.task_names import Choices, chosen, full_name, parse_name

if TYPE_CHECKING:  # transformers takes a second to import, and only models need it
    from transformers import PreTrainedTokenizerBase

OWN = "own pairs"  # the name of a task that was given as data
FEW_PAIRS = 8  # below so many a share or an error means little
_MISSES = 2000  # draws in a row without a new prompt after which a task counts as exhausted


class Reader(Protocol):
    """As much of a model as making a task needs."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def hf(self) -> Any: ...  # whose config may tell the longest prompt
    @property
    def needs_bos(self) -> bool: ...


@dataclass(frozen=True)
class Task:
    """Pairs to find circuits on, held-out pairs to measure them on, and how they were made."""

    name: str
    train: Pairs
    test: Pairs
    seed: int
    bos: bool
    used_up: bool = False  # the file had no more pairs, so that asking for more examples changes nothing

    def problems(self) -> list[str]:
        """What is wrong with the pairs whatever the model, as sentences."""
        halves, found = (self.train, self.test), []
        if min(map(len, halves)) < FEW_PAIRS:
            found.append(
                f"too few pairs: {len(self.train)} to search on and {len(self.test)} to test on; numbers mean little "
                f"below {FEW_PAIRS} each."
            )
        total = sum(map(len, halves))
        if equal := sum(int((pairs.clean == pairs.corrupted).all(dim=1).sum()) for pairs in halves):
            found.append(f"clean and corrupted prompt are the same in {equal} of {total} pairs.")
        texts = [text for pairs in halves for text in zip(pairs.clean_text, pairs.corrupted_text, strict=True)]
        if repeated := len(texts) - len(set(texts)):
            found.append(f"{repeated} of {total} pairs are repetitions of others; they add nothing.")
        return found

    def __repr__(self) -> str:
        bos = "with" if self.bos else "without"
        return f"<Task {self.name}: {len(self.train)} pairs to search on, {len(self.test)} to test on, {bos} BOS>"

    def _repr_html_(self) -> str:
        return f"<div>{html.escape(repr(self).strip('<>'))}{self.train._repr_html_()}</div>"


def task(
    name: str | os.PathLike[str] | Any,
    model: Reader,
    *,
    examples: int = 64,
    test_examples: int | None = None,
    seed: int = 0,
    bos: bool | None = None,
    first_token: bool = False,
    **options: str,
) -> Task:
    """Make a task for a model's tokenizer: "ioi", "gt", "sa", the path of a .csv or .jsonl file, or your own pairs.

    Own pairs have the columns clean, corrupted, correct and incorrect, in a file, a list of dicts or tuples, a dict of
    lists, a pandas frame or one split of a Hugging Face dataset. Further columns are ignored.

    `options` are those of the task, such as corruption="all-names" of ioi; they may also be part of the name, as in
    "ioi:corruption=all-names". All tasks have `difference`, "logit" or "probability". Where there are several
    templates, held_out="templates" keeps those of test out of train.

    `examples` is the size of train, `test_examples` that of test (by default the same). No prompt of test occurs in
    train. A file with fewer pairs is divided in that proportion. `bos=None` begins prompts with BOS if the model's
    family needs it (Gemma) or the tokenizer does so by itself. `first_token` lets answers of a file be several tokens
    long, of which the first is compared.
    """
    sizes = (_size(examples, "examples"), _size(examples if test_examples is None else test_examples, "test_examples"))
    encoder = _encoder(model, bos)
    if not isinstance(name, (str, os.PathLike)):
        choices: Choices = {"difference": DIFFERENCES}
        wanted = chosen(OWN, options, choices)
        pairs = encoded(*sorted_out(records_of(name)), encoder, first_token=first_token, name=OWN)
        (train, test), short = _divide(OWN, pairs, sizes, seed), OWN
    else:
        short, in_name = parse_name(os.fspath(name))
        choices = options_of(short)
        wanted = chosen(short, {**in_name, **options}, choices)
        if (recipe := RECIPES.get(short)) is not None:
            train, test = _generate(recipe, wanted, encoder, sizes, seed)
        else:
            train, test = _divide(
                short, task_files.read_pairs(Path(short), encoder, first_token=first_token), sizes, seed
            )
    title = full_name(Path(short).name, wanted, choices)
    halves = [_pairs(part, title, cast("Difference", wanted["difference"]), encoder) for part in (train, test)]
    return Task(title, halves[0], halves[1], seed, encoder.bos, used_up=len(train) < sizes[0])


def pairs_from_text(
    data: Any, model: Reader, *, difference: Difference, name: str, bos: bool | None, first_token: bool
) -> Pairs:
    """What `Pairs.from_text` promises."""
    encoder = _encoder(model, bos)
    examples = encoded(*sorted_out(records_of(data)), encoder, first_token=first_token, name=name)
    return _pairs(examples, name, difference, encoder)


def _encoder(model: Reader, bos: bool | None) -> Encoder:
    """How texts are read for a model."""
    tokenizer = _tokenizer(model)
    longest = getattr(getattr(model.hf, "config", None), "max_position_embeddings", None)
    if bos is None and model.needs_bos and tokenizer.bos_token_id is not None:
        bos = True
    return Encoder(tokenizer, bos, longest)


def _generate(
    recipe: Recipe, options: dict[str, str], encoder: Encoder, sizes: tuple[int, int], seed: int
) -> tuple[list[TokenExample], list[TokenExample]]:
    """Train and test are drawn from two streams, so that train does not depend on the size of test."""
    draw = recipe.prepare(encoder, **{option: options[option] for option in recipe.options})
    templates = _divided_templates(recipe, options.get("held_out") == "templates", seed)
    parts: list[list[TokenExample]] = []
    taken: set[str] = set()  # prompts of train, none of which may occur in test
    for part, size, allowed in zip(("train", "test"), sizes, templates, strict=True):
        rng = random.Random(f"{recipe.name}/{part}/{seed}")
        found: dict[str, TokenExample] = {}
        misses, reason = 0, "every further prompt was a repetition"
        while len(found) < size:
            example = draw(rng)
            if allowed and example.template not in allowed:
                continue
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


def _divided_templates(recipe: Recipe, divided: bool, seed: int) -> tuple[Collection[str], Collection[str]]:
    """The templates of train and of test, half each; none if all may occur in both."""
    if not divided:
        return (), ()
    order = random.Random(f"{recipe.name}/templates/{seed}").sample(recipe.templates, len(recipe.templates))
    half = len(order) // 2
    return order[:half], order[half:]


def _divide(
    source: str, pairs: list[TokenExample], sizes: tuple[int, int], seed: int
) -> tuple[list[TokenExample], list[TokenExample]]:
    """Shuffle a user's pairs and divide them. A corrupted prompt may serve many pairs, also across the two parts."""
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
            f"{source}: {len(pairs)} pairs leave none to test on whose prompts are not in train as well. "
            f"Add pairs with other prompts (at least two in all)."
        )
    return train, test[: sizes[1]]


def _pairs(examples: Sequence[TokenExample], name: str, difference: Difference, encoder: Encoder) -> Pairs:
    return Pairs.from_tokens(
        [example.clean for example in examples],
        [example.corrupted for example in examples],
        [example.correct for example in examples],
        [example.incorrect for example in examples],
        difference=difference,
        name=name,
        clean_text=[example.text.clean for example in examples],
        corrupted_text=[example.text.corrupted for example in examples],
        vocabulary=tokenizer_fingerprint(encoder.tokenizer),
        templates=[example.text.template for example in examples if example.text.template],
        answer_text=[(example.text.correct, example.text.incorrect) for example in examples],
    )


def _tokenizer(model: Reader) -> PreTrainedTokenizerBase:
    if model.tokenizer is None:
        raise GatewiseError(
            f"the model {model.name} has no tokenizer, so no task can be made for it. "
            f"Bring token ids with Pairs.from_tokens, or load the model with its tokenizer."
        )
    tokenizer: PreTrainedTokenizerBase = model.tokenizer
    return tokenizer


def _size(value: int, argument: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise GatewiseError(f"{argument} is a whole number of at least 1, got {value!r}.")
    return value
