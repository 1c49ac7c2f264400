"""The pages of a reproduction: the records as JSON, one page in Markdown, one in HTML, the figures beside them.

Both pages are written from the same pieces, and these from the records alone, so that they cannot differ.
"""

from __future__ import annotations

import html
import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gatewise.files import write_atomically
from gatewise_paper.claims import JUDGEMENTS
from gatewise_paper.naming import METHOD_NAMES, task_name
from gatewise_paper.records import Record, Records, finite
from gatewise_paper.tables import Cell, Table

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
.supported, .contradicted, .equal, .open { border-left: 4px solid var(--judged); }
.supported { --judged: #009E73; } .contradicted { --judged: #D55E00; }
.equal { --judged: #0072B2; } .open { --judged: #888; }
code { background: var(--soft); padding: .1rem .3rem; border-radius: 3px; }
pre { background: var(--soft); padding: .6rem; white-space: pre-wrap; }
"""
_PAGE = """<!doctype html>
<html lang=en><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">\
<title>gatewise: the paper's experiments, {preset}</title><style>{style}</style></head>
<body>
{body}
</body></html>
"""
_LONG = 30  # characters, from which a cell may be broken into lines
_CLASSES: dict[str, str] = dict(zip(JUDGEMENTS, ("supported", "contradicted", "equal", "open"), strict=True))


class _Piece(NamedTuple):
    """A piece of a page: a table, or a text of some kind."""

    kind: str
    content: str | Table
    name: str = ""  # of a figure's file, or of a verdict's class


# How a text of each kind is written
_MARKDOWN = {
    "title": "# {text}",
    "heading": "## {text}",
    "text": "{text}",
    "command": "    {text}",
    "verdict": "> {text}",
    "figure": "![{text}](figures/{name}.svg)\n\n*{text}*",
    "note": "- {text}",
}
_HTML = {
    "title": "<h1>{text}</h1>",
    "heading": "<h2>{text}</h2>",
    "text": "<p>{text}</p>",
    "command": "<pre>{text}</pre>",
    "verdict": '<p class="verdict {name}">{text}</p>',
    "figure": '<figure><img src="figures/{name}.svg" alt="{text}"><figcaption>{text}</figcaption></figure>',
    "note": '<p class="note">{text}</p>',
}


def write_summary(folder: Path, records: Records, about: Mapping[str, Any], every: int) -> None:
    """Write results.json, summary.md and summary.html. every: how many experiments there are in all."""
    pieces = list(_pieces(records, about, every))
    results = finite({"about": about, "experiments": records.experiments, "failed": records.failed})
    pages = {
        "results.json": json.dumps(results, indent=1, ensure_ascii=False) + "\n",
        "summary.md": "\n\n".join(map(_markdown, pieces)) + "\n",
        "summary.html": _PAGE.format(
            preset=html.escape(str(about["preset"])), style=_STYLE, body="\n".join(map(_html, pieces))
        ),
    }
    for name, text in pages.items():
        write_atomically(folder / name, text.encode())


def shown(value: Cell) -> str:
    """A cell of a table as text: three significant digits."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return value


def _pieces(records: Records, about: Mapping[str, Any], every: int) -> Iterator[_Piece]:
    experiments = records.experiments
    yield _Piece("title", f"The paper's experiments, preset {about['preset']}")
    versions = "gatewise {gatewise}, torch {torch}, transformers {transformers}, Python {python}"
    made = "; ".join(dict.fromkeys(versions.format(**record["versions"]) for record in experiments.values()))
    yield _Piece(
        "text",
        f"Model {about['model']} ({about['edges']:,} edges), {about['dtype']}, {about['threads']} thread per process. "
        f"Made with {made or 'nothing yet'}. Circuits are measured on {about['held_out']} held-out pairs, which no "
        "search has seen, or on some of them where that is said.",
    )
    names: dict[tuple[str, ...], list[str]] = {}  # of experiments, by the options of the command that ran them
    for name, record in experiments.items():
        names.setdefault(tuple(record["options"]), []).append(name)
    for options, of_command in names.items():
        yield _Piece("command", _command(*(["all"] if len(of_command) == every else of_command), options=options))
    yield _Piece("text", about["declared"])
    for table in _verdicts(experiments):
        yield _Piece("table", table)
    for name, why in records.failed.items():
        again = ". What is below is of an earlier run" if name in experiments else ""
        yield _Piece("verdict", f"The experiment {name} failed: {why}{again}", "contradicted")
    for name, record in experiments.items():
        yield from _experiment_pieces(name, record)


def _experiment_pieces(name: str, record: Record) -> Iterator[_Piece]:
    yield _Piece("heading", f"{record['title']} ({name})")
    yield _Piece("text", f"The paper ({', '.join(record['labels'])}): {record['claim']}")
    yield _Piece("command", _command(name, options=record["options"]))
    yield _Piece("text", _settings(record["settings"]))
    for ruling in record["verdicts"]:
        standing = f" ({ruling['standing']})" if ruling["standing"] else ""
        text = f"{ruling['judgement'].capitalize()}{standing}: {ruling['claim']} {ruling['because']}"
        text += f" The paper: {ruling['paper']}." if ruling["paper"] else ""
        text += f" What would change our mind: {ruling['otherwise']}." if ruling["otherwise"] else ""
        yield _Piece("verdict", text, _CLASSES[ruling["judgement"]])
    for table in record["tables"]:
        yield _Piece("table", Table(**table))
    for table in record["paper"]:
        yield _Piece("table", Table(**{**table, "title": f"The paper: {table['title']}"}))
    for caption, file in record["figures"].items():
        yield _Piece("figure", caption, file)
    for note in record["notes"]:
        yield _Piece("note", note)


def _command(*names: str, options: Sequence[str]) -> str:
    return shlex.join(["gatewise", "reproduce", *names, *options])


def _settings(settings: Mapping[str, Any]) -> str:
    """What an experiment was run on, in words."""

    def seeds(own: Mapping[str, Any]) -> str:
        return f"{own['seeds']} seed{'s' if own['seeds'] > 1 else ''}, {own['pairs']} pairs each"

    sentences = []
    for method, own in settings["methods"].items():
        parameters = "".join(f", {key}={value}" for key, value in own["parameters"].items())
        edges = [f"{task_name(task)} {', '.join(f'{n:,}' for n in sizes)}" for task, sizes in own["edges"].items()]
        sentences.append(f"{METHOD_NAMES[method]}: {seeds(own)}{parameters}; edges: {'; '.join(edges)}.")
    if settings["tested_gates"]:
        sentences.append(f"Tested gates: {seeds(settings['tested_gates'])}.")
    return " ".join(sentences) or "On synthetic models."


def _verdicts(experiments: Mapping[str, Record]) -> list[Table]:
    """All rulings: what is primary, or has nothing random, stands apart from what is exploratory."""
    rulings = [(name, ruling) for name, record in experiments.items() for ruling in record["verdicts"]]
    tasks = list(dict.fromkeys(task for _, ruling in rulings for task in ruling["tasks"]))
    columns = ("experiment", "the paper's claim", "method", "verdict", *tasks)
    tables = []
    for title, exploratory in (("Primary claims", False), ("Exploratory claims", True)):
        rows, counts = [], dict.fromkeys(JUDGEMENTS, 0)
        for name, ruling in rulings:
            if (ruling["standing"] == "exploratory") == exploratory:
                about = [ruling[key] for key in ("claim", "method", "judgement")]
                by_task = [ruling["tasks"].get(task, {}).get("judgement", "") for task in tasks]
                rows.append([name, *about, *by_task, *(ruling[key] for key in ("effect", "paper", "otherwise"))])
                counts[ruling["judgement"]] += 1
        counted = ", ".join(f"{judgement} {count}" for judgement, count in counts.items())
        note = f"Of {len(rows)}: {counted}. By exact sign flips over seeds; experiments say what their effects are."
        if rows:
            tables.append(Table(title, (*columns, "effect", "the paper", "what would change our mind"), rows, note))
    return tables


def overview(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """For readers with one minute: the primary claims, and what became of them on each model, as Markdown.

    Args:
        results: For each column, what one or more results.json have.

    Returns:
        A table. A claim that was judged nowhere is left out.
    """
    judged: dict[tuple[str, str], dict[str, dict[str, list[str]]]] = {}  # by claim, column and judgement: methods
    papers: dict[tuple[str, str], dict[str, dict[str, None]]] = {}  # by claim and number: methods
    order: dict[str, int] = {}  # of experiments
    for column, contents in results.items():
        for content in contents:
            for name, record in content["experiments"].items():
                order.setdefault(name, len(order))
                for ruling in record["verdicts"]:
                    if ruling["standing"] == "exploratory":
                        continue
                    claim, method = (name, ruling["claim"]), ruling["method"]
                    by_judgement = judged.setdefault(claim, {}).setdefault(column, {})
                    by_judgement.setdefault(ruling["judgement"], []).append(method)
                    papers.setdefault(claim, {}).setdefault(ruling["paper"], {})[method] = None

    def numbers(methods: Mapping[str, Iterable[str]]) -> str:
        if len(methods) == 1:
            return next(iter(methods))
        return "; ".join(f"{', '.join(names)}: {number}" for number, names in methods.items())

    def verdicts(methods: Mapping[str, Iterable[str]]) -> str:
        ordered = [(judgement, methods[judgement]) for judgement in JUDGEMENTS if judgement in methods]
        return "; ".join(f"{judgement} ({', '.join(names)})" for judgement, names in ordered) or "not run"

    rows = [
        (*claim, numbers(papers[claim]), *(verdicts(judged[claim].get(column, {})) for column in results))
        for claim in sorted(judged, key=lambda claim: order[claim[0]])
    ]
    return _markdown_table(Table("", ("experiment", "claim", "the paper", *results), rows))


def _markdown(piece: _Piece) -> str:
    if isinstance(piece.content, Table):
        return _markdown_table(piece.content)
    return _MARKDOWN[piece.kind].format(text=piece.content, name=piece.name)


def _markdown_table(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    rule = line("---:" if number else "---" for number in _number_columns(table))
    rows = [line(map(shown, row)) for row in table.rows]
    title = [f"**{table.title}**", ""] if table.title else []
    note = ["", f"*{table.note}*"] if table.note else []
    return "\n".join([*title, line(table.columns), rule, *rows, *note])


def _html(piece: _Piece) -> str:
    if isinstance(piece.content, Table):
        return _html_table(piece.content)
    return _HTML[piece.kind].format(text=html.escape(piece.content), name=html.escape(piece.name))


def _html_table(table: Table) -> str:
    numbers = _number_columns(table)
    head = "".join(
        f"<th{'' if number else ' class=text'}>{html.escape(column)}</th>"
        for column, number in zip(table.columns, numbers, strict=True)
    )
    rows = ""
    for row in table.rows:
        cells = (_html_cell(shown(cell), number) for cell, number in zip(row, numbers, strict=True))
        rows += f"<tr>{''.join(cells)}</tr>"
    title = f"<h3>{html.escape(table.title)}</h3>" if table.title else ""
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    return f"{title}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{note}"


def _html_cell(text: str, number: bool) -> str:
    kinds = [] if number else ["text"]
    kinds += ["long"] if len(text) > _LONG else []
    kinds += [_CLASSES[text]] if text in _CLASSES else []
    return f'<td class="{" ".join(kinds)}">{html.escape(text)}</td>' if kinds else f"<td>{html.escape(text)}</td>"


def _number_columns(table: Table) -> list[bool]:
    """Numbers, and texts that begin like one (`0.62 ± 0.1`), stand at the right."""
    columns = [[row[i] for row in table.rows if row[i] not in (None, "")] for i in range(len(table.columns))]
    return [
        bool(cells) and all(not isinstance(cell, str) or cell.lstrip("-+~")[:1].isdigit() for cell in cells)
        for cells in columns
    ]
