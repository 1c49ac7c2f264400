"""Truth tables: the smallest gates, two edges into one port.

Every two edges of a circuit that go into one port are an `GateTest` of two groups of one edge each, measured and
labelled as all others are (`logic.interactions`), within the circuit: what either and both are worth at their receiver.
Each comes with the receiver's other edges clean and with them corrupted, since an AND of three or more shows only in
the first of these contexts and an OR of three or more only in the second.

Sharp gates of single edges in one port show. Gates of groups do not, nor gates across ports: one edge of many is too
small to bend its receiver. What it costs: two edges share the rows that have none or one of them clean, so n edges of a
port take about n^2 rows of the receiver alone.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import cast

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.compute import Compute
from gatewise.engine.patching.node_patching import Batches
from gatewise.engine.setting import AnyMetric, Data
from gatewise.gate_types import TestedLabel
from gatewise.gates.testing.candidates import Candidate, gate_of_masks
from gatewise.gates.testing.gate_test import EDGE_FLOOR, SIDES, GateTest, setting_of, tells_apart, worth
from gatewise.gates.testing.harsanyi import ADDER, UNDECIDED
from gatewise.models.model import Model

_RESAMPLES = 200


def test_edge_pairs(
    model: Model,
    data: Data,
    circuit: Circuit,
    *,
    of: Circuit | None = None,
    floor: float = EDGE_FLOOR,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> list[GateTest]:
    """Test all pairs of edges of `of` (default: of the circuit) that go into one port, within the circuit.

    Groups are named by their senders. Each pair comes twice, the receiver's other edges clean and corrupted. There are
    none if the circuit does nothing, so that its two runs have the same logit difference. floor: share of the circuit's
    logit difference below which an effect decides nothing. metric: what stands in the place of the logit difference.
    """
    setting = setting_of(model, data, circuit, metric=metric, fewest=1, compute=compute)
    setting.check_circuits([] if of is None else [of])
    gates = list(_pairs_of_edges(setting.graph, circuit, circuit if of is None else circuit & of))
    found, total = worth(Batches(setting, circuit), gates)
    if not tells_apart(total):
        return []
    return [
        GateTest(gate.receiver, gate.groups, rest, table, total, floor=floor, resamples=_RESAMPLES)
        for gate, table in zip(gates, found, strict=True)
        for rest in SIDES
    ]


test_edge_pairs.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def labels_by_test(tables: Sequence[GateTest]) -> dict[str, TestedLabel]:
    """One label per edge: each pair votes with what it shows about *both* its edges.

    That is |v(both) - v(i) - v(j)| for an interaction, and the smaller of the two effects for an ADDER. A strong edge
    beside a stray one always looks like an ADDER; such pairs hardly count. Undecided pairs have no vote.
    """
    votes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for table in tables:
        label, beyond = table.label, abs(table.harsanyi_interactions[frozenset(table.groups)])
        weight = min(map(abs, table.dn.values())) if label == ADDER else beyond
        for (edge,) in table.groups.values():
            votes[edge][label] += 0.0 if label == UNDECIDED else weight
    chosen = {edge: max(sorted(found), key=found.__getitem__) for edge, found in votes.items()}
    return {edge: cast("TestedLabel", label) for edge, label in chosen.items()}


def _pairs_of_edges(graph: Graph, circuit: Circuit, chosen: Circuit) -> Iterator[Candidate]:
    to_test = graph.matrix(chosen.mask)
    for port, node in enumerate(graph.port_sender):
        ports = graph.ports_of(node)
        single = {}
        for sender in to_test[port].nonzero().flatten().tolist():
            single[graph.senders[sender]] = mask = torch.zeros(len(ports), len(graph.senders), dtype=torch.bool)
            mask[ports.index(port), sender] = True
        for one, other in itertools.combinations(single, 2):
            yield gate_of_masks(graph, node, {one: single[one], other: single[other]}, circuit)
