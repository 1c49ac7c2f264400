"""Evaluations as a table a person can read, in a terminal or a notebook."""

from __future__ import annotations

import html
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from gatewise.evaluation.evaluations import Behaviour, Evaluation

COLUMNS = (
    "\n",
    "\nedges",
    "C:\nKL(G||C)",
    "\nacc",
    "logit\ndiff",
    "G\\C:\nKL(.||G)",
    "\nacc",
    "logit\ndiff",
)  # 80 wide
_LEGEND = (
    "C: the circuit alone; G\\C: the model without it. Faithful: KL(G||C) near 0. Complete: KL(G\\C||G) as high as for "
    "the full graph, whose removal leaves the corrupted run. acc: pairwise accuracy. ± standard error over examples."
)


def rows(items: Sequence[Evaluation]) -> Iterator[tuple[str, ...]]:
    """The cells, line by line: full graph, empty circuit, then each circuit beside random ones of its size."""
    first = items[0]
    yield _row("full graph", first.graph_edges, first.full, first.empty)
    yield _row("empty circuit", 0, first.empty, first.full)
    for item in items:
        yield _row(item.name, item.edges, item.circuit, item.complement)
        if item.random_circuit is not None and item.random_complement is not None:
            name = f"random (mean of {item.random_circuits})"
            yield _row(name, item.edges, item.random_circuit, item.random_complement)


def _row(name: str, edges: int, inside: Behaviour, outside: Behaviour) -> tuple[str, ...]:
    return (
        name,
        f"{edges:,}",
        str(inside.kl_from_full),
        f"{inside.accuracy.mean:.0%}",
        f"{inside.logit_diff.mean:.2f}",
        str(outside.kl_to_full),
        f"{outside.accuracy.mean:.0%}",
        f"{outside.logit_diff.mean:.2f}",
    )


def as_table(items: Sequence[Evaluation]) -> Table:
    table = Table(caption=_LEGEND, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for i, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=i > 0)
    for row in rows(items):
        table.add_row(*row)
    return table


def as_text(items: Sequence[Evaluation]) -> str:
    stream = io.StringIO()
    Console(file=stream, width=100, color_system=None).print(as_table(items))
    return stream.getvalue().rstrip()


def as_html(items: Sequence[Evaluation]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in COLUMNS)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows(items))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{html.escape(_LEGEND)}</p>"
