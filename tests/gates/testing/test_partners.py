"""Partners of edges: identities in small random models, who they are in synthetic ones."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.circuits.circuit import Circuit
from gatewise.engine.attribution import Attribution
from gatewise.engine.patching.node_patching import PatchedBatches
from gatewise.engine.setting import Setting
from gatewise.gates.testing.partners import edge_partners, local_and_downstream
from gatewise.models.synthetic.gate_kinds import synthetic_receiver

FAMILIES = ("gpt2", "neox", "llama", "gemma2", "gemma3")
PAIRS = random_pairs(lengths=(6, 4) * 4)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_parts_sum_to_the_difference_of_scores_which_are_those_of_eap(architecture: str) -> None:
    model = small_model(architecture, dtype=torch.float64)
    on = PatchedBatches(Setting(model, PAIRS, memory=400_000))
    arising, scores = local_and_downstream(on)
    torch.testing.assert_close(arising.sum(dim=0), scores[0] - scores[1], atol=1e-9, rtol=0)
    total = sum(float(receivers.total_effect.sum()) for receivers in on)
    setting = Setting(model, PAIRS)
    expected = Attribution(setting, setting.batches()[0]).directions(["ns", "dn"])
    for found, direction in zip(scores, ("ns", "dn"), strict=True):
        torch.testing.assert_close(found * total, expected[direction], atol=1e-9, rtol=0)  # type: ignore[index]


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("edge", ["m0->a1.h2<k>", "a0.h1->m1", "m0->logits"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_partners_sum_to_what_they_explain(architecture: str, edge: str, within: bool) -> None:
    model = small_model(architecture, dtype=torch.float64)
    circuit: Circuit | None = None
    if within:
        circuit = model.graph.random_circuit(60, seed=1) | model.graph.circuit([edge, "a1.h2->logits", "m1->logits"])
    found = edge_partners(model, PAIRS, edge, circuit=circuit)
    assert sum(found.exact.values()) == pytest.approx(found.ns - found.dn, abs=1e-9)
    assert sum(found.gradient.values()) == pytest.approx(found.local, abs=1e-9)
    assert found.local + found.downstream == pytest.approx(found.score_ns - found.score_dn, abs=1e-9)
    assert found.exact[edge.partition("->")[0]] == pytest.approx(0, abs=1e-12) or "<" in edge
    assert all(map(math.isfinite, found.exact.values()))


def test_the_partner_of_a_gates_edge_is_the_other_group() -> None:
    kind = synthetic_receiver("and-of-groups")
    found = edge_partners(kind.model, kind.pairs, "A1->B")
    assert sum(found.exact[f"A{i}"] for i in range(6, 11)) == pytest.approx(0.2)
    assert all(abs(found.exact[f"A{i}"]) < 1e-12 for i in range(1, 6))
    assert found.downstream == pytest.approx(0, abs=1e-12)


def test_k_finds_its_partner_in_v() -> None:
    kind = synthetic_receiver("k-and-v")
    assert edge_partners(kind.model, kind.pairs, "k->a0.h0<k>").strongest[0] == "v"


def test_curvature_of_one_sender_is_its_own_and_has_no_partner() -> None:
    kind = synthetic_receiver("self-curvature")
    found = edge_partners(kind.model, kind.pairs, "A1->B")
    assert found.gradient["A1"] == pytest.approx(found.local)
    assert found.local == pytest.approx(1)  # the slope of half the square: 1 where it is clean, 0 where not
    assert all(abs(value) < 1e-12 for value in found.exact.values())


def test_saturation_downstream_has_no_local_part() -> None:
    kind = synthetic_receiver("downstream")
    found = edge_partners(kind.model, kind.pairs, "A1->B")
    assert found.local == pytest.approx(0, abs=1e-12)
    assert abs(found.downstream) > 0.5
