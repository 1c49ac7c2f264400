"""Synthetic receivers: they compute what is written down, and gates come out as they were made."""

from __future__ import annotations

import pytest

from gatewise.engine import run_circuit
from gatewise.errors import GatewiseError
from gatewise.gates.testing.gate_test import test_gate
from gatewise.models.synthetic.gate_kinds import KINDS, synthetic_receiver
from gatewise_paper.truth.gate_kinds import adjusted_rand_index, kind_rows

SHARP = [kind for kind in KINDS if kind != "additive-on-average"]  # there, chance has a say


@pytest.mark.parametrize("name", SHARP)
def test_gate_index_and_label_are_the_synthetic_ones(name: str) -> None:
    kind = synthetic_receiver(name)
    found = test_gate(kind.model, kind.pairs, kind.receiver, kind.groups)
    assert found.gamma == pytest.approx(kind.gamma, abs=0.02, nan_ok=True)
    assert found.label == kind.label
    assert bool(found.confirmed) == kind.gate


@pytest.mark.parametrize(
    ("name", "logit_diff"), [("and-of-groups", 1.0), ("xor", 1.0), ("negative", 1.0), ("k-and-v", 1.0)]
)
def test_clean_and_corrupted_logit_diffs(name: str, logit_diff: float) -> None:
    kind = synthetic_receiver(name)
    full, empty = kind.model.graph.full(), kind.model.graph.empty()
    clean, corrupted = (kind.pairs.logit_diff(run_circuit(kind.model, kind.pairs, one)).mean() for one in (full, empty))
    assert float(clean - corrupted) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_search_finds_gates_and_their_groups_and_no_others(noise: float) -> None:
    for row in kind_rows(1, noise, kinds=SHARP):
        assert row.discovered == row.gate, row
        assert row.rand_index is None or row.rand_index >= 0.95, row
        assert noise or row.gamma_error <= 0.02, row


def test_interactions_that_scatter_around_nothing_are_seldom_taken_for_gates() -> None:
    (row,) = kind_rows(20, 0.05, seed=100, kinds=["additive-on-average"])
    assert row.discovered <= 0.15  # 5 % expected; more than 3 of 20 would happen once in 60 times


def test_adjusted_rand_index() -> None:
    assert adjusted_rand_index("aabb", "xxyy") == 1
    assert adjusted_rand_index("aabb", "xyxy") == pytest.approx(-0.5)
    assert adjusted_rand_index("ab", "xy") == 1
    assert adjusted_rand_index("aabb", "xxxx") == 0


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(GatewiseError, match="and-of-groups"):
        synthetic_receiver("nand")
