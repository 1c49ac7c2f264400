"""Redundancy: bottleneck edges stay in place, and circuits of the others are told apart."""

from __future__ import annotations

import pytest
import torch

from gatewise.engine.setting import Setting
from gatewise.evaluation import evaluate
from gatewise.methods import discover, discover_all
from gatewise.models.synthetic.random_circuits import SyntheticModel, random_logic_model
from gatewise_paper.bottlenecks import best_of_others, bottlenecks_among, find_bottlenecks
from gatewise_paper.claims import Above, decide

LIMITS = {"candidates": 200, "removed_on": 8, "smallest": 0.05}


def test_bottlenecks_are_edges_that_cost_enough_alone() -> None:
    synthetic = random_logic_model(0, dtype=torch.float64)
    setting = Setting(synthetic.model, synthetic.pairs)
    found = bottlenecks_among(setting, list(synthetic.truth), 0.05)
    full = synthetic.model.graph.full()
    for edge in synthetic.truth:
        (one,) = evaluate(
            synthetic.model, synthetic.pairs, [full - synthetic.model.graph.circuit([edge])], random_circuits=0
        )
        cost = float(one.faithfulness) / float(one.empty.kl_from_full)
        assert (edge in found) == (cost >= 0.05)
        assert found.get(edge, cost) == pytest.approx(cost, abs=1e-9)
    assert bottlenecks_among(setting, [], 0.05) == {}


def test_what_is_left_in_place_is_in_no_circuit() -> None:
    synthetic = random_logic_model(0)
    graph = synthetic.model.graph
    circuit = discover(synthetic.model, synthetic.pairs, "eap", "ns", edges=5)
    first, second, *_ = circuit.top(5)
    sizes = (1, 3, graph.n_edges - 2)
    found = best_of_others(circuit, [first, second], sizes)
    assert tuple(map(len, found)) == sizes
    assert not any(first in one or second in one for one in found)
    assert list(found[1].top(3)) == list(circuit.top(5))[2:]


def _more_complete(synthetic: SyntheticModel, left: dict[str, float], edges: int) -> float:
    """What removing the Ns+Dn circuit destroys beyond what removing the Ns circuit does."""
    ranked = discover_all(synthetic.model, synthetic.pairs, "eap", ("ns", "ns+dn"), sizes=[edges])
    circuits = [best_of_others(circuit, left, [edges])[0] for (circuit,) in ranked.values()]
    ns, both = evaluate(synthetic.model, synthetic.pairs, circuits, random_circuits=0)
    return both.destroyed - ns.destroyed


def test_that_or_gates_were_synthetic_is_seen() -> None:
    """EAP finds OR edges by Ns+Dn, and not by Ns. None of them is a bottleneck."""
    more: list[float] = []
    for seed in range(40):
        synthetic = random_logic_model(seed, dtype=torch.float64)
        true = [edge for edge, kind in synthetic.truth.items() if kind == "OR"]
        left = find_bottlenecks(synthetic.model, synthetic.pairs, "eap", **LIMITS)  # type: ignore[arg-type]
        assert not set(left) & set(true)
        more += [_more_complete(synthetic, left, len(true))] if true else []
    assert len(more) > 20
    assert decide(more, Above(0.05)).judgement == "supported"


def test_it_does_not_say_why() -> None:
    """Without any OR gate Ns+Dn is more complete, too: Ns spends edges on AND gates, of which one would do."""
    more: list[float] = []
    for seed in range(20):
        synthetic = random_logic_model(seed, types=("AND", "ADDER"), dtype=torch.float64)
        assert "OR" not in synthetic.truth.values()
        left = find_bottlenecks(synthetic.model, synthetic.pairs, "eap", **LIMITS)  # type: ignore[arg-type]
        more.append(_more_complete(synthetic, left, 5))
    assert decide(more, Above(0.05)).judgement == "supported"
