"""The paper's Table 1 comes out of code, by threshold; the partial edge depends on the seed."""

from __future__ import annotations

import pytest

from gatewise.errors import GatewiseError
from gatewise_paper.toy_models import PAPER, agrees, table, to_json


def test_table_one() -> None:
    rows = table(seeds=6)
    assert {(row.direction, row.method) for row in rows} == set(PAPER)
    for row in rows:
        assert agrees(row), row
        for gate, recovery in row.recovery.items():
            if recovery == "partial":
                assert set(row.found_by_seed[gate]) == {1}
                assert row.choices[gate] == 2  # one seed finds A1's edge, another A2's
    assert all(row["as_in_the_paper"] for row in to_json(rows))


def test_other_methods_have_no_line() -> None:
    with pytest.raises(GatewiseError, match="edge-pruning"):
        table(methods=("eap-ig",))
