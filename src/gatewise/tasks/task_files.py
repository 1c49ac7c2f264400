"""Parses a user's .csv or .jsonl file of pairs, and says file and line of every bad row.

What the columns are is said in `parsing`.
"""

from __future__ import annotations

import csv
import errno
import io
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gatewise.errors import GatewiseError
from gatewise.files import read_regular
from gatewise.tasks.encoding import Encoder
from gatewise.tasks.example import TokenExample
from gatewise.tasks.parsing import (
    COLUMNS,
    BadRowsError,
    Record,
    Row,
    column_name,
    encode_rows,
    known_columns,
    valid_rows,
)

SUFFIXES = (".csv", ".jsonl")
LARGEST_FILE = 64 * 2**20  # bytes
MOST_PAIRS = 200_000
_WAY_OUT = f"A file has the columns {', '.join(COLUMNS)}, separated by commas (.csv) or as JSON objects (.jsonl)."


def read_pairs(
    path: Path, encoder: Encoder, *, first_token: bool = False, skip_bad: bool = False
) -> tuple[list[TokenExample], list[str]]:
    """Return all pairs of a file as tokens, in order, and a sentence for each bad line; an error unless skipped."""
    return encode_rows(*read_lines(path), encoder, first_token=first_token, name=path.name, skip_bad=skip_bad)


def read_lines(path: Path) -> tuple[list[Row], list[str]]:
    """Return the lines of a file that are pairs, and a sentence for each of the others."""
    if path.suffix.lower() not in SUFFIXES:
        raise GatewiseError(f"{path}: a file of pairs ends in .csv or .jsonl. {_WAY_OUT}")
    return _lines(_read_bytes(path), path)


def parse_rows(content: bytes, path: Path) -> list[Row]:
    """Return all pairs in the content of a file; `path` is named in errors, and its ending tells the format."""
    rows, problems = _lines(content, path)
    if problems:
        raise BadRowsError(problems)
    return rows


def _lines(content: bytes, path: Path) -> tuple[list[Row], list[str]]:
    if len(content) > LARGEST_FILE:
        raise GatewiseError(_too_large(path))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise GatewiseError(f"{path}: byte {error.start} is not UTF-8. Save the file as UTF-8.") from error
    records = _csv_records(path, text) if path.suffix.lower() == ".csv" else _jsonl_records(path, text)
    rows, problems = valid_rows(islice(records, MOST_PAIRS + 1), _WAY_OUT)
    if len(rows) + len(problems) > MOST_PAIRS:
        raise GatewiseError(f"{path}: there are more than {MOST_PAIRS:,} pairs. Take a sample of its lines.")
    if not rows and not problems:
        raise GatewiseError(f"{path}: there are no pairs in this file. {_WAY_OUT}")
    return rows, problems


def _read_bytes(path: Path) -> bytes:
    """The content of a regular file that is not too large."""
    try:
        if not path.is_file():
            raise GatewiseError(f"{path}: there is no such file. Check the path.")
        return read_regular(path, LARGEST_FILE)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise GatewiseError(_too_large(path)) from error
        raise GatewiseError(f"{path}: cannot be read ({error.strerror or error}).") from error


def _too_large(path: Path) -> str:
    most = f"{LARGEST_FILE / 2**20:.0f} MB"
    return (
        f"{path}: this file is larger than the {most} that we read; a few hundred pairs are plenty. Take a sample of "
        f"its lines."
    )


def _csv_records(path: Path, text: str) -> Iterator[Record]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if not row:
                continue
            if header is None:
                header = _header(where, row)
            elif len(row) != len(header):
                message = f"{len(row)} columns where the first line has {len(header)}."
                yield where, GatewiseError(f'{message} Put text that has a comma into double quotes, "like, this".')
            else:
                yield where, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise GatewiseError(f"{path}, line {reader.line_num}: not valid CSV ({error}).") from error


def _header(where: str, row: list[str]) -> list[str]:
    names = [column_name(name) for name in row]
    try:
        if twice := [name for name in COLUMNS if names.count(name) > 1]:
            raise GatewiseError(f"columns: {twice[0]} is there twice. {_WAY_OUT}")
        known_columns(dict.fromkeys(names), _WAY_OUT)
    except GatewiseError as error:
        raise GatewiseError(f"{where}: {error}") from error
    return names


def _jsonl_records(path: Path, text: str) -> Iterator[Record]:
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            record = GatewiseError(f"not valid JSON ({error}). One object per line.")
        if not isinstance(record, dict | GatewiseError):
            record = GatewiseError(f"expected a JSON object, got a {type(record).__name__}. {_WAY_OUT}")
        yield where, record
