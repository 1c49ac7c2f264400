"""Write the table of the paper's primary claims on all models into docs/paper.md, from the committed results.

python scripts/paper_overview.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gatewise_paper.claims import JUDGEMENTS
from gatewise_paper.summary import markdown_table
from gatewise_paper.tables import Table

DOCS = Path(__file__).parent.parent / "docs"
COLUMNS = {"Gemma": ("laptop", "laptop-edge-pruning"), "SmolLM2": ("smollm2",), "tiny": ("quick",)}
BEGIN, END = "<!-- overview -->", "<!-- end of the overview -->"


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
    return markdown_table(Table("", ("experiment", "claim", "the paper", *results), rows))


def main() -> None:
    page = DOCS / "paper.md"
    results: dict[str, list[Any]] = {
        column: [json.loads((DOCS / "results" / name / "results.json").read_text()) for name in names]
        for column, names in COLUMNS.items()
    }
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no place for the table: {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{overview(results)}\n\n{END}{after}")


if __name__ == "__main__":
    main()
