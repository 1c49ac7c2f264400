"""Whether gates replicate: the same receiver and groups on other pairs.

A gate is a property of the pairs as much as of the model: swapping the two prompts turns AND into OR. So each is tested
again, as it is, on pairs that were made otherwise: by a second corruption, or from templates that the search never saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine.setting import Data
from gatewise.gates.testing.candidates import read_candidate
from gatewise.gates.testing.gate_test import GateTest, measure_candidates
from gatewise.gates.testing.measurement import gate_batches
from gatewise.models.model import Model


@dataclass(frozen=True, eq=False)
class Repetition:
    """A test of a gate, and the same test on other pairs."""

    original: GateTest
    repeated: GateTest

    @property
    def replicates(self) -> bool:
        """Whether the gate's strongest interaction has the same sign again, and an interval without 0."""
        names, before = self.original.strongest_interaction
        after = self.repeated.intervals.interactions[names]
        return after.without_zero and after.value * before.value > 0

    @property
    def same_label(self) -> bool:
        """Whether both tests have the same label."""
        return self.original.label == self.repeated.label


@dataclass(frozen=True, eq=False)
class Replication:
    """Gates tested again: for each name of other pairs, one repetition for each gate."""

    repetitions: Mapping[str, tuple[Repetition, ...]]

    @property
    def rates(self) -> dict[str, float]:
        """Share of the gates that replicate; NaN where there are none."""
        by_name = self.repetitions.items()
        return {name: _share(repetition.replicates for repetition in repeated) for name, repeated in by_name}

    @property
    def label_rates(self) -> dict[str, float]:
        """Share of the gates that have the same label."""
        by_name = self.repetitions.items()
        return {name: _share(repetition.same_label for repetition in repeated) for name, repeated in by_name}

    def __repr__(self) -> str:
        rates = ", ".join(f"{rate:.0%} on {name}" for name, rate in self.rates.items())
        count = max(map(len, self.repetitions.values()), default=0)
        return f"<Replication of {count} gates: {rates} replicate>"


def replicate(
    model: Model,
    data: Mapping[str, Data],
    tests: Iterable[GateTest],
    *,
    circuit: Circuit | None = None,
    compute: Compute | None = None,
) -> Replication:
    """Test gates again on other pairs. Receiver, groups and what the rest carries stay; nothing is chosen anew.

    Args:
        model: The model.
        data: Other pairs, or tasks, of which the held-out pairs are used, by name, such as {"other templates": ...}.
        tests: Gates that were tested, such as those that `test_gates` gives.
        circuit: The circuit that they were tested within, if they were.
        compute: Where to run.

    Returns:
        How many of the gates replicate on each of the other pairs, and every repetition.

    Raises:
        GatewiseError: Too few pairs, or pairs that the model does not tell apart.
    """
    originals = list(tests)
    candidates = [read_candidate(model.graph, test.receiver, test.groups, test.rest, circuit) for test in originals]
    repetitions = {}
    for name, other in data.items():
        measured = measure_candidates(gate_batches(model, other, circuit, compute=compute), candidates)
        pairs = zip(originals, measured, strict=True)
        repetitions[name] = tuple(Repetition(test, replace(again, floor=test.floor)) for test, again in pairs)
    return Replication(repetitions)


def _share(values: Iterable[bool]) -> float:
    answers = list(values)
    return sum(answers) / len(answers) if answers else float("nan")
