"""Draw the figures of the README and of docs/concepts.md: `make pictures` (needs matplotlib, the extra `figures`)."""

from __future__ import annotations

from pathlib import Path

import gatewise as gw
from gatewise.models.synthetic.logic_model import synthetic_pairs

FOLDER = Path(__file__).parents[1] / "docs" / "img"
SYNTHETIC = ("and", "or", "adder", "combined")


def draw_synthetic(folder: Path) -> list[Path]:
    """The toy gates. Gives the files."""
    files = []
    for name in SYNTHETIC:
        gates = gw.find_gates(gw.load_model(f"synthetic:{name}"), synthetic_pairs(), "eap", threshold=0.01, joint=False)
        files.append(folder / f"gate-{name}.svg")
        gates.draw(files[-1])
    return files


def draw_circuit(folder: Path, name: str = "smollm2", model: str = "smollm2-135m") -> Path:
    """The strongest edges of the circuit of indirect objects, all on paths from the input to the logits."""
    loaded = gw.load_model(model)
    task = gw.task("ioi", loaded, examples=64, seed=0)
    gates = gw.find_gates(loaded, task, "eap", edges=500, select="connected", joint=False)
    path = folder / f"circuit-{name}-ioi.svg"
    gates.draw(path, max_edges=60)
    return path


if __name__ == "__main__":
    for path in [*draw_synthetic(FOLDER), draw_circuit(FOLDER)]:
        print(path.name)
