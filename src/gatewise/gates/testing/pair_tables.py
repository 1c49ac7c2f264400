"""The smallest gates: two edges into one port, as the paper's truth tables.

Every two edges of a circuit that go into one port are a `GateTest` of two groups of one edge each, measured and
labelled as all others are (`gate_test`), within the circuit. Each comes with the receiver's other edges clean and with
them corrupted, since an AND of three or more shows only in the first of these contexts and an OR of three or more only
in the second.

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
from gatewise.engine.patching.node_patching import PatchedBatches
from gatewise.engine.setting import Data
from gatewise.gate_types import TestedLabel
from gatewise.gates.testing.candidates import Candidate, candidate_of_masks
from gatewise.gates.testing.gate_test import EDGE_FLOOR, GateTest
from gatewise.gates.testing.harsanyi import ADDER, UNDECIDED
from gatewise.gates.testing.measurement import SIDES, gate_setting, has_effect, measure_tables
from gatewise.models.model import Model

_RESAMPLES = 200


def test_edge_pairs(
    model: Model, data: Data, circuit: Circuit | None, *, of: Circuit | None = None, compute: Compute | None = None
) -> list[GateTest]:
    """Test all pairs of edges that go into one port, within a circuit or in the whole model.

    Args:
        model: The model.
        data: Pairs, or a task, of which the held-out pairs are used.
        circuit: Edges outside it stay corrupted. Effects are normalised by what the circuit does. None: the whole
            model.
        of: The edges to test, by default all of the circuit.
        compute: Where to run.

    Returns:
        Two tests for each pair of edges, the receiver's other edges clean and corrupted; groups have the names of their
        senders. None if the circuit does nothing, so that its two runs have the same logit difference.

    Raises:
        GatewiseError: Circuits of another model, or another ablation than patching.
    """
    setting = gate_setting(model, data, circuit, fewest=1, compute=compute)
    setting.check_circuits([] if of is None else [of])
    inside = setting.graph.full() if circuit is None else circuit
    candidates = list(_pairs_of_edges(setting.graph, inside, inside if of is None else inside & of))
    tables, total = measure_tables(PatchedBatches(setting, circuit), candidates, check=False)
    if not has_effect(total):
        return []
    return [
        GateTest(candidate.receiver, candidate.groups, rest, table, total, EDGE_FLOOR, _RESAMPLES)
        for candidate, table in zip(candidates, tables, strict=True)
        for rest in SIDES
    ]


test_edge_pairs.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def labels_by_test(tables: Sequence[GateTest]) -> dict[str, TestedLabel]:
    """Give each edge one label, by a vote of its pairs.

    A pair votes with what it shows about *both* its edges: the size of their interaction, or for an ADDER the smaller
    of their two effects. A strong edge beside a stray one always looks like an ADDER; such pairs hardly count.
    Undecided pairs have no vote.

    Args:
        tables: Tests of pairs of edges, as `test_edge_pairs` gives them.

    Returns:
        Edge -> label, for the edges that were tested.
    """
    votes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for table in tables:
        label = table.label
        weight = min(map(abs, table.dn.values())) if label == ADDER else table.interaction_size
        for (edge,) in table.groups.values():
            votes[edge][label] += 0.0 if label == UNDECIDED else weight
    # Labels in alphabetical order: of equal votes the first wins, whatever the order of the pairs.
    winners = {edge: max(sorted(of_edge), key=of_edge.__getitem__) for edge, of_edge in votes.items()}
    return cast("dict[str, TestedLabel]", winners)


def _pairs_of_edges(graph: Graph, circuit: Circuit, chosen: Circuit) -> Iterator[Candidate]:
    to_test = graph.matrix(chosen.mask)
    for port, node in enumerate(graph.port_sender):
        ports = graph.ports_of(node)
        single = {}
        for sender in to_test[port].nonzero().flatten().tolist():
            mask = torch.zeros(len(ports), len(graph.senders), dtype=torch.bool)
            mask[ports.index(port), sender] = True
            single[graph.senders[sender]] = mask
        for pair in itertools.combinations(single, 2):
            yield candidate_of_masks(graph, node, {sender: single[sender] for sender in pair}, circuit)
