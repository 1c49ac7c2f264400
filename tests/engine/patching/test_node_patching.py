"""Runs in which some nodes put out what they are told, against circuits that make them do so."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.patching.node_patching import PatchedBatches
from gatewise.engine.running import dense_mask
from gatewise.engine.setting import Setting


@pytest.mark.parametrize("architecture", ["gpt2", "neox", "llama"])
def test_nodes_that_put_out_what_they_are_told(architecture: str) -> None:
    """A node whose edges all carry corrupted outputs puts out its corrupted one, whatever was before it."""
    model = small_model(architecture, dtype=torch.float64)
    setting, graph = Setting(model, random_pairs(lengths=(7, 5, 6))), model.graph
    (batch,) = setting.batches(gradient=True)
    (receivers,) = PatchedBatches(setting)
    off = ("a0.h1", "m0", "a1.h2")
    corrupted = {node: receivers.runs.corrupted.outputs[node] for node in map(graph.senders.index, off)}
    found = receivers.run_with(corrupted)
    gone = [edge for edge in graph.edges if graph.port_node[graph.edge_port[graph.index(edge)]] in off]
    engine = DenseEngine(model, setting.intervention(batch))
    expected, _ = engine.at_senders(dense_mask(model, graph.full() - graph.circuit(gone)), torch.sum)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    assert torch.equal(receivers.run_with({}), receivers.runs.clean.outputs)
