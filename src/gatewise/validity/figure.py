"""The matrix of specificity as a figure: what circuits keep, and what their removal destroys, by column."""

from __future__ import annotations

from pathlib import Path

from gatewise.circuits.drawing import check_can_draw
from gatewise.validity.matrix import Specificity


def draw_matrix(matrix: Specificity, path: str | Path) -> None:
    """Draw the matrix of circuits and columns.

    Args:
        matrix: What `specificity` gave.
        path: Of a file that ends in .svg, .pdf or .png.

    Raises:
        GatewiseError: The file cannot be drawn to.
    """
    check_can_draw(Path(path))
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for kind in ("", "random ", "layers ") for row in matrix.cells if _kind(row, matrix) == kind]
    figure = Figure(figsize=(3.2 + 1.7 * len(matrix.columns), 1.4 + 0.34 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    for index, (title, measure) in enumerate(
        (("kept by the circuit alone", "recovered"), ("destroyed by its removal", "destroyed"))
    ):
        axes = figure.add_subplot(1, 2, index + 1)
        values = [[getattr(matrix.cells[row][column], measure).value for column in matrix.columns] for row in rows]
        axes.imshow(values, vmin=0, vmax=1, cmap="Blues", aspect="auto")
        for y, numbers in enumerate(values):
            for x, value in enumerate(numbers):
                axes.text(x, y, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.6 else "black")
        axes.set_xticks(range(len(matrix.columns)), [c.replace(" (", "\n(") for c in matrix.columns], fontsize=8)
        axes.set_yticks(range(len(rows)), rows if index == 0 else [""] * len(rows), fontsize=8)
        axes.set_title(title, fontsize=9)
    figure.savefig(str(path), metadata={"Date": None} if str(path).endswith(".svg") else None)


def _kind(row: str, matrix: Specificity) -> str:
    return "" if row in matrix.tasks else row.split(" ")[0] + " "
