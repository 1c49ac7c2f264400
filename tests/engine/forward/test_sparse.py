"""The sparse engine against its dense twin, where it saves most: few edges, few missing, last positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import ARCHITECTURES, random_pairs, small_model

from gatewise.circuits.circuit import Circuit
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.forward.sparse import SparseEngine
from gatewise.engine.patching.propagation import all_liveness, liveness
from gatewise.engine.running import dense_mask, run_circuit, run_circuits
from gatewise.engine.setting import Setting
from gatewise.models.model import Model


def circuits_of(model: Model) -> list[Circuit]:
    """All sizes from both ends, and circuits that leave whole nodes, ports and positions out."""
    graph = model.graph
    few = [graph.random_circuit(n, seed=n) for n in (1, 5, 20, graph.n_edges // 4, graph.n_edges // 2)]
    queries = graph.circuit([edge for edge in graph.edges if edge.endswith(("<q>", "logits"))])
    direct = graph.circuit([edge for edge in graph.edges if edge.endswith("->logits")])
    found = [*few, queries, direct, graph.full()]
    return [circuit for one in found for circuit in (one, ~one)]


@pytest.mark.parametrize("ablation", ["patching", "mean"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_is_the_dense_engine(architecture: str, ablation: str) -> None:
    model = small_model(architecture, dtype=torch.float64)
    setting = Setting(model, random_pairs(lengths=(7, 5, 6), same=(2, 1, 3)), ablation=ablation)  # type: ignore[arg-type]
    batch = setting.batches()[0]
    directions = ("ns", "dn") if ablation == "patching" else ("ns",)
    for direction in directions:
        on = setting.intervention(batch, direction)  # type: ignore[arg-type]
        sparse, dense = SparseEngine(model, on), DenseEngine(model, on)
        for circuit in circuits_of(model):  # one engine for all: nothing of one circuit may stay for the next
            expected = dense.residual(dense_mask(model, circuit))
            torch.testing.assert_close(sparse.residual(circuit), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("product", [0, 10**9])  # always added one by one, always by a product
def test_edges_are_added_as_a_product_adds_them(
    architecture: str, product: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatewise.engine.forward.sparse._PRODUCT", product)
    model = small_model(architecture, dtype=torch.float64)
    setting = Setting(model, random_pairs(lengths=(7, 5, 6), same=(2, 1, 3)))
    on = setting.intervention(setting.batches()[0])
    sparse, dense = SparseEngine(model, on), DenseEngine(model, on)
    for circuit in circuits_of(model):
        expected = dense.residual(dense_mask(model, circuit))
        torch.testing.assert_close(sparse.residual(circuit), expected, atol=1e-10, rtol=0)


def test_many_circuits_are_each_of_them() -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs()
    circuits = circuits_of(model)
    found = run_circuits(model, pairs, circuits)
    for circuit, logits in zip(circuits, found, strict=True):
        torch.testing.assert_close(logits, run_circuit(model, pairs, circuit), atol=1e-10, rtol=0)
    assert run_circuits(model, pairs, []).shape == (0, len(pairs), model.vocabulary_size)


@pytest.mark.parametrize("architecture", ["gpt2", "neox", "gemma2"])
def test_liveness_of_all_is_that_of_each(architecture: str) -> None:
    model = small_model(architecture)
    for circuit in circuits_of(model):
        kept = model.graph.matrix(circuit.mask)
        known = all_liveness(model, kept)
        assert known == [liveness(model, kept, node, known) for node in range(len(known))]


@pytest.mark.parametrize("architecture", ["gpt2", "neox", "gemma2"])
def test_first_sublayers_that_stay_are_not_run_again(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(architecture, dtype=torch.float64)
    graph, setting = model.graph, Setting(model, random_pairs(lengths=(7, 5, 6)))
    on = setting.intervention(setting.batches()[0])
    sparse, dense, ran = SparseEngine(model, on), DenseEngine(model, on), list[int]()
    run = SparseEngine._run

    def counted(self: SparseEngine, reads: Any, where: torch.Tensor) -> torch.Tensor:
        ran.append(reads.index)
        return run(self, reads, where)

    monkeypatch.setattr(SparseEngine, "_run", counted)
    late = graph.circuit([edge for edge in graph.edges if "->a1.h0<k>" in edge])
    last = graph.circuit(["m0->logits"])
    early = graph.circuit(["input->a0.h1<v>"])
    runs = []
    for gone in (graph.empty(), late, late | last, early, early | late, early):
        ran.clear()
        circuit = graph.full() - gone
        expected = dense.residual(dense_mask(model, circuit))
        torch.testing.assert_close(sparse.residual(circuit), expected, atol=1e-10, rtol=0)
        runs.append(ran.copy())
    assert runs == [[0, 1, 2, 3], [2, 3], [], [0, 1, 2, 3], [2, 3], [2, 3]]
