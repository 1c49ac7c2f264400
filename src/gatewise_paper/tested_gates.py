"""Gates by test, beside the gates that the paper splits: groups of edges into one node that act together.

They are found with pairs of their own (half to search on, half to test on), in the whole model, whatever the method:
whole ports, and edges with equal partners (`gw.test_gates`). Of each gate that stands the two groups with the
largest partnership are kept and tested once more, with everything else clean, since that is what removing them from
the full graph does. Their type is how they act: AND if one of them acts as AND and none as OR, OR the other way round,
ADDER if both add, otherwise mixed. What removing one group and both does is then measured on the held-out pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gatewise.engine.patching.edge_ablation import kl_changes
from gatewise.engine.setting import Setting
from gatewise.gate_types import GATE_TYPES, GateType
from gatewise.gates.testing.gate_test import GateTest, run_gate_tests
from gatewise.gates.testing.search import test_gates
from gatewise_paper.experiment import Measured, Measurement, group, of_kind
from gatewise_paper.lab import Lab

TESTED = "tested gates"  # in the place of a method
MIXED = "mixed"


class TestedKey(NamedTuple):
    task: str
    seed: int
    pairs: int
    start: int  # of the pairs, see Preset.pool


class TwoGroups(NamedTuple):
    """Two groups, and the changes of KL by removing the one, the other, and both from the full graph."""

    receiver: str
    type: str
    groups: Sequence[Sequence[str]]
    ports: bool  # whole ports, or edges with equal partners
    one: float
    other: float
    both: float

    @property
    def edges(self) -> int:
        return sum(map(len, self.groups))


def measure(lab: Lab, key: TestedKey) -> list[list[Any]]:
    """The gates that stand, as plain data."""
    pairs = lab.gate_pairs(key.task, key.seed)
    middle = len(pairs) // 2
    search, test = Setting.of(lab.model, pairs[:middle]), Setting.of(lab.model, pairs[middle:])
    asked: dict[frozenset[tuple[str, ...]], tuple[str, dict[str, tuple[str, ...]]]] = {}
    for one in test_gates(lab.model, search, test=test.pairs, confirm=False, seed=key.seed):
        groups = {name: one.groups[name] for name in strongest_pair(one)}
        asked.setdefault(frozenset(groups.values()), (one.receiver, groups))  # edges with equal partners may be ports
    found: list[list[Any]] = [
        [
            two.receiver,
            acting(two.group_labels.values()),
            list(map(list, two.groups.values())),
            two.groups.keys() <= set("QKV"),
        ]
        for two in run_gate_tests(test, list(asked.values()), rest="clean", confirm=False)
    ]
    index = lab.model.graph.index
    removals = [
        frozenset(index(edge) for part in parts for edge in part)
        for _, _, (a, b), _ in found
        for parts in ([a], [b], [a, b])
    ]
    changes = kl_changes(lab.setting(key.task), None, removals).mean(dim=1).tolist() if removals else []
    return [[*gate, *changes[3 * i : 3 * i + 3]] for i, gate in enumerate(found)]


def strongest_pair(one: GateTest) -> tuple[str, str]:
    """The two groups that do most to each other."""
    named = {
        pair: abs(value) for pair, value in one.partners.items() if pair[0] in one.groups and pair[1] in one.groups
    }
    return max(named, key=named.__getitem__)


def acting(ways: Any) -> str:
    """The type of two groups, from how each of them acts."""
    seen = set(ways)
    for kind, against in (("AND", "OR"), ("OR", "AND")):
        if kind in seen and against not in seen:
            return kind
    return "ADDER" if seen == {"ADDER"} else MIXED


def tested_to_measure(lab: Lab, tasks: Sequence[str]) -> Iterator[Measurement]:
    for task in tasks:
        for seed in range(max(lab.preset.seeds_for(TESTED.replace(" ", "-")).values())):
            yield Measurement(measure, TestedKey(task, seed, lab.preset.gate_pairs, lab.preset.pool))


def tested_gates(measured: Measured) -> dict[str, list[list[TwoGroups]]]:
    """By task, one list for each seed."""
    return {
        task: [[TwoGroups(*gate) for gate in seed] for seed in seeds]
        for task, seeds in group(of_kind(measured, TestedKey), "task").items()
    }


def by_type(gates: Sequence[TwoGroups]) -> Mapping[GateType, list[TwoGroups]]:
    return {kind: [gate for gate in gates if gate.type == kind] for kind in GATE_TYPES}
