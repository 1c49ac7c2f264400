"""ACDC against a naive greedy search that runs the reference engine once per candidate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reference import Reference
from small_models import problem, random_pairs, small_model

from gatewise.circuits.circuit import Circuit
from gatewise.engine.patching.kl_screening import Divergence
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.methods import Acdc, discover, discover_all
from gatewise.methods.acdc._checkpoint import Outcome
from gatewise.methods.acdc._threshold import nearest_outcome, next_threshold
from gatewise.methods.acdc.search import Searcher, receiver_order, sender_order
from gatewise.models.model import Model
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise.tasks.pairs import Pairs


class Naive:
    """KL of circuits from transformers' own logits, by the reference engine."""

    def __init__(self, model: Model, pairs: Pairs, direction: str) -> None:
        tokens = pairs.clean if direction == "ns" else pairs.corrupted
        rows = [tokens[i, -int(pairs.lengths[i]) :] for i in range(len(pairs))]
        self.full = torch.stack([model.hf(row[None]).logits[0, -1] for row in rows]).log_softmax(-1)
        self.reference = Reference(model, pairs, direction)

    def distance(self, circuit: Circuit) -> float:
        log_q = self.reference.logits(circuit).log_softmax(-1)
        return float((self.full.exp() * (self.full - log_q)).sum(-1).mean())


def naive_acdc(model: Model, pairs: Pairs, directions: tuple[str, ...], tau: float, combine: str, seed: int) -> Circuit:
    """One forward per candidate; every edge is tried, dead or not."""
    graph = model.graph
    circuit = graph.full()
    naive = [Naive(model, pairs, direction) for direction in directions]
    now = [one.distance(circuit) for one in naive]
    for port in receiver_order(graph):
        for sender in sender_order(graph, port, seed):
            without = circuit - graph.circuit([int(graph.edge_index[port, sender])])
            after = [one.distance(without) for one in naive]
            changes = [a - b for a, b in zip(after, now, strict=True)]
            if (sum(changes) if combine == "sum" else max(changes)) < tau:
                circuit, now = without, after
    return circuit


def search(model: Model, pairs: Pairs, direction: Any, tau: float, seed: int = 0, **options: Any) -> Circuit:
    asked = problem(model, pairs, direction, threshold=tau, seed=seed)
    return Circuit(model.graph, Searcher(asked, **options).search(tau).mask)


CASES = [
    ("gpt2", "ns", 0.02, "sum", 0),
    ("gpt2", "dn", 0.005, "sum", 1),
    ("gpt2", "ns+dn", 0.02, "sum", 2),
    ("neox", "ns", 0.005, "sum", 3),
    ("neox", "ns+dn", 0.05, "either", 4),
    ("llama", "ns", 0.05, "sum", 5),
    ("llama", "dn", 0.02, "sum", 6),
    ("llama", "ns+dn", 0.01, "either", 7),
    ("qwen2", "ns", 0.1, "sum", 8),
    ("gemma2", "ns", 0.02, "sum", 9),
    ("gemma3", "dn", 0.05, "sum", 10),
    ("gemma3", "ns+dn", 0.05, "either", 11),
    ("qwen3", "ns", 0.05, "sum", 12),
    ("phi3", "dn", 0.05, "sum", 13),
    ("smollm3", "dn", 0.05, "sum", 14),
    ("gpt-neo", "ns", 0.02, "sum", 15),
    ("opt", "dn", 0.02, "sum", 16),
    ("gemma2", "dn", 0.02, "sum", 17),
    ("gemma3", "ns", 0.05, "sum", 18),
    ("qwen3", "dn", 0.05, "sum", 19),
    ("phi3", "ns", 0.05, "sum", 20),
    ("smollm3", "ns", 0.05, "sum", 21),
    ("gpt-neo", "dn", 0.02, "sum", 22),
    ("opt", "ns", 0.02, "sum", 23),
]


@pytest.mark.parametrize(("architecture", "direction", "tau", "combine", "seed"), CASES)
def test_equals_naive_greedy_search_edge_for_edge(
    architecture: str, direction: str, tau: float, combine: str, seed: int
) -> None:
    model = small_model(architecture, seed=seed, dtype=torch.float64)
    pairs = random_pairs(seed=seed, lengths=(5, 4), same=(2, 1))
    expected = naive_acdc(model, pairs, tuple(direction.split("+")), tau, combine, seed)
    assert 0 < len(expected) < model.graph.n_edges
    for chain, batch in ((1, None), (3, 1), (64, None)):
        found = search(model, pairs, direction, tau, seed, combine=combine, chain=chain, batch=batch)
        assert (found ^ expected).edges == []


def test_heads_that_cannot_be_computed_alone_are_refused() -> None:
    with pytest.raises(GatewiseError, match="no head can be computed alone.*Use EAP, EAP-IG or Edge Pruning"):
        discover(small_model("olmo2"), random_pairs(), "acdc", threshold=0.01)


@pytest.mark.parametrize("direction", ["ns", "dn", "ns+dn"])
def test_chain_and_batches_do_not_change_the_result_in_float32(direction: str) -> None:
    model, pairs = small_model("llama", seed=3), random_pairs(seed=3, lengths=(8, 6, 8, 5))
    first = search(model, pairs, direction, 0.01)
    for chain, batch in ((1, 1), (5, 2), (100, 3)):
        assert search(model, pairs, direction, 0.01, chain=chain, batch=batch) == first


def test_values_on_the_threshold_are_decided_canonically() -> None:
    """Take an effect that occurs as tau: the edge stays (strict), however the work is cut up."""
    model, pairs = small_model("gpt2", seed=5), random_pairs(seed=5)
    outcome = Searcher(problem(model, pairs, "ns", threshold=0.01)).search(0.01)
    tau = float(outcome.effects[outcome.mask].min())
    results = []
    for chain, batch in ((1, None), (7, 1), (64, 2)):
        again = Searcher(problem(model, pairs, "ns", threshold=tau), chain=chain, batch=batch).search(tau)
        assert again.canonical > 0
        results.append(again.mask)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(("architecture", "tau"), [("gpt2", 0.01), ("neox", 0.02)])
def test_screened_vocabulary_and_low_rank_unembedding_change_nothing(
    architecture: str, tau: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every shortcut to the divergence, taken wherever it can be, and those without bounds taken indeed."""
    model, pairs = small_model(architecture, seed=7), random_pairs(seed=7)
    expected = search(model, pairs, "ns+dn", tau)
    taken = set()

    def note(name: str, way: Any) -> Any:
        return lambda *given: (taken.add(name), way(*given))[1]  # type: ignore[func-returns-value]

    for name in ("_low_rank", "_value_and_bound", "_whole"):
        monkeypatch.setattr(Divergence, name, note(name, getattr(Divergence, name)))
    monkeypatch.setattr("gatewise.engine.patching.kl_screening._SMALLEST_VOCABULARY", 2)
    monkeypatch.setattr("gatewise.engine.patching.kl_screening._ENOUGH", 0)
    monkeypatch.setattr("gatewise.engine.patching.low_rank_unembedding._WIDEST", 1.0)
    assert search(model, pairs, "ns+dn", tau) == expected
    assert taken >= {"_low_rank", "_whole"}


def test_the_running_divergence_is_that_of_the_circuit() -> None:
    model, pairs = small_model("llama", seed=9), random_pairs(seed=9)
    outcome = Searcher(problem(model, pairs, "ns+dn", threshold=0.01)).search(0.01)
    circuit = Circuit(model.graph, outcome.mask)
    for direction, value in zip(("ns", "dn"), outcome.divergence, strict=True):
        assert value == pytest.approx(Naive(model, pairs, direction).distance(circuit), abs=1e-5)


def test_the_seed_permutes_senders_only() -> None:
    graph = small_model("gpt2").graph
    assert sorted(sender_order(graph, 20, 0)) == sorted(sender_order(graph, 20, 1))
    assert sender_order(graph, len(graph.ports) - 1, 0) != sender_order(graph, len(graph.ports) - 1, 1)
    assert sorted(receiver_order(graph)) == list(range(len(graph.ports)))


@pytest.mark.parametrize(
    ("kind", "direction", "count"),
    [("and", "ns", 2), ("or", "ns", 1), ("adder", "ns", 2), ("and", "dn", 1), ("or", "dn", 2), ("adder", "dn", 2)],
)
def test_the_papers_table_on_single_gates(kind: str, direction: str, count: int) -> None:
    """Full, partial or none, by threshold; which edge is the partial one depends on the seed."""
    model, pairs = synthetic_model(kind), synthetic_pairs()
    gate = model.graph.circuit(["A1->B", "A2->B"])
    found = [search(model, pairs, direction, 0.01, seed=seed) & gate for seed in range(8)]
    assert {len(circuit) for circuit in found} == {count}
    assert len(set(found)) == (2 if count == 1 else 1)


@pytest.mark.parametrize("direction", ["ns", "ns+dn"])
def test_exact_numbers_of_edges(direction: Any) -> None:
    model, pairs = small_model("llama", seed=4), random_pairs(seed=4)
    found = discover_all(model, pairs, "acdc", [direction], sizes=[5, 17, 60])[direction]
    assert [len(circuit) for circuit in found] == [5, 17, 60]
    for circuit in found:
        notes = circuit.provenance["notes"]
        again = search(model, pairs, direction, notes["tau"])
        assert len(again) == notes["kept_at_tau"]
        assert circuit <= again or again <= circuit


@pytest.mark.parametrize(("architecture", "direction"), [("gpt2", "ns"), ("llama", "ns+dn"), ("gemma3", "dn")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_searches_share_changes_no_edge(architecture: str, direction: Any, dtype: torch.dtype) -> None:
    """A search that begins where its tau could first decide otherwise finds what one from all edges finds."""
    model, pairs = small_model(architecture, seed=4, dtype=dtype), random_pairs(seed=4)
    searcher = Searcher(problem(model, pairs, direction, threshold=0.01))
    done, shared = [searcher.search(0.02)], 0
    for tau in (0.005, 0.0051, 0.0055, 0.02001, 0.03, 0.019, 0.3):
        start = searcher.shared_start(tau, done)
        found, scratch = searcher.search(tau, start=start, expected=done[-1].mask), searcher.search(tau)
        assert torch.equal(found.mask, scratch.mask)
        assert found.divergence == pytest.approx(scratch.divergence, abs=1e-5)
        torch.testing.assert_close(found.effects, scratch.effects, atol=1e-5, rtol=0)
        shared += start is not None and found.trials < scratch.trials
        done.append(found)
    assert shared >= 3


def test_next_threshold_closes_in() -> None:
    """On counts that fall like a power of tau, a handful of looks find 10 % of any size."""
    for size in (5, 50, 500, 5000):
        counts: dict[float, int] = {0.01: int(30 * 0.01**-0.5)}
        for _ in range(12):
            if any(size <= count <= 1.1 * size for count in counts.values()):
                break
            threshold = next_threshold(counts, 1.05 * size)
            counts[threshold] = int(30 * threshold**-0.5)
        assert any(size <= count <= 1.1 * size for count in counts.values())


def test_a_leap_over_the_size_is_soon_given_up() -> None:
    """10 edges below a tau of 0.3, 30 from there on: no tau keeps 16, and looking closer than 2 % finds none."""

    def outcome(threshold: float) -> Outcome:
        kept = torch.arange(100) < (30 if threshold < 0.3 else 10)
        return Outcome(threshold, kept, torch.zeros(100), 0, 0, (0.0,))

    def run(threshold: float) -> Outcome:
        known[threshold] = outcome(threshold)
        return known[threshold]

    known = {0.2: outcome(0.2)}
    found = nearest_outcome(16, known, run, tolerance=0.1, max_thresholds=12)
    assert found.edges == 30
    low, high = max(tau for tau in known if tau < 0.3), min(tau for tau in known if tau >= 0.3)
    assert high / low < 1.02
    assert len(known) <= 10


def test_a_threshold_that_keeps_nothing_warns() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    with pytest.warns(GatewiseWarning, match="keeps no edge"):
        assert len(discover(model, pairs, "acdc", threshold=1e6)) == 0


def test_too_little_memory_is_said_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 1 << 16

    monkeypatch.setattr("psutil.virtual_memory", Memory)
    with pytest.raises(GatewiseError, match="Use fewer examples"):
        discover(small_model("gpt2"), random_pairs(), "acdc", threshold=0.01)


def test_bad_parameters() -> None:
    with pytest.raises(GatewiseError, match="combine=product: expected sum or either"):
        Acdc(combine="product")  # type: ignore[arg-type]
    with pytest.raises(GatewiseError, match="at least 1"):
        Acdc(chain=0)
