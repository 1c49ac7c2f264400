"""The paper's Table 1 comes out of code, by threshold; the partial edge depends on the seed."""

from __future__ import annotations

import pytest

from gatewise.errors import GatewiseError
from gatewise.methods import discover
from gatewise.methods.base import SearchDirection
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise_paper.toy_models import PAPER, PAPER_DIRECTIONS, table, to_json


def test_table_one() -> None:
    rows = table(("acdc", "eap", "edge-pruning"), seeds=3, directions=PAPER_DIRECTIONS)
    assert {(row.direction, row.method) for row in rows} == set(PAPER)
    for row in rows:
        assert row.entries == row.printed, row
        for gate, recovery in row.recovery.items():
            if recovery == "partial":
                assert set(row.found_by_seed[gate]) == {1}
    assert all(row["as_in_the_paper"] for row in to_json(rows))


def test_learned_ranking_recovers_in_one_direction_what_masks_do_and_all_gates_in_both() -> None:
    ns, dn, both = table(("ranking",), seeds=1)
    assert ns.entries == PAPER["ns", "edge-pruning"]
    assert dn.entries == PAPER["dn", "edge-pruning"]
    assert both.entries == ("full", "full", "full", "yes", "yes")
    assert [row["as_in_the_paper"] for row in to_json([ns, dn, both])] == [None] * 3


def test_both_directions_recover_all_gates_by_scores_and_by_search() -> None:
    for row in table(("acdc", "eap"), seeds=2, directions=("ns+dn",)):
        assert row.entries == ("full", "full", "full", "yes", "yes")


def test_which_edge_of_a_gate_is_found_depends_on_the_seed() -> None:
    searches: tuple[tuple[str, SearchDirection], ...] = (("or", "ns"), ("and", "dn"))
    for kind, direction in searches:
        model, senders = synthetic_model(kind), set()
        for seed in range(6):
            circuit = discover(model, synthetic_pairs(), "acdc", direction, threshold=0.01, seed=seed)
            senders |= {edge for edge in circuit if edge.endswith("->B")}
        assert senders == {"A1->B", "A2->B"}


def test_other_methods_have_no_line() -> None:
    with pytest.raises(GatewiseError, match="edge-pruning"):
        table(methods=("eap-ig",))
