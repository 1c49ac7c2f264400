"""The README's Python runs as printed, and what it says about the project is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_python_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    """In one namespace, from top to bottom, as a reader would paste them."""
    assert BLOCKS
    namespace: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), namespace)
    assert "faithful" in capsys.readouterr().out.lower()


def test_first_example_is_four_calls() -> None:
    assert len(BLOCKS[0].splitlines()) == 4


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^    make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)", README):
        assert (ROOT / link).exists(), link
