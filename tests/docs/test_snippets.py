"""The Python of the documentation runs as printed."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

import gatewise as gw

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In one namespace per page, from top to bottom, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, page.name, "exec"), namespace)


def test_links_between_pages_lead_somewhere() -> None:
    for page in DOCS.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_reference_says_what_gw_has_and_what_its_modules_have() -> None:
    public, _, beyond = (DOCS / "api.md").read_text(encoding="utf-8").partition("## In the modules")
    listed, others = (re.findall(r"^::: (gatewise\S+)$", part, flags=re.MULTILINE) for part in (public, beyond))
    assert sorted(name.rpartition(".")[2] for name in listed) == sorted(gw.__all__)  # type: ignore[attr-defined]
    for name in listed:
        assert resolve_name(name) is getattr(gw, name.rpartition(".")[2]), name
    for name in others:
        assert resolve_name(name).__module__ == name.rpartition(".")[0], name


def test_every_public_function_has_an_executed_example() -> None:
    pages = [*DOCS.glob("*.md"), DOCS.parent / "README.md"]
    code = "".join(block for page in pages for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    notebook = json.loads((DOCS / "example.ipynb").read_text(encoding="utf-8"))
    code += "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    reference = re.findall(r"^::: (gatewise\S+)$", (DOCS / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    functions = [name.rpartition(".")[2] for name in reference if inspect.isfunction(resolve_name(name))]
    assert [name for name in functions if not re.search(rf"\b{name}\(", code)] == []
