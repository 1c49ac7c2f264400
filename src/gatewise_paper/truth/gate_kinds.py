"""How well gates are found and measured where they are known: every synthetic kind, with and without noise.

For each kind: the error of the gate index with the true groups given; how often the true label comes out; whether the
search finds a gate on held-out pairs, confirmed end to end; and how far its groups are the true ones
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
    discovered: float  # share of models with a significant gate, confirmed end to end; false ones if there is none
    rand_index: float | None  # mean over models; None where groups cannot be told apart, or there are none


def kind_rows(models: int = 20, noise: float = 0.0, seed: int = 0, kinds: Sequence[str] = KINDS) -> list[KindRow]:
    """Measure every kind on models of consecutive seeds; without noise, they differ in search orders only."""
    if models < 1 or noise < 0:
        raise GatewiseError(f"expected models >= 1 and noise >= 0, got {models} and {noise}.")
    rows = []
    with progress_bar("synthetic kinds", len(kinds) * models) as bar:
        for kind in kinds:
            trials = []
            for number in range(seed, seed + models):
                trials.append(_trial(synthetic_receiver(kind, noise=noise, examples=EXAMPLES, seed=number), number))
                bar.advance()
            errors, labels, seen, indices = zip(*trials, strict=True)
            known = [index for index in indices if index is not None]
            index = _mean(known) if known else None
            rows.append(KindRow(kind, synthetic_receiver(kind).gate, _mean(errors), _mean(labels), _mean(seen), index))
    return rows


def _trial(synthetic: SyntheticReceiver, seed: int) -> tuple[float, float, float, float | None]:
    """Error of gamma, whether the label is right, whether a gate was found, and the Rand index."""
    tested = test_gate(synthetic.model, synthetic.pairs, synthetic.receiver, synthetic.groups, confirm=False)
    known = {group: value for group, value in synthetic.gamma.items() if not math.isnan(value)}
    error = max((abs(tested.gamma[group] - value) for group, value in known.items()), default=0.0)
    gates = test_gates(synthetic.model, synthetic.pairs, seed=seed)
    index = _groups_found(synthetic, gates) if synthetic.gate and synthetic.grouped else None
    return error, float(tested.label == synthetic.label), float(any(bool(gate.confirmed) for gate in gates)), index


def _groups_found(synthetic: SyntheticReceiver, gates: GateTests) -> float:
    """Agreement of the groups by partners with the true ones; 0 if none were found."""
    edges = [edge for group in synthetic.groups.values() for edge in group] + list(synthetic.alone)
    true = {edge: name for name, group in synthetic.groups.items() for edge in group}
    best = 0.0
    for gate in gates:
        if gate.receiver == synthetic.receiver:
            by_test = {edge: name for name, group in gate.groups.items() for edge in group}
            index = adjusted_rand_index([true.get(e, "") for e in edges], [by_test.get(e, "") for e in edges])
            best = max(best, index)
    return best


def adjusted_rand_index(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """How far two partitions agree: 1 if they are the same, 0 on average for random ones (Hubert and Arabie 1985)."""

    def together(counts: Counter[Any]) -> int:
        return sum(math.comb(count, 2) for count in counts.values())

    both = together(Counter(zip(first, second, strict=True)))
    in_first, in_second = together(Counter(first)), together(Counter(second))
    expected = in_first * in_second / max(1, math.comb(len(first), 2))
    largest = (in_first + in_second) / 2
    return 1.0 if largest == expected else (both - expected) / (largest - expected)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
