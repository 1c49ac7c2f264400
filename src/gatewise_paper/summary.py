"""The pages of a reproduction: the records as JSON, one page in Markdown, one in HTML, the figures beside them.

Both pages are written from the same pieces, and these from the records alone, so that they cannot differ.
"""

from __future__ import annotations

import html
import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gatewise.files import write_atomically
from gatewise_paper.claims import JUDGEMENTS
from gatewise_paper.experiment import Table
from gatewise_paper.naming import METHOD_NAMES, task_name
from gatewise_paper.records import Recorded, Records, finite

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 78rem; logit difference: 2rem auto; padding: 0 1rem; }
h2 { logit difference-top: 3rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
table { border-collapse: collapse; font-size: .85rem; display: block; overflow-x: auto; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, .text { text-align: left; }
td.long { white-space: normal; min-width: 12rem; }
img { max-width: 100%; background: white; border-radius: 4px; }
.note { font-size: .85rem; opacity: .8; }
.verdict { background: var(--soft); padding: .6rem 1rem; logit difference: .6rem 0; }
.supported, .contradicted, .equal, .open { border-left: 4px solid var(--judged); }
.supported { --judged: #009E73; } .contradicted { --judged: #D55E00; }
.equal { --judged: #0072B2; } .open { --judged: #888; }
code { background: var(--soft); padding: .1rem .3rem; border-radius: 3px; }
pre { background: var(--soft); padding: .6rem; white-space: pre-wrap; }
"""
_LONG = 30  # characters, from which a cell may be broken into lines
_CLASSES: dict[str, str] = {
    "supported": "supported",
    "contradicted": "contradicted",
    "no difference": "equal",
    "cannot tell": "open",
}


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
        "summary.md": _markdown(pieces),
        "summary.html": _html(pieces, str(about["preset"])),
    }
    for name, text in pages.items():
        write_atomically(folder / name, text.encode())


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


def _pieces(records: Records, about: Mapping[str, Any], every: int) -> Any:
    experiments = records.experiments
    yield _Piece("title", f"The paper's experiments, preset {about['preset']}")
    versions = "gatewise {gatewise}, torch {torch}, transformers {transformers}, Python {python}"
    made = "; ".join(dict.fromkeys(versions.format(**one["versions"]) for one in experiments.values()))
    yield _Piece(
        "text",
        f"Model {about['model']} ({about['edges']:,} edges), {about['dtype']}, {about['threads']} thread per process. "
        f"Made with {made or 'nothing yet'}. Circuits are measured on {about['held_out']} held-out pairs, which no "
        "search has seen, or on some of them where that is said.",
    )
    for command in _commands(experiments, every):
        yield _Piece("command", command)
    yield _Piece("text", about["declared"])
    for table in _verdicts(experiments):
        yield _Piece("table", table)
    for name, why in records.failed.items():
        again = ". What is below is of an earlier run" if name in experiments else ""
        yield _Piece("verdict", f"The experiment {name} failed: {why}{again}", "contradicted")
    for name, one in experiments.items():
        yield from _experiment_pieces(name, one)


def _command(*names: str, options: Sequence[str]) -> str:
    return shlex.join(["gatewise", "reproduce", *names, *options])


def _commands(experiments: Mapping[str, Recorded], every: int) -> list[str]:
    """What made a page: experiments with the same options by one command."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, one in experiments.items():
        names.setdefault(tuple(one["options"]), []).append(name)
    return [_command(*(["all"] if len(some) == every else some), options=options) for options, some in names.items()]


def _settings(settings: Mapping[str, Any]) -> str:
    """What an experiment was run on, in words."""

    def seeds(own: Mapping[str, Any]) -> str:
        return f"{own['seeds']} seed{'s' if own['seeds'] > 1 else ''}, {own['pairs']} pairs each"

    def edges(sizes: Mapping[str, Sequence[int]]) -> str:
        return "; ".join(f"{task_name(task)} {', '.join(f'{n:,}' for n in some)}" for task, some in sizes.items())

    def parameters(own: Mapping[str, Any]) -> str:
        return "".join(f", {key}={value}" for key, value in own["parameters"].items())

    said = [
        f"{METHOD_NAMES[method]}: {seeds(own)}{parameters(own)}; edges: {edges(own['edges'])}."
        for method, own in settings["methods"].items()
    ]
    tested = settings["tested_gates"]
    said += [f"Tested gates: {seeds(tested)}."] if tested else []
    return " ".join(said) or "On synthetic models."


def _experiment_pieces(name: str, one: Recorded) -> Any:
    yield _Piece("heading", f"{one['title']} ({name})")
    yield _Piece("text", f"The paper ({', '.join(one['labels'])}): {one['claim']}")
    yield _Piece("command", _command(name, options=one["options"]))
    yield _Piece("text", _settings(one["settings"]))
    for ruling in one["verdicts"]:
        standing = f" ({ruling['standing']})" if ruling["standing"] else ""
        text = f"{ruling['judgement'].capitalize()}{standing}: {ruling['claim']} {ruling['because']}"
        text += f" The paper: {ruling['paper']}." if ruling["paper"] else ""
        text += f" What would change our mind: {ruling['otherwise']}." if ruling["otherwise"] else ""
        yield _Piece("verdict", text, _CLASSES[ruling["judgement"]])
    for table in one["tables"]:
        yield _Piece("table", Table(**table))
    for table in one["paper"]:
        yield _Piece("table", Table(**{**table, "title": f"The paper: {table['title']}"}))
    for caption, file in one["figures"].items():
        yield _Piece("figure", caption, file)
    for note in one["notes"]:
        yield _Piece("note", note)


def _verdicts(experiments: Mapping[str, Recorded]) -> list[Table]:
    """All rulings: what is primary, or has nothing random, stands apart from what is exploratory."""
    rulings = [(name, ruling) for name, one in experiments.items() for ruling in one["verdicts"]]
    tasks = list(dict.fromkeys(task for _, ruling in rulings for task in ruling["tasks"]))
    columns = ("experiment", "the paper's claim", "method", "verdict", *tasks)
    tables = []
    for title, exploratory in (("Primary claims", False), ("Exploratory claims", True)):
        some = [(name, one) for name, one in rulings if (one["standing"] == "exploratory") == exploratory]
        rows = [
            (
                name,
                ruling["claim"],
                ruling["method"],
                ruling["judgement"],
                *(ruling["tasks"][task]["judgement"] if task in ruling["tasks"] else "" for task in tasks),
                ruling["effect"],
                ruling["paper"],
                ruling["otherwise"],
            )
            for name, ruling in some
        ]
        judged = [ruling["judgement"] for _, ruling in some]
        counted = ", ".join(f"{judgement} {judged.count(judgement)}" for judgement in JUDGEMENTS)
        note = f"Of {len(rows)}: {counted}. By exact sign flips over seeds; experiments say what their effects are."
        tables.append(Table(title, (*columns, "effect", "the paper", "what would change our mind"), rows, note))
    return [table for table in tables if table.rows]


def overview(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """For readers with one minute: the primary claims, and what became of them on each model, as Markdown.

    results: for each column, what one or more results.json have. A claim that was judged nowhere is left out.
    """
    judged: dict[tuple[str, str], dict[str, dict[str, list[str]]]] = {}  # by claim, column and judgement: methods
    papers: dict[tuple[str, str], dict[str, dict[str, None]]] = {}  # by claim and number: methods
    found = [(column, *item) for column, some in results.items() for one in some for item in one["experiments"].items()]
    for column, name, experiment in found:
        for one in experiment["verdicts"]:
            if one["primary"] or not one["standing"]:
                row = judged.setdefault((name, one["claim"]), {}).setdefault(column, {})
                row.setdefault(one["judgement"], []).append(one["method"])
                papers.setdefault((name, one["claim"]), {}).setdefault(one["paper"], {})[one["method"]] = None
    place = {name: i for i, name in enumerate(dict.fromkeys(name for _, name, _ in found))}

    def numbers(some: Mapping[str, Iterable[str]]) -> str:
        return next(iter(some)) if len(some) == 1 else "; ".join(f"{', '.join(m)}: {n}" for n, m in some.items())

    def verdicts(some: Mapping[str, Iterable[str]]) -> str:
        ordered = [(judgement, some[judgement]) for judgement in JUDGEMENTS if judgement in some]
        return "; ".join(f"{judgement} ({', '.join(methods)})" for judgement, methods in ordered) or "not run"

    rows = [
        (*at, numbers(papers[at]), *(verdicts(judged[at].get(column, {})) for column in results))
        for at in sorted(judged, key=lambda at: place[at[0]])
    ]
    return _markdown_table(Table("", ("experiment", "claim", "the paper", *results), rows))


def _markdown(pieces: Sequence[_Piece]) -> str:
    parts = [
        _markdown_table(content) if isinstance(content, Table) else _MARKDOWN[kind].format(text=content, name=name)
        for kind, content, name in pieces
    ]
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    rule = "| " + " | ".join("---:" if number else "---" for number in _number_columns(table)) + " |"
    rows = [line([shown(cell) for cell in row]) for row in table.rows]
    title = [f"**{table.title}**", ""] if table.title else []
    note = ["", f"*{table.note}*"] if table.note else []
    return "\n".join([*title, line(list(table.columns)), rule, *rows, *note])


def _html(pieces: Sequence[_Piece], preset: str) -> str:
    body = [
        _html_table(content)
        if isinstance(content, Table)
        else _HTML[kind].format(text=html.escape(content), name=html.escape(name))
        for kind, content, name in pieces
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    title = f"<title>gatewise: the paper's experiments, {html.escape(preset)}</title>"
    page = f"<!doctype html>\n<html lang=en><head>{head}{title}<style>{_STYLE}</style></head>\n<body>\n"
    return page + "\n".join(body) + "\n</body></html>\n"


def _html_table(table: Table) -> str:
    numbers = _number_columns(table)
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


def _number_columns(table: Table) -> list[bool]:
    """Numbers, and texts that begin like one (`0.62 ± 0.1`), stand at the right."""
    columns = [[row[i] for row in table.rows if row[i] not in (None, "")] for i in range(len(table.columns))]
    return [
        bool(cells) and all(not isinstance(cell, str) or cell.lstrip("-+~")[:1].isdigit() for cell in cells)
        for cells in columns
    ]
