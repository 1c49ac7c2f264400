"""What calls ask of an accelerator: few waits of the host, few uploads, and launches per batch, not per pair.

The bounds have a little slack above what was counted; docs/benchmarks.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import standin_device
from standin_calls import GROUPS
from standin_device import Counts, counted

import gatewise as gw
from gatewise import devices
from gatewise.circuits.circuit import Circuit
from gatewise.engine.patching.incremental import Proposal, State
from gatewise.gates.programs.prediction import predict
from gatewise.methods.edge_pruning.method import EdgePruning
from gatewise.methods.ranking.method import Ranking
from gatewise.models.model import Model
from gatewise.tasks import Task

Call = Callable[[Model, Task], object]


@pytest.fixture(scope="module")
def model(standin: None) -> Model:
    model = gw.load_model("tiny", device="standin")
    gw.score_edges(model, gw.task("ioi", model, examples=24))  # weights and adapter are looked at once
    return model


@pytest.fixture(scope="module")
def circuits() -> list[Circuit]:
    model = gw.load_model("tiny")
    task = gw.task("ioi", model, examples=16)
    return [gw.discover(model, task, edges=edges) for edges in (50, 100, 200, 400)]


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    devices._sent.cache_clear()


def _counts(call: Call, model: Model, examples: int = 16) -> Counts:
    task = gw.task("ioi", model, examples=examples)
    with counted() as counts:
        call(model, task)
    return counts


@pytest.mark.parametrize(
    ("call", "waits", "uploads"),
    [
        pytest.param(lambda m, t: gw.score_edges(m, t), 3, 30, id="EAP"),
        pytest.param(lambda m, t: gw.score_edges(m, t, "eap-ig"), 3, 30, id="EAP-IG"),
        pytest.param(lambda m, t: gw.exact_effects(m, t.train, range(0, 3600, 36)), 3, 90, id="exact effects"),
        pytest.param(lambda m, t: gw.test_gate(m, t.train, "a3.h0", GROUPS), 3, 30, id="a gate"),
        pytest.param(lambda m, t: gw.test_gates(m, t.train, test=t.test), 36, 320, id="search for gates"),
        pytest.param(
            lambda m, t: predict(m, t.train, {"a3.h0": GROUPS, "a2.h0": GROUPS}, subsets=12, fit_subsets=8),
            6,
            90,
            id="predict",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::gatewise.errors.GatewiseWarning")
def test_the_host_seldom_waits(call: Call, waits: int, uploads: int, model: Model) -> None:
    counts = _counts(call, model)
    assert counts.waits <= waits
    assert counts.uploads <= uploads


def test_evaluating_four_circuits_waits_once_per_batch(model: Model, circuits: list[Circuit]) -> None:
    counts = _counts(lambda m, t: gw.evaluate(m, t, circuits, random_circuits=0), model)
    assert counts.waits <= 2
    assert counts.uploads <= 220
    again = _counts(lambda m, t: gw.evaluate(m, t, circuits, random_circuits=0), model)
    assert again.uploads <= 12  # what circuits need was kept


def test_acdc_waits_once_for_a_proposal_and_uploads_none(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    proposals, propose = [], State.propose

    def counting(state: State, *given: Any) -> Proposal:
        proposals.append(propose(state, *given))
        return proposals[-1]

    monkeypatch.setattr(State, "propose", counting)
    counts = _counts(lambda m, t: gw.discover(m, t, "acdc", threshold=0.02), model)
    assert len(proposals) > 40
    assert counts.waits <= len(proposals) + 4  # and for the check of the model and the last distance
    assert counts.uploads <= 50
    again = _counts(lambda m, t: gw.discover(m, t, "acdc", threshold=0.02), model)
    assert again.uploads <= 22


@pytest.mark.filterwarnings("ignore::gatewise.errors.GatewiseWarning")
@pytest.mark.parametrize("method", [EdgePruning, Ranking])
def test_a_training_step_waits_twice_at_most_and_launches_no_more_for_more_pairs(
    method: type[EdgePruning] | type[Ranking], model: Model
) -> None:
    by_pairs = {}
    for examples in (8, 24):
        few = _counts(lambda m, t: gw.discover(m, t, method(steps=4), edges=100), model, examples)
        many = _counts(lambda m, t: gw.discover(m, t, method(steps=8), edges=100), model, examples)
        assert many.waits - few.waits <= 2 * 4
        by_pairs[examples] = many.launches - few.launches
    assert by_pairs[24] <= by_pairs[8] * 1.05


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda m, t: gw.score_edges(m, t), id="EAP"),
        pytest.param(lambda m, t: gw.score_edges(m, t, "eap-ig"), id="EAP-IG"),
        pytest.param(lambda m, t: gw.exact_effects(m, t.train, range(0, 3600, 90)), id="exact effects"),
        pytest.param(lambda m, t: gw.test_gate(m, t.train, "a3.h0", GROUPS), id="a gate"),
        pytest.param(
            lambda m, t: gw.evaluate(m, t, m.graph.random_circuit(300, seed=1), random_circuits=0), id="evaluate"
        ),
    ],
)
def test_counts_do_not_grow_with_the_pairs_of_a_batch(call: Call, model: Model) -> None:
    few, many = _counts(call, model, 8), _counts(call, model, 24)
    assert many.waits <= few.waits
    assert many.launches <= few.launches * 1.02
    assert many.uploads <= few.uploads + 4


def test_lines_that_make_the_host_wait_can_be_named(model: Model) -> None:
    with standin_device.lines_counted(Path(gw.__file__).parent) as lines:
        gw.score_edges(model, gw.task("ioi", model, examples=4))
    waiting = {line for kind, line, _ in lines if kind == "synchronisation"}
    assert any(line.startswith("eap.py:") for line in waiting)
