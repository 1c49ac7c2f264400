"""Write the table of the paper's primary claims on all models into docs/paper.md, from the committed results.

python scripts/paper_overview.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gatewise_paper.summary import overview

DOCS = Path(__file__).parent.parent / "docs"
COLUMNS = {"Gemma": ("laptop", "laptop-edge-pruning"), "SmolLM2": ("smollm2",), "tiny": ("quick",)}
BEGIN, END = "<!-- overview -->", "<!-- end of the overview -->"


def main() -> None:
    page = DOCS / "paper.md"
    found: dict[str, list[Any]] = {
        column: [json.loads((DOCS / "results" / name / "results.json").read_text()) for name in names]
        for column, names in COLUMNS.items()
    }
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no place for the table: {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{overview(found)}\n\n{END}{after}")


if __name__ == "__main__":
    main()
