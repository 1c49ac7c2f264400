"""Searches find what they found before: edge for edge, scores as far as processors agree on them.

See `cases.py` for where the record is from.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import cases

RECORD = cases.known()
SMALL, LARGE = list(cases.small_cases()), list(cases.large_cases())
# The record is from an Intel Xeon. An AMD EPYC finds the same circuits; its scores differ by up to 1.5e-6 for ACDC
# (changes of KL), and by up to 1.5e-4 for Edge Pruning (masks, whose training grows the last bits).
TOLERANCE = {"acdc": 5e-6, "eap": 1e-6, "eap-ig": 1e-6, "edge-pruning": 1e-3}


@cache
def loaded(name: str) -> tuple[Any, Any]:
    return cases.load(name)


def check(case: cases.Case) -> None:
    model, pairs = loaded(case.model)
    found = case.run(model, pairs[: case.examples])
    expected = {name: values for name, values in RECORD.items() if name.startswith(f"{case.name}/")}
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        if name.endswith("/edges"):
            assert torch.equal(found[name], values), f"{name} changed"
        else:
            atol = TOLERANCE[case.method]
            torch.testing.assert_close(found[name], values, atol=atol, rtol=1e-5, msg=f"{name} changed")


def test_every_entry_of_the_record_is_compared() -> None:
    names = {case.name for case in (*SMALL, *LARGE)}
    assert {name.rsplit("/", 2)[0] for name in RECORD} == names


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_small_searches_find_what_they_found(case: cases.Case) -> None:
    check(case)


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
def test_searches_in_a_real_model_find_what_they_found(case: cases.Case) -> None:
    check(case)
