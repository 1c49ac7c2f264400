"""Curves over the number of members, on synthetic thresholds and against tables of all subsets."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.errors import GatewiseError
from gatewise.gates.testing.gate_test import test_gate
from gatewise.gates.testing.member_curve import member_curve
from gatewise.models.synthetic.gate_kinds import synthetic_receiver


@pytest.mark.parametrize(
    ("name", "needed", "sharpness"),
    [("two-of-three", 2, 1.0), ("five-of-ten", 5, 1.0), ("saturating", 1, 0.3), ("and-of-groups", 10, 0.2)],
)
def test_synthetic_thresholds(name: str, needed: int, sharpness: float) -> None:
    kind = synthetic_receiver(name)
    members = [edge for edges in kind.groups.values() for edge in edges]
    found = member_curve(kind.model, kind.pairs, kind.receiver, members, draws=300)
    assert found.needed == needed
    assert found.sharpness == pytest.approx(sharpness, abs=0.02)
    assert found.effects[0].value == 0
    assert f"largest step at {needed}" in repr(found)


@pytest.mark.parametrize("rest", ["corrupted", "clean"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_point_is_the_mean_of_all_subsets_of_its_size(architecture: str, rest: str) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 4, 6, 5, 6, 4, 5, 6))
    members = ["input->a1.h2<k>", "m0->a1.h2<v>", "a0.h1->a1.h2<q>"]
    curve = member_curve(model, pairs, "a1.h2", members, rest=rest)  # type: ignore[arg-type]
    groups = {edge: edge for edge in members}
    found = test_gate(model, pairs, "a1.h2", groups, rest=rest, confirm=False)  # type: ignore[arg-type]
    for size in range(1, 4):
        some = [value for names, value in found.effects.items() if len(names) == size]
        assert curve.effects[size].value == pytest.approx(sum(some) / len(some), abs=1e-9)


def test_one_member_is_no_curve() -> None:
    kind = synthetic_receiver("two-of-three")
    with pytest.raises(GatewiseError, match="two members"):
        member_curve(kind.model, kind.pairs, "B", ["A1->B"])
