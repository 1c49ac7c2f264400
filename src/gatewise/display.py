"""How our objects show themselves in a notebook: a line and a small table, all text escaped; and as pandas frames."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_COLOURS

SHOWN = 8  # rows of a table


def card(title: str, summary: str, header: Sequence[str] = (), rows: Iterable[Sequence[str]] = ()) -> str:
    """HTML of a title, one line, and a table if there are rows. A cell that is a gate type gets its colour."""
    top = f"<b>{html.escape(title)}</b> {html.escape(summary)}"
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    if not body:
        return f"<div>{top}</div>"
    head = "".join(f'<th style="text-align:left">{html.escape(name)}</th>' for name in header)
    return f"<div>{top}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as a pandas frame; pandas is not needed for anything else."""
    try:
        import pandas
    except ImportError as error:
        raise GatewiseError("to_frame needs pandas, which is not installed: pip install pandas.") from error
    return pandas.DataFrame(rows)


def strongest(values: torch.Tensor, among: Sequence[int] | None = None, count: int = SHOWN) -> list[int]:
    """Places of the largest |values|, all or only those in `among`."""
    chosen = list(range(len(values))) if among is None else list(among)
    order = torch.argsort(values[chosen].abs(), descending=True, stable=True)
    return [chosen[i] for i in order[:count].tolist()]


def _cell(text: str) -> str:
    colour = GATE_COLOURS.get(text)
    style = "text-align:left" + (f";color:{colour};font-weight:bold" if colour else "")
    return f'<td style="{style}">{html.escape(text)}</td>'
