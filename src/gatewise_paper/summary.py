"""The page of a reproduction, in Markdown, with the figures beside it; it is written from the records alone."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gatewise.files import write_atomically
from gatewise_paper.claims import JUDGEMENTS
from gatewise_paper.naming import METHOD_NAMES, task_name
from gatewise_paper.records import Record, Records, finite
from gatewise_paper.tables import Cell, Table


def write_summary(folder: Path, records: Records, about: Mapping[str, Any], every: int) -> None:
    """Write results.json and summary.md. every: how many experiments there are in all."""
    results = finite({"about": about, "experiments": records.experiments, "failed": records.failed})
    page = "\n\n".join(_page(records, about, every)) + "\n"
    write_atomically(folder / "results.json", (json.dumps(results, indent=1, ensure_ascii=False) + "\n").encode())
    write_atomically(folder / "summary.md", page.encode())


def shown(value: Cell) -> str:
    """A cell of a table as text: three significant digits."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return value


def _page(records: Records, about: Mapping[str, Any], every: int) -> Iterator[str]:
    """The paragraphs of the page."""
    experiments = records.experiments
    yield f"# The paper's experiments, preset {about['preset']}"
    versions = "gatewise {gatewise}, torch {torch}, transformers {transformers}, Python {python}"
    made = "; ".join(dict.fromkeys(versions.format(**record["versions"]) for record in experiments.values()))
    yield (
        f"Model {about['model']} ({about['edges']:,} edges), {about['dtype']}, {about['threads']} thread per process. "
        f"Made with {made or 'nothing yet'}. Circuits are measured on {about['held_out']} held-out pairs, which no "
        "search has seen, or on some of them where that is said."
    )
    names: dict[tuple[str, ...], list[str]] = {}  # of experiments, by the options of the command that ran them
    for name, record in experiments.items():
        names.setdefault(tuple(record["options"]), []).append(name)
    for options, of_command in names.items():
        yield _command(*(["all"] if len(of_command) == every else of_command), options=options)
    yield about["declared"]
    yield from map(markdown_table, _verdicts(experiments))
    for name, why in records.failed.items():
        again = ". What is below is of an earlier run" if name in experiments else ""
        yield f"> The experiment {name} failed: {why}{again}"
    for name, record in experiments.items():
        yield from _section(name, record)


def _section(name: str, record: Record) -> Iterator[str]:
    """The paragraphs of an experiment."""
    yield f"## {record['title']} ({name})"
    yield f"The paper ({', '.join(record['labels'])}): {record['claim']}"
    yield _command(name, options=record["options"])
    yield _settings(record["settings"])
    for ruling in record["verdicts"]:
        standing = f" ({ruling['standing']})" if ruling["standing"] else ""
        text = f"> {ruling['judgement'].capitalize()}{standing}: {ruling['claim']} {ruling['because']}"
        text += f" The paper: {ruling['paper']}." if ruling["paper"] else ""
        text += f" What would change our mind: {ruling['otherwise']}." if ruling["otherwise"] else ""
        yield text
    yield from (markdown_table(Table(**table)) for table in record["tables"])
    for table in record["paper"]:
        yield markdown_table(Table(**{**table, "title": f"The paper: {table['title']}"}))
    for caption, file in record["figures"].items():
        yield f"![{caption}](figures/{file}.svg)\n\n*{caption}*"
    yield from (f"- {note}" for note in record["notes"])


def _command(*names: str, options: Sequence[str]) -> str:
    return "    " + shlex.join(["gatewise", "reproduce", *names, *options])


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


def markdown_table(table: Table) -> str:
    """A table with its title and note."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    rule = line("---:" if number else "---" for number in _number_columns(table))
    rows = [line(map(shown, row)) for row in table.rows]
    title = [f"**{table.title}**", ""] if table.title else []
    note = ["", f"*{table.note}*"] if table.note else []
    return "\n".join([*title, line(table.columns), rule, *rows, *note])


def _number_columns(table: Table) -> list[bool]:
    """Numbers, and texts that begin like one (`0.62 ± 0.1`), stand at the right."""
    columns = [[row[i] for row in table.rows if row[i] not in (None, "")] for i in range(len(table.columns))]
    return [
        bool(cells) and all(not isinstance(cell, str) or cell.lstrip("-+~")[:1].isdigit() for cell in cells)
        for cells in columns
    ]
