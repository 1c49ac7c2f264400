"""The incremental engine against the dense one: proposals, acceptance, rebuilding, on random circuits."""

from __future__ import annotations

import pytest
import torch
from small_models import INCREMENTAL, random_pairs, small_model

from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.patching.incremental import State
from gatewise.engine.patching.propagation import DEAD, LAST, WIDE, Route, all_liveness
from gatewise.engine.runs.activations import both_runs
from gatewise.models.model import Model
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise.tasks.pairs import Pairs


def state_and_twin(model: Model, pairs: Pairs, kept: torch.Tensor, direction: str) -> tuple[State, DenseEngine]:
    runs = both_runs(model, pairs)
    on = runs.intervention(model, direction)  # type: ignore[arg-type]
    return State(model, on, runs.reference(direction).outputs, kept), DenseEngine(model, on)  # type: ignore[arg-type]


def random_kept(model: Model, share: float, generator: torch.Generator) -> torch.Tensor:
    chosen = torch.rand(model.graph.n_edges, generator=generator) < share
    return model.graph.matrix(chosen)


def compare_random_removals(model: Model, pairs: Pairs, share: float, direction: str, seed: int) -> set[int]:
    """Remove random edges node by node, from the output back, and compare every proposal with a dense run.

    Rows remove one, two, three edges from each of some of the node's ports. Says how many ports were changed at once.
    """
    graph, generator = model.graph, torch.Generator().manual_seed(seed)
    kept = random_kept(model, share, generator)
    state, twin = state_and_twin(model, pairs, kept, direction)
    live = all_liveness(model, kept)
    changed = set()
    for node in (-1, *reversed(range(len(graph.senders)))):
        ports = [port for port, sender in enumerate(graph.port_sender) if sender == node and kept[port].any()]
        if not ports or (node >= 0 and live[node] == DEAD):
            continue
        count = int(torch.randint(1, len(ports) + 1, (1,), generator=generator))
        chosen = {ports[i]: some_of(kept[ports[i]], generator) for i in shuffled(len(ports), generator)[:count]}
        changed.add(count)
        route = None if node < 0 else state.route(node, live)
        proposal = state.propose(route, {port: removed(state, route, port, some) for port, some in chosen.items()})
        masks = [kept.clone() for _ in range(3)]
        for row, mask in enumerate(masks):
            for port, senders in chosen.items():
                mask[port, senders[: row + 1]] = False
            expected = twin.logits(mask.to(model.dtype))
            torch.testing.assert_close(model.unembed(proposal.residual[row]), expected, atol=1e-9, rtol=0)
        row = int(torch.randint(3, (1,), generator=generator))
        before = kept.clone()
        state.accept(proposal, row, {port: senders[: row + 1] for port, senders in chosen.items()})
        assert torch.equal(kept, before)  # the state has a circuit of its own
        kept = masks[row]
        assert torch.equal(state.in_circuit, kept)
        found = all_liveness(model, kept)
        live = found if node < 0 else [*found[:node], *live[node:]]  # removals make earlier nodes less alive
    state.rebuild(kept, all_liveness(model, kept))
    torch.testing.assert_close(model.unembed(state.last), twin.logits(kept.to(model.dtype)), atol=1e-9, rtol=0)
    return changed


def shuffled(count: int, generator: torch.Generator) -> list[int]:
    found: list[int] = torch.randperm(count, generator=generator).tolist()
    return found


def some_of(row: torch.Tensor, generator: torch.Generator) -> list[int]:
    """At most three of a port's senders."""
    senders = row.nonzero().flatten().tolist()
    return [senders[i] for i in shuffled(len(senders), generator)[:3]]


def removed(state: State, route: Route | None, port: int, senders: list[int]) -> torch.Tensor:
    """Three rows: without the first, the first two, the first three of these senders, or of as many as there are."""
    change = state.removed(senders, state.positions_read(route, port))
    return torch.cat([change, change[-1:].expand(3 - len(senders), *change.shape[1:])])


@pytest.mark.parametrize("direction", ["ns", "dn"])
@pytest.mark.parametrize("share", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("architecture", INCREMENTAL)
def test_proposals_are_dense_runs(architecture: str, share: float, direction: str) -> None:
    model = small_model(architecture, dtype=torch.float64)
    pairs = random_pairs(lengths=(7, 5, 7), same=(3, 2, 4))
    found = compare_random_removals(model, pairs, share, direction, seed=1)
    assert found == {1, 2, 3} if share == 1.0 else found  # fewer live nodes in sparse circuits


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2", "gemma3"])
def test_merged_ports(architecture: str) -> None:
    model = small_model(architecture, dtype=torch.float64, qkv="merged")
    assert compare_random_removals(model, random_pairs(), 0.9, "ns", seed=2) == {1}


def test_synthetic_models() -> None:
    model = synthetic_model("combined")
    assert compare_random_removals(model, synthetic_pairs(), 1.0, "ns", seed=0) == {1}


def test_coupled_heads_live_together() -> None:
    """One head of a layer is read, and its siblings change what it writes: all of the layer matters."""
    model = small_model("gemma3")
    circuit = model.graph.circuit(["input->a1.h0<q>", "a1.h2->logits", "a0.h1->a1.h3<v>"])
    live = dict(zip(model.graph.senders, all_liveness(model, model.graph.matrix(circuit.mask)), strict=True))
    assert {node for node, level in live.items() if level == LAST} == {"input", *(f"a1.h{head}" for head in range(4))}
    assert {node for node, level in live.items() if level == WIDE} == {f"a0.h{head}" for head in range(4)}
    assert live["m0"] == live["m1"] == DEAD
