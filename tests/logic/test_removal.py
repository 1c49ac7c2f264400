"""Removing edges from circuits: the incremental way and the dense way are one run per removal."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.engine import run_circuit
from gatewise.engine.runs import Direction, both_runs
from gatewise.errors import GatewiseError
from gatewise.logic.removal import Removal, divergence, kl_changes, residuals_without


def some_removals(indices: list[int], ports: torch.Tensor) -> list[Removal]:
    """None, single edges, pairs into one port, and pairs into different ports."""
    pairs = [{i, j} for i in indices for j in indices if i < j and ports[i] == ports[j]]
    return [frozenset(), *(frozenset({i}) for i in indices[::9]), *map(frozenset, pairs[::5]), frozenset(indices[:2])]


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma3"])
@pytest.mark.parametrize("direction", ["ns", "dn"])
def test_residuals_are_those_of_single_runs(architecture: str, direction: Direction) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    circuit = model.graph.random_circuit(70, seed=2)
    removals = some_removals(circuit.indices, model.graph.edge_port)
    seen = []
    for places, found, whole in residuals_without(model, both_runs(model, pairs), circuit, removals, direction):
        seen += places
        torch.testing.assert_close(
            model.unembed(whole), run_circuit(model, pairs, circuit, direction), atol=1e-9, rtol=0
        )
        for place, residual in zip(places, found, strict=True):
            expected = run_circuit(model, pairs, circuit - model.graph.circuit(removals[place]), direction)
            torch.testing.assert_close(model.unembed(residual), expected, atol=1e-9, rtol=0)
    assert sorted(seen) == list(range(len(removals)))


def test_changes_of_kl_do_not_depend_on_the_batch() -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    circuit = model.graph.random_circuit(70, seed=2)
    removals = some_removals(circuit.indices, model.graph.edge_port)
    found = kl_changes(model, pairs, circuit, removals)
    assert not found[0].any()
    torch.testing.assert_close(kl_changes(model, pairs, circuit, removals, memory=150_000), found)
    full = run_circuit(model, pairs, model.graph.full()).log_softmax(-1)

    def distance(removal: Removal) -> torch.Tensor:
        logits = run_circuit(model, pairs, circuit - model.graph.circuit(removal))
        return (full.exp() * (full - logits.log_softmax(-1))).sum(-1)

    expected = torch.stack([distance(removal) - distance(frozenset()) for removal in removals])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)


def test_edges_into_a_dead_node_change_exactly_nothing() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    circuit = model.graph.circuit(["input->a0.h0<q>", "input->m0", "m0->logits"])
    found = kl_changes(model, pairs, circuit, [frozenset(model.graph.circuit([edge]).indices) for edge in circuit])
    assert [bool(change.any()) for change in found] == [edge != "input->a0.h0<q>" for edge in circuit]


def test_divergence_is_kl_and_zero_between_equals() -> None:
    model = small_model("gpt2", dtype=torch.float64)
    p, q = torch.randn(2, 4, 3, model.d_model, dtype=torch.float64)
    q[1] = p[1]
    log_p, log_q = (model.unembed(x).log_softmax(-1) for x in (p, q))
    found = divergence(model, p, q)
    torch.testing.assert_close(found, (log_p.exp() * (log_p - log_q)).sum(-1))
    assert not found[1].any()
    assert bool((found[[0, 2, 3]] > 0).all())


def test_edges_outside_the_circuit_are_refused() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    circuit = model.graph.random_circuit(10)
    with pytest.raises(GatewiseError, match="not in the circuit"):
        kl_changes(model, pairs, circuit, [frozenset((~circuit).indices[:1])])
