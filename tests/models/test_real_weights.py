"""Real weights: the engines against transformers and against the reference twin."""

from __future__ import annotations

import pytest
import torch
from reference import reference_logits

import gatewise as gw
from gatewise.engine import last_logits
from gatewise.models.model import Model


@pytest.fixture(scope="module")
def pairs(smollm2: Model) -> gw.Pairs:
    return gw.task("ioi", smollm2, examples=4, seed=0).train


def test_full_graph_and_empty_circuit(smollm2: Model, pairs: gw.Pairs) -> None:
    full = gw.run_circuit(smollm2, pairs, smollm2.graph.full())
    empty = gw.run_circuit(smollm2, pairs, smollm2.graph.empty())
    for row in range(len(pairs)):
        length = int(pairs.lengths[row])
        for found, side in ((full, pairs.clean), (empty, pairs.corrupted)):
            with torch.no_grad():
                expected = smollm2.hf(side[row, -length:][None]).logits[0, -1]
            torch.testing.assert_close(found[row], expected, atol=2e-4, rtol=0)


def test_a_circuit_is_what_the_reference_says(smollm2: Model, pairs: gw.Pairs) -> None:
    circuit = smollm2.graph.random_circuit(110_000, seed=1)
    for direction in ("ns", "dn"):
        found = gw.run_circuit(smollm2, pairs[:1], circuit, direction)
        expected = reference_logits(smollm2, pairs[:1], circuit, direction)
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
        log_p, log_q = expected.double().log_softmax(-1), found.double().log_softmax(-1)
        assert float((log_p.exp() * (log_p - log_q)).sum()) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(("name", "examples", "tau"), [("smollm2-135m", 4, 0.03), ("gemma3-270m", 8, 0.01)])
def test_acdc_ends_at_the_references_divergence(name: str, examples: int, tau: float) -> None:
    """On real weights the running KL equals the reference's to 1e-5 at the end."""
    model = gw.load_model(name)
    pairs = gw.task("ioi", model, examples=examples, test_examples=1, seed=0).train
    circuit = gw.discover(model, pairs, "acdc", threshold=tau)
    assert 10 < len(circuit) < model.graph.n_edges / 10
    (running,) = circuit.provenance["notes"]["divergence"]
    full, found = (reference_logits(model, pairs, c) for c in (model.graph.full(), circuit))
    log_p, log_q = full.double().log_softmax(-1), found.double().log_softmax(-1)
    assert running == pytest.approx(float((log_p.exp() * (log_p - log_q)).sum(-1).mean()), abs=1e-5)


@pytest.mark.parametrize(("name", "least"), [("ioi", 0.9), ("gt", 0.95), ("sa", 0.75), ("sa:number=mixed", 0.85)])
def test_smollm2_does_the_three_tasks(smollm2: Model, name: str, least: float) -> None:
    test = gw.task(name, smollm2, examples=32, seed=0).test
    assert float(test.pairwise_accuracy(last_logits(smollm2, test)).double().mean()) >= least
