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
    from gatewise.evaluation.evaluations import Evaluation

WIDTH = 80
_COLUMNS = ("circuit", "edges", "sparsity", "logit diff kept", "by KL", "by Dn", "destroyed", "random")
LEGEND = (
    "Kept: what the circuit does alone, 0 % is the empty circuit, 100 % the whole model; of the logit difference with "
    "a 95 % interval, by KL, and by KL when the circuit alone is corrupted (by Dn). Destroyed: by KL, what removing "
    "the circuit takes away. Random: by KL, what random circuits of this size keep."
)


def rows(evaluations: Sequence[Evaluation]) -> Iterator[tuple[str, ...]]:
    """Cells line by line, the smallest circuit first."""
    for evaluation in sorted(evaluations, key=lambda evaluation: evaluation.edges):
        second = evaluation.recovered_dn
        yield (
            evaluation.name,
            f"{evaluation.edges:,}",
            f"{evaluation.sparsity:.2%}",
            kept_share(evaluation),
            _percent(evaluation.recovered),
            "-" if second is None else _percent(second),
            _percent(evaluation.destroyed),
            _percent(evaluation.recovered_by_chance),
        )


def kept_share(evaluation: Evaluation) -> str:
    """The kept share of the logit difference, with its interval."""
    share = evaluation.logit_diff_interval
    if not math.isfinite(share.value + share.low + share.high):
        return _percent(share.value)
    return f"{_percent(share.value)} ({100 * share.low:.0f} to {100 * share.high:.0f})"


def _percent(share: float) -> str:
    return f"{round(share, 2) + 0:.0%}" if math.isfinite(share) else "-"


def as_table(evaluations: Sequence[Evaluation]) -> Table:
    """The table for a terminal of 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=i > 0, overflow="fold")
    for row in rows(evaluations):
        table.add_row(*row)
    return table


def sentence(evaluation: Evaluation) -> str:
    """One circuit in one sentence."""
    second = evaluation.recovered_dn
    parts = [
        f"{evaluation.name}: {evaluation.edges:,} of {evaluation.graph_edges:,} edges keep {kept_share(evaluation)} "
        f"of the logit difference, {_percent(evaluation.recovered)} by KL"
        + ("" if second is None else f" ({_percent(second)} by denoising)"),
        f"removing them destroys {_percent(evaluation.destroyed)}",
    ]
    if evaluation.random_circuit is not None:
        parts.append(f"random circuits of this size keep {_percent(evaluation.recovered_by_chance)} by KL")
    return f"<Evaluation of {'; '.join(parts)}; {evaluation.examples} pairs>"


def as_text(evaluations: Sequence[Evaluation]) -> str:
    """The table as plain text, or a sentence for one circuit."""
    if len(evaluations) == 1:
        return sentence(evaluations[0])
    stream = io.StringIO()
    Console(file=stream, width=WIDTH, color_system=None).print(as_table(evaluations))
    return stream.getvalue().rstrip()


def as_html(evaluations: Sequence[Evaluation]) -> str:
    """The table for a notebook."""
    return card("Evaluation", LEGEND, _COLUMNS, rows(evaluations))
