"""Draw the pictures of docs/concepts.md: `python scripts/draw_docs.py` (needs matplotlib, the extra `figures`)."""

from __future__ import annotations

from pathlib import Path

import gatewise as gw
from gatewise.models.planted import planted_pairs

FOLDER = Path(__file__).parents[1] / "docs" / "img"
PLANTED = ("and", "or", "adder", "combined")


def draw_all(folder: Path) -> list[Path]:
    """The toy gates, and the circuit of indirect objects in `tiny`. Gives the files."""
    files = []
    for name in PLANTED:
        gates = gw.find_gates(gw.load_model(f"planted:{name}"), planted_pairs(), "eap", threshold=0.01, joint=False)
        files.append(folder / f"gate-{name}.svg")
        gates.draw(files[-1])
    tiny = gw.load_model("tiny")
    pairs = gw.task("ioi", tiny, examples=16, seed=0).train
    files.append(folder / "circuit-tiny-ioi.svg")
    gw.find_gates(tiny, pairs, "eap", edges=50, joint=False).draw(files[-1])
    return files


if __name__ == "__main__":
    for path in draw_all(FOLDER):
        print(path.name)
