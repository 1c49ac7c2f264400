"""The example notebook runs from top to bottom, shows something in every cell, and holds no outputs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "example.ipynb"
CONTENT = json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell as Jupyter does; gives the value of its last line, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, NOTEBOOK.name, "exec"), namespace)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), NOTEBOOK.name, "exec"), namespace)
    return eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), namespace)


def test_cells_run_and_show_something(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    shown = [run_cell("".join(cell["source"]), namespace) for cell in CONTENT["cells"] if cell["cell_type"] == "code"]
    assert len(shown) >= 8
    with_html = [value for value in shown if hasattr(value, "_repr_html_")]
    assert len(with_html) >= 6
    assert all("<table" in value._repr_html_() or "Model" in value._repr_html_() for value in with_html)
    assert any("others kept" in repr(value) or "others removed" in repr(value) for value in shown)  # a truth table
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circuit.json", "circuit.svg", "gates.safetensors"]


def test_format() -> None:
    assert (CONTENT["nbformat"], CONTENT["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in CONTENT["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in CONTENT["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
