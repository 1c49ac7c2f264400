"""How small circuits can be: sizes over seeds, by hand; and the command that makes table and figure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gatewise.cli.main import app
from gatewise.errors import GatewiseError
from gatewise.sweep import compare_sizes, draw_sizes
from gatewise.sweep.size_comparison import as_markdown


def row(edges: int, *, reached: bool = True, goal: float | None = 0.8, method: str = "eap") -> dict[str, Any]:
    return {
        "model": "tiny", "task": "ioi", "method": method, "direction": "ns", "faithfulness": goal, "reached": reached,
        "most_edges": 500, "edges": edges, "recovered": 0.9, "recovered_dn": 0.5, "recovered_logit_diff": 0.7,
        "circuit_accuracy": 1.0,
    }  # fmt: skip


def test_sizes_are_geometric_means_over_the_seeds_that_reached() -> None:
    mixed, missed = compare_sizes(
        [row(100), row(400), row(500, reached=False), row(10, goal=None), row(500, reached=False, method="eap-ig")]
    )
    assert mixed.edges is not None
    assert (mixed.seeds, mixed.reached) == (3, 2)
    assert mixed.edges.value == pytest.approx(math.sqrt(100 * 400))
    assert 100 <= mixed.edges.low < 200 < mixed.edges.high <= 400 + 1e-9
    assert mixed.cells() == ("eap ns", "80%", "200 (100 to 400)", "2 of 3", "90%", "50%", "70%", "100%")
    assert missed.edges is None
    assert missed.cells()[2:4] == ("not below 500", "0 of 1")


def test_table_and_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    summaries = compare_sizes([row(100), row(200, goal=0.9), row(500, reached=False, method="eap-ig")])
    assert "| eap ns | 90% | 200 | 1 of 1 |" in as_markdown(summaries)
    draw_sizes(summaries, tmp_path / "sizes.svg")
    assert "share of the KL to keep" in (tmp_path / "sizes.svg").read_text()
    with pytest.raises(GatewiseError, match="a figure ends in"):
        draw_sizes(summaries, tmp_path / "sizes.txt")


def test_the_command_resumes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["smallest", "tiny", "--methods", "eap", "--faithfulness", "0.5", "--seeds", "2", "-n", "16"]
    words += ["--out", str(tmp_path), "--json"]
    first, again = (CliRunner().invoke(app, words) for _ in range(2))
    assert (first.exit_code, again.exit_code) == (0, 0), first.output
    (summary,) = json.loads(again.stdout)
    assert json.loads(first.stdout) == [summary]
    assert (summary["seeds"], summary["reached"]) == (2, 2)
    assert "1 to compute" not in again.stderr
    assert {path.name for path in tmp_path.iterdir()} >= {"smallest.md", "smallest.svg", "table.csv", "store"}
    bad = CliRunner().invoke(app, ["smallest", "tiny", "--faithfulness", "85", "--out", str(tmp_path)])
    assert "between 0 and 1" in str(bad.exception)
    bad = CliRunner().invoke(app, ["smallest", "tiny", "--methods", "acdc", "--out", str(tmp_path)])
    assert "acdc searches anew for every size" in str(bad.exception)
