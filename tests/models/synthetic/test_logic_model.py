"""The synthetic models do what their gates say, and zero ablation is patching on them."""

from __future__ import annotations

import pytest
import torch

from gatewise.engine import run_circuit
from gatewise.errors import GatewiseError
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs

VALUES = {  # B when A1 and A2 are: kept both, only A1, only A2, none
    "and": (1.0, 0.0, 0.0, 0.0),
    "or": (1.0, 1.0, 1.0, 0.0),
    "adder": (2.5, 1.0, 1.5, 0.0),
}


@pytest.mark.parametrize("kind", list(VALUES))
def test_single_gates(kind: str) -> None:
    model, pairs = synthetic_model(kind), synthetic_pairs()
    full = model.graph.full()
    without = [[], ["A2->B"], ["A1->B"], ["A1->B", "A2->B"]]
    for removed, expected in zip(without, VALUES[kind], strict=True):
        for ablation in ("patching", "zero"):
            logits = run_circuit(model, pairs, full - model.graph.circuit(removed), ablation=ablation)
            assert logits.tolist() == [[expected, 0.0]]
            assert pairs.logit_diff(logits).tolist() == [expected]


@pytest.mark.parametrize("kept", range(16))
def test_combined(kept: int) -> None:
    """C = (A1 and A2) + (A3 or A4), in both directions."""
    model, pairs = synthetic_model("combined"), synthetic_pairs()
    gates = ["A1->B1", "A2->B1", "A3->B2", "A4->B2"]
    a1, a2, a3, a4 = (bool(kept >> i & 1) for i in range(4))
    removed = model.graph.circuit([gate for i, gate in enumerate(gates) if not kept >> i & 1])
    ns = run_circuit(model, pairs, model.graph.full() - removed)
    assert ns.tolist() == [[float(a1 and a2) + float(a3 or a4), 0.0]]
    dn = run_circuit(model, pairs, model.graph.full() - removed, "dn")
    assert dn.tolist() == [[float(not a1 and not a2) + float(not a3 or not a4), 0.0]]


def test_other_edges_do_nothing() -> None:
    model, pairs = synthetic_model("combined"), synthetic_pairs()
    truth = model.graph.circuit(["A1->B1", "A2->B1", "A3->B2", "A4->B2", "B1->C", "B2->C", "C->logits"])
    assert torch.equal(run_circuit(model, pairs, truth), run_circuit(model, pairs, model.graph.full()))
    assert torch.equal(run_circuit(model, pairs, ~truth), run_circuit(model, pairs, model.graph.empty()))


def test_fingerprints_differ() -> None:
    """A store of results must not take one toy for another."""
    kinds = ("and", "or", "adder", "combined")
    assert len({synthetic_model(kind).fingerprint for kind in kinds}) == len(kinds)


def test_unknown_kind() -> None:
    with pytest.raises(GatewiseError, match="synthetic:combined"):
        synthetic_model("xor")
