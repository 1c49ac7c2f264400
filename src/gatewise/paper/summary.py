"""The pages of a reproduction: one Markdown, one HTML, the numbers as JSON, the figures beside them.

Both pages are written from the same blocks, so that they cannot differ.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gatewise.files import write_atomically
from gatewise.paper.contract import Experiment, Outcome, Table
from gatewise.paper.figures import draw

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
table { border-collapse: collapse; font-size: .85rem; display: block; overflow-x: auto; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, .text { text-align: left; }
td.long { white-space: normal; min-width: 12rem; }
img { max-width: 100%; background: white; border-radius: 4px; }
.note { font-size: .85rem; opacity: .8; }
.verdict { background: var(--soft); padding: .6rem 1rem; margin: .6rem 0; }
.holds, .partly, .not, .open { border-left: 4px solid var(--judged); }
.holds { --judged: #009E73; } .partly { --judged: #E69F00; } .not { --judged: #D55E00; } .open { --judged: #888; }
code { background: var(--soft); padding: .1rem .3rem; border-radius: 3px; }
pre { background: var(--soft); padding: .6rem; overflow-x: auto; }
"""
_LONG = 30  # characters, from which a cell may be broken into lines
_CLASSES = {"holds": "holds", "holds partly": "partly", "does not hold": "not", "cannot be judged": "open"}


@dataclass(frozen=True)
class Finished:
    """An experiment that ran, and its figures: caption -> file name without ending."""

    experiment: Experiment
    outcome: Outcome
    figures: Mapping[str, str]


@dataclass(frozen=True)
class _Block:
    """A piece of a page."""

    kind: str  # title, heading, text, note, command, table, verdict, figure
    text: str = ""
    table: Table | None = None
    name: str = ""  # of a figure's file, or a verdict's judgement


def write_summary(
    folder: Path, finished: Sequence[Finished], about: Mapping[str, Any], failed: Mapping[str, str]
) -> list[Path]:
    """Write summary.md, summary.html and results.json."""
    blocks = list(_blocks(finished, about, failed))
    results = {
        "about": dict(about),
        "experiments": {done.experiment.name: done.outcome.to_json() for done in finished},
        "failed": dict(failed),
    }
    pages = {
        "summary.md": _markdown(blocks),
        "summary.html": _html(blocks, str(about["preset"]["name"])),
        "results.json": json.dumps(_finite(results), indent=1, ensure_ascii=False) + "\n",
    }
    for name, text in pages.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in pages]


def draw_figures(folder: Path, experiment: Experiment, outcome: Outcome) -> Finished:
    """Draw an outcome's figures to SVG and PNG files."""
    names = {}
    for number, (caption, make) in enumerate(outcome.figures.items(), start=1):
        names[caption] = f"{experiment.name}-{number}" if len(outcome.figures) > 1 else experiment.name
        draw(make, folder / "figures", names[caption])
    return Finished(experiment, outcome, names)


def shown(value: str | int | float | None) -> str:
    """A cell of a table as text: three significant digits."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return value


def _blocks(finished: Sequence[Finished], about: Mapping[str, Any], failed: Mapping[str, str]) -> Any:
    preset = about["preset"]
    yield _Block("title", f"The paper's experiments, preset {preset['name']}")
    yield _Block(
        "text",
        f"Model {preset['model']} ({about['edges']:,} edges), {preset['dtype']}, "
        f"{preset['threads']} thread per process. "
        f"Made with gatewise {about['versions']['gatewise']}, torch {about['versions']['torch']}, transformers "
        f"{about['versions']['transformers']}, Python {about['versions']['python']}. All numbers of circuits are "
        f"measured on {preset['held_out']} held-out pairs per task, which no search has seen.",
    )
    yield _Block("command", str(about["command"]))
    yield _Block("table", table=_settings(preset))
    rows = [
        (done.experiment.name, verdict.claim, verdict.judgement, verdict.because)
        for done in finished
        for verdict in done.outcome.verdicts
    ]
    counts = {judgement: sum(row[2] == judgement for row in rows) for judgement in _CLASSES}
    note = f"Of {len(rows)} claims: {', '.join(f'{judgement} {count}' for judgement, count in counts.items())}."
    columns = ("experiment", "the paper's claim", "verdict", "because")
    yield _Block("table", table=Table("Verdicts", columns, rows, note))
    for name, why in failed.items():
        yield _Block("verdict", f"The experiment {name} failed: {why}", name="does not hold")
    for done in finished:
        yield from _experiment_blocks(done, str(preset["name"]))


def _experiment_blocks(done: Finished, preset: str) -> Any:
    experiment, outcome = done.experiment, done.outcome
    yield _Block("heading", f"{experiment.title} ({experiment.name})")
    yield _Block("text", f"The paper ({', '.join(experiment.labels)}): {experiment.claim}")
    yield _Block("command", f"gatewise reproduce {experiment.name} --preset {preset}")
    for verdict in outcome.verdicts:
        text = f"{verdict.judgement.capitalize()}: {verdict.claim} {verdict.because}"
        yield _Block("verdict", text, name=verdict.judgement)
    for table in outcome.tables:
        yield _Block("table", table=table)
    for table in outcome.paper:
        yield _Block("table", table=Table(f"The paper: {table.title}", table.columns, table.rows, table.note))
    for caption, name in done.figures.items():
        yield _Block("figure", caption, name=name)
    for note in outcome.notes:
        yield _Block("note", note)


def _settings(preset: Mapping[str, Any]) -> Table:
    rows = [
        (
            method,
            preset["pairs"][method],
            ", ".join(f"{size:,}" for size in preset["sizes"][method]),
            f"0 to {preset['seeds'][method] - 1}",
            f"0 to {preset['stability_seeds'][method] - 1}",
            ", ".join(f"{key}={value}" for key, value in preset["parameters"].get(method, {}).items()) or "defaults",
        )
        for method in preset["methods"]
    ]
    columns = ("method", "pairs to search on", "edges", "seeds", "seeds for stability", "parameters")
    note = f"A seed has pairs of its own and seeds the method. {preset['note']}".rstrip()
    return Table("Settings", columns, rows, note)


def _markdown(blocks: Sequence[_Block]) -> str:
    parts = []
    for block in blocks:
        if block.table is not None:
            parts.append(_markdown_table(block.table))
        elif block.kind == "figure":
            parts.append(f"![{block.text}](figures/{block.name}.svg)\n\n*{block.text}*")
        else:
            shape = {"title": "# {}", "heading": "## {}", "command": "    {}", "verdict": "> {}", "note": "- {}"}
            parts.append(shape.get(block.kind, "{}").format(block.text))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    numbers = [_is_number_column(table, i) for i in range(len(table.columns))]
    rule = "| " + " | ".join("---:" if number else "---" for number in numbers) + " |"
    rows = [line([shown(cell) for cell in row]) for row in table.rows]
    title = [f"**{table.title}**", ""] if table.title else []
    note = ["", f"*{table.note}*"] if table.note else []
    return "\n".join([*title, line(list(table.columns)), rule, *rows, *note])


def _html(blocks: Sequence[_Block], preset: str) -> str:
    body = []
    for block in blocks:
        text = html.escape(block.text)
        if block.table is not None:
            body.append(_html_table(block.table))
        elif block.kind == "figure":
            name = html.escape(f"figures/{block.name}.svg")
            body.append(f'<figure><img src="{name}" alt="{text}"><figcaption>{text}</figcaption></figure>')
        elif block.kind == "verdict":
            body.append(f'<p class="verdict {_CLASSES[block.name]}">{text}</p>')
        else:
            tag = {"title": "h1", "heading": "h2", "command": "pre", "note": 'p class="note"'}.get(block.kind, "p")
            body.append(f"<{tag}>{text}</{tag.split()[0]}>")
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    title = f"<title>gatewise: the paper's experiments, {html.escape(preset)}</title>"
    page = f"<!doctype html>\n<html lang=en><head>{head}{title}<style>{_STYLE}</style></head>\n<body>\n"
    return page + "\n".join(body) + "\n</body></html>\n"


def _html_table(table: Table) -> str:
    numbers = [_is_number_column(table, i) for i in range(len(table.columns))]
    head = "".join(
        f"<th{'' if number else ' class=text'}>{html.escape(column)}</th>"
        for column, number in zip(table.columns, numbers, strict=True)
    )
    rows = "".join(
        "<tr>" + "".join(_html_cell(shown(cell), number) for cell, number in zip(row, numbers, strict=True)) + "</tr>"
        for row in table.rows
    )
    title = f"<h3>{html.escape(table.title)}</h3>" if table.title else ""
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    return f"{title}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{note}"


def _html_cell(text: str, number: bool) -> str:
    kinds = [] if number else ["text"]
    kinds += ["long"] if len(text) > _LONG else []
    kinds += [_CLASSES[text]] if text in _CLASSES else []
    return f'<td class="{" ".join(kinds)}">{html.escape(text)}</td>' if kinds else f"<td>{html.escape(text)}</td>"


def _is_number_column(table: Table, column: int) -> bool:
    """Numbers, and texts that begin like one (`0.62 ± 0.1`), stand at the right."""
    cells = [row[column] for row in table.rows if row[column] not in (None, "")]
    return bool(cells) and all(not isinstance(cell, str) or cell.lstrip("-+~")[:1].isdigit() for cell in cells)


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def about_preset(preset: Any, sizes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """A preset as plain data, its sizes as numbers of edges."""
    return {**asdict(preset), "sizes": {method: list(numbers) for method, numbers in sizes.items()}}
