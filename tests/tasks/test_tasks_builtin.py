"""The three built-in tasks, on every kind of tokenizer."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gatewise.errors import GatewiseError
from gatewise.tasks import RECIPES, Pairs, task, tokenizer_fingerprint
from gatewise.tasks.encoder import adds_bos

from .conftest import TextModel, byte_level

NAMES = sorted(RECIPES)


def prompts(pairs: Pairs) -> set[str]:
    return {*pairs.clean_text, *pairs.corrupted_text}


def answer_texts(model: Any, row: torch.Tensor) -> list[str]:
    return [model.tokenizer.decode([token]).strip() for token in row.tolist() if token >= 0]


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_the_text_and_of_equal_length(name: str, model: TextModel) -> None:
    made = task(name, model, examples=30)
    for pairs in (made.train, made.test):
        assert len(pairs) == 30
        for i, (clean, corrupted) in enumerate(zip(pairs.clean_text, pairs.corrupted_text, strict=True)):
            length = int(pairs.lengths[i])
            for text, row in ((clean, pairs.clean[i]), (corrupted, pairs.corrupted[i])):
                ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
                assert row[-length:].tolist() == [model.tokenizer.bos_token_id] * made.bos + ids
            assert clean != corrupted


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_the_one_token_that_follows_the_prompt(name: str, model: TextModel) -> None:
    pairs = task(name, model, examples=20).train
    for text, right, wrong in zip(pairs.clean_text, pairs.right, pairs.wrong, strict=True):
        start = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        space = "" if name == "gt" else " "
        for token in [*right.tolist(), *wrong.tolist()]:
            if token >= 0:
                answer = space + model.tokenizer.decode([token]).strip()
                assert model.tokenizer(text + answer, add_special_tokens=False)["input_ids"] == [*start, token]


@pytest.mark.parametrize("name", NAMES)
def test_no_prompt_of_test_is_in_train(name: str, two_digits: TextModel) -> None:
    made = task(name, two_digits, examples=100)
    assert not prompts(made.train) & prompts(made.test)
    assert len(set(made.train.clean_text)) == len(set(made.test.clean_text)) == 100


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_and_nothing_else(name: str, two_digits: TextModel) -> None:
    first, again, other = (task(name, two_digits, examples=20, seed=seed) for seed in (3, 3, 4))
    assert first.train.fingerprint == again.train.fingerprint
    assert first.test.fingerprint == again.test.fingerprint
    assert first.train.fingerprint != other.train.fingerprint
    larger = task(name, two_digits, examples=40, test_examples=5, seed=3)
    assert larger.train.clean_text[:20] == first.train.clean_text
    assert len(larger.test) == 5


def test_prompts_do_not_depend_on_the_machine(two_digits: TextModel) -> None:
    """Written down once: a change here changes everybody's numbers and belongs into the changelog."""
    assert task("sa", two_digits, examples=1).train.clean_text == ("Some widows surprised",)


def test_ioi_has_both_orders_and_a_third_name(model: TextModel) -> None:
    pairs = task("ioi", model, examples=64).train
    assert len(set(pairs.lengths.tolist())) > 1
    orders = set()
    for i, (clean, corrupted) in enumerate(zip(pairs.clean_text, pairs.corrupted_text, strict=True)):
        (right,), (wrong,) = answer_texts(model, pairs.right[i]), answer_texts(model, pairs.wrong[i])
        assert len(re.findall(rf"\b{wrong}\b", clean)) == 2
        assert len(re.findall(rf"\b{right}\b", clean)) == 1
        assert len(re.findall(rf"\b{wrong}\b", corrupted)) == len(re.findall(rf"\b{right}\b", corrupted)) == 1
        orders.add(clean.index(right) < clean.index(wrong))
    assert orders == {True, False}


def test_words_in_pieces_are_refused() -> None:
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    spelling = Tokenizer(models.BPE(vocab=letters, merges=[]))
    spelling.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=spelling)
    with pytest.raises(GatewiseError, match=r"three names.*\.csv"):
        task("ioi", TextModel(tokenizer))
    with pytest.raises(GatewiseError, match=r"themselves.*\.csv"):
        task("sa", TextModel(tokenizer))


@pytest.mark.parametrize("kind", ["two digits", "words"])
def test_gt_with_two_digit_tokens(kind: str, models_by_kind: dict[str, TextModel]) -> None:
    model = models_by_kind[kind]
    pairs = task("gt", model, examples=40).train
    assert pairs.margin_kind == "probability"
    for i, (clean, corrupted) in enumerate(zip(pairs.clean_text, pairs.corrupted_text, strict=True)):
        century, year = re.search(r"year (\d\d)(\d\d) to the year \1$", clean).groups()  # type: ignore[union-attr]
        assert f"year {century}01 to" in corrupted
        assert answer_texts(model, pairs.right[i]) == [f"{y:02d}" for y in range(int(year) + 1, 100)]
        assert answer_texts(model, pairs.wrong[i]) == [f"{y:02d}" for y in range(int(year) + 1)]


@pytest.mark.parametrize("kind", ["single digits", "sentencepiece"])
def test_gt_with_single_digits_compares_tens(kind: str, models_by_kind: dict[str, TextModel]) -> None:
    model = models_by_kind[kind]
    pairs = task("gt", model, examples=40).train
    for i, clean in enumerate(pairs.clean_text):
        tens = int(re.search(r"year \d\d(\d)\d to", clean).group(1))  # type: ignore[union-attr]
        assert answer_texts(model, pairs.right[i]) == [str(digit) for digit in range(tens + 1, 10)]
        assert answer_texts(model, pairs.wrong[i]) == [str(digit) for digit in range(tens)]


def test_gt_refuses_other_ways_to_cut_years() -> None:
    with pytest.raises(GatewiseError, match=r"gt needs.*151.*\.csv"):
        task("gt", TextModel(byte_level(r"\d{1,3}")))


def test_sa_flips_the_number_both_ways(model: TextModel) -> None:
    pairs = task("sa", model, examples=64).train
    rights = [answer_texts(model, row)[0] for row in pairs.right]
    wrongs = [answer_texts(model, row)[0] for row in pairs.wrong]
    assert set(rights) == {"themselves", "herself", "himself"}
    assert all((right == "themselves") != (wrong == "themselves") for right, wrong in zip(rights, wrongs, strict=True))
    for clean, corrupted in zip(pairs.clean_text, pairs.corrupted_text, strict=True):
        assert sum(a != b for a, b in zip(clean.split(), corrupted.split(), strict=True)) == 1


def test_bos_follows_the_tokenizer_unless_said(models_by_kind: dict[str, TextModel]) -> None:
    assert not adds_bos(models_by_kind["two digits"].tokenizer)
    llama = models_by_kind["sentencepiece"]
    assert task("sa", llama, examples=2).bos
    plain = task("sa", llama, examples=2, bos=False)
    assert not plain.bos
    with_bos = task("sa", models_by_kind["two digits"], examples=2, bos=True)
    assert (with_bos.train.clean[torch.arange(2), with_bos.train.width - with_bos.train.lengths] == 0).all()
    with pytest.raises(GatewiseError, match="bos=False"):
        task("sa", models_by_kind["words"], bos=True)


def test_pairs_carry_the_fingerprint_of_their_tokenizer(models_by_kind: dict[str, TextModel]) -> None:
    prints = {tokenizer_fingerprint(model.tokenizer) for model in models_by_kind.values()}
    assert len(prints) == len(models_by_kind)
    model = models_by_kind["words"]
    assert task("sa", model, examples=2).train.vocabulary == tokenizer_fingerprint(model.tokenizer)
    tokenizer = byte_level(r"\d")
    before = tokenizer_fingerprint(tokenizer)
    tokenizer.add_tokens(["brandnew"])
    assert tokenizer_fingerprint(tokenizer) != before


def test_errors_name_the_way_out(two_digits: TextModel) -> None:
    with pytest.raises(GatewiseError, match=r"no task 'nothing'.*gt.*\.csv"):
        task("nothing", two_digits)
    with pytest.raises(GatewiseError, match=r"no tokenizer.*Pairs\.from_tokens"):
        task("ioi", TextModel(None))
    for size in (0, -1, True, 2.5):
        with pytest.raises(GatewiseError, match="examples is a whole number"):
            task("ioi", two_digits, examples=size)  # type: ignore[arg-type]


def test_a_task_that_runs_out_of_prompts_says_so(two_digits: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatewise.tasks.sa.VERBS", ("hurt",))
    monkeypatch.setattr("gatewise.tasks.sa.DETERMINERS", ("The",))
    with pytest.raises(GatewiseError, match=r"sa has only \d+ different train prompts.*fewer examples"):
        task("sa", two_digits, examples=500)
    with pytest.raises(GatewiseError, match=r"sa has only \d+ different test prompts"):
        task("sa", two_digits, examples=50, test_examples=80)
