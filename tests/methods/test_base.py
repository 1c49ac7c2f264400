"""Settings, directions, metrics, ablations and methods as values, against the reference engine and single calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from reference import Reference, reference_logits
from small_models import random_pairs, small_model
from torch import Tensor

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine import Metric
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.methods import Acdc, EdgePruning, Finding, Method, Problem, find_method, ranked
from gatewise.methods.acdc.search import receiver_order, sender_order
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

ABLATIONS = ["zero", "mean", "noise"]


def surprise(logits: Tensor, pairs: Pairs) -> Tensor:
    """A metric of one's own: log probability of the right answer."""
    return logits.log_softmax(dim=-1).gather(-1, pairs.correct[:, :1].expand(*logits.shape[:-1], 1))[..., 0]


OWN = Metric("surprise", surprise, version="3")


def expected_logits(model: Model, pairs: Pairs, ablation: str) -> Callable[[Circuit], Tensor]:
    """By the reference engine; noise, which it cannot draw, by the dense one."""
    if ablation == "noise":
        return lambda circuit: gw.run_circuit(model, pairs, circuit, ablation="noise", seed=0)
    return Reference(model, pairs, ablation=ablation).logits


def distance(reference: Tensor, logits: Tensor, pairs: Pairs, metric: Any) -> float:
    if metric is None:
        p, q = reference.log_softmax(-1), logits.log_softmax(-1)
        return float((p.exp() * (p - q)).sum(-1).mean())
    return float((surprise(logits, pairs) - surprise(reference, pairs)).abs().mean())


@pytest.mark.parametrize(("ablation", "metric"), [("zero", None), ("mean", OWN), ("noise", None), ("patching", OWN)])
def test_acdc_equals_naive_search_under_any_ablation_and_metric(ablation: Any, metric: Any) -> None:
    model, tau = small_model("gpt2", dtype=torch.float64), 0.05
    pairs = random_pairs(seed=3, lengths=(5, 4), same=(2, 1))
    graph, circuit = model.graph, model.graph.full()
    reference, expected = gw.run_circuit(model, pairs), expected_logits(model, pairs, ablation)
    now = 0.0
    for port in receiver_order(graph):
        for sender in sender_order(graph, port, 0):
            without = circuit - graph.circuit([int(graph.edge_index[port, sender])])
            after = distance(reference, expected(without), pairs, metric)
            if after - now < tau:
                circuit, now = without, after
    found = gw.discover(model, pairs, "acdc", threshold=tau, ablation=ablation, metric=metric)
    assert 0 < len(circuit) < graph.n_edges
    assert found == circuit
    assert found.provenance["ablation"] == ablation


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2"])
def test_eap_is_the_derivative_of_the_ablated_runs(architecture: str, ablation: Any) -> None:
    """Of the metric, along the way from keeping an edge to removing it: finite differences of the dense engine."""
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(5, 4), same=(2, 1))
    scores = gw.score_edges(model, pairs, ablation=ablation, metric=OWN).values
    setting = Setting(model, pairs, ablation=ablation)
    engines = [(DenseEngine(model, setting.intervention(batch)), batch.pairs) for batch in setting.batches()]

    def value(mask: Tensor) -> float:
        return sum(float(surprise(engine.logits(mask), some).sum()) for engine, some in engines) / len(pairs)

    full = model.graph.matrix(torch.ones(model.graph.n_edges, dtype=torch.float64))
    for edge in torch.randperm(model.graph.n_edges, generator=torch.Generator().manual_seed(0))[:12].tolist():
        step = torch.zeros_like(full)
        step[model.graph.edge_port[edge], model.graph.edge_sender[edge]] = 1e-5
        slope = (value(full + step) - value(full - step)) / 2e-5
        assert float(scores[edge]) == pytest.approx(slope, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_edge_pruning_trains_on_the_ablated_runs(ablation: Any) -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    found = gw.discover(model, pairs, EdgePruning(steps=150), edges=30, ablation=ablation, metric=OWN)
    assert len(found) == 30
    random = [model.graph.random_circuit(30, seed) for seed in range(9)]
    reference = gw.run_circuit(model, pairs)
    logits = list(map(expected_logits(model, pairs, ablation), (found, *random)))
    losses = [distance(reference, one, pairs, OWN) for one in logits]
    assert losses[0] < sorted(losses[1:])[4]


@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_evaluate_and_effects_measure_what_the_reference_does(ablation: Any) -> None:
    model, pairs = small_model("llama", dtype=torch.float64), random_pairs(lengths=(6, 4, 6))
    circuit = model.graph.random_circuit(90, seed=2)
    setting = Setting(model, pairs, ablation=ablation, metric=OWN)
    logits = reference_logits(model, pairs, circuit, ablation=ablation)
    evaluation = gw.evaluate(setting.model, setting, circuit, random_circuits=0)
    assert float(evaluation.circuit.logit_diff) == pytest.approx(float(surprise(logits, pairs).mean()), abs=1e-9)
    full = reference_logits(model, pairs, model.graph.full(), ablation=ablation)
    kl = distance(full, logits, pairs, None)
    assert float(evaluation.faithfulness) == pytest.approx(kl, abs=1e-9)
    edges = circuit.edges[::15]
    effects = gw.exact_effects(model, setting, edges, circuit=circuit)
    for place, edge in enumerate(edges):
        without = reference_logits(model, pairs, circuit - model.graph.circuit([edge]), ablation=ablation)
        lost = float((surprise(logits, pairs) - surprise(without, pairs)).mean())
        assert float(effects.logit_diff[place]) == pytest.approx(lost, abs=1e-8)
        assert float(effects.kl[place]) == pytest.approx(distance(full, without, pairs, None) - kl, abs=1e-8)


def test_what_has_no_meaning_is_refused() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    with pytest.raises(GatewiseError, match="denoising starts from a corrupted run"):
        gw.discover_all(model, pairs, "eap", ("ns", "dn"), sizes=[5], ablation="zero")
    with pytest.raises(GatewiseError, match="gradient is 0"):
        gw.discover(model, pairs, "eap", edges=5, metric="kl")
    with pytest.raises(GatewiseError, match="no direction and no ablation"):
        gw.score_edges(model, pairs, "eap-ig", ablation="mean")
    with pytest.raises(GatewiseError, match="metric is one of 'logit_diff', 'kl'"):
        gw.discover(model, pairs, edges=5, metric="accuracy")
    with pytest.raises(GatewiseError, match=r"'flat' gave a tensor of shape \(\)"):
        gw.discover(model, pairs, edges=5, metric=Metric("flat", lambda logits, _: logits.sum()))
    with pytest.raises(GatewiseError, match="select='connected' goes with edges"):
        gw.discover(model, pairs, threshold=0.1, select="connected")
    with pytest.raises(GatewiseError, match="a Setting was given and ablation= beside it"):
        gw.evaluate(model, Setting(model, pairs), model.graph.full(), ablation="zero")
    for options in ({"direction": ["ns", "dn"], "edges": 5}, {"edges": [5, 10]}):
        with pytest.raises(GatewiseError, match="discover finds one circuit.*discover_all"):
            gw.discover(model, pairs, **options)
    with pytest.raises(GatewiseError, match=r"sizes is a list of numbers of edges, such as \[50, 100\]; got 5"):
        gw.discover_all(model, pairs, sizes=5)  # type: ignore[arg-type]
    with pytest.raises(GatewiseError, match="the setting is of"):
        gw.discover(small_model("llama"), Setting(model, pairs), edges=5)


@pytest.mark.parametrize("method", ["eap", "acdc", "edge-pruning"])
def test_several_directions_at_once_are_those_asked_for_one_by_one(method: str) -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    bound = find_method(method).with_parameters({"steps": 12} if method == "edge-pruning" else {})
    together = gw.discover_all(model, pairs, bound, ("ns", "dn", "ns+dn"), sizes=[8, 20])
    assert list(together) == ["ns", "dn", "ns+dn"]
    for direction, circuits in together.items():
        alone = gw.discover_all(model, pairs, bound, [direction], sizes=[8, 20])[direction]
        assert circuits == alone
        for one, other in zip(circuits, alone, strict=True):
            assert torch.equal(one.scores, other.scores)  # type: ignore[arg-type]
            assert one.provenance["direction"] == direction


def test_edge_pruning_trains_two_masks_for_three_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    import gatewise.methods.edge_pruning.method as module

    trained, train = [], module.train  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "train", lambda *given: (trained.append(given[0].directions), train(*given))[1])  # type: ignore[func-returns-value]
    gates = gw.find_gates(small_model("gpt2"), random_pairs(), EdgePruning(steps=8), edges=10, seeds=1)
    assert trained == [("ns",), ("dn",)]
    assert gates.joint is not None


def test_directions_of_different_sizes_and_stores(tmp_path: Any) -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    method, compute = EdgePruning(steps=8), Compute(store=tmp_path)
    sizes: dict[Any, tuple[int, ...]] = {"ns": (10,), "dn": (5,), "ns+dn": (10, 3)}
    found = gw.discover_all(model, pairs, method, ("ns", "dn", "ns+dn"), sizes=sizes, compute=compute)
    assert {direction: tuple(map(len, circuits)) for direction, circuits in found.items()} == sizes
    alone = gw.discover(model, pairs, method, "dn", edges=5, compute=compute)
    assert (alone,) == found["dn"]
    assert alone.provenance["time"] == found["dn"][0].provenance["time"]  # it came from the store
    with pytest.raises(GatewiseError, match="sizes are given for ns; the directions are ns, dn"):
        gw.discover_all(model, pairs, directions=("ns", "dn"), sizes={"ns": [4]})


def test_parameters_are_part_of_the_method_and_of_what_is_stored(tmp_path: Any) -> None:
    model, pairs, compute = small_model("gpt2"), random_pairs(), Compute(store=tmp_path)
    for method in (Acdc(), replace(Acdc(), combine="either")):
        for _ in range(2):
            circuit = gw.discover(model, pairs, method, "ns+dn", threshold=0.01, compute=compute)
            assert circuit.provenance["parameters"]["combine"] == method.combine
    assert len(list(tmp_path.glob("*/*"))) == 2


def test_a_bare_function_as_metric_is_not_stored(tmp_path: Any) -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    for _ in range(2):
        with pytest.warns(GatewiseWarning, match="no version"):
            gw.discover(model, pairs, edges=20, metric=surprise, compute=Compute(store=tmp_path))
    assert not list(tmp_path.iterdir())
    first = gw.discover(model, pairs, edges=20, metric=OWN, compute=Compute(store=tmp_path))
    again = gw.discover(model, pairs, edges=20, metric=OWN, compute=Compute(store=tmp_path))
    assert first.provenance["time"] == again.provenance["time"]
    assert first.provenance["metric"] == {"name": "surprise", "version": "3"}


def test_a_setting_checks_and_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import gatewise.engine.setting as module

    setting, runs = Setting(small_model("gpt2"), random_pairs()), []
    both_runs = module.both_runs  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "both_runs", lambda *given: (runs.append(1), both_runs(*given))[1])  # type: ignore[func-returns-value]
    circuit = gw.discover(setting.model, setting, "acdc", threshold=0.1)
    gw.evaluate(setting.model, setting, circuit)
    gw.exact_effects(setting.model, setting, circuit=circuit)
    gw.run_circuit(setting.model, setting, circuit)
    assert len(runs) <= 1 + len(setting)  # once, and each example alone if ACDC had to decide canonically


def test_a_circuit_without_a_path_is_told_and_the_connected_one_has_one() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    with pytest.warns(GatewiseWarning, match="has no path from the input to the logits"):
        gw.discover(model, pairs, OneEdge(), edges=1)
    connected = gw.discover(model, pairs, "eap", edges=5, select="connected")
    assert len(connected) == 5
    assert connected.connected() == connected


@dataclass(frozen=True)
class OneEdge(Method):
    ranks_once = True

    def search(self, problem: Problem) -> dict[Any, list[Finding]]:
        scores = torch.zeros(problem.graph.n_edges)
        scores[problem.graph.index("m0->m1")] = 1.0
        return ranked(problem, dict.fromkeys(problem.directions, scores))


def test_methods_say_when_they_failed_silently() -> None:
    model, pairs = small_model("llama"), random_pairs()
    with pytest.warns(
        GatewiseWarning, match=r"the ns circuit of 20 edges is cut from masks that were to keep 20 edges"
    ):
        gw.discover(model, pairs, EdgePruning(steps=3, batch=2), edges=20)
    with pytest.warns(GatewiseWarning, match=r"tau 6e-08 is below the noise of sums in float32 \(1e-05\)"):
        gw.discover(model, pairs, "acdc", threshold=6e-8)
    (doubt,) = Acdc().doubts(gw.discover(model, pairs, "acdc", edges=20).with_provenance(notes={"tau": 1e-7}))
    assert "tau 1e-07 is below the noise" in doubt
    fine = small_model("llama", dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*noise", GatewiseWarning)
        gw.discover(fine, pairs, "acdc", threshold=6e-8)
