"""Removing sets of edges from circuits: what an ablation says is one dense run per set."""

from __future__ import annotations

import pytest
import torch
from small_models import INCREMENTAL, random_pairs, small_model

from gatewise.circuits.circuit import Circuit
from gatewise.engine import run_circuit
from gatewise.engine.patching.edge_ablation import Removal, edge_ablations, kl_changes
from gatewise.engine.patching.kl_screening import divergence_between
from gatewise.engine.runs.activations import Direction
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError


def some_removals(circuit: Circuit) -> list[Removal]:
    """None, single edges, pairs into one port, and all of a node's edges, or half of them, whatever their ports."""
    graph, indices = circuit.graph, circuit.indices
    ports = graph.edge_port.tolist()
    pairs = [frozenset({i, j}) for i in indices for j in indices if i < j and ports[i] == ports[j]]
    nodes = [frozenset(i for i in indices if graph.port_sender[ports[i]] == node) for node in range(len(graph.senders))]
    halves = [frozenset(sorted(edges)[::2]) for edges in nodes]
    return [frozenset(), *(frozenset({i}) for i in indices[::9]), *pairs[::5], *filter(None, (*nodes, *halves))]


@pytest.mark.parametrize(
    ("architecture", "direction"),
    [*((one, "ns") for one in INCREMENTAL), *((one, "dn") for one in ("gpt2", "neox", "llama", "gemma3"))],
)
def test_residuals_are_those_of_single_runs(
    architecture: str, direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatewise.engine.setting.ROW_BYTES", 1 << 17)  # a few rows at a time
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    circuit = model.graph.random_circuit(90, seed=2)
    removals = some_removals(circuit)
    expected = [run_circuit(model, pairs, circuit - model.graph.circuit(removal), direction) for removal in removals]
    seen: list[list[int]] = []
    memory = Setting(model, pairs).needed_bytes(2)  # two batches
    for examples, ablation in edge_ablations(Setting(model, pairs, memory=memory), circuit, direction):
        for places, found in ablation.residuals(removals):
            seen.append(places)
            for place, residual in zip(places, found, strict=True):
                wanted = expected[place][examples]
                torch.testing.assert_close(model.unembed(residual), wanted, atol=1e-9, rtol=0)
    assert sorted(place for places in seen for place in places) == sorted([*range(len(removals))] * 2)
    assert max(map(len, seen)) > 1


def test_changes_of_kl_do_not_depend_on_the_batch() -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    circuit = model.graph.random_circuit(70, seed=2)
    removals = some_removals(circuit)
    found, two = kl_changes(Setting(model, pairs), circuit, removals), Setting(model, pairs).needed_bytes(2)
    assert not found[0].any()
    torch.testing.assert_close(kl_changes(Setting(model, pairs, memory=two), circuit, removals), found)
    full = run_circuit(model, pairs, model.graph.full()).log_softmax(-1)

    def distance(removal: Removal) -> torch.Tensor:
        logits = run_circuit(model, pairs, circuit - model.graph.circuit(removal))
        return (full.exp() * (full - logits.log_softmax(-1))).sum(-1)

    expected = torch.stack([distance(removal) - distance(frozenset()) for removal in removals])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)


def test_edges_into_a_dead_node_change_exactly_nothing() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    circuit = model.graph.circuit(["input->a0.h0<q>", "input->m0", "m0->logits"])
    found = kl_changes(
        Setting(model, pairs), circuit, [frozenset(model.graph.circuit([edge]).indices) for edge in circuit]
    )
    assert [bool(change.any()) for change in found] == [edge != "input->a0.h0<q>" for edge in circuit]


def test_edges_from_a_node_that_reads_nothing_change_exactly_nothing() -> None:
    model, pairs = small_model("gemma3", dtype=torch.float64), random_pairs()
    names = ["input->m0", "m0->logits", "a0.h0->m1", "m1->logits", "a0.h0->logits"]
    circuit = model.graph.circuit(names)
    removals = [frozenset(model.graph.circuit([edge]).indices) for edge in names]
    found = kl_changes(Setting(model, pairs), circuit, removals)
    assert [bool(change.any()) for change in found] == [edge in names[:2] for edge in names]
    whole = run_circuit(model, pairs, circuit)
    for edge in names[2:]:
        torch.testing.assert_close(run_circuit(model, pairs, circuit - model.graph.circuit([edge])), whole)


def test_divergence_is_kl_and_zero_between_equals() -> None:
    model = small_model("gpt2", dtype=torch.float64)
    p, q = torch.randn(2, 4, 3, model.d_model, dtype=torch.float64)
    q[1] = p[1]
    log_p, log_q = (model.unembed(x).log_softmax(-1) for x in (p, q))
    found = divergence_between(model, p, q)
    torch.testing.assert_close(found, (log_p.exp() * (log_p - log_q)).sum(-1))
    assert not found[1].any()
    assert bool((found[[0, 2, 3]] > 0).all())


def test_edges_outside_the_circuit_are_refused() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    circuit = model.graph.random_circuit(10)
    with pytest.raises(GatewiseError, match="not in the circuit"):
        kl_changes(Setting(model, pairs), circuit, [frozenset((~circuit).indices[:1])])


def test_sets_that_span_receivers_are_refused() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    removal = frozenset(model.graph.circuit(["input->m0", "input->m1"]).indices)
    with pytest.raises(GatewiseError, match="into one node, got m0, m1"):
        kl_changes(Setting(model, pairs), None, [removal])
