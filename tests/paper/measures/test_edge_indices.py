"""Gate indices of single edges: those of tests with all other edges of the receiver as one operand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.compute import Compute
from gatewise.gates.testing.gate_test import test_gate
from gatewise_paper.measures.edge_indices import edge_indices

PAIRS = random_pairs(lengths=(6, 4) * 4)


@pytest.mark.parametrize("architecture", ["gpt2", "gemma3"])
def test_indices_of_edges_are_those_of_tests_with_all_others(architecture: str) -> None:
    model = small_model(architecture, dtype=torch.float64)
    names = ["m0->a1.h2<k>", "input->a1.h2<k>", "a0.h1->a1.h2<v>", "a0.h1->m1", "m0->logits"]
    of = model.graph.circuit(names)
    found = edge_indices(model, PAIRS, of, compute=Compute(memory=400_000))
    for edge, ns, dn, gamma in zip(of, found.ns.tolist(), found.dn.tolist(), found.gamma(0.0).tolist(), strict=True):
        receiver = edge.partition("->")[2].partition("<")[0]
        one = test_gate(model, PAIRS, receiver, {"e": edge}, rest="group", confirm=False)
        assert (ns, dn, gamma) == pytest.approx(
            (one.ns["e"], one.dn["e"], replace(one, floor=0.0).gamma["e"]), abs=1e-9, nan_ok=True
        )
