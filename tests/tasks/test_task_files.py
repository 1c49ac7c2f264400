"""A user's own files: what they may say, and what is said about the rest."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatewise.errors import GatewiseError
from gatewise.tasks import task, task_files
from gatewise.tasks.encoding import Encoder

from .conftest import TextModel

HEADER = "clean,corrupted,correct,incorrect\n"
GOOD = "The girls helped,The girl helped,themselves,herself\nThe boys hurt,The boy hurt, themselves, himself\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_file(content: str | bytes, name: str = "own.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def test_a_csv_and_a_jsonl_say_the_same(write: Callable[..., Path], two_digits: TextModel) -> None:
    table = task(write("\ufeff" + HEADER + GOOD), two_digits)
    rows = csv.DictReader(io.StringIO(HEADER + GOOD))
    lines = "\n\n".join(json.dumps(row) for row in rows)
    objects = task(str(write(lines, "own.jsonl")), two_digits)
    assert table.name == "own.csv"
    assert table.train.difference == "logit"
    assert table.train.fingerprint == objects.train.fingerprint
    assert table.test.fingerprint == objects.test.fingerprint
    assert not set(table.train.clean_text) & set(table.test.clean_text)


@pytest.mark.parametrize("name", ["own.csv", "own.jsonl"])
def test_files_with_right_and_wrong_are_still_read(
    write: Callable[..., Path], two_digits: TextModel, name: str
) -> None:
    older = "clean,corrupted,Right,wrong\n" + GOOD
    if name.endswith(".jsonl"):
        older = "\n".join(json.dumps(row) for row in csv.DictReader(io.StringIO(older)))
    made, expected = task(write(older, name), two_digits), task(write(HEADER + GOOD), two_digits)
    assert made.train.fingerprint == expected.train.fingerprint
    assert made.test.fingerprint == expected.test.fingerprint
    both = "clean,corrupted,right,wrong,correct\n" + "a,b,c,d,e\n"
    with pytest.raises(GatewiseError, match="correct is there twice"):
        task(write(both), two_digits)


def test_several_answers(write: Callable[..., Path], two_digits: TextModel) -> None:
    text = HEADER + "The girls helped,The girl helped,themselves,herself|himself| herself\n" + GOOD
    path = write(text)
    pairs, _ = task_files.read_pairs(path, Encoder(two_digits.tokenizer))
    assert [len(pair.incorrect) for pair in pairs] == [2, 1, 1]
    record = {
        "clean": "The boys hurt",
        "corrupted": "The boy hurt",
        "correct": ["themselves"],
        "incorrect": ["him", "himself"],
    }
    listed = task_files.parse_rows(json.dumps(record).encode(), Path("own.jsonl"))
    assert listed[0].example.incorrect == ("him", "himself")


def test_spaces_before_answers(write: Callable[..., Path], two_digits: TextModel) -> None:
    text = (
        HEADER + "to the store,to the park,Mary, John\nthe year 15,the year 16,17,12\nin the park,in the store,.,Mary\n"
    )
    pairs, _ = task_files.read_pairs(write(text), Encoder(two_digits.tokenizer))
    assert [pair.text.correct for pair in pairs] == [(" Mary",), ("17",), (".",)]
    assert pairs[0].text.incorrect == (" John",)


def test_a_small_file_is_divided_and_a_large_one_is_cut(write: Callable[..., Path], words: TextModel) -> None:
    rows = "".join(
        f"year {c}{y:02d} to the year,year {c}01 to the year,12,13\n" for c in (11, 12) for y in range(2, 12)
    )
    path = write(HEADER + rows)
    small, large = task(path, words), task(path, words, examples=4, test_examples=3)
    assert (len(small.train), len(small.test)) == (10, 10)
    assert (len(large.train), len(large.test)) == (4, 3)
    assert task(path, words, seed=1).train.clean_text != small.train.clean_text
    uneven = task(path, words, examples=90, test_examples=10)
    assert (len(uneven.train), len(uneven.test)) == (18, 2)


def test_first_token_is_an_explicit_choice(write: Callable[..., Path], two_digits: TextModel) -> None:
    path = write(HEADER + GOOD.replace("herself", "herselfish"))
    with pytest.raises(GatewiseError, match=r"own\.csv, line 2: .*' herselfish' is \d tokens.*first_token=True"):
        task(path, two_digits)
    assert len(task(path, two_digits, first_token=True).train) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no pairs"),
        (HEADER.encode(), "no pairs"),
        (b"\xff\xfe\x00", "byte 0 is not UTF-8"),
        (b"clean,corrupted,right\n", r"line 1: columns: missing \['incorrect'\]"),
        (b"clean,corrupted,right,false\n", r"missing \['incorrect'\], there are .*'false'"),
        (b"clean,corrupted,correct,incorrect,incorrect\n", "twice"),
        (b"clean;corrupted;right;wrong\n", "separated by commas"),
        ((HEADER + "The girls helped,The girl\n").encode(), "line 2: 2 columns where the first line has 4"),
        ((HEADER + "The girls helped,The girl helped,themselves,\n").encode(), "incorrect is ''"),
        ((HEADER + "The girls helped,The girl helped,themselves,herself|\n").encode(), "incorrect is ''"),
        ((HEADER + " ,The girl helped,themselves,herself\n").encode(), "clean is ' '"),
        ((HEADER + "The girls helped,The girl,themselves,herself\n").encode(), "has 3 tokens and the corrupted one 2"),
        ((HEADER + "The girls helped,The girl helped,herself,herself\n").encode(), "cannot be both"),
        (
            (HEADER + "The girls helped ,The girl helped ,themselves,herself\n").encode(),
            "rather than at the prompt's end",
        ),
        ((HEADER + "The girls helped,The girl helped,themselves,herself\n").encode(), "at least two"),
        ((HEADER + 2 * "The girls helped,The girl helped,themselves,herself\n").encode(), "leave none to test on"),
        ((HEADER + '"The girls').encode(), "not valid CSV"),
        ((HEADER + "x" * 200_000 + ",a,b,c\n").encode(), "not valid CSV"),
    ],
)
def test_errors_of_csv(content: bytes, message: str, write: Callable[..., Path], two_digits: TextModel) -> None:
    with pytest.raises(GatewiseError, match=message) as caught:
        task(write(content), two_digits)
    assert "own.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n\n", "no pairs"),
        ("{", "line 1: not valid JSON"),
        ("\n" + "[" * 100_000, "line 2: not valid JSON"),
        ("[1]", "expected a JSON object, got a list"),
        ('{"clean": 1}', "missing"),
        ('{"clean": 1, "corrupted": "a", "correct": "a", "incorrect": "b"}', "clean is 1"),
        ('{"clean": "a", "corrupted": "a", "correct": [], "incorrect": "b"}', "correct is an empty list"),
        ('{"clean": "a", "corrupted": "a", "correct": [1], "incorrect": "b"}', "correct is 1"),
        ('{"clean": "\\ud800", "corrupted": "a", "correct": "a", "incorrect": "b"}', "surrogate"),
    ],
)
def test_errors_of_jsonl(content: str, message: str, write: Callable[..., Path], two_digits: TextModel) -> None:
    with pytest.raises(GatewiseError, match=message) as caught:
        task(write(content, "own.jsonl"), two_digits)
    assert "own.jsonl" in str(caught.value)


def test_files_that_cannot_be_read(
    tmp_path: Path, two_digits: TextModel, monkeypatch: pytest.MonkeyPatch, write: Callable[..., Path]
) -> None:
    with pytest.raises(GatewiseError, match=r"missing\.csv: there is no such file"):
        task(tmp_path / "missing.csv", two_digits)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(GatewiseError, match="no such file"):
        task(tmp_path / "folder.csv", two_digits)
    with pytest.raises(GatewiseError, match=r"ends in \.csv or \.jsonl"):
        task(write(GOOD, "own.txt"), two_digits)
    path = write(HEADER + GOOD)
    monkeypatch.setattr(task_files, "LARGEST_FILE", 20)
    with pytest.raises(GatewiseError, match="Take a sample of its lines"):
        task(path, two_digits)


def test_words_that_the_vocabulary_lacks(write: Callable[..., Path], words: TextModel) -> None:
    with pytest.raises(GatewiseError, match=r"line 2: the clean prompt 'The zebras helped'.*vocabulary"):
        task(write(HEADER + "The zebras helped,The girl helped,themselves,herself\n"), words)
    with pytest.raises(GatewiseError, match=r"line 2: the correct answer ' zebra'.*vocabulary"):
        task(write(HEADER + "The girls helped,The girl helped,zebra,herself\n"), words)


def test_prompts_longer_than_the_model_reads(write: Callable[..., Path], two_digits: TextModel) -> None:
    encoder = Encoder(two_digits.tokenizer, bos=True, longest=3)
    with pytest.raises(GatewiseError, match="4 tokens, BOS included; the model reads at most 3"):
        task_files.read_pairs(write(HEADER + GOOD), encoder)


CELLS = st.text(alphabet=st.characters(codec="utf-8"), max_size=12)
TABLES = st.lists(st.lists(CELLS, min_size=4, max_size=4), max_size=4)


def as_csv(table: list[list[str]]) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out).writerows([list(task_files.COLUMNS), *table])  # type: ignore[attr-defined]
    return out.getvalue().encode()


def as_jsonl(table: list[list[str]]) -> bytes:
    return "\n".join(json.dumps(dict(zip(task_files.COLUMNS, row, strict=True))) for row in table).encode()  # type: ignore[attr-defined]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(max_size=200), st.binary(max_size=80).map(lambda b: HEADER.encode() + b), TABLES.map(as_csv)
    ),
    lines=st.one_of(st.binary(max_size=200), TABLES.map(as_jsonl)),
    first_token=st.booleans(),
)
def test_whatever_a_file_holds_only_our_own_error_is_raised(
    content: bytes, lines: bytes, first_token: bool, tmp_path: Path, model: TextModel
) -> None:
    for name, data in (("any.csv", content), ("any.jsonl", lines)):
        (tmp_path / name).write_bytes(data)
        try:
            made = task(tmp_path / name, model, first_token=first_token)
        except GatewiseError:
            continue
        assert made.train.clean.shape == made.train.corrupted.shape
