"""One tidy table of a sweep: a row for each circuit, in the order of the grid, as CSV and as Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gatewise.files import write_atomically
from gatewise.sweep.grid import Cell

TableRow = Mapping[str, Any]
_CONDITIONS = ("examples", "test_examples", "device", "dtype", "bos", "first_token", "memory", "threads")


def rows_of(cell: Cell, measured: Mapping[str, Any]) -> list[TableRow]:
    """Return what was asked and what was measured, for each circuit of a cell."""
    search = {name: getattr(cell, name) for name in ("model", "task", "method", "direction", "seed")}
    conditions = {name: getattr(cell, name) for name in _CONDITIONS}
    parameters = {f"set_{name}": value for name, value in cell.parameters}
    goal: dict[str, Any] = {"threshold": cell.threshold}
    if cell.faithfulness is not None:
        goal["faithfulness"] = cell.faithfulness
    return [
        {**search, "size": size, **goal, **parameters, **row, **conditions}
        for size, row in zip(cell.sizes or (None,), measured["rows"], strict=True)
    ]


def write_csv(path: Path, rows: Sequence[TableRow]) -> None:
    """Write rows with numbers as Python writes them: reading them gives them back exactly."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns_of(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, stream.getvalue().encode())


def write_parquet(path: Path, rows: Sequence[TableRow]) -> bool:
    """Write rows, if pyarrow is there; return whether it is."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    columns = {name: [row.get(name) for row in rows] for name in columns_of(rows)}
    table = pyarrow.table({name: _as_one_type(values) for name, values in columns.items()})
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    write_atomically(path, sink.getvalue().to_pybytes())
    return True


def columns_of(rows: Sequence[TableRow]) -> list[str]:
    """List all columns, those of the first rows first."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _as_one_type(values: list[Any]) -> list[Any]:
    """Make one type of values: a parameter may be a number for one method and a text for another, and is then text."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {int, float} or kinds in ({bool}, {str}):
        return values
    return [None if value is None else str(value) for value in values]
