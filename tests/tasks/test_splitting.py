"""Own pairs are accepted, however their prompts are shared, and no prompt is both searched and tested on."""

from __future__ import annotations

import warnings
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.tasks import Task, task
from gatewise.tasks.builder import check_task_source
from gatewise.tasks.example import Example, TokenExample
from gatewise.tasks.splitting import divide

from .conftest import TextModel

YEARS = [f"year {century}{year:02d} to the year" for century in (11, 12) for year in range(2, 12)]


def ring(steps: tuple[int, ...] = (1, 7)) -> list[dict[str, str]]:
    """Twenty prompts, each the clean one of two pairs and the corrupted one of two others: 40 rows."""
    rows = []
    for number, clean in enumerate(YEARS):
        for step in steps:
            rows.append({"clean": clean, "corrupted": YEARS[(number + step) % 20], "correct": "12", "incorrect": "13"})
    return rows


def quietly(rows: Any, model: Any, **options: Any) -> Task:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GatewiseWarning)
        return task(rows, model, **options)


def assert_apart(made: Task) -> None:
    known = {*made.train.clean_text, *made.train.corrupted_text}
    assert not known & set(made.test.clean_text)
    assert not set(made.test.corrupted_text) & set(made.train.clean_text)


@pytest.mark.parametrize("steps", [(1,), (1, 7), tuple(range(1, 20))])
def test_prompts_that_all_hang_together_are_cut_and_what_joins_them_is_left_out(
    steps: tuple[int, ...], words: TextModel
) -> None:
    rows = ring(steps)
    with pytest.warns(GatewiseWarning, match=r"pairs are left out, since one of their prompts is in train"):
        made = task(rows, words, examples=400)
    assert_apart(made)
    assert min(len(made.train), len(made.test)) >= len(rows) // 6
    left_out = len(rows) - len(made.train) - len(made.test)
    assert made.left_out[0].startswith(f"{left_out} of {len(rows)} pairs are left out")
    assert made.left_out[0] in made.problems()
    if steps == (1,):
        assert left_out <= 4  # a ring is cut in two places


def test_pairs_without_common_prompts_are_divided_as_they_always_were(words: TextModel) -> None:
    rows = [{**row, "corrupted": "year 1101 to the year"} for row in ring((1,))]
    made = task(rows, words, examples=6, test_examples=4)
    assert (len(made.train), len(made.test), made.left_out) == (6, 4, ())
    assert_apart(made)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 14)), min_size=2, max_size=40), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_whatever_prompts_are_shared_the_halves_share_none(ends: list[tuple[int, int]], seed: int) -> None:
    pairs = [TokenExample(Example(str(a), str(b), ("x",), ("y",)), [a], [b], [1], [2]) for a, b in ends]
    try:
        halves = divide("rows", pairs, (8, 8), seed, "prompts")
    except GatewiseError:
        return
    known = {text for pair in halves.train for text in (pair.text.clean, pair.text.corrupted)}
    assert halves.train
    assert halves.test
    assert not known & {pair.text.clean for pair in halves.test}
    assert not {pair.text.corrupted for pair in halves.test} & {pair.text.clean for pair in halves.train}
    assert len(halves.train) + len(halves.test) + halves.joining <= len(pairs)


def test_only_what_cannot_be_cut_is_refused_and_the_error_says_what_can_be_done(words: TextModel) -> None:
    both_ways = [{"clean": a, "corrupted": b, "correct": "12", "incorrect": "13"} for a, b in permutations(YEARS[:2])]
    with pytest.raises(GatewiseError, match=r"column split.*--test FILE.*split=rows"):
        task(both_ways, words)
    made = quietly(both_ways, words, split="rows")
    assert made.name == "own pairs:split=rows"  # recorded wherever the task is
    assert made.train.name == made.name
    assert any("was searched on too" in problem for problem in made.problems())


def test_a_column_says_which_pairs_are_tested_on(words: TextModel, tmp_path: Path) -> None:
    rows = [{**row, "split": "Test" if number < 6 else "train"} for number, row in enumerate(ring((1,)))]
    made = task(rows, words)
    assert sorted(made.test.clean_text) == sorted(YEARS[:6])
    assert len(made.train) == 14
    with pytest.raises(GatewiseError, match=r"pair 3: split is 'validation'; expected train or test"):
        task([*rows[:3], {**rows[3], "split": "validation"}], words)
    with pytest.raises(GatewiseError, match="no pair has split=train"):
        task(rows[:6], words)
    path = tmp_path / "own.csv"
    lines = [",".join(row.values()) for row in rows]
    path.write_text("\n".join([",".join(rows[0]), *lines]))
    assert task(path, words).test.fingerprint == made.test.fingerprint


def test_pairs_to_test_on_may_come_from_a_file_of_their_own(words: TextModel, tmp_path: Path) -> None:
    path = tmp_path / "test.csv"
    path.write_text("clean,corrupted,correct,incorrect\nyear 1302 to the year,year 1301 to the year,12,13\n")
    made = task(ring((1,)), words, test=path)
    assert len(made.train) == 20
    assert made.test.clean_text == ("year 1302 to the year",)
    assert task("gt", words, examples=2, test=path).test.clean_text == made.test.clean_text


def test_bad_rows_are_left_out_and_listed_if_asked(words: TextModel) -> None:
    rows = ring((1,))
    rows[2]["correct"] = ""
    rows[5]["clean"] = "zebra 1102 to the year"
    with pytest.raises(GatewiseError, match=r"pair 2: correct is ''.*1 further rows.*--skip-bad"):
        task(rows, words)
    with pytest.warns(GatewiseWarning, match=r"2 bad rows are left out: pair 2: .* pair 5: .*vocabulary"):
        made = task(rows, words, skip_bad=True, split="rows")
    assert any("2 bad rows" in problem for problem in made.problems())
    with pytest.raises(GatewiseError, match="pair 0"):
        task([rows[2]], words, skip_bad=True)  # nothing is left


def test_answers_of_two_rows_that_begin_with_the_same_token_are_pointed_out(two_digits: TextModel) -> None:
    rows = [{**row, "correct": "herself"} for row in ring((1,))]
    assert not quietly(rows, two_digits).left_out[1:]
    rows[0]["correct"], rows[1]["correct"] = "herselfish", "herselfless"
    problems = quietly(rows, two_digits, first_token=True, split="rows").problems()
    assert any("herself, herselfish, herselfless begin with the same token" in problem for problem in problems)


def test_what_needs_no_model_is_refused_without_one(tmp_path: Path) -> None:
    with pytest.raises(GatewiseError, match=r"no task 'ioii'. Did you mean 'ioi'\?"):
        check_task_source("ioii")
    with pytest.raises(GatewiseError, match=r"no option 'corruptoin'; Did you mean 'corruption'\?"):
        check_task_source("ioi:corruptoin=all-names")
    path = tmp_path / "own.csv"
    path.write_text("clean,corrupted,correct,incorrect\na,b,c,\nd,e,f,g\n")
    with pytest.raises(GatewiseError, match="line 2: incorrect is ''"):
        check_task_source(str(path))
    check_task_source(f"{path}:split=rows", skip_bad=True)
    with pytest.raises(GatewiseError, match="split is prompts or rows"):
        check_task_source(f"{path}:split=lines")
