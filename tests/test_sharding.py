"""Shards: bit for bit the sums of one process, also from two processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_models import random_pairs, small_model

from gatewise import evaluate, load_model, score_edges, task
from gatewise.engine.batches import batches
from gatewise.errors import GatewiseError
from gatewise.evaluation.evaluations import evaluate_shard, join_evaluations
from gatewise.methods.eap import BLOCKS, in_blocks
from gatewise.methods.shards import join_scores, score_shard

MEMORY = 60_000  # a few examples at a time
PAIRS = random_pairs(lengths=(7, 5, 6, 7, 4, 7, 6, 5, 7, 6, 5, 4, 7))


@pytest.mark.parametrize("shards", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("method", "direction", "more"), [("eap", "ns", {}), ("eap", "ns+dn", {"combine": "max"}), ("eap-ig", "ns", {})]
)
def test_scores(shards: int, method: str, direction: Any, more: dict[str, Any]) -> None:
    model = small_model("llama")
    assert len(list(batches(model, PAIRS, MEMORY, gradient=True))) >= 4
    whole = score_edges(model, PAIRS, method, direction, memory=MEMORY, **more)
    parts = [score_shard(model, PAIRS, (i, shards), method, direction, memory=MEMORY, **more) for i in range(shards)]
    joined = join_scores(model, PAIRS, reversed(parts), method, direction, memory=MEMORY, **more)
    assert torch.equal(whole.values, joined.values)
    assert joined.provenance["data"] == whole.provenance["data"]


def test_evaluations() -> None:
    model = small_model("gpt2")
    circuits = [model.graph.random_circuit(20), model.graph.random_circuit(40)]
    assert len(list(batches(model, PAIRS, MEMORY))) >= 4
    whole = evaluate(model, PAIRS, circuits, memory=MEMORY, seed=3)
    parts = [evaluate_shard(model, PAIRS, circuits, (i, 3), memory=MEMORY, seed=3) for i in range(3)]
    assert join_evaluations(model, PAIRS, circuits, parts, memory=MEMORY) == whole


WORKER = """
import sys
import torch
from safetensors.torch import save_file
from gatewise import load_model, task
from gatewise.evaluation.evaluations import evaluate_shard
from gatewise.methods.shards import score_shard

torch.set_num_threads(1)
index, folder = int(sys.argv[1]), sys.argv[2]
model = load_model("tiny")
pairs = task("ioi", model, examples=12, test_examples=1).train
circuit = model.graph.random_circuit(300)
scores = score_shard(model, pairs, (index, 2), direction="ns+dn", memory="8MB")
measures = evaluate_shard(model, pairs, [circuit], (index, 2), random_circuits=1, memory="2MB")
save_file({str(k): v.contiguous() for k, v in scores.items()}, f"{folder}/scores-{index}")
save_file({str(k): v.contiguous() for k, v in measures.items()}, f"{folder}/measures-{index}")
"""


def test_two_processes(tmp_path: Path) -> None:
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(index), str(tmp_path)]) for index in (0, 1)]
    assert [worker.wait() for worker in workers] == [0, 0]
    scores, measures = (
        [{int(k): v for k, v in load_file(tmp_path / f"{what}-{index}").items()} for index in (0, 1)]
        for what in ("scores", "measures")
    )
    assert all(scores)
    assert all(measures)
    model = load_model("tiny")
    pairs = task("ioi", model, examples=12, test_examples=1).train
    joined = join_scores(model, pairs, scores, direction="ns+dn", memory="8MB")
    assert torch.equal(joined.values, score_edges(model, pairs, direction="ns+dn", memory="8MB").values)
    circuit = model.graph.random_circuit(300)
    whole = evaluate(model, pairs, [circuit], random_circuits=1, memory="2MB")
    assert join_evaluations(model, pairs, [circuit], measures, random_circuits=1, memory="2MB") == whole


def test_blocks_are_fixed() -> None:
    parts: list[Any] = list(range(1000))
    blocks = in_blocks(parts)
    assert len(blocks) == BLOCKS
    assert [part for block in blocks for part in block] == parts
    assert {len(block) for block in blocks} <= {31, 32}
    assert [list(block) for block in in_blocks(parts[:3])] == [[0], [1], [2]]


def test_wrong_shards() -> None:
    model = small_model("gpt2")
    part = score_shard(model, PAIRS, (0, 2), memory=MEMORY)
    with pytest.raises(GatewiseError, match="blocks are needed; join all shards"):
        join_scores(model, PAIRS, [part], memory=MEMORY)
    with pytest.raises(GatewiseError, match="given twice"):
        join_scores(model, PAIRS, [part, part], memory=MEMORY)
    with pytest.raises(GatewiseError, match="are needed; join all shards"):
        join_evaluations(model, PAIRS, [], [evaluate_shard(model, PAIRS, [], (1, 2), memory=MEMORY)], memory=MEMORY)
    with pytest.raises(GatewiseError, match="expected \\(i, n\\)"):
        score_shard(model, PAIRS, (2, 2))
    with pytest.raises(GatewiseError, match="no sums over examples"):
        score_shard(model, PAIRS, (0, 2), "acdc")
