"""Write the table of the paper's primary claims on all models into docs/paper.md, from the committed results.

python scripts/paper_overview.py
"""

from __future__ import annotations

import json
from pathlib import Path

from gatewise.paper.summary import overview

DOCS = Path(__file__).parent.parent / "docs"
COLUMNS = {"SmolLM2": "smollm2", "Gemma": "laptop", "tiny": "quick"}
BEGIN, END = "<!-- overview -->\n", "\n<!-- end of the overview -->"


def main() -> None:
    page = DOCS / "paper.md"
    files = {column: DOCS / "results" / name / "results.json" for column, name in COLUMNS.items()}
    found = {column: json.loads(file.read_text()) for column, file in files.items() if file.is_file()}
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + "\n" + overview(found) + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
