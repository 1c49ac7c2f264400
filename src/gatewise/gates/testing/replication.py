"""Whether gates come back: the same receiver and groups on other pairs.

A gate is a property of the pairs as much as of the model: swapping the two prompts turns AND into OR. So each is tested
again, as it is, on pairs that were made otherwise: by a second corruption, or from templates that the search never saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.display import SHOWN, card
from gatewise.engine.patching.node_patching import Batches
from gatewise.gates.testing.candidates import read_gate
from gatewise.gates.testing.gate_test import GateTest, measure, setting_of
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs


@dataclass(frozen=True, eq=False)
class Repetition:
    """A gate, and what the same test gave on other pairs."""

    gate: GateTest
    again: GateTest

    @property
    def significant(self) -> bool:
        """Whether the gate's largest interaction has the same sign, and an interval without 0."""
        names, before = self.gate.interaction
        after = self.again.intervals["harsanyi_interactions"][names]
        return after.without_zero and after.value * before.value > 0

    @property
    def same_label(self) -> bool:
        return self.gate.label == self.again.label


@dataclass(frozen=True, eq=False)
class Replication:
    """Gates tested again: for each name of other pairs, one repetition for each gate."""

    repetitions: Mapping[str, tuple[Repetition, ...]]

    @property
    def rates(self) -> dict[str, float]:
        """Share of the gates that stand; NaN where there are none."""
        return {name: _share([one.significant for one in some]) for name, some in self.repetitions.items()}

    @property
    def label_rates(self) -> dict[str, float]:
        """Share of the gates that have the same label."""
        return {name: _share([one.same_label for one in some]) for name, some in self.repetitions.items()}

    def to_json(self) -> dict[str, Any]:
        rows = {
            name: [
                {
                    "receiver": one.gate.receiver,
                    "set": sorted(one.gate.interaction[0]),
                    "before": one.gate.interaction[1].value,
                    "after": one.again.harsanyi_interactions[one.gate.interaction[0]],
                    "significant": one.significant,
                    "labels": [one.gate.label, one.again.label],
                }
                for one in some
            ]
            for name, some in self.repetitions.items()
        }
        return {"rates": self.rates, "label_rates": self.label_rates, "gates": rows}

    def __repr__(self) -> str:
        rates = ", ".join(f"{rate:.0%} on {name}" for name, rate in self.rates.items())
        return f"<Replication of {max(map(len, self.repetitions.values()), default=0)} gates: {rates} stand>"

    def _repr_html_(self) -> str:
        rows = [
            (
                name,
                one.gate.receiver,
                " x ".join(sorted(one.gate.interaction[0])),
                "significant" if one.significant else "gone",
            )
            for name, some in self.repetitions.items()
            for one in some[:SHOWN]
        ]
        return card("Replication", repr(self).strip("<>"), ("pairs", "receiver", "interaction", ""), rows)


def replicate(
    model: Model,
    gates: Iterable[GateTest],
    pairs: Mapping[str, Pairs],
    *,
    circuit: Circuit | None = None,
    compute: Compute | None = None,
) -> Replication:
    """Test gates again on other pairs, by name: {"all names": ..., "other templates": ...}.

    Receiver, groups and what the rest carries stay; nothing is chosen on these pairs. circuit: the one that the gates
    were tested within, if they were.
    """
    tested = list(gates)
    found = {}
    for name, other in pairs.items():
        on = Batches(setting_of(model, other, circuit, compute=compute), circuit)
        again = [read_gate(model.graph, one.receiver, one.groups, one.rest, circuit) for one in tested]
        tables, total = measure(on, again)
        repeated = [
            GateTest(one.receiver, one.groups, one.rest, table, total, floor=one.floor)
            for one, table in zip(tested, tables, strict=True)
        ]
        found[name] = tuple(Repetition(*both) for both in zip(tested, repeated, strict=True))
    return Replication(found)


def _share(values: list[bool]) -> float:
    return sum(values) / len(values) if values else float("nan")
