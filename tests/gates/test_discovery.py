"""`find_gates`: the searches it makes, what it refuses, and the agreement of set-difference and tested labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import random_pairs, small_model

import gatewise as gw
from gatewise.compute import Compute
from gatewise.errors import GatewiseError
from gatewise.gates import Gates, label_agreement, label_gates, labels_by_test, test_edge_pairs
from gatewise.methods import Eap, Method, Problem, ranked
from gatewise.methods.base import Findings
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise.models.synthetic.random_circuits import random_logic_model

MODEL, PAIRS = synthetic_model("combined"), synthetic_pairs()


def test_it_is_the_two_searches_and_the_split() -> None:
    gates = gw.find_gates(MODEL, PAIRS, "acdc", threshold=0.01, seed=3)
    for circuit, direction in ((gates.ns, "ns"), (gates.dn, "dn"), (gates.joint, "ns+dn")):
        assert circuit == gw.discover(MODEL, PAIRS, "acdc", direction, threshold=0.01, seed=3)  # type: ignore[arg-type]
    assert gates == label_gates(gates.ns, gates.dn, joint=gates.joint)
    assert gates.joint_outside() == 0


def test_sizes_and_options(tmp_path: Path) -> None:
    synthetic = random_logic_model(1)
    gates = gw.find_gates(
        synthetic.model,
        synthetic.pairs,
        edges=12,
        ratio=1.5,
        rule="repaired",
        by="node",
        joint=False,
        compute=Compute(store=tmp_path),
    )
    assert (len(gates.ns), len(gates.dn), gates.joint) == (12, 8, None)
    assert (gates.rule, gates.grouping) == ("repaired", "node")
    assert any(tmp_path.iterdir())


def test_circuits_by_faithfulness_have_one_size() -> None:
    model = gw.load_model("tiny")
    task = gw.task("ioi", model, examples=24, seed=0)
    gates = gw.find_gates(model, task, faithfulness=0.5)
    sizes = [len(gw.discover(model, task, "eap", side, faithfulness=0.5)) for side in ("ns", "dn")]
    assert gates.joint is not None
    assert [len(circuit) for circuit in (gates.ns, gates.dn, gates.joint)] == [max(sizes)] * 3
    assert gates.ns.provenance["faithfulness"]["edges"] == sizes[0]
    with pytest.raises(GatewiseError, match="not reached below 10 edges"):
        gw.find_gates(model, task, faithfulness=0.9, edges=10)


def test_files_round_trip(tmp_path: Path) -> None:
    gates = gw.find_gates(MODEL, PAIRS, Eap(combine="max"), edges=5)
    gates.save(tmp_path / "gates.safetensors")
    loaded = Gates.load(tmp_path / "gates.safetensors")
    assert loaded == gates
    assert loaded.joint is not None
    assert loaded.joint.provenance["parameters"]["combine"] == "max"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"faithfulness": 1.5}, "between 0 and 1"),
        ({"faithfulness": 0.5, "threshold": 0.1}, "leave out threshold"),
        ({"faithfulness": 0.5, "ratio": 2.0}, "goes with edges= alone"),
        ({}, "exactly one of edges="),
        ({"edges": 3, "threshold": 0.1}, "exactly one of edges="),
        ({"edges": 3, "ratio": 0}, "more than 0"),
        ({"threshold": 0.1, "ratio": 2.0}, "goes with edges="),
        ({"edges": 3, "method": "eap-ig"}, "no direction"),
        ({"edges": 3, "method": "guess"}, "no method 'guess'"),
        ({"edges": 3, "rule": "clever"}, "none of 'plain', 'repaired'"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GatewiseError, match=message):
        gw.find_gates(MODEL, PAIRS, **options)


def test_agreement_on_the_combined_toy() -> None:
    gates = gw.find_gates(MODEL, PAIRS, "acdc", threshold=0.01)
    tested = labels_by_test(test_edge_pairs(MODEL, PAIRS, gates.sound))
    found = label_agreement(gates, tested)
    assert found.table == {"AND": {"AND": 1}, "OR": {"OR": 1}, "ADDER": {"AND": 1, "OR": 1, "ADDER": 2}}
    assert (found.edges, found.untested) == (6, 1)  # C->logits has no partner
    assert found.share == pytest.approx(4 / 6)
    assert [found.of_type(kind) for kind in ("AND", "OR", "ADDER")] == [1, 1, 0.5]
    assert found.to_json()["share_by_type"]["ADDER"] == 0.5
    assert "66.7% of 6 edges" in repr(found)
    exact = label_agreement(gw.find_gates(MODEL, PAIRS, "eap", threshold=0.01), tested)
    assert exact.share == 1


def test_agreement_of_nothing() -> None:
    found = label_agreement(gw.find_gates(MODEL, PAIRS, edges=1), {})
    assert found.edges == 0
    assert found.to_json()["share"] is None


@dataclass(frozen=True)
class Noisy(Method):
    """Scores of a known truth, and noise by the seed and the direction."""

    ranks_once = True
    together = True
    seeded = True

    differing: int = 0  # edges that noising alone finds, and as many that denoising alone finds
    noise: float = 1.0

    def search(self, problem: Problem) -> Findings:
        scores = {}
        for number, direction in enumerate(("ns", "dn", "ns+dn")):
            generator = torch.Generator().manual_seed(problem.seed * 10 + number)
            truth = torch.linspace(10, 0, problem.graph.n_edges)
            own = {"ns": slice(0, self.differing), "dn": slice(self.differing, 2 * self.differing)}
            if direction in own:
                other = own["dn" if direction == "ns" else "ns"]
                truth[own[direction]], truth[other] = 20, -20
            scores[direction] = truth + self.noise * torch.randn(len(truth), generator=generator) + 30
        return ranked(problem, {direction: scores[direction] for direction in problem.directions})


def test_labels_of_trained_methods_are_more_than_seed_noise() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    noise = gw.find_gates(model, pairs, Noisy(), edges=40)
    assert noise.seed_overlap is not None
    labelled = len(noise.by_type["AND"]) + len(noise.by_type["OR"])
    assert labelled <= 0.05 * len(noise.sound)
    assert len(gw.find_gates(model, pairs, Noisy(), edges=40, seeds=1).by_type["AND"]) > 0  # noise alone
    real = gw.find_gates(model, pairs, Noisy(differing=12, noise=0.5), edges=40)
    assert real.seed_overlap is not None
    assert real.seed_overlap.beyond_noise
    assert set(real.by_type["AND"].indices) >= set(range(12))
    assert set(real.by_type["OR"].indices) >= set(range(12, 24))
    assert real.ns == gw.find_gates(model, pairs, Noisy(differing=12, noise=0.5), edges=40, seeds=1).ns
    with pytest.raises(GatewiseError, match="seeds is a number of searches"):
        gw.find_gates(model, pairs, Noisy(), edges=40, seeds=0)


def test_methods_without_seeds_search_once() -> None:
    assert gw.find_gates(MODEL, PAIRS, edges=3).seed_overlap is None
