"""Evaluations as a table that people read, in a terminal or a notebook."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from gatewise.display import card

if TYPE_CHECKING:
    from gatewise.evaluation.evaluations import Behaviour, Evaluation

_COLUMNS = (
    "\n",
    "\nedges",
    "C:\nKL(G||C)",
    "kept\nNs Dn",
    "\nacc",
    "logit\ndiff",
    "G\\C:\nKL(.||G)",
    "\nacc",
)  # 80 wide
_LEGEND = (
    "C: the circuit alone; G\\C: the model without it. Faithful: KL(G||C) near 0. kept: share of the KL between the "
    "runs, by noising and by denoising. Complete: KL(G\\C||G) as high as for the full graph, whose removal leaves the "
    "corrupted run. acc: pairwise accuracy. ± standard error over examples."
)


def rows(evaluations: Sequence[Evaluation]) -> Iterator[tuple[str, ...]]:
    """Cells line by line: full graph, empty circuit, then each circuit beside random ones of its size."""
    first = evaluations[0]
    yield _row("full graph", first.graph_edges, "100%", first.full, first.empty)
    yield _row("empty circuit", 0, "0%", first.empty, first.full)
    for evaluation in evaluations:
        shares = _percent(evaluation.recovered)
        if evaluation.recovered_dn is not None:
            shares = f"{shares} {_percent(evaluation.recovered_dn)}"
        yield _row(evaluation.name, evaluation.edges, shares, evaluation.circuit, evaluation.complement)
        if evaluation.random_circuit is not None and evaluation.random_complement is not None:
            name, share = f"random (mean of {evaluation.random_circuits})", _percent(evaluation.recovered_by_chance)
            yield _row(name, evaluation.edges, share, evaluation.random_circuit, evaluation.random_complement)


def _row(name: str, edges: int, shares: str, inside: Behaviour, outside: Behaviour) -> tuple[str, ...]:
    alone = (str(inside.kl_from_full), shares, f"{inside.accuracy.mean:.0%}", f"{inside.logit_diff.mean:.2f}")
    return name, f"{edges:,}", *alone, str(outside.kl_to_full), f"{outside.accuracy.mean:.0%}"


def _percent(share: float) -> str:
    return f"{round(share, 2) + 0:.0%}" if math.isfinite(share) else "-"


def as_table(evaluations: Sequence[Evaluation]) -> Table:
    """The table with its legend, for a terminal."""
    table = Table(caption=_LEGEND, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for i, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=i > 0)
    for row in rows(evaluations):
        table.add_row(*row)
    return table


def as_text(evaluations: Sequence[Evaluation]) -> str:
    """The table as plain text."""
    stream = io.StringIO()
    Console(file=stream, width=100, color_system=None).print(as_table(evaluations))
    return stream.getvalue().rstrip()


def as_html(evaluations: Sequence[Evaluation]) -> str:
    """The table for a notebook."""
    return card("Evaluation", _LEGEND, _COLUMNS, rows(evaluations))
