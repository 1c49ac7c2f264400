"""`task`: makes a task, built in, from a file or from rows, split into a part to search on and a part to test on.

Text becomes tokens here, once; everything after works on token ids.
"""

from __future__ import annotations

import html
import os
import random
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.limits import MOST_EXAMPLES, check_count, check_seed
from gatewise.tasks import task_files
from gatewise.tasks._recipe import Recipe
from gatewise.tasks.encoding import Encoder, tokenizer_fingerprint
from gatewise.tasks.example import DIFFERENCES, Difference, TokenExample
from gatewise.tasks.pairs import Pairs
from gatewise.tasks.parsing import BadRowsError, encode_rows, records_of, valid_rows
from gatewise.tasks.registry import RECIPES, Choices, complete_options, full_name, parse_name, task_options
from gatewise.tasks.splitting import SPLITS, Halves, divide

if TYPE_CHECKING:  # transformers takes a second to import, and only models need it
    from transformers import PreTrainedTokenizerBase

OWN = "own pairs"  # the name of a task that was given as rows
FEW_PAIRS = 8  # below so many a share or an error means little
_LISTED = 5  # bad rows in a warning
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
        left_out: Why pairs of the file are in neither half, a sentence each.
    """

    name: str
    train: Pairs
    test: Pairs
    seed: int
    bos: bool
    used_up: bool = False
    left_out: tuple[str, ...] = ()

    def problems(self) -> list[str]:
        """Say what is wrong with the pairs, whatever the model.

        Returns:
            A sentence for each problem: pairs that were left out, too few pairs, prompts in both halves, equal
            prompts, repetitions, answers that cannot be told apart.
        """
        halves, problems = (self.train, self.test), list(self.left_out)
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
        searched_on = {*self.train.clean_text, *self.train.corrupted_text}
        if shared := sum(text in searched_on for text in self.test.clean_text):
            problems.append(
                f"{shared} of {len(self.test)} pairs to test on have a clean prompt that was searched on too, so that "
                f"what is measured on them may be too good."
            )
        return [*problems, *_shared_answers(halves)]

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
    skip_bad: bool = False,
    test: str | os.PathLike[str] | Any = None,
    **options: str,
) -> Task:
    """Make a task for a model's tokenizer.

    Args:
        name: "ioi", "gt", "sa", the path of a .csv or .jsonl file, or your own pairs: a list of dicts or tuples, a dict
            of lists, a pandas frame or one split of a Hugging Face dataset. Own pairs have the columns clean,
            corrupted, correct and incorrect, and if you like split, with train or test; others are ignored.
        model: The model whose tokenizer reads the prompts.
        examples: Size of train. A file with fewer pairs is divided in the proportion of train and test.
        test_examples: Size of test; by default the same.
        seed: Which prompts are drawn.
        bos: Whether prompts begin with BOS; by default if the model's family needs it (Gemma) or the tokenizer does so
            by itself.
        first_token: Let answers of a file be several tokens long, of which the first is compared.
        skip_bad: Leave out own pairs that cannot be read, and warn of them, instead of refusing all.
        test: Pairs to test on, of your own: a file or rows. By default they are divided off.
        **options: Those of the task, such as corruption="all-names" of ioi; they may also be part of the name, as in
            "ioi:corruption=all-names". All tasks have difference="logit" or "probability". Where there are several
            templates, held_out="templates" keeps those of test out of train. Own pairs have split="prompts", so that
            no prompt is in both halves (pairs that would join them are left out), or "rows", whatever their prompts.

    Returns:
        A task; no prompt of its test occurs in its train, unless `test`, a column split or split="rows" says so.

    Raises:
        GatewiseError: If there is no such task or option, a row cannot be read, or there are too few prompts.
    """
    check_seed(seed)
    sizes = (_size(examples, "examples"), _size(examples if test_examples is None else test_examples, "test_examples"))
    encoder = encoder_of(model, bos)
    short, choices, recipe = OWN, cast("Choices", {"split": SPLITS, "difference": DIFFERENCES}), None
    if isinstance(name, (str, os.PathLike)):
        short, options_in_name = parse_name(os.fspath(name))
        choices, recipe = task_options(short), RECIPES.get(short)
        options = {**options_in_name, **options}
    chosen = complete_options(short, options, choices)
    reading = {"first_token": first_token, "skip_bad": skip_bad}
    bad: list[str] = []
    if recipe is not None:
        halves = _generate(recipe, chosen, encoder, sizes, seed)
    else:
        pairs, bad = _own_pairs(name if short == OWN else Path(short), encoder, **reading)
        if test is None:
            halves = divide(short, pairs, sizes, seed, chosen["split"])
        else:
            halves = Halves(random.Random(f"file/{seed}").sample(pairs, len(pairs))[: sizes[0]], [])
    if test is not None:
        held_out, bad_too = _own_pairs(test, encoder, **reading)
        halves, bad = Halves(halves.train, held_out[: sizes[1]], halves.joining), bad + bad_too
    left_out = _left_out(halves, bad)
    for sentence in left_out:
        warnings.warn(f"{short}: {sentence}", GatewiseWarning, stacklevel=2)
    title = full_name(Path(short).name, chosen, choices)
    difference = cast("Difference", chosen["difference"])
    train_pairs, test_pairs = (_pairs(half, title, difference, encoder) for half in (halves.train, halves.test))
    used_up = len(halves.train) < sizes[0]
    return Task(title, train_pairs, test_pairs, seed, encoder.bos, used_up=used_up, left_out=left_out)


def check_task_source(name: str, *, skip_bad: bool = False) -> None:
    """Refuse what can be refused without a model: an unknown task or option, a file that cannot be read, bad lines.

    Args:
        name: The full name of a task, or the path of a file.
        skip_bad: Whether bad lines are to be left out.

    Raises:
        GatewiseError: No model could make a task of it.
    """
    short, options = parse_name(name)
    complete_options(short, options, task_options(short))
    if short not in RECIPES:
        rows, problems = task_files.read_lines(Path(short))
        if problems and not (skip_bad and rows):
            raise BadRowsError(problems)


def _own_pairs(
    source: Any, encoder: Encoder, *, first_token: bool, skip_bad: bool
) -> tuple[list[TokenExample], list[str]]:
    """Pairs of a file or of rows, and a sentence for each that was left out."""
    if isinstance(source, (str, os.PathLike)):
        return task_files.read_pairs(Path(source), encoder, first_token=first_token, skip_bad=skip_bad)
    rows = valid_rows(records_of(source))
    return encode_rows(*rows, encoder, first_token=first_token, name=OWN, skip_bad=skip_bad)


def _left_out(halves: Halves, bad: Sequence[str]) -> tuple[str, ...]:
    sentences = []
    if halves.joining:
        total = halves.joining + len(halves.train) + len(halves.test)
        sentences.append(
            f"{halves.joining} of {total} pairs are left out, since one of their prompts is in train and the other in "
            f"test. A column split (train or test) divides them as you like, split=rows whatever their prompts."
        )
    if bad:
        others = f"; and {len(bad) - _LISTED} more" if len(bad) > _LISTED else ""
        sentences.append(f"{len(bad)} bad rows are left out: {' '.join(bad[:_LISTED])}{others}")
    return tuple(sentences)


def _shared_answers(halves: Sequence[Pairs]) -> list[str]:
    """Different answers of different pairs of which the same first token is compared."""
    texts: dict[int, set[str]] = {}
    for pairs in halves:
        for tokens, (correct, _) in zip(pairs.correct.tolist(), pairs.answer_text, strict=False):
            if len(correct) == sum(token >= 0 for token in tokens):  # else two of one pair begin alike, and count once
                for token, text in zip(tokens, correct, strict=False):
                    texts.setdefault(token, set()).add(text.strip())
    same = [sorted(words) for words in texts.values() if len(words) > 1]
    if not same:
        return []
    sentence = "begin with the same token, the only one that is compared, so that pairs do not tell them apart."
    return [f"the answers {', '.join(words)} {sentence}" for words in same[:_LISTED]]


def pairs_from_text(
    rows: Any, model: Reader, *, difference: Difference, name: str, bos: bool | None, first_token: bool
) -> Pairs:
    """Do what `Pairs.from_text` promises."""
    encoder = encoder_of(model, bos)
    examples, _ = encode_rows(*valid_rows(records_of(rows)), encoder, first_token=first_token, name=name)
    return _pairs(examples, name, difference, encoder)


def encoder_of(model: Reader, bos: bool | None) -> Encoder:
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


def _generate(recipe: Recipe, options: dict[str, str], encoder: Encoder, sizes: tuple[int, int], seed: int) -> Halves:
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
    return Halves(halves[0], halves[1])


def _divided_templates(recipe: Recipe, divided: bool, seed: int) -> tuple[Collection[str], Collection[str]]:
    """The templates of train and of test, half each; none if all may occur in both."""
    if not divided:
        return (), ()
    order = random.Random(f"{recipe.name}/templates/{seed}").sample(recipe.templates, len(recipe.templates))
    half = len(order) // 2
    return order[:half], order[half:]


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
