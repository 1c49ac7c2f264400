"""The three built-in tasks, on every kind of tokenizer."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gatewise.errors import GatewiseError
from gatewise.tasks import Pairs, ioi, sa, task
from gatewise.tasks.encoding import Encoder, adds_bos, tokenizer_fingerprint
from gatewise.tasks.example import Example
from gatewise.tasks.registry import RECIPES, all_task_names, parse_name

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
    for text, correct, incorrect in zip(pairs.clean_text, pairs.correct, pairs.incorrect, strict=True):
        start = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        space = "" if name == "gt" else " "
        for token in [*correct.tolist(), *incorrect.tolist()]:
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
        (correct,), (incorrect,) = answer_texts(model, pairs.correct[i]), answer_texts(model, pairs.incorrect[i])
        assert len(re.findall(rf"\b{incorrect}\b", clean)) == 2
        assert len(re.findall(rf"\b{correct}\b", clean)) == 1
        assert len(re.findall(rf"\b{incorrect}\b", corrupted)) == len(re.findall(rf"\b{correct}\b", corrupted)) == 1
        orders.add(clean.index(correct) < clean.index(incorrect))
    assert orders == {True, False}


IOI_FINGERPRINTS = {  # of 50 pairs with seed 1, by the code before tasks had options
    "two digits": ("0fc1b0bb5eadfeef", "064c156065ae8d50"),
    "single digits": ("d740ac49acdcba1d", "b65e14d848edcae6"),
    "sentencepiece": ("5b4a05544ebf5b2f", "b0c7bc423322b6b6"),
    "words": ("5b93411ae959171d", "32985e25d30281b6"),
}


@pytest.mark.parametrize("kind", list(IOI_FINGERPRINTS))
def test_ioi_without_options_stays_what_it_was(kind: str, models_by_kind: dict[str, TextModel]) -> None:
    made = task("ioi", models_by_kind[kind], examples=50, seed=1)
    assert (made.train.fingerprint, made.test.fingerprint) == IOI_FINGERPRINTS[kind]


def test_ioi_with_all_names_replaced(model: TextModel) -> None:
    usual = task("ioi", model, examples=64).train
    pairs = task("ioi", model, examples=64, corruption="all-names").train
    assert pairs.clean_text == usual.clean_text
    assert set(pairs.templates) == set(ioi.TEMPLATES)
    for clean, corrupted in zip(pairs.clean_text, pairs.corrupted_text, strict=True):
        words = zip(re.findall(r"\w+", clean), re.findall(r"\w+", corrupted), strict=True)
        before, after = zip(*((one, other) for one, other in words if one != other), strict=True)
        assert len(before) == 3
        assert {*before, *after} <= set(ioi.NAMES)
        assert len({*before, *after}) == 2 + 3


@pytest.mark.parametrize("corruption", ["second-name", "all-names"])
def test_held_out_templates(corruption: str, two_digits: TextModel) -> None:
    made = task("ioi", two_digits, examples=100, held_out="templates", corruption=corruption)
    train, test = set(made.train.templates), set(made.test.templates)
    assert not train & test
    assert train | test == set(ioi.TEMPLATES)
    assert len(made.train[10:20].templates) == 10
    other = task("ioi", two_digits, examples=100, held_out="templates", seed=1)
    assert set(other.train.templates) != train
    with pytest.raises(GatewiseError, match="gt has no option 'held_out'; its options are difference"):
        task("gt", two_digits, held_out="templates")


@pytest.mark.parametrize("name", all_task_names())
def test_the_full_name_of_a_task_asks_for_it_again(name: str, two_digits: TextModel) -> None:
    made = task(name, two_digits, examples=4)
    short, options = parse_name(name)
    assert made.name == made.train.name == name
    assert task(short, two_digits, examples=4, **options).train.fingerprint == made.train.fingerprint  # type: ignore[arg-type]


def test_forms_of_a_task_have_different_fingerprints(two_digits: TextModel) -> None:
    prints = {name: task(name, two_digits, examples=20).train.fingerprint for name in all_task_names()}
    assert len(set(prints.values())) == len(prints)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ioi:colour=red", r"ioi has no option 'colour'; its options are corruption \(second-name or all-names\)"),
        ("ioi:corruption=none", "ioi: corruption is second-name or all-names, got 'none'"),
        ("ioi:corruption", "there is no task 'ioi:corruption'"),
        ("sa:number=", "sa: number is plural or singular or mixed, got ''"),
        ("my.csv:number=mixed", r"my\.csv has no option 'number'; its options are split .*, difference"),
        ("odd:name=1.csv", r"odd:name=1\.csv: there is no such file"),
    ],
)
def test_options_that_there_are_not(name: str, message: str, two_digits: TextModel) -> None:
    with pytest.raises(GatewiseError, match=message):
        task(name, two_digits)


def test_words_in_pieces_are_refused() -> None:
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    spelling = Tokenizer(models.BPE(vocab=letters, merges=[]))
    spelling.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=spelling)
    with pytest.raises(GatewiseError, match=r"3 names.*\.csv"):
        task("ioi", TextModel(tokenizer))
    with pytest.raises(GatewiseError, match=r"themselves.*\.csv"):
        task("sa", TextModel(tokenizer))


@pytest.mark.parametrize("kind", ["two digits", "words"])
def test_gt_with_two_digit_tokens(kind: str, models_by_kind: dict[str, TextModel]) -> None:
    model = models_by_kind[kind]
    pairs = task("gt", model, examples=40).train
    assert pairs.difference == "logit"
    for i, (clean, corrupted) in enumerate(zip(pairs.clean_text, pairs.corrupted_text, strict=True)):
        century, year = re.search(r"year (\d\d)(\d\d) to the year \1$", clean).groups()  # type: ignore[union-attr]
        assert f"year {century}01 to" in corrupted
        assert answer_texts(model, pairs.correct[i]) == [f"{y:02d}" for y in range(int(year) + 1, 100)]
        assert answer_texts(model, pairs.incorrect[i]) == [f"{y:02d}" for y in range(int(year) + 1)]


@pytest.mark.parametrize("kind", ["single digits", "sentencepiece"])
def test_gt_with_single_digits_compares_tens(kind: str, models_by_kind: dict[str, TextModel]) -> None:
    model = models_by_kind[kind]
    pairs = task("gt", model, examples=40).train
    for i, clean in enumerate(pairs.clean_text):
        tens = int(re.search(r"year \d\d(\d)\d to", clean).group(1))  # type: ignore[union-attr]
        assert answer_texts(model, pairs.correct[i]) == [str(digit) for digit in range(tens + 1, 10)]
        assert answer_texts(model, pairs.incorrect[i]) == [str(digit) for digit in range(tens)]


def test_gt_refuses_other_ways_to_cut_years() -> None:
    with pytest.raises(GatewiseError, match=r"gt needs.*151.*\.csv"):
        task("gt", TextModel(byte_level(r"\d{1,3}")))


@pytest.mark.parametrize(("number", "clean"), [("plural", True), ("singular", False)])
def test_sa_has_one_number_on_the_clean_side(number: str, clean: bool, model: TextModel) -> None:
    pairs = task("sa", model, examples=64, number=number).train
    assert {answer_texts(model, row)[0] == "themselves" for row in pairs.correct} == {clean}
    assert {answer_texts(model, row)[0] == "themselves" for row in pairs.incorrect} == {not clean}


@pytest.mark.parametrize(("number", "symmetric"), [("plural", False), ("singular", False), ("mixed", True)])
def test_only_mixed_sa_is_its_own_swap(
    number: str, symmetric: bool, two_digits: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the whole distribution: exchanging clean and corrupted, correct and incorrect gives the same pairs, or
    none."""
    monkeypatch.setattr("gatewise.tasks.sa.NOUNS", sa.NOUNS[:3])
    monkeypatch.setattr("gatewise.tasks.sa.VERBS", sa.VERBS[:3])
    draw, rng = sa.prepare(Encoder(two_digits.tokenizer), number), random.Random(0)
    drawn = {draw(rng) for _ in range(3000)}
    swapped = {Example(one.corrupted, one.clean, one.incorrect, one.correct) for one in drawn}
    assert len(drawn) == (1 + symmetric) * 3 * 3 * len(sa.DETERMINERS)
    assert drawn == swapped if symmetric else not drawn & swapped


def test_mixed_sa_flips_the_number_both_ways(model: TextModel) -> None:
    pairs = task("sa", model, examples=64, number="mixed").train
    rights = [answer_texts(model, row)[0] for row in pairs.correct]
    wrongs = [answer_texts(model, row)[0] for row in pairs.incorrect]
    assert set(rights) == {"themselves", "herself", "himself"}
    assert all(
        (correct == "themselves") != (incorrect == "themselves")
        for correct, incorrect in zip(rights, wrongs, strict=True)
    )
    for clean, corrupted in zip(pairs.clean_text, pairs.corrupted_text, strict=True):
        assert sum(a != b for a, b in zip(clean.split(), corrupted.split(), strict=True)) == 1


def test_bos_is_there_if_the_family_needs_it(models_by_kind: dict[str, TextModel]) -> None:
    """Gemma's tokenizer files may not add it; the model answers nonsense without."""
    plain = models_by_kind["two digits"]
    assert not adds_bos(plain.tokenizer)
    gemma = replace(plain, needs_bos=True)
    made = task("sa", gemma, examples=2)
    assert made.bos
    assert made.train.begins_with(plain.tokenizer.bos_token_id)
    assert not task("sa", gemma, examples=2, bos=False).train.begins_with(plain.tokenizer.bos_token_id)


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
        task("sa", two_digits, examples=30, test_examples=20)
