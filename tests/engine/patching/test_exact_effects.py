"""Exact effects against one run per edge."""

from __future__ import annotations

import pytest
import torch
from reference import reference_logits
from small_models import random_pairs, small_model

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine import run_circuit
from gatewise.engine.patching.exact_effects import exact_effects
from gatewise.engine.runs.activations import Ablation
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError


@pytest.mark.parametrize("architecture", ["gpt2", "neox", "llama", "gemma2"])
@pytest.mark.parametrize("direction", ["ns", "dn"])
@pytest.mark.parametrize("size", [None, 70])
def test_effects_are_those_of_single_runs(architecture: str, direction: str, size: int | None) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    graph = model.graph
    circuit = graph.full() if size is None else graph.random_circuit(size, seed=3)
    found = exact_effects(model, pairs, None, direction, circuit=circuit, compute=Compute(memory=150_000))  # type: ignore[arg-type]
    assert list(found.edges) == circuit.indices
    reference = run_circuit(model, pairs, graph.full(), direction)  # type: ignore[arg-type]
    log_p = reference.log_softmax(-1)

    def measures(c: object) -> tuple[float, float]:
        logits = run_circuit(model, pairs, c, direction)  # type: ignore[arg-type]
        kl = (log_p.exp() * (log_p - logits.log_softmax(-1))).sum(-1).mean()
        return float(kl), float(pairs.logit_diff(logits).mean())

    before = measures(circuit)
    for place in range(0, len(found.edges), 5):
        after = measures(circuit - graph.circuit([found.edges[place]]))
        assert float(found.kl[place]) == pytest.approx(after[0] - before[0], abs=1e-9)
        helps = after[1] - before[1] if direction == "dn" else before[1] - after[1]
        assert float(found.logit_diff[place]) == pytest.approx(helps, abs=1e-9)


@pytest.mark.parametrize("architecture", ["gpt2", "gemma3"])
@pytest.mark.parametrize("ablation", ["zero", "mean", "noise"])
def test_effects_of_other_ablations_are_those_of_the_slow_twin(architecture: str, ablation: Ablation) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    graph, circuit = model.graph, model.graph.random_circuit(70, seed=3)
    setting = Setting(model, pairs, ablation=ablation, seed=5)
    found = exact_effects(setting.model, setting, circuit=circuit)
    drawn = setting.runs(setting.batches()[0]).corrupted.outputs

    def measures(c: Circuit) -> torch.Tensor:
        logits = [reference_logits(model, pairs, one, ablation=ablation, drawn=drawn) for one in (graph.full(), c)]
        log_p, log_q = (one.log_softmax(-1) for one in logits)
        return torch.stack([(log_p.exp() * (log_p - log_q)).sum(-1).mean(), pairs.logit_diff(logits[1]).mean()])

    for place in range(0, len(found.edges), 9):
        expected = measures(circuit - graph.circuit([found.edges[place]])) - measures(circuit)
        torch.testing.assert_close(torch.stack([found.kl, -found.logit_diff])[:, place], expected, atol=1e-9, rtol=0)


def test_edges_outside_the_circuit_are_refused() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    circuit = model.graph.circuit(["input->logits"])
    with pytest.raises(GatewiseError, match="m0->logits"):
        exact_effects(model, pairs, ["m0->logits"], circuit=circuit)
    assert float(exact_effects(model, pairs, ["input->logits"]).kl) > 0
