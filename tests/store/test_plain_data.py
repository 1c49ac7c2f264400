"""Results come back from plain data as they were, exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor

from gatewise.statistics import Interval
from gatewise.store.plain_data import from_plain, to_plain


@dataclass(frozen=True, eq=False)
class Result:
    name: Literal["a", "b"]
    table: Tensor
    chosen: Tensor
    by_place: Mapping[int, tuple[str, float]]
    by_set: Mapping[frozenset[str], Interval | None]
    rows: tuple[tuple[int, ...], ...]
    empty: Tensor | None = None


def test_there_and_back() -> None:
    table = torch.randn(2, 3, 4, dtype=torch.float64) / 3
    one = Result(
        "b",
        table.float(),
        table > 0,
        {7: ("x", 0.1)},
        {frozenset("kv"): Interval(0.1, -0.2, 1 / 3, 5), frozenset(): None},
        ((1, 2), ()),
    )
    back = from_plain(Result, json.loads(json.dumps(to_plain(one))))
    assert torch.equal(back.table, one.table)
    assert (back.table.dtype, back.chosen.dtype) == (torch.float32, torch.bool)
    assert torch.equal(back.chosen, one.chosen)
    assert (back.name, back.by_place, back.by_set, back.rows) == (one.name, one.by_place, one.by_set, one.rows)
    assert back.empty is None


def test_what_has_no_plain_form() -> None:
    with pytest.raises(TypeError, match="no plain form"):
        from_plain(complex, 1)
