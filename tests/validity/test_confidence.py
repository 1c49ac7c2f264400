"""Confidence: resamples against their definition, and the Jaccard index against independent draws of pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_models import random_pairs, small_model

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.errors import GatewiseError
from gatewise.methods import score_examples
from gatewise.methods.example_scores import ExampleScores
from gatewise.models.model import Model
from gatewise.tasks import Task
from gatewise.tasks.pairs import Pairs
from gatewise.validity import resample_circuit, resample_scores
from gatewise.validity.confidence import resample_weights, resampled_units


@pytest.fixture(scope="module")
def tiny() -> Model:
    return gw.load_model("tiny")


@pytest.fixture(scope="module")
def task(tiny: Model) -> Task:
    return gw.task("gt", tiny, examples=16)


def made_scores(values: torch.Tensor) -> ExampleScores:
    """Scores as if examples had them. values: [example, edge]"""
    graph = small_model("gpt2").graph
    rows = torch.zeros(len(values), graph.n_edges)
    rows[:, : values.shape[1]] = values
    pairs = random_pairs(lengths=(5,) * len(values))
    return ExampleScores(graph, pairs, {"method": "made"}, [slice(0, len(values))], [rows])


def test_inclusion_is_the_share_of_resampled_searches_that_contain_an_edge(tiny: Model, task: Task) -> None:
    scores = score_examples(tiny, task)
    confidence = resample_scores(scores, edges=40, resamples=30, seed=3)
    assert confidence.circuit == gw.discover(tiny, task, edges=40)
    unit, units = resampled_units(task.train)
    assert unit == "pairs"
    weights = resample_weights(units, 30, 3)
    times = (weights * len(task.train)).round().long()
    count = torch.zeros(tiny.graph.n_edges, dtype=torch.float64)
    for row in times[:5]:  # the slow way: search on the pairs that were drawn
        drawn = [example for example, often in enumerate(row.tolist()) for _ in range(often)]
        count += gw.discover(tiny, task.train[drawn], edges=40).mask
    again = resample_scores(scores, edges=40, resamples=5, seed=3)
    assert float((again.inclusion * 5 - count).abs().sum()) <= 2  # of edges that are equally strong but for rounding
    sure = confidence.circuit.confident()
    assert 0 < len(sure) < 40
    assert all(confidence.inclusion[index] >= 0.95 for index in sure.indices)
    assert all(confidence.inclusion[index] < 0.95 for index in (confidence.circuit - sure).indices)


def test_a_circuit_keeps_its_confident_edges_in_its_file(tiny: Model, task: Task, tmp_path: Path) -> None:
    confidence = resample_circuit(tiny, task, edges=40, resamples=20)
    confidence.circuit.save(tmp_path / "circuit.json")
    assert Circuit.load(tmp_path / "circuit.json").confident() == confidence.confident
    assert confidence.confident <= confidence.circuit.confident(0.5) <= confidence.circuit
    with pytest.raises(GatewiseError, match=r"gw\.resample_circuit"):
        gw.discover(tiny, task, edges=40).confident()
    with pytest.raises(GatewiseError, match="share is above 0"):
        confidence.circuit.confident(0.0)


def test_templates_are_resampled_where_enough_pairs_share_them() -> None:
    pairs = random_pairs(lengths=(5,) * 24)
    named = replace(pairs, templates=tuple(f"template {i % 8}" for i in range(24)))
    unit, units = resampled_units(named)
    assert (unit, len(set(units))) == ("templates", 8)
    for row in resample_weights(units, 10):
        assert all(len(set(row[i::8].tolist())) == 1 for i in range(8))  # pairs of a template go together
        assert float(row.sum()) == pytest.approx(1)
    few = replace(pairs, templates=tuple(f"template {i % 3}" for i in range(24)))
    assert resampled_units(few)[0] == "pairs"
    alone = replace(pairs, templates=tuple(f"template {i}" for i in range(24)))
    assert resampled_units(alone)[0] == "pairs"


def test_what_examples_agree_on_is_certain() -> None:
    certain = resample_scores(made_scores(torch.arange(1.0, 9.0).expand(20, -1)), edges=4, resamples=10)
    assert certain.jaccard.value == certain.jaccard.low == 1
    assert len(certain.confident) == 4


def test_the_jaccard_index_is_close_to_that_of_independent_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.tensor([3.0] * 10 + [0.0] * 90)  # half of the circuit is noise

    def draw() -> torch.Tensor:
        return true + 2 * torch.randn(30, 100, generator=generator)

    values, draws = [], []
    for _ in range(20):
        confidence = resample_scores(made_scores(draw()), edges=20, resamples=60)
        values.append(confidence.jaccard.value)
        first, second = (set(draw().mean(dim=0).abs().topk(20).indices.tolist()) for _ in range(2))
        draws.append(len(first & second) / len(first | second))
    expected, mean = sum(draws) / 20, sum(values) / 20
    assert abs(mean - expected) < 0.1


def test_other_methods_search_on_each_resample_and_workers_give_the_same(tmp_path: Path) -> None:
    model = small_model("gpt2")
    pairs = random_pairs(lengths=(5, 6, 7, 5))
    alone = resample_circuit(model, pairs, "acdc", edges=12, resamples=3, compute=Compute(workers=1))
    shared = resample_circuit(model, pairs, "acdc", edges=12, resamples=3, compute=Compute(workers=2, store=tmp_path))
    assert torch.equal(alone.inclusion, shared.inclusion)
    assert alone.resamples == 3
    assert set(alone.inclusion.unique().tolist()) <= {0, 1 / 3, 2 / 3, 1}
    assert len(list(tmp_path.rglob("*.safetensors"))) == 4  # the circuit, and one search for each resample


def test_too_few_resamples_or_pairs_are_refused() -> None:
    model = small_model("gpt2")
    pairs: Pairs = random_pairs()
    with pytest.raises(GatewiseError, match="resamples"):
        resample_circuit(model, pairs, edges=5, resamples=1)
    with pytest.raises(GatewiseError, match="at least two pairs"):
        resample_circuit(model, pairs[:1], edges=5)
