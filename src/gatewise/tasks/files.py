"""A user's own pairs from a .csv or .jsonl file: reads, checks, and says file and line of whatever is wrong.

Columns (or keys): clean, corrupted, right, wrong. Several answers are written `a|b`, in .jsonl also as a list.
An answer with a leading space is appended to the prompt as it stands. One without gets a space, unless the prompt
ends in white space, a digit follows a digit, or it is a single token only without one.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gatewise.errors import GatewiseError
from gatewise.files import shown
from gatewise.progress import progress_bar
from gatewise.tasks.encoder import Encoder
from gatewise.tasks.example import Example, TokenExample

COLUMNS = ("clean", "corrupted", "right", "wrong")
SUFFIXES = (".csv", ".jsonl")
LARGEST_FILE = 64 * 2**20  # bytes
MOST_PAIRS = 200_000
_WAY_OUT = f"A file has the columns {', '.join(COLUMNS)}, separated by commas (.csv) or as JSON objects (.jsonl)."


@dataclass(frozen=True)
class Row:
    """One pair as written, before answers are fitted to the prompt."""

    where: str  # file and line, for errors
    example: Example


def read_pairs(path: Path, encoder: Encoder, *, first_token: bool = False) -> list[TokenExample]:
    """All pairs of a file as tokens, in the file's order."""
    rows = read_rows(path)
    pairs = []
    with progress_bar(f"reading {path.name}", len(rows)) as bar:
        for row in rows:
            try:
                pairs.append(encoder.encode(_with_spaces(row.example, encoder), first_token=first_token))
            except GatewiseError as error:
                raise GatewiseError(f"{row.where}: {error}") from error
            bar.advance()
    return pairs


def read_rows(path: Path) -> list[Row]:
    """All pairs of a file as text."""
    if path.suffix.lower() not in SUFFIXES:
        raise GatewiseError(f"{path}: a file of pairs ends in .csv or .jsonl. {_WAY_OUT}")
    return parse_rows(_read_bytes(path), path)


def parse_rows(content: bytes, path: Path) -> list[Row]:
    """All pairs in the content of a file; `path` is named in errors, and its ending tells the format."""
    if len(content) > LARGEST_FILE:
        raise GatewiseError(
            f"{path}: this file is larger than the {LARGEST_FILE / 2**20:.0f} MB that we read; a few hundred pairs are "
            f"plenty. Take a sample of its lines."
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise GatewiseError(f"{path}: byte {error.start} is not UTF-8. Save the file as UTF-8.") from error
    records = _csv_records(path, text) if path.suffix.lower() == ".csv" else _jsonl_records(path, text)
    rows = [Row(where, _example(where, record)) for where, record in islice(records, MOST_PAIRS + 1)]
    if len(rows) > MOST_PAIRS:
        raise GatewiseError(f"{path}: there are more than {MOST_PAIRS:,} pairs. Take a sample of its lines.")
    if not rows:
        raise GatewiseError(f"{path}: there are no pairs in this file. {_WAY_OUT}")
    return rows


def _read_bytes(path: Path) -> bytes:
    """At most a byte more than may be there."""
    try:
        if not path.is_file():
            raise GatewiseError(f"{path}: there is no such file. Check the path.")
        with path.open("rb") as stream:
            return stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise GatewiseError(f"{path}: cannot be read ({error.strerror or error}).") from error


def _csv_records(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if not row:
                continue
            if header is None:
                header = [name.strip() for name in row]
                _check_columns(where, header)
                continue
            if len(row) != len(header):
                raise GatewiseError(
                    f"{where}: {len(row)} columns where the first line has {len(header)}. "
                    f'Put text that has a comma into double quotes, "like, this".'
                )
            yield where, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise GatewiseError(f"{path}, line {reader.line_num}: not valid CSV ({error}).") from error


def _jsonl_records(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise GatewiseError(f"{where}: not valid JSON ({error}). One object per line.") from error
        if not isinstance(record, dict):
            raise GatewiseError(f"{where}: expected a JSON object, got a {type(record).__name__}. {_WAY_OUT}")
        _check_columns(where, list(record))
        yield where, record


def _check_columns(where: str, columns: list[str]) -> None:
    if sorted(columns) == sorted(COLUMNS):
        return
    missing = [name for name in COLUMNS if name not in columns]
    unknown = sorted({name for name in columns if name not in COLUMNS})
    findings = [f"{what} {shown(names)}" for what, names in (("missing", missing), ("unknown", unknown)) if names]
    raise GatewiseError(f"{where}: columns: {', '.join(findings) or 'one is there twice'}. {_WAY_OUT}")


def _example(where: str, record: Mapping[str, object]) -> Example:
    clean, corrupted = (_text(where, column, record[column]) for column in ("clean", "corrupted"))
    right, wrong = (_answers(where, column, record[column]) for column in ("right", "wrong"))
    return Example(clean, corrupted, right, wrong)


def _text(where: str, column: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise GatewiseError(f"{where}: {column} is {shown(value)}; expected a text that is not empty.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise GatewiseError(f"{where}: {column} has half of a surrogate pair, which is no character.") from error
    return value


def _answers(where: str, column: str, value: object) -> tuple[str, ...]:
    answers = value if isinstance(value, list) else _text(where, column, value).split("|")
    if not answers:
        raise GatewiseError(f"{where}: {column} is an empty list; expected at least one answer.")
    return tuple(_text(where, column, answer).rstrip() for answer in answers)


def _with_spaces(example: Example, encoder: Encoder) -> Example:
    right, wrong = (
        tuple(_with_space(example.clean, answer, encoder) for answer in answers)
        for answers in (example.right, example.wrong)
    )
    return Example(example.clean, example.corrupted, right, wrong)


def _with_space(prompt: str, answer: str, encoder: Encoder) -> str:
    """The answer as it follows the prompt."""
    digits = prompt[-1].isdigit() and answer[0].isdigit()
    if answer[0].isspace() or prompt[-1].isspace() or digits:
        return answer
    spaced = f" {answer}"
    fitting = encoder.single_tokens([spaced, answer], prompt)
    return fitting[0] if fitting else spaced
