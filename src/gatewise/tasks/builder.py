"""`task`: makes a task, built in, from a file or from rows, split into a part to search on and a part to test on.

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
from gatewise.limits import MOST_EXAMPLES, check_count, check_seed
from gatewise.tasks import task_files
from gatewise.tasks._recipe import Recipe
from gatewise.tasks.encoding import Encoder, tokenizer_fingerprint
from gatewise.tasks.example import DIFFERENCES, Difference, TokenExample
from gatewise.tasks.pairs import Pairs
from gatewise.tasks.parsing import encode_rows, records_of, valid_rows
from gatewise.tasks.registry import RECIPES, Choices, complete_options, full_name, parse_name, task_options

if TYPE_CHECKING:  # transformers takes a second to import, and only models need it
    from transformers import PreTrainedTokenizerBase

OWN = "own pairs"  # the name of a task that was given as rows
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
    """Pairs to find circuits on, held-out pairs to measure them on, and how they were made.

    Attributes:
        name: The full name, by which the same task can be asked for again.
        train: Pairs to search on.
        test: Held-out pairs, none of whose prompts occurs in train.
        seed: That the pairs were drawn with.
        bos: Whether prompts begin with the BOS token.
        used_up: Whether the file had no more pairs, so that asking for more examples changes nothing.
    """

    name: str
    train: Pairs
    test: Pairs
    seed: int
    bos: bool
    used_up: bool = False

    def problems(self) -> list[str]:
        """Say what is wrong with the pairs, whatever the model.

        Returns:
            A sentence for each problem: too few pairs, equal prompts, repetitions.
        """
        halves, problems = (self.train, self.test), []
        if min(map(len, halves)) < FEW_PAIRS:
            problems.append(
                f"too few pairs: {len(self.train)} to search on and {len(self.test)} to test on; numbers mean little "
                f"below {FEW_PAIRS} each."
            )
        total = sum(map(len, halves))
        if equal := sum(int((pairs.clean == pairs.corrupted).all(dim=1).sum()) for pairs in halves):
            problems.append(f"clean and corrupted prompt are the same in {equal} of {total} pairs.")
        texts = [text for pairs in halves for text in zip(pairs.clean_text, pairs.corrupted_text, strict=True)]
        if repeated := len(texts) - len(set(texts)):
            problems.append(f"{repeated} of {total} pairs are repetitions of others; they add nothing.")
        return problems

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
    """Make a task for a model's tokenizer.

    Args:
        name: "ioi", "gt", "sa", the path of a .csv or .jsonl file, or your own pairs: a list of dicts or tuples, a dict
            of lists, a pandas frame or one split of a Hugging Face dataset. Own pairs have the columns clean,
            corrupted, correct and incorrect; further columns are ignored.
        model: The model whose tokenizer reads the prompts.
        examples: Size of train. A file with fewer pairs is divided in the proportion of train and test.
        test_examples: Size of test; by default the same.
        seed: Which prompts are drawn.
        bos: Whether prompts begin with BOS; by default if the model's family needs it (Gemma) or the tokenizer does so
            by itself.
        first_token: Let answers of a file be several tokens long, of which the first is compared.
        **options: Those of the task, such as corruption="all-names" of ioi; they may also be part of the name, as in
            "ioi:corruption=all-names". All tasks have difference="logit" or "probability". Where there are several
            templates, held_out="templates" keeps those of test out of train.

    Returns:
        A task; no prompt of its test occurs in its train.

    Raises:
        GatewiseError: If there is no such task or option, a row cannot be read, or there are too few prompts.
    """
    check_seed(seed)
    sizes = (_size(examples, "examples"), _size(examples if test_examples is None else test_examples, "test_examples"))
    encoder = _encoder(model, bos)
    short, choices, recipe = OWN, cast("Choices", {"difference": DIFFERENCES}), None
    if isinstance(name, (str, os.PathLike)):
        short, options_in_name = parse_name(os.fspath(name))
        choices, recipe = task_options(short), RECIPES.get(short)
        options = {**options_in_name, **options}
    chosen = complete_options(short, options, choices)
    if recipe is not None:
        train, test = _generate(recipe, chosen, encoder, sizes, seed)
    else:
        if short == OWN:
            pairs = encode_rows(*valid_rows(records_of(name)), encoder, first_token=first_token, name=OWN)
        else:
            pairs = task_files.read_pairs(Path(short), encoder, first_token=first_token)
        train, test = _divide(short, pairs, sizes, seed)
    title = full_name(Path(short).name, chosen, choices)
    difference = cast("Difference", chosen["difference"])
    train_pairs, test_pairs = (_pairs(half, title, difference, encoder) for half in (train, test))
    return Task(title, train_pairs, test_pairs, seed, encoder.bos, used_up=len(train) < sizes[0])


def pairs_from_text(
    rows: Any, model: Reader, *, difference: Difference, name: str, bos: bool | None, first_token: bool
) -> Pairs:
    """Do what `Pairs.from_text` promises."""
    encoder = _encoder(model, bos)
    examples = encode_rows(*valid_rows(records_of(rows)), encoder, first_token=first_token, name=name)
    return _pairs(examples, name, difference, encoder)


def _encoder(model: Reader, bos: bool | None) -> Encoder:
    """How texts are read for a model."""
    if model.tokenizer is None:
        raise GatewiseError(
            f"the model {model.name} has no tokenizer, so no task can be made for it. "
            f"Bring token ids with Pairs.from_tokens, or load the model with its tokenizer."
        )
    tokenizer: PreTrainedTokenizerBase = model.tokenizer
    longest = getattr(getattr(model.hf, "config", None), "max_position_embeddings", None)
    if bos is None and model.needs_bos and tokenizer.bos_token_id is not None:
        bos = True
    return Encoder(tokenizer, bos, longest)


def _generate(
    recipe: Recipe, options: dict[str, str], encoder: Encoder, sizes: tuple[int, int], seed: int
) -> tuple[list[TokenExample], list[TokenExample]]:
    # Train and test are drawn from two streams, so that train does not depend on the size of test.
    draw = recipe.prepare(encoder, **{option: options[option] for option in recipe.options})
    templates = _divided_templates(recipe, options.get("held_out") == "templates", seed)
    halves: list[list[TokenExample]] = []
    taken: set[str] = set()  # prompts of train, none of which may occur in test
    for half, size, allowed in zip(("train", "test"), sizes, templates, strict=True):
        rng = random.Random(f"{recipe.name}/{half}/{seed}")
        drawn: dict[str, TokenExample] = {}
        misses, reason = 0, "every further prompt was a repetition"
        while len(drawn) < size:
            example = draw(rng)
            if allowed and example.template not in allowed:
                continue
            try:
                if example.clean not in drawn and not taken & {example.clean, example.corrupted}:
                    drawn[example.clean] = encoder.encode(example).compact()
                    misses = 0
                    continue
            except GatewiseError as error:
                reason = str(error)
            misses += 1
            if misses > _MISSES:
                raise GatewiseError(
                    f"{recipe.name} has only {len(drawn)} different {half} prompts for this tokenizer, {size} were "
                    f"asked for ({reason}). Ask for fewer examples."
                )
        halves.append(list(drawn.values()))
        taken = {text for pair in drawn.values() for text in (pair.text.clean, pair.text.corrupted)}
    return halves[0], halves[1]


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
    """Shuffle a user's pairs and divide them. A corrupted prompt may serve many pairs, also across the two halves."""
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


def _size(value: int, argument: str) -> int:
    check_count(argument, value, 1, MOST_EXAMPLES)
    return value
