"""How well gates are found and measured where they are known: every synthetic kind, with and without noise.

For each kind: the error of the gate index with the true groups given; how often the true label comes out; whether the
search finds a gate on held-out pairs, confirmed on the logit difference; and how far its groups are the true ones
(adjusted Rand index over the receiver's true edges). Where there is no gate, a found one is false.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from gatewise.errors import GatewiseError
from gatewise.gates.testing.gate_test import test_gate
from gatewise.gates.testing.search import GateTests, test_gates
from gatewise.models.synthetic.gate_kinds import KINDS, SyntheticReceiver, synthetic_receiver
from gatewise.progress import progress_bar

EXAMPLES = 64  # half of them held out


@dataclass(frozen=True)
class KindRow:
    """What came out for one kind, over its models."""

    kind: str
    gate: bool
    gamma_error: float  # largest over groups, mean over models
    right_label: float  # share of models
    found: float  # share of models in which a gate stands and is confirmed; false ones if there is none
    rand_index: float | None  # mean over models; None where groups cannot be told apart, or there are none


def kind_rows(models: int = 20, noise: float = 0.0, seed: int = 0, kinds: Sequence[str] = KINDS) -> list[KindRow]:
    """Measure every kind on models of consecutive seeds; without noise, they differ in search orders only."""
    if models < 1 or noise < 0:
        raise GatewiseError(f"expected models >= 1 and noise >= 0, got {models} and {noise}.")
    rows = []
    with progress_bar("synthetic kinds", len(kinds) * models) as bar:
        for kind in kinds:
            trials = []
            for one in range(seed, seed + models):
                trials.append(_trial(synthetic_receiver(kind, noise=noise, examples=EXAMPLES, seed=one), one))
                bar.advance()
            synthetic = synthetic_receiver(kind)
            errors, labels, found, indices = zip(*trials, strict=True)
            known = [index for index in indices if index is not None]
            rows.append(
                KindRow(
                    kind, synthetic.gate, _mean(errors), _mean(labels), _mean(found), _mean(known) if known else None
                )
            )
    return rows


def _trial(synthetic: SyntheticReceiver, seed: int) -> tuple[float, float, float, float | None]:
    """Error of gamma, whether the label is right, whether a gate was found, and the Rand index."""
    tested = test_gate(synthetic.model, synthetic.pairs, synthetic.receiver, synthetic.groups, confirm=False)
    known = {group: value for group, value in synthetic.gamma.items() if not math.isnan(value)}
    error = max((abs(tested.gamma[group] - value) for group, value in known.items()), default=0.0)
    found = test_gates(synthetic.model, synthetic.pairs, seed=seed)
    index = _groups_found(synthetic, found) if synthetic.gate and synthetic.grouped else None
    return error, float(tested.label == synthetic.label), float(any(bool(one.confirmed) for one in found)), index


def _groups_found(synthetic: SyntheticReceiver, found: GateTests) -> float:
    """Agreement of the groups by partners with the true ones; 0 if none were found."""
    edges = [edge for group in synthetic.groups.values() for edge in group] + list(synthetic.alone)
    true = {edge: name for name, group in synthetic.groups.items() for edge in group}
    best = 0.0
    for one in found:
        if one.receiver == synthetic.receiver:
            mine = {edge: name for name, group in one.groups.items() for edge in group}
            best = max(best, adjusted_rand_index([true.get(e, "") for e in edges], [mine.get(e, "") for e in edges]))
    return best


def adjusted_rand_index(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """How far two partitions agree: 1 if they are the same, 0 on average for random ones (Hubert and Arabie 1985)."""

    def together(counts: Counter[Any]) -> int:
        return sum(math.comb(count, 2) for count in counts.values())

    both = together(Counter(zip(one, other, strict=True)))
    first, second = together(Counter(one)), together(Counter(other))
    expected = first * second / max(1, math.comb(len(one), 2))
    largest = (first + second) / 2
    return 1.0 if largest == expected else (both - expected) / (largest - expected)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
