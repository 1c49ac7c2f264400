"""Gates by test, beside the paper's gates by set difference: groups of edges into one node that act together.

They are found with pairs of their own (half to search on, half to test on), in the whole model, whatever the method:
whole ports, and edges with equal partners (`gw.test_gates`). Of each significant gate the two groups with the largest
partnership are tested once more, with everything else clean, since that is what removing them from the full graph
does. Their type is how they act: AND if one of them acts as AND and none as OR, OR the other way round, ADDER if both
add, otherwise mixed. What removing one group and both does is then measured on the held-out pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, NamedTuple

from gatewise.engine.patching.edge_ablation import kl_changes
from gatewise.engine.setting import Setting
from gatewise.gate_types import GATE_TYPES, GateType
from gatewise.gates.testing.gate_test import GateTest, run_gate_tests
from gatewise.gates.testing.search import test_gates
from gatewise_paper.experiment import Measurement
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured, group, of_kind

TESTED = "tested gates"  # in the place of a method
MIXED = "mixed"


class TestedKey(NamedTuple):
    task: str
    seed: int
    pairs: int
    start: int  # of the pairs, see Preset.search_pairs


class TwoGroups(NamedTuple):
    """Two groups of edges, and the changes of KL by removing the first, the second, and both from the full graph."""

    receiver: str
    type: str
    groups: Sequence[Sequence[str]]
    ports: bool  # whole ports, or edges with equal partners
    first: float
    second: float
    both: float

    @property
    def edges(self) -> int:
        return sum(map(len, self.groups))


TestedSeeds = Sequence[Sequence[TwoGroups]]  # the gates of each seed


def measure(lab: Lab, key: TestedKey) -> list[list[Any]]:
    """The significant gates, as plain data."""
    pairs, index = lab.gate_pairs(key.task, key.seed), lab.model.graph.index
    middle = len(pairs) // 2
    search, test = Setting.of(lab.model, pairs[:middle]), Setting.of(lab.model, pairs[middle:])
    candidates: dict[frozenset[tuple[str, ...]], tuple[str, dict[str, tuple[str, ...]]]] = {}
    for gate in test_gates(lab.model, search, test=test.pairs, confirm=False, seed=key.seed):
        groups = {name: gate.groups[name] for name in strongest_pair(gate)}
        # Edges with equal partners may be a whole port: such a gate is tested once.
        candidates.setdefault(frozenset(groups.values()), (gate.receiver, groups))
    gates: list[list[Any]] = []
    removals: list[frozenset[int]] = []
    for tested in run_gate_tests(test, list(candidates.values()), rest="clean", confirm=False):
        first, second = tested.groups.values()
        removals += [frozenset(map(index, edges)) for edges in (first, second, (*first, *second))]
        label, ports = acting(tested.group_labels.values()), tested.groups.keys() <= set("QKV")
        gates.append([tested.receiver, label, [list(first), list(second)], ports])
    changes = kl_changes(lab.setting(key.task), None, removals).mean(dim=1).tolist() if removals else []
    return [[*gate, *changes[3 * i : 3 * i + 3]] for i, gate in enumerate(gates)]


def strongest_pair(gate: GateTest) -> tuple[str, str]:
    """The two groups that do most to each other."""
    strength = {pair: abs(value) for pair, value in gate.partners.items() if set(pair) <= gate.groups.keys()}
    return max(strength, key=strength.__getitem__)


def acting(ways: Iterable[str]) -> str:
    """The type of two groups, from how each of them acts."""
    seen = set(ways)
    for kind, against in (("AND", "OR"), ("OR", "AND")):
        if kind in seen and against not in seen:
            return kind
    return "ADDER" if seen == {"ADDER"} else MIXED


def tested_measurements(lab: Lab, tasks: Sequence[str]) -> Iterator[Measurement]:
    testing = lab.preset.testing
    for task in tasks:
        for seed in range(testing.seeds):
            yield Measurement(measure, TestedKey(task, seed, testing.pairs, lab.preset.search_pairs))


def read_tested(measured: Measured) -> dict[str, TestedSeeds]:
    """By task, the gates of each seed."""
    by_task = group(of_kind(measured, TestedKey), "task")
    return {task: [list(starmap(TwoGroups, seed)) for seed in seeds] for task, seeds in by_task.items()}


def by_type(gates: Sequence[TwoGroups]) -> Mapping[GateType, list[TwoGroups]]:
    return {kind: [gate for gate in gates if gate.type == kind] for kind in GATE_TYPES}
