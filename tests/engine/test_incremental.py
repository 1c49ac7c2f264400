"""The incremental engine against the dense one: proposals, acceptance, rebuilding, on random circuits."""

from __future__ import annotations

import pytest
import torch
from small_models import UNCOUPLED, random_pairs, small_model

from gatewise.engine.dense import DenseEngine
from gatewise.engine.incremental import DEAD, State, all_liveness
from gatewise.engine.runs import both_runs
from gatewise.errors import GatewiseError
from gatewise.models.model import Model
from gatewise.models.planted import planted_model, planted_pairs
from gatewise.tasks.pairs import Pairs


def state_and_twin(model: Model, pairs: Pairs, kept: torch.Tensor, direction: str) -> tuple[State, DenseEngine]:
    runs = both_runs(model, pairs)
    on = runs.intervention(model, direction)  # type: ignore[arg-type]
    reference = runs.reference(direction).outputs.clone()  # type: ignore[arg-type]
    return State(model, on, reference, kept), DenseEngine(model, on)


def random_kept(model: Model, share: float, generator: torch.Generator) -> torch.Tensor:
    chosen = torch.rand(model.graph.n_edges, generator=generator) < share
    return model.graph.matrix(chosen)


def compare_random_removals(model: Model, pairs: Pairs, share: float, direction: str, seed: int) -> int:
    """Remove random edges port by port, from the output back, and compare every proposal with a dense run."""
    graph, generator = model.graph, torch.Generator().manual_seed(seed)
    kept = random_kept(model, share, generator)
    state, twin = state_and_twin(model, pairs, kept, direction)
    live = all_liveness(graph, kept)
    checked = 0
    for port in reversed(range(len(graph.ports))):
        senders = kept[port].nonzero().flatten()
        node = graph.port_sender[port]
        if not len(senders) or (node >= 0 and live[node] == DEAD):
            continue
        plan = None if node < 0 else state.plan(node, live)
        chosen = senders[torch.randperm(len(senders), generator=generator)[:3]].tolist()
        positions = state.positions_read(plan, port)
        change = state.removed(chosen, positions)
        proposal = state.propose(plan, port, change)
        for row in range(len(chosen)):
            mask = kept.clone()
            mask[port, chosen[: row + 1]] = False
            expected = twin.logits(mask.to(model.dtype))
            torch.testing.assert_close(model.unembed(proposal.residual[row]), expected, atol=1e-9, rtol=0)
            checked += 1
        accepted = int(torch.randint(0, len(chosen), (1,), generator=generator))
        state.accept(proposal, accepted)
        kept[port, chosen[: accepted + 1]] = False
        for sender in range(len(graph.senders)):  # removals can only make earlier nodes less alive
            live[sender] = live[sender] if node >= 0 and sender >= node else all_liveness(graph, kept)[sender]
    state.rebuild(all_liveness(graph, kept))
    torch.testing.assert_close(model.unembed(state.last), twin.logits(kept.to(model.dtype)), atol=1e-9, rtol=0)
    return checked


@pytest.mark.parametrize("direction", ["ns", "dn"])
@pytest.mark.parametrize("share", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("architecture", UNCOUPLED)
def test_proposals_are_dense_runs(architecture: str, share: float, direction: str) -> None:
    model = small_model(architecture, dtype=torch.float64)
    pairs = random_pairs(lengths=(7, 5, 7), same=(3, 2, 4))
    assert compare_random_removals(model, pairs, share, direction, seed=1) > 0


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_merged_ports(architecture: str) -> None:
    model = small_model(architecture, dtype=torch.float64, qkv="merged")
    assert compare_random_removals(model, random_pairs(), 0.9, "ns", seed=2) > 0


def test_planted_models() -> None:
    model = planted_model("combined")
    assert compare_random_removals(model, planted_pairs(), 1.0, "ns", seed=0) > 0


def test_gemma_is_refused_with_the_way_out() -> None:
    model = small_model("gemma2")
    with pytest.raises(GatewiseError, match="Use EAP or Edge Pruning"):
        state_and_twin(model, random_pairs(), model.graph.edge_index >= 0, "ns")
