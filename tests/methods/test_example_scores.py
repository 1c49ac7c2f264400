"""Scores of each example against searches on that example alone, in memory, in a store and by workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.compute import Compute
from gatewise.engine import exact_effects
from gatewise.errors import GatewiseError
from gatewise.methods import Eap, EapIg, Exact, Method, discover, example_scores, score_edges, score_examples
from gatewise.models.model import Model
from gatewise.store import Store
from gatewise.store.maintenance import list_entries
from gatewise.tasks.pairs import Pairs


@pytest.fixture(scope="module", params=["gpt2", "gemma2", "neox"])
def case(request: pytest.FixtureRequest) -> tuple[Model, Pairs]:
    model = small_model(request.param)
    return model, random_pairs(lengths=(7, 5, 7, 6, 7))


@pytest.mark.parametrize("method", [Eap(), EapIg(steps=3), EapIg(steps=3, path=True), Exact()], ids=repr)
def test_each_example_has_the_scores_of_a_search_on_it_alone_and_their_mean_is_the_plain_score(
    case: tuple[Model, Pairs], method: Method
) -> None:
    model, pairs = case
    scores = score_examples(model, pairs, method)
    (_, rows), *rest = scores.blocks()
    assert not rest
    assert rows.shape == (len(pairs), model.graph.n_edges)
    plain = score_edges(model, pairs, method).values
    largest = float(plain.abs().max())
    assert float((scores.mean().values - plain).abs().max()) <= 1e-6 * largest
    for row in range(len(pairs)):
        alone = score_edges(model, pairs[row : row + 1], method).values
        assert float((rows[row] - alone).abs().max()) <= 1e-5 * largest


def test_both_directions_sum_up_and_the_larger_of_both_is_refused(case: tuple[Model, Pairs]) -> None:
    model, pairs = case
    plain = score_edges(model, pairs, "eap", "ns+dn").values
    mean = score_examples(model, pairs, "eap", "ns+dn").mean().values
    assert float((mean - plain).abs().max()) <= 1e-6 * float(plain.abs().max())
    with pytest.raises(GatewiseError, match="combine='max'"):
        score_examples(model, pairs, Eap(combine="max"), "ns+dn")


def test_mean_ablation_has_the_mean_of_all_pairs_whatever_the_block(
    case: tuple[Model, Pairs], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pairs = case
    plain = score_edges(model, pairs, ablation="mean").values
    monkeypatch.setattr(example_scores, "_BLOCK_BYTES", 1)
    mean = score_examples(model, pairs, ablation="mean").mean().values
    assert float((mean - plain).abs().max()) <= 1e-6 * float(plain.abs().max())


def test_exact_effects_keep_the_examples_on_request() -> None:
    model = small_model("gpt2")
    pairs = random_pairs()
    effects = exact_effects(model, pairs, direction="dn", per_example=True)
    assert effects.by_example is not None
    assert torch.equal(effects.by_example.mean(dim=-1), effects.logit_diff)
    scores = score_examples(model, pairs, "exact", "dn")
    torch.testing.assert_close(scores.of_edges(effects.edges), effects.by_example.T.float())
    assert exact_effects(model, pairs, [0]).by_example is None
    best = discover(model, pairs, Exact(), "dn", edges=3)
    assert set(best.indices) == set(effects.logit_diff.abs().argsort(descending=True)[:3].tolist())


def test_blocks_in_a_store_are_the_same_are_read_one_by_one_and_are_not_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model("gpt2")
    pairs = random_pairs(lengths=(7, 5, 7, 6, 7, 5, 6))
    (_, expected), *_ = score_examples(model, pairs).blocks()
    monkeypatch.setattr(example_scores, "_BLOCK_BYTES", 2 * 4 * model.graph.n_edges)
    store = Store(tmp_path)
    scores = score_examples(model, pairs, compute=Compute(store=store))
    parts = list(scores.blocks())
    assert [rows.stop - rows.start for rows, _ in parts] == [2, 2, 2, 1]
    torch.testing.assert_close(torch.cat([array for _, array in parts]), expected)
    kinds = [entry.kind for entry in list_entries(store)]
    assert kinds == ["array"] * 4
    assert list_entries(store)[0].summary.startswith("scores of examples ")
    weights = torch.rand(3, 7, dtype=torch.float64)
    torch.testing.assert_close(scores.combine(weights), weights @ expected.double(), rtol=1e-5, atol=1e-6)

    monkeypatch.setattr(Eap, "score_batch", lambda *_: pytest.fail("computed again"))
    again = score_examples(model, pairs, compute=Compute(store=store))
    assert torch.equal(again.mean().values, scores.mean().values)
    next(iter(tmp_path.rglob("*.safetensors"))).unlink()
    with pytest.raises(GatewiseError, match="call score_examples again"):
        again.mean()


def test_a_damaged_block_is_seen(tmp_path: Path) -> None:
    model = small_model("gpt2")
    pairs = random_pairs(lengths=(7, 5))
    score_examples(model, pairs, compute=Compute(store=tmp_path))
    (path,) = tmp_path.rglob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert [entry.kind for entry in list_entries(Store(tmp_path))] == ["damaged"]


def test_workers_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("gpt2")
    pairs = random_pairs(lengths=(7, 5, 7, 6))
    monkeypatch.setattr(example_scores, "_BLOCK_BYTES", 2 * 4 * model.graph.n_edges)
    alone, shared = (score_examples(model, pairs, compute=Compute(workers=count)) for count in (1, 2))
    assert torch.equal(alone.mean().values, shared.mean().values)


def test_more_than_the_memory_needs_a_store_and_other_methods_are_refused(tmp_path: Path) -> None:
    model = small_model("gpt2")
    pairs = random_pairs(lengths=(5,) * 200)
    little = 60_000
    assert 4 * 200 * model.graph.n_edges > little
    with pytest.raises(GatewiseError, match="Give a store"):
        score_examples(model, pairs, compute=Compute(memory=little))
    scores = score_examples(model, pairs, compute=Compute(memory=little, store=tmp_path))
    assert len(scores) == 200
    with pytest.raises(GatewiseError, match="acdc does not score single examples"):
        score_examples(model, pairs, "acdc")
