"""Rows of a user's own pairs (of a list, a frame, a file): columns and answers checked, every bad row named at once.

Columns (or keys): clean, corrupted, correct, incorrect, in any case, and if you like split (train or test); further
ones are ignored. Older files have right and wrong for correct and incorrect. Several answers are written `a|b`, or as a
list. An answer with a leading space is appended to the prompt as it stands. One without gets a space, unless the prompt
ends in white space, a digit follows a digit, or it is a single token only without one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gatewise.errors import GatewiseError
from gatewise.files import shown
from gatewise.progress import progress_bar
from gatewise.tasks.encoding import Encoder
from gatewise.tasks.example import Example, TokenExample

COLUMNS = ("clean", "corrupted", "correct", "incorrect")
SPLIT = "split"  # a column that need not be there
_OLDER_NAMES = {"right": "correct", "wrong": "incorrect"}
MOST_PROBLEMS = 1_000  # bad rows that are named
_STOPPED = f"reading stopped here, after {MOST_PROBLEMS:,} bad rows."
_WAY_OUT = (
    f"Give rows with the columns {', '.join(COLUMNS)}: a list of dicts or of tuples in this order, a dict of lists, a "
    f"pandas frame, or one split of a Hugging Face dataset."
)


class BadRowsError(GatewiseError):
    """Rows that cannot be read; `problems` has a sentence for each, with where it is."""

    def __init__(self, problems: list[str]) -> None:
        others = (
            f" {len(problems) - 1} further rows are wrong too; `gatewise tasks check` lists all of a file, and "
            f"skip_bad=True (--skip-bad) leaves them out."
        )
        super().__init__(problems[0] + (others if problems[1:] else ""))
        self.problems = problems


@dataclass(frozen=True)
class Row:
    """One pair as written, before answers are fitted to the prompt."""

    where: str  # file and line, for errors
    example: Example


Record = tuple[str, object]  # where, and a row as it was given, or the GatewiseError that says what is wrong with it


def records_of(source: Any) -> Iterator[Record]:
    """Iterate over a list of dicts or tuples, a dict of columns, a pandas frame, or one split of a dataset."""
    if hasattr(source, "to_dict") and hasattr(source, "columns"):
        source = source.to_dict("records")  # a pandas frame
    elif isinstance(source, Mapping):
        source = _from_columns(source)
    try:
        rows = enumerate(iter(source))
    except TypeError:
        raise GatewiseError(f"pairs cannot be read from a {type(source).__name__}. {_WAY_OUT}") from None
    for number, row in rows:
        yield f"pair {number}", row


def _from_columns(table: Mapping[str, Any]) -> list[dict[str, object]]:
    columns = known_columns(table)
    lists = {name: list(values) for name, values in columns.items() if not isinstance(values, (str, Mapping))}
    lengths = {name: len(values) for name, values in lists.items()}
    if len(lists) < len(COLUMNS) or len(set(lengths.values())) > 1:
        raise GatewiseError(f"a dict of columns needs lists of equal length, got {lengths}. {_WAY_OUT}")
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def column_name(text: str) -> str:
    """Return the name of a column without spaces and capitals; those of older files have their present names."""
    name = text.strip().lower()
    return _OLDER_NAMES.get(name, name)


def known_columns(record: Mapping[Any, Any], way_out: str = _WAY_OUT) -> dict[str, Any]:
    """Return our columns of a record, whatever the case of their names; others are left out."""
    columns: dict[str, Any] = {}
    for given, value in record.items():
        name = column_name(str(given))
        if name in columns:
            raise GatewiseError(f"columns: {name} is there twice. {way_out}")
        if name in COLUMNS or name == SPLIT:
            columns[name] = value
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        present = shown([str(name) for name in record])
        raise GatewiseError(f"columns: missing {shown(missing)}, there are {present}. {way_out}")
    return columns


def valid_rows(records: Iterable[Record], way_out: str = _WAY_OUT) -> tuple[list[Row], list[str]]:
    """Return the rows that can be read, and a sentence for each of the others."""
    rows, problems = [], []
    for where, record in records:
        try:
            rows.append(Row(where, _example(record, way_out)))
        except GatewiseError as error:
            problems.append(f"{where}: {error}")
            if len(problems) == MOST_PROBLEMS:
                problems.append(f"{where}: {_STOPPED}")
                break
    return rows, problems


def _example(record: object, way_out: str) -> Example:
    if isinstance(record, GatewiseError):
        raise record
    if isinstance(record, (tuple, list)) and len(record) == len(COLUMNS):
        record = dict(zip(COLUMNS, record, strict=True))
    if not isinstance(record, Mapping):
        raise GatewiseError(f"{shown(record)} is no pair. {way_out}")
    columns = known_columns(record, way_out)
    clean, corrupted = (_text(name, columns[name]) for name in ("clean", "corrupted"))
    correct, incorrect = (_answers(name, columns[name]) for name in ("correct", "incorrect"))
    return Example(clean, corrupted, correct, incorrect, split=_split(columns.get(SPLIT, "")))


def _split(value: object) -> str:
    half = value.strip().lower() if isinstance(value, str) else value
    if half not in ("", "train", "test"):
        raise GatewiseError(f"split is {shown(value)}; expected train or test. Rename the column if it is not for us.")
    return str(half)


def _text(column: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise GatewiseError(f"{column} is {shown(value)}; expected a text that is not empty.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise GatewiseError(f"{column} has half of a surrogate pair, which is no character.") from error
    return value


def _answers(column: str, value: object) -> tuple[str, ...]:
    answers = value if isinstance(value, (list, tuple)) else _text(column, value).split("|")
    if not answers:
        raise GatewiseError(f"{column} is an empty list; expected at least one answer.")
    return tuple(_text(column, answer).rstrip() for answer in answers)


def encode_rows(
    rows: list[Row], problems: list[str], encoder: Encoder, *, first_token: bool, name: str, skip_bad: bool = False
) -> tuple[list[TokenExample], list[str]]:
    """Return all rows as tokens, in order, and a sentence for each that is wrong; they are an error unless skipped."""
    examples, problems = [], list(problems)
    with progress_bar(f"reading {name}", len(rows)) as bar:
        for row in rows:
            try:
                examples.append(encoder.encode(with_spaces(row.example, encoder), first_token=first_token))
            except GatewiseError as error:
                problems.append(f"{row.where}: {error}")
                if len(problems) >= MOST_PROBLEMS:
                    problems.append(f"{row.where}: {_STOPPED}")
                    break
            bar.advance()
    problems.sort(key=_row_number)
    if problems and not (skip_bad and examples):
        raise BadRowsError(problems)
    return examples, problems


def _row_number(problem: str) -> int:
    match = re.search(r"(?:line|pair) (\d+):", problem)
    return int(match[1]) if match else 0


def with_spaces(example: Example, encoder: Encoder) -> Example:
    """Return the example with its answers as they follow the prompt."""
    correct = tuple(_with_space(example.clean, answer, encoder) for answer in example.correct)
    incorrect = tuple(_with_space(example.clean, answer, encoder) for answer in example.incorrect)
    return replace(example, correct=correct, incorrect=incorrect)


def _with_space(prompt: str, answer: str, encoder: Encoder) -> str:
    digits = prompt[-1].isdigit() and answer[0].isdigit()
    if answer[0].isspace() or prompt[-1].isspace() or digits:
        return answer
    spaced = f" {answer}"
    single = encoder.single_tokens([spaced, answer], prompt)
    return single[0] if single else spaced


def doubtful_rows(rows: Iterable[Row]) -> list[str]:
    """Name rows that can be read and add nothing: both prompts the same, or the same pair as before."""
    doubts, first = [], dict[Example, str]()
    for row in rows:
        if row.example.clean == row.example.corrupted:
            doubts.append(f"{row.where}: clean and corrupted prompt are the same.")
        elif row.example in first:
            doubts.append(f"{row.where}: the same pair as {first[row.example]}.")
        first.setdefault(row.example, row.where)
    return doubts
