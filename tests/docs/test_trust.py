"""The threat model names tests: they exist, so that no promise is held by nothing."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_named_test_exists() -> None:
    page = (ROOT / "docs" / "trust.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 20
    for path, test in named:
        assert (ROOT / path).is_file(), path
        if test:
            assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{test}"


def test_every_promise_names_a_test() -> None:
    rows = [line for line in (ROOT / "docs" / "trust.md").read_text().splitlines() if line.startswith("| **")]
    assert len(rows) >= 15
    for row in rows:
        assert "`tests/" in row.rpartition("| ")[2] or "`tests/" in row.split("|")[3], row
