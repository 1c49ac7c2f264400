"""Calibration of EAP against exact effects."""

from __future__ import annotations

import pytest
from small_models import random_pairs, small_model

from gatewise.errors import GatewiseError
from gatewise.methods import discover
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs


@pytest.mark.parametrize("direction", ["ns", "dn", "ns+dn"])
def test_linear_models_are_estimated_perfectly(direction: str) -> None:
    circuit = discover(synthetic_model("adder"), synthetic_pairs(), "eap", direction, edges=2, calibrate=5)  # type: ignore[call-overload]
    assert circuit.provenance["notes"]["calibration"] == {
        "edges": 5,
        "rank_correlation": pytest.approx(1),
        "rank_correlation_of_magnitudes": pytest.approx(1),
    }


def test_estimates_of_a_small_model_are_better_than_chance() -> None:
    model, pairs = small_model("llama"), random_pairs(lengths=(6,) * 8)
    found = discover(model, pairs, "eap", edges=10, calibrate=1000).provenance["notes"]["calibration"]
    assert found["edges"] == model.graph.n_edges
    assert 0.3 < found["rank_correlation"] <= 1
    integrated = discover(model, pairs, "eap-ig", edges=10, calibrate=20).provenance["notes"]["calibration"]
    assert integrated["edges"] == 20


def test_bad_counts() -> None:
    with pytest.raises(GatewiseError, match="number of edges"):
        discover(synthetic_model("adder"), synthetic_pairs(), "eap", edges=2, calibrate=-1)
