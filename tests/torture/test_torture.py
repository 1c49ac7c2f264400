"""A handful of the kills of `make torture`."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)

from torture.torture import WORK, differences, litter, results, search, torture, without_times

from gatewise.methods import EdgePruning


@pytest.mark.parametrize("name", ["acdc", "edge-pruning", "ranking", "sweep", "two-at-once"])
def test_killed_work_ends_as_if_nothing_had_happened(name: str, fresh_process: ProcessPoolExecutor) -> None:
    tally = fresh_process.submit(torture, name, kills=2, seed=1).result()
    assert tally.problems == []
    assert tally.kills == 2
    assert tally.runs >= 1


def test_times_are_left_out_and_nothing_else() -> None:
    assert len(WORK) >= 7
    value = {"seconds": 1, "rows": [{"kl": 2, "seconds": 3, "started": 4}], "timeseries": 5}
    assert without_times(value) == {"rows": [{"kl": 2}], "timeseries": 5}


def test_torture_sees_what_it_looks_for(tmp_path: Path) -> None:
    search(EdgePruning(steps=20), [40], tmp_path)
    wanted = results(tmp_path)
    search(EdgePruning(steps=21), [40], tmp_path / "other")
    assert len(differences(wanted, results(tmp_path / "other"))) == 2  # one key is missing, one is unknown
    key = next(iter(wanted))
    mask, scores, notes = wanted[key][0]
    changed = {key: [(mask, bytes([scores[0] ^ 1]) + scores[1:], notes), *wanted[key][1:]]}
    assert differences(wanted, changed) == [f"{key} differs"]
    (tmp_path / "store" / key[:2] / f".{key}.part").touch()
    assert len(litter(tmp_path)) == 1
