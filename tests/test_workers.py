"""Workers share one search or evaluation: bit for bit what one process gives, also when some of them die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import working_processes
from small_models import half, random_pairs, small_model

from gatewise import discover, discover_all, evaluate, load_model, score_edges, task
from gatewise.compute import Compute
from gatewise.engine import Metric
from gatewise.engine.runs.batches import batches
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.methods import Acdc, Eap, EdgePruning, Method, Ranking
from gatewise.methods.base import Problem
from gatewise.methods.eap import BLOCKS, in_blocks
from gatewise.models import register_architecture, transformer
from gatewise.models.architectures.llama import llama_parts
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

MEMORY = 60_000  # a few examples at a time
PAIRS = random_pairs(lengths=(7, 5, 6, 7, 4, 7, 6, 5, 7, 6, 5, 4, 7))


@pytest.fixture(scope="module")
def model() -> Model:
    return small_model("llama")


def test_evaluations_by_two_processes(model: Model) -> None:
    circuits = [model.graph.random_circuit(20), model.graph.random_circuit(40)]
    asked: dict[str, Any] = {"metric": "logit_diff", "seed": 3}
    one, two = (
        evaluate(model, PAIRS, circuits, compute=Compute(memory=MEMORY, workers=workers), **asked)
        for workers in (None, 2)
    )
    assert one == two
    alone = evaluate(model, PAIRS, circuits[0], compute=Compute(workers=1))  # cut by circuits
    assert evaluate(model, PAIRS, circuits[0]) == alone


@pytest.mark.parametrize(
    "method",
    [Acdc(max_thresholds=2), EdgePruning(steps=22, batch=4), Ranking(steps=22)],
    ids=lambda method: method.name,
)
def test_directions_side_by_side(model: Model, tmp_path: Path, method: Method) -> None:
    asked: dict[str, Any] = {"directions": ("ns", "dn", "ns+dn"), "sizes": [25, 50]}
    one = discover_all(model, PAIRS[:4], method, **asked)
    two = discover_all(model, PAIRS[:4], method, compute=Compute(workers=2, store=tmp_path), **asked)
    for direction, circuits in one.items():
        assert circuits == two[direction]
        assert all(torch.equal(a.scores, b.scores) for a, b in zip(circuits, two[direction], strict=True))  # type: ignore[arg-type]
    # what workers found is what one thread finds
    again = discover_all(model, PAIRS[:4], method, compute=Compute(store=tmp_path), **asked)
    assert {d: [c.provenance for c in some] for d, some in again.items()} == {
        d: [c.provenance for c in some] for d, some in two.items()
    }
    assert not list(tmp_path.rglob("*.checkpoint"))


def test_any_order_of_blocks(model: Model) -> None:
    """Whatever ends first: scores are those of the search in this process."""
    problem = Problem(Setting(model, PAIRS, memory=MEMORY), ("ns",), {"ns": (model.graph.n_edges,)})
    sums = {block: Eap().search_part(problem, block) for block in reversed(Eap().parts(problem))}
    assert len(sums) >= 4
    found = Eap().join_parts(problem, sums)["ns"][0].scores
    assert torch.equal(found, score_edges(model, PAIRS, compute=Compute(memory=MEMORY)).values)


def test_blocks_are_fixed() -> None:
    parts: list[Any] = list(range(1000))
    blocks = in_blocks(parts)
    assert len(blocks) == BLOCKS
    assert [part for block in blocks for part in block] == parts
    assert {len(block) for block in blocks} <= {31, 32}
    assert [list(block) for block in in_blocks(parts[:3])] == [[0], [1], [2]]  # type: ignore[comparison-overlap]


def test_eap_by_two_processes_with_own_metric_and_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "_registered", {})
    hf = small_model("llama").hf
    hf.config.model_type = "other"
    register_architecture("other", llama_parts)
    model = load_model(hf)
    assert len(list(batches(model, PAIRS, MEMORY, gradient=True))) >= 4
    asked: dict[str, Any] = {"directions": ("ns", "dn", "ns+dn"), "sizes": [25, 50], "metric": Metric("half", half)}
    one = discover_all(model, PAIRS, Eap(combine="max"), compute=Compute(memory=MEMORY), **asked)
    two = discover_all(model, PAIRS, Eap(combine="max"), compute=Compute(memory=MEMORY, workers=2), **asked)
    for direction, circuits in one.items():
        assert circuits == two[direction]
        for mine, other in zip(circuits, two[direction], strict=True):
            assert torch.equal(mine.scores, other.scores)  # type: ignore[arg-type]
            assert mine.provenance["data"] == other.provenance["data"]
            assert other.provenance["threads"] == 1


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Processes do not run the script again. Threads of the caller play no part."""
    (tmp_path / "script.py").write_text(
        "import gatewise as gw\n"
        "print('started')\n"
        "model = gw.load_model('tiny')\n"
        "pairs = gw.task('ioi', model, examples=4).train\n"
        "ways = [gw.Compute(memory='2MB', workers=n) for n in (1, 2)]\n"
        "one, two = (gw.score_edges(model, pairs, 'eap-ig', compute=way).values for way in ways)\n"
        "print(one.equal(two))\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "started\nTrue\n", done.stderr


def test_what_workers_cannot_do(model: Model) -> None:
    with pytest.raises(GatewiseError, match="workers is a number of processes, at least 1; got 0"):
        score_edges(model, PAIRS, compute=Compute(workers=0))
    with pytest.raises(GatewiseError, match="not both"):
        score_edges(model, PAIRS, compute=Compute(workers=2, ray="auto"))
    with pytest.raises(GatewiseError, match="cannot be sent to workers"):
        score_edges(
            model,
            PAIRS,
            metric=lambda logits, pairs: pairs.logit_diff(logits),
            compute=Compute(memory=MEMORY, workers=2),
        )
    synthetic, pairs = load_model("synthetic:and"), Pairs.from_tokens([[1]], [[0]], [0], [1])
    with pytest.raises(GatewiseError, match="synthetic:and is made in code and cannot be sent to workers"):
        discover_all(synthetic, pairs, "acdc", ("ns", "dn"), threshold=0.1, compute=Compute(workers=2))


@contextmanager
def killer() -> Iterator[list[int]]:
    """Kill one of our workers once it has worked for a moment."""
    killed: list[int] = []
    done = threading.Event()

    def kill() -> None:
        while not done.is_set() and not killed:
            for child in working_processes():
                if child.cpu_times().user > 0.3:  # beyond its start
                    os.kill(child.pid, signal.SIGKILL)
                    killed.append(child.pid)
                    break
            time.sleep(0.05)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


def test_one_of_two_processes_dies() -> None:
    model = load_model("tiny")
    pairs = task("ioi", model, examples=400, test_examples=1).train
    one = discover(model, pairs, edges=50)
    with killer() as killed:
        two = discover(model, pairs, edges=50, compute=Compute(workers=2))
    assert len(killed) == 1
    assert two == one
    assert torch.equal(two.scores, one.scores)  # type: ignore[arg-type]
