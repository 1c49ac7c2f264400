"""Small tokenizers of the kinds that real models have, trained here on the words of our tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from gatewise.tasks import gt, ioi, sa


@dataclass(frozen=True)
class TextModel:
    """As much of a model as making a task needs."""

    tokenizer: Any
    name: str = "backup"
    hf: Any = None
    needs_bos: bool = False


def corpus() -> list[str]:
    words = [*ioi.PLACES, *ioi.OBJECTS, *gt.NOUNS, *sa.VERBS, sa.PLURAL_PRONOUN]
    words += [form for noun in sa.NOUNS for form in noun] + [*ioi.NAMES[:40]]  # the other names stay in pieces
    texts = [f"They met {word}" for word in words]
    texts += [template.replace("{", "").replace("}", "") for template in (*ioi.TEMPLATES, gt.PROMPT)]
    texts += [f"year {century}{year:02d}" for century in gt.CENTURIES for year in range(100)]
    return texts * 3


def _train(tokenizer: Tokenizer, size: int) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def byte_level(number_pattern: str) -> PreTrainedTokenizerFast:
    """Like GPT-2's, with numbers cut at a pattern."""
    tokenizer = Tokenizer(models.BPE())
    numbers = pre_tokenizers.Split(Regex(number_pattern), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([numbers, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=_train(tokenizer, 2500), bos_token="<s>")


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """Like Llama's: a mark for the space, single digits, BOS by default."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Digits(individual_digits=True)]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=_train(tokenizer, 2500), bos_token="<s>")


def word_level() -> PreTrainedTokenizerFast:
    """Whole words and two-digit numbers; anything else is unknown."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    pieces = pre_tokenizers.Split(Regex(r"\d\d|[^\W\d]+|[^\w\s]"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pieces])
    tokenizer.train_from_iterator(corpus(), trainers.WordLevelTrainer(special_tokens=["<unk>"], show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


MAKERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "two digits": lambda: byte_level(r" ?\d\d"),
    "single digits": lambda: byte_level(r"\d"),
    "sentencepiece": sentencepiece_like,
    "words": word_level,
}


@pytest.fixture(scope="session")
def models_by_kind() -> dict[str, TextModel]:
    return {kind: TextModel(make()) for kind, make in MAKERS.items()}


@pytest.fixture(params=list(MAKERS))
def model(request: pytest.FixtureRequest, models_by_kind: dict[str, TextModel]) -> TextModel:
    """Each kind of tokenizer in turn."""
    return models_by_kind[request.param]


@pytest.fixture
def two_digits(models_by_kind: dict[str, TextModel]) -> TextModel:
    return models_by_kind["two digits"]


@pytest.fixture
def words(models_by_kind: dict[str, TextModel]) -> TextModel:
    return models_by_kind["words"]
