"""The README's Python runs as printed, and what it says about the project is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import gatewise as gw

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_python_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    """In one namespace, from top to bottom, as a reader would paste them."""
    assert BLOCKS
    namespace: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), namespace)
    assert "logit diff kept" in capsys.readouterr().out


def test_what_one_sees_first() -> None:
    """A picture, the others beside it, how to install it, one command, one example, in this order."""
    marks = ['src="docs/img/', "| circuit-tracer |", "pip install", "gatewise run tiny", "```python", "## The paper"]
    places = [README.index(mark) for mark in marks]
    assert places == sorted(places)


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == gw.__version__
    assert cited["preferred-citation"]["title"] in " ".join(README.split())


def test_contributing_leads_somewhere() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:src|tests)/[\w./]+)`", text) + re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / path).exists(), path


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^    make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)", README) + re.findall(r'src="([^"]+)"', README):
        assert (ROOT / link).exists(), link
