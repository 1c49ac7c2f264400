"""A user's own pairs as text, from anything that has rows, and every row that is wrong named at once.

Columns (or keys): clean, corrupted, correct, incorrect, in any case; further ones are ignored. Several answers are
written `a|b`, or as a list. An answer with a leading space is appended to the prompt as it stands. One without gets a
space, unless the prompt ends in white space, a digit follows a digit, or it is a single token only without one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gatewise.errors import GatewiseError
from gatewise.files import shown
from gatewise.progress import progress_bar
from gatewise.tasks.encoding import Encoder
from gatewise.tasks.example import Example, TokenExample

COLUMNS = ("clean", "corrupted", "correct", "incorrect")
_OLDER_NAMES = {"right": "correct", "wrong": "incorrect"}
_WAY_OUT = (
    f"Give rows with the columns {', '.join(COLUMNS)}: a list of dicts or of tuples in this order, a dict of lists, a "
    f"pandas frame, or one split of a Hugging Face dataset."
)


class BadRowsError(GatewiseError):
    """Rows that cannot be read; `problems` has a sentence for each, with where it is."""

    def __init__(self, problems: list[str]) -> None:
        more = f" {len(problems) - 1} further rows are wrong too; `gatewise tasks check` lists all of a file."
        super().__init__(problems[0] + (more if problems[1:] else ""))
        self.problems = problems


@dataclass(frozen=True)
class Row:
    """One pair as written, before answers are fitted to the prompt."""

    where: str  # file and line, for errors
    example: Example


Record = tuple[str, Mapping[str, object] | GatewiseError]  # where, and the columns or what is wrong


def sorted_out(records: Iterable[Record]) -> tuple[list[Row], list[str]]:
    """The rows that can be read, and what is wrong with the others."""
    rows, problems = [], []
    for where, record in records:
        try:
            if isinstance(record, GatewiseError):
                raise record
            rows.append(Row(where, _example(record)))
        except GatewiseError as error:
            problems.append(f"{where}: {error}")
    return rows, problems


def encoded(
    rows: list[Row], problems: list[str], encoder: Encoder, *, first_token: bool, name: str
) -> list[TokenExample]:
    """All rows as tokens, in order, or an error that names every row that is wrong."""
    pairs, incorrect = [], list(problems)
    with progress_bar(f"reading {name}", len(rows)) as bar:
        for row in rows:
            try:
                pairs.append(encoder.encode(with_spaces(row.example, encoder), first_token=first_token))
            except GatewiseError as error:
                incorrect.append(f"{row.where}: {error}")
            bar.advance()
    if incorrect:
        raise BadRowsError(sorted(incorrect, key=_number))
    return pairs


def _number(problem: str) -> int:
    """Of the line or pair that it is about."""
    found = re.search(r"(?:line|pair) (\d+):", problem)
    return int(found[1]) if found else 0


def doubtful(rows: Iterable[Row]) -> list[str]:
    """Rows that can be read and add nothing: both prompts the same, or the same pair as before."""
    found, first = [], dict[Example, str]()
    for row in rows:
        if row.example.clean == row.example.corrupted:
            found.append(f"{row.where}: clean and corrupted prompt are the same.")
        elif row.example in first:
            found.append(f"{row.where}: the same pair as {first[row.example]}.")
        first.setdefault(row.example, row.where)
    return found


def records_of(data: Any) -> Iterator[Record]:
    """The rows of a list of dicts or tuples, of a dict of columns, of a frame, or of a split of a dataset."""
    if hasattr(data, "to_dict") and hasattr(data, "columns"):
        data = data.to_dict("records")  # a pandas frame
    elif isinstance(data, Mapping):
        data = _from_columns(data)
    try:
        rows = enumerate(iter(data))
    except TypeError:
        raise GatewiseError(f"pairs cannot be read from a {type(data).__name__}. {_WAY_OUT}") from None
    for number, row in rows:
        where = f"pair {number}"
        if isinstance(row, Mapping):
            yield where, _or_error(row)
        elif isinstance(row, (tuple, list)) and len(row) == len(COLUMNS):
            yield where, dict(zip(COLUMNS, row, strict=True))
        else:
            yield where, GatewiseError(f"{shown(row)} is no pair. {_WAY_OUT}")


def _from_columns(data: Mapping[str, Any]) -> list[dict[str, object]]:
    columns = own_columns(data)
    lists = {name: list(values) for name, values in columns.items() if not isinstance(values, (str, Mapping))}
    lengths = {name: len(values) for name, values in lists.items()}
    if len(lists) < len(COLUMNS) or len(set(lengths.values())) > 1:
        raise GatewiseError(f"a dict of columns needs lists of equal length, got {lengths}. {_WAY_OUT}")
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def column_name(text: str) -> str:
    """The name of a column without spaces and capitals; columns of older files have their present names."""
    name = text.strip().lower()
    return _OLDER_NAMES.get(name, name)


def own_columns(record: Mapping[Any, Any], way_out: str = _WAY_OUT) -> dict[str, Any]:
    """Our columns of a record, whatever the case of their names; others are left out."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        plain = column_name(str(name))
        if plain in found:
            raise GatewiseError(f"columns: {plain} is there twice. {way_out}")
        if plain in COLUMNS:
            found[plain] = value
    missing = [name for name in COLUMNS if name not in found]
    if missing:
        there = shown([str(name) for name in record])
        raise GatewiseError(f"columns: missing {shown(missing)}, there are {there}. {way_out}")
    return found


def _or_error(record: Mapping[Any, Any]) -> Mapping[str, object] | GatewiseError:
    try:
        return own_columns(record)
    except GatewiseError as error:
        return error


def _example(record: Mapping[str, object]) -> Example:
    clean, corrupted = (_text(column, record[column]) for column in ("clean", "corrupted"))
    correct, incorrect = (_answers(column, record[column]) for column in ("correct", "incorrect"))
    return Example(clean, corrupted, correct, incorrect)


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


def with_spaces(example: Example, encoder: Encoder) -> Example:
    """The example with its answers as they follow the prompt."""
    correct, incorrect = (
        tuple(_with_space(example.clean, answer, encoder) for answer in answers)
        for answers in (example.correct, example.incorrect)
    )
    return Example(example.clean, example.corrupted, correct, incorrect)


def _with_space(prompt: str, answer: str, encoder: Encoder) -> str:
    digits = prompt[-1].isdigit() and answer[0].isdigit()
    if answer[0].isspace() or prompt[-1].isspace() or digits:
        return answer
    spaced = f" {answer}"
    fitting = encoder.single_tokens([spaced, answer], prompt)
    return fitting[0] if fitting else spaced
