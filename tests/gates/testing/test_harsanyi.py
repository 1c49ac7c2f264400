"""Tables of sets of operands: identities on random ones, labels of pure and of doubtful ones."""

from __future__ import annotations

import itertools

import pytest
import torch

from gatewise.gates.testing import harsanyi


def random_table(count: int, seed: int = 0, rows: int = 5) -> torch.Tensor:
    found = torch.randn(rows, 1 << count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found[:, 0] = 0
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_interactions_are_the_alternating_sums_and_add_up(count: int) -> None:
    table = random_table(count)
    found = harsanyi.interactions(table)
    for bits in range(1 << count):
        subsets = [other for other in range(1 << count) if other & bits == other]
        signs = [(-1) ** (bits.bit_count() - other.bit_count()) for other in subsets]
        expected = sum(sign * table[:, other] for sign, other in zip(signs, subsets, strict=True))
        torch.testing.assert_close(found[:, bits], expected)
    torch.testing.assert_close(found.sum(dim=-1), table[:, -1])


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_partners_sum_to_ns_minus_dn(count: int) -> None:
    table = random_table(count)
    expected = harsanyi.ns_effects(table) - harsanyi.dn_effects(table)
    torch.testing.assert_close(harsanyi.partner_shares(table).sum(dim=-1), expected)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_partners_are_means_over_orders_of_how_an_effect_changes(count: int) -> None:
    """The definition by telescoping: operands become clean one by one, and i's effect changes as j does."""
    (table,) = random_table(count, seed=1, rows=1)
    expected = torch.zeros(count, count, dtype=torch.float64)
    orders = list(itertools.permutations(range(count)))
    for order in orders:
        clean = 0
        for mover in order:
            before = [table[clean | 1 << i] - table[clean & ~(1 << i)] for i in range(count)]
            clean |= 1 << mover
            after = [table[clean | 1 << i] - table[clean & ~(1 << i)] for i in range(count)]
            for i in range(count):
                expected[i, mover] += (after[i] - before[i]) / len(orders)
    torch.testing.assert_close(harsanyi.partner_shares(table), expected)


def test_gate_index() -> None:
    ns, dn = torch.tensor([1.0, 0.0, 0.5, 0.001]), torch.tensor([0.0, -1.0, -0.5, 0.001])
    assert harsanyi.gate_index(ns, dn, 0.01).tolist()[:3] == [1, -1, 0]
    assert harsanyi.gate_index(ns, dn, 0.01)[3].isnan()


def label_of(table: list[float], spread: float = 0.0, floor: float = 0.01) -> tuple[str, tuple[int, ...]]:
    """The label of the table of all sets but the empty one, with resamples that scatter around it."""
    whole = torch.tensor([0.0, *table], dtype=torch.float64)
    noise = torch.randn(500, len(whole), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise[:, 0] = 0
    found = harsanyi.label(whole, whole + spread * noise, floor)
    return found.name, found.members


@pytest.mark.parametrize("sign", [0.3, -0.3])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_template_has_its_own_label(count: int, sign: float) -> None:
    for template in harsanyi.templates(count):
        assert label_of([sign * value for value in template.table[1:]]) == (template.name, template.members)


def test_pairs() -> None:
    assert label_of([0.0, 0.0, 1.0]) == ("AND", (0, 1))
    assert label_of([1.0, 1.0, 1.0]) == ("OR", (0, 1))
    assert label_of([1.0, 1.0, 0.0]) == ("XOR-like", (0, 1))
    assert label_of([1.0, 0.0, 0.0])[0] == label_of([0.0, 1.0, 0.0])[0] == "inhibiting"
    assert label_of([1.0, -0.4, 0.6]) == ("ADDER", (0, 1))
    assert label_of([0.4, 0.2, 1.0]) == ("mixed", (0, 1))


def test_an_operand_that_does_nothing_is_no_member() -> None:
    """a and c make an AND; b changes nothing."""
    assert label_of([0, 0, 0, 0, 1, 0, 1]) == ("AND", (0, 2))


def test_what_resamples_or_size_leave_open_is_undecided() -> None:
    assert label_of([0.0, 0.0, 1.0], spread=0.02)[0] == "AND"
    assert label_of([0.0, 0.0, 1.0], spread=0.5)[0] == "undecided"
    assert label_of([0.0, 0.0, 0.009])[0] == "undecided"
