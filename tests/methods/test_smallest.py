"""Circuits by faithfulness: the definition computed the long way, the scan, the split of the pairs, the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import gatewise as gw
from gatewise.compute import Compute
from gatewise.methods import Eap, Method, Problem, ranked, smallest_circuits
from gatewise.methods.base import Findings, SearchDirection
from gatewise.methods.smallest import doubled_sizes, rank_directions, sizes_between, split_rows
from gatewise.models.model import Model
from gatewise.statistics import kept_share
from gatewise.tasks import Task


@pytest.fixture(scope="module")
def tiny() -> Model:
    return gw.load_model("tiny")


@pytest.fixture(scope="module")
def ioi(tiny: Model) -> Task:
    return gw.task("ioi", tiny, examples=32, seed=0)


@pytest.mark.parametrize("direction", ["ns", "dn", "ns+dn"])
def test_the_circuit_keeps_the_share_on_pairs_that_the_search_has_not_seen(
    tiny: Model, ioi: Task, direction: SearchDirection
) -> None:
    choice = smallest_circuits(tiny, ioi, "eap", [direction], faithfulness=0.7)[direction]
    searched, validated = split_rows(len(ioi.train))
    assert sorted(searched + validated) == list(range(32))
    assert (choice.search_pairs, choice.validation_pairs) == (len(searched), len(validated)) == (22, 10)
    assert choice.edges is not None
    circuit = gw.discover(tiny, ioi.train[searched], "eap", direction, edges=choice.edges)
    assert choice.circuit == circuit == gw.discover(tiny, ioi, "eap", direction, faithfulness=0.7)
    evaluation = gw.evaluate(tiny, ioi.train[validated], circuit, random_circuits=0)
    shares = {"ns": evaluation.recovered, "dn": evaluation.recovered_dn, "ns+dn": evaluation.recovered_both}
    assert choice.chosen.share == pytest.approx(shares[direction])
    assert choice.chosen.share >= choice.chosen.low >= 0.7
    if direction != "dn":
        assert choice.chosen.accuracy == pytest.approx(evaluation.circuit.accuracy.mean)
        assert choice.chosen.logit_diff == pytest.approx(evaluation.recovered_logit_diff)


def test_the_union_of_both_directions_keeps_the_share_on_both_sides(tiny: Model, ioi: Task) -> None:
    choice = rank_directions(tiny, ioi, "eap", ["ns", "dn"]).smallest_union(0.7)
    searched, validated = split_rows(len(ioi.train))
    assert choice.edges is not None
    ns, dn = (gw.discover(tiny, ioi.train[searched], "eap", side, edges=choice.edges) for side in ("ns", "dn"))
    assert choice.circuit == ns | dn
    evaluation = gw.evaluate(tiny, ioi.train[validated], ns | dn, random_circuits=0)
    assert choice.chosen.shares == pytest.approx({"ns": evaluation.recovered, "dn": evaluation.recovered_dn})
    assert choice.chosen.share == pytest.approx(evaluation.recovered_both)
    assert choice.chosen.low >= 0.7
    assert f"eap ns|dn: {len(ns | dn):,} edges ({choice.edges:,} by each direction) keep" in str(choice)


def test_no_smaller_size_that_was_run_reaches_the_goal(tiny: Model, ioi: Task) -> None:
    choice = smallest_circuits(tiny, ioi, faithfulness=0.7)["ns"]
    assert choice.edges is not None
    sizes = [point.edges for point in choice.scan]
    assert sizes == sorted(sizes)
    assert all(point.low < 0.7 for point in choice.scan if point.edges < choice.edges)
    below = max(size for size in doubled_sizes(1, 10_000) if size < choice.edges)
    assert set(sizes) >= {size for size in (below, *sizes_between(below, 2 * below)) if size <= choice.edges}


def test_what_is_not_reached_is_an_answer(tiny: Model, ioi: Task) -> None:
    choice = smallest_circuits(tiny, ioi, faithfulness=0.99, edges=20)["ns"]
    assert (choice.circuit, choice.edges) == (None, None)
    assert choice.chosen.low == max(point.low for point in choice.scan)
    assert len(choice.of_size(7)) == 7
    with pytest.raises(gw.GatewiseError, match=r"eap ns: a faithfulness of 99% is not reached below 20 edges, on 10"):
        gw.discover(tiny, ioi, faithfulness=0.99, edges=20)


def test_the_choice_is_told_in_the_provenance(tiny: Model, ioi: Task) -> None:
    record = gw.discover(tiny, ioi, faithfulness=0.7).provenance["faithfulness"]
    assert (record["goal"], record["confidence"]) == (0.7, 0.95)
    assert record["edges"] in [point["edges"] for point in record["scan"]]


@dataclass(frozen=True)
class Counted(Method):
    """EAP that counts its searches."""

    ranks_once = True
    searches: ClassVar[list[tuple[SearchDirection, ...]]] = []

    def search(self, problem: Problem) -> Findings:
        self.searches.append(problem.directions)
        found = Eap().search(problem)
        return ranked(problem, {direction: found[direction][0].scores for direction in problem.directions})


def test_one_search_serves_all_sizes_from_the_store(tiny: Model, ioi: Task, tmp_path: Path) -> None:
    Counted.searches.clear()
    compute = Compute(store=tmp_path / "store")
    sizes = [gw.discover(tiny, ioi, Counted(), edges=size, compute=compute) for size in (5, 50, 200)]
    gw.discover(tiny, ioi, Counted(), threshold=0.01, compute=compute)
    gw.discover(tiny, ioi, Counted(), edges=50, select="connected", compute=compute)
    assert len(Counted.searches) == 1
    assert sizes[0] <= sizes[1] <= sizes[2]
    assert [circuit.provenance["edges"] for circuit in sizes] == [5, 50, 200]
    first, again = (gw.discover(tiny, ioi, Counted(), faithfulness=0.7, compute=compute) for _ in range(2))
    assert first == again
    assert len(Counted.searches) == 2  # on two thirds of the pairs
    plain = gw.discover(tiny, ioi, Counted(), threshold=0.01)
    assert plain == gw.discover(tiny, ioi, Eap(), threshold=0.01)


@pytest.mark.parametrize("method", ["acdc", "edge-pruning"])
def test_methods_that_search_anew_for_every_size_are_refused(tiny: Model, ioi: Task, method: str) -> None:
    with pytest.raises(gw.GatewiseError, match=f"{method} searches anew for every size.*eap, eap-ig"):
        gw.discover(tiny, ioi, method, faithfulness=0.5)


def test_bad_input_is_one_clear_line_before_the_work(tiny: Model, ioi: Task) -> None:
    for share in (0.0, 1.0, -0.5, 85, float("nan"), True):
        with pytest.raises(gw.GatewiseError, match="between 0 and 1, such as 0.85"):
            gw.discover(tiny, ioi, faithfulness=share)
    with pytest.raises(gw.GatewiseError, match=r"a circuit of 99,999,999 edges was asked for; tiny has"):
        gw.discover(tiny, ioi, faithfulness=0.5, edges=99_999_999)
    with pytest.raises(gw.GatewiseError, match="and there are 15; give at least 16"):
        gw.discover(tiny, ioi.train[:15], faithfulness=0.5)
    with pytest.raises(gw.GatewiseError, match="leave out threshold="):
        gw.discover(tiny, ioi, faithfulness=0.5, threshold=0.1)
    with pytest.raises(gw.GatewiseError, match="one number of edges at most"):
        gw.discover_all(tiny, ioi, faithfulness=0.5, sizes=[10, 20])


def test_every_direction_has_a_size_of_its_own(tiny: Model, ioi: Task) -> None:
    circuits = gw.discover_all(tiny, ioi, "eap", ("ns", "dn"), faithfulness=0.6)
    alone: Mapping[SearchDirection, int] = {
        direction: len(gw.discover(tiny, ioi, "eap", direction, faithfulness=0.6)) for direction in circuits
    }
    assert {direction: len(sized[0]) for direction, sized in circuits.items()} == alone


def test_sizes_of_a_scan_double_and_are_refined_in_eight_steps() -> None:
    assert doubled_sizes(1, 20) == [1, 2, 4, 8, 16, 20]
    assert doubled_sizes(12, 5) == [5]
    assert sizes_between(100, 200) == [109, 119, 130, 141, 154, 168, 183]
    assert sizes_between(4, 8) == [5, 6, 7]
    assert sizes_between(0, 4) == [1, 2, 3]


def test_the_lower_bound_resamples_both_means_together() -> None:
    whole = torch.tensor([[1.0, 2.0, 3.0, 10.0] * 8], dtype=torch.float64)
    share, low = kept_share(whole * 0.2, whole)
    assert share == pytest.approx(0.8)
    assert low == pytest.approx(0.8)  # every pair keeps the same share, however much they differ
    noisy = whole * torch.tensor([0.1, 0.3] * 16, dtype=torch.float64)
    share, low = kept_share(torch.cat([whole * 0.2, noisy]), torch.cat([whole, whole]))
    assert share == pytest.approx(min(0.8, 1 - float(noisy.sum() / whole.sum())))
    assert low < share
