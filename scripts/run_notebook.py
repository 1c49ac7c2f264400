"""Run docs/example.ipynb from top to bottom and keep its outputs in it: `make notebook`. Jupyter is not needed."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "docs" / "example.ipynb"


def executed(content: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its cells, run in this folder."""
    namespace: dict[str, Any] = {}
    cells, count = [], 0
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = {**cell, "execution_count": count, "outputs": _run("".join(cell["source"]), namespace, count)}
        cells.append(cell)
    return {**content, "cells": cells}


def _run(source: str, namespace: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """What a cell prints, and the value of its last line if that is an expression, as Jupyter keeps them."""
    body, value, printed = ast.parse(source).body, None, io.StringIO()
    last = body.pop().value if isinstance(body[-1], ast.Expr) else None  # type: ignore[attr-defined]
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), NOTEBOOK.name, "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last), NOTEBOOK.name, "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        html = getattr(value, "_repr_html_", None)
        shown = {**({"text/html": _lines(html())} if html else {}), "text/plain": _lines(repr(value))}
        outputs.append({"data": shown, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        done = executed(content)
        os.chdir(NOTEBOOK.parent)
    NOTEBOOK.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    shown = sum(bool(cell.get("outputs")) for cell in done["cells"])
    print(f"{NOTEBOOK.name}: {shown} cells with outputs")


if __name__ == "__main__":
    main()
