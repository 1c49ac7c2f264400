"""Grids: every combination once, in a fixed order; what is wrong with a file is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gatewise.errors import GatewiseError
from gatewise.sweep.grid import grid_from, read_grid

BASE: dict[str, Any] = {"models": "tiny", "tasks": ["ioi", "gt"], "methods": ["eap"], "sizes": [10, 20]}

TOML = """
models = ["tiny"]
tasks = ["ioi", "gt"]
directions = ["ns", "dn"]
sizes = [10, [20, 40]]
thresholds = 0.1
seeds = [0, 1, 2]
examples = 8
memory = "1GB"

[methods.eap]
[methods.edge-pruning]
steps = [20, 40]
rate = 0.5
rank_all = true
"""


def test_all_combinations(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(TOML)
    grid = read_grid(tmp_path / "grid.toml")
    cells = grid.cells()
    assert len(cells) == len(grid) == len(set(cells)) == 1 * 2 * (1 + 2) * 2 * (2 + 1) * 3
    assert {cell.sizes for cell in cells} == {(10,), (20, 40), ()}
    assert all((cell.threshold is None) == bool(cell.sizes) for cell in cells)
    assert {cell.parameters for cell in cells} == {
        (),
        (("steps", 20), ("rate", 0.5), ("rank_all", True)),
        (("steps", 40), ("rate", 0.5), ("rank_all", True)),
    }
    assert {(cell.examples, cell.test_examples, cell.memory, cell.threads) for cell in cells} == {(8, 64, "1GB", 1)}
    assert cells == read_grid(tmp_path / "grid.toml").cells()
    assert str(cells[1]) == "tiny ioi eap ns 20 and 40 edges seed 0"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"models": None}, "no models"),
        ({"models": []}, "models is empty"),
        ({"models": [1]}, "models: expected text, got 1"),
        ({"modells": ["tiny"]}, "no 'modells'; it has models"),
        ({"methods": ["eapp"]}, "no method 'eapp'. Did you mean 'eap'"),
        ({"methods": {}}, "no methods"),
        ({"methods": {"eap": 1}}, "table of parameters"),
        ({"methods": {"acdc": {"steps": 1}}}, "acdc has no parameter 'steps'"),
        ({"methods": {"acdc": {"chain": "long"}}}, "chain=long: expected a whole number"),
        ({"methods": {"acdc": {"chain": {"a": 1}}}}, "methods.acdc.chain: expected"),
        ({"sizes": None}, "neither sizes"),
        ({"sizes": [1.5]}, "sizes: expected a whole number"),
        ({"sizes": [True]}, "sizes: expected a whole number"),
        ({"sizes": [10, 10, [5, 5]]}, "sizes has a value twice"),
        ({"seeds": [1, 1]}, "seeds has a value twice"),
        ({"thresholds": float("nan")}, "finite"),
        ({"faithfulness": [1.5]}, "between 0 and 1, such as 0.85; got 1.5"),
        ({"faithfulness": [0.8], "methods": ["acdc"]}, "acdc searches anew for every size"),
        ({"most_edges": 100}, "goes with faithfulness"),
        ({"threads": 0}, "threads is 0; expected at least 1"),
        ({"examples": "many"}, "examples: expected a whole number"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], match: str) -> None:
    table = {key: value for key, value in {**BASE, **change}.items() if value is not None}
    with pytest.raises(GatewiseError, match=match):
        grid_from(table)


def test_a_file_that_is_no_grid(tmp_path: Path) -> None:
    for content, match in (
        (b"models = [", "not valid TOML"),
        (b"\xff", "not valid TOML"),
        (b"#" * (2 << 20), "larger"),
    ):
        (tmp_path / "grid.toml").write_bytes(content)
        with pytest.raises(GatewiseError, match=match):
            read_grid(tmp_path / "grid.toml")
    with pytest.raises(GatewiseError, match="cannot read"):
        read_grid(tmp_path / "other.toml")


def test_a_grid_may_be_too_large() -> None:
    grid = grid_from({**BASE, "seeds": list(range(1001)), "sizes": list(range(1, 1001))})
    with pytest.raises(GatewiseError, match="at most 1,000,000"):
        grid.cells()
