"""Tables of text and numbers, as they stand on a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers. Numbers are shown with three significant digits unless they are text already."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""  # what the numbers are over: seeds, examples, what ± means


def size_table(title: str, columns: Mapping[str, Mapping[int, Cell]], note: str, *, first: str = "edges") -> Table:
    """Sizes down, one column for each mapping of sizes; what a column does not have stays empty."""
    sizes = sorted({size for column in columns.values() for size in column})
    rows = [[size, *(column.get(size) for column in columns.values())] for size in sizes]
    return Table(title, [first, *columns], rows, note)


def printed(label: str) -> Table:
    """The paper's own numbers under one of its labels, from printed_numbers.json. GPT-2 small; ± as printed there."""
    text = files("gatewise_paper").joinpath("printed_numbers.json").read_text(encoding="utf-8")
    return Table(**json.loads(text)[label])
