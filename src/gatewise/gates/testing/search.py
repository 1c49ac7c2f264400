"""Finding gates by test: which groups of edges act together, in a circuit or in the whole model.

`test_gates` goes three steps:

1. Candidates, on the search pairs. Receivers are looked at in two ways: the ports of a head as groups, and groups of
   the strongest edges that have the same partners (`clustering`; heads, MLPs and logits). Of each way the receivers
   with the largest interactions are taken.
2. Tests, on held-out pairs: the table of each candidate, and the p-value of all its interactions being 0. Significant
   are those that pass Benjamini-Hochberg over all candidates and whose strongest interaction is above the floor.
3. Confirmation of the significant ones, on the logit difference of the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.compute import Compute
from gatewise.display import SHOWN, card
from gatewise.engine.patching.node_patching import LOGITS, PatchedBatches
from gatewise.engine.setting import Data
from gatewise.errors import GatewiseError
from gatewise.gate_types import GateType
from gatewise.gates.labels import Gates
from gatewise.gates.testing.candidates import Candidate, candidate_of_masks, edges_into, find_node
from gatewise.gates.testing.clustering import cluster_by_partners, strongest_edges
from gatewise.gates.testing.gate_test import FLOOR, GateTest, confirm_tests, measure_candidates, product_text
from gatewise.gates.testing.measurement import gate_batches, search_and_held_out
from gatewise.gates.testing.partners import local_and_downstream
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import discoveries
from gatewise.tasks.pairs import Pairs

GroupsBy = Literal["ports", "partners"]
GROUPINGS: tuple[GroupsBy, ...] = get_args(GroupsBy)
MOST_RECEIVERS = 20  # that are tested in each way of grouping
_TIE = 1e-9  # normalised effects that differ by less are equal
_DIRECTIONS: dict[GateType, str] = {"AND": "Ns only", "OR": "Dn only", "ADDER": "both"}


@dataclass(frozen=True, eq=False)
class GateTests:
    """Gates that were tested on held-out pairs, the strongest interaction first. Iterates over the significant ones."""

    tested: tuple[GateTest, ...]
    looked_at: int  # receivers on the search pairs

    @property
    def significant(self) -> tuple[GateTest, ...]:
        """The tests that are above the floor and pass Benjamini-Hochberg over all tests."""
        return tuple(test for test in self.tested if test.significant)

    def __iter__(self) -> Iterator[GateTest]:
        return iter(self.significant)

    def __len__(self) -> int:
        return len(self.significant)

    def to_json(self) -> dict[str, Any]:
        """Return plain data.

        Returns:
            All tests as `GateTest.to_json` has them, and the number of receivers that were looked at.
        """
        return {"looked_at": self.looked_at, "tested": [test.to_json() for test in self.tested]}

    def __repr__(self) -> str:
        summary = f"<GateTests: {len(self)} of {len(self.tested)} significant, {self.looked_at} receivers looked at"
        return "\n".join([summary, *(f"  {test!r}" for test in self.significant[:SHOWN])]) + ">"

    def _repr_html_(self) -> str:
        summary = f"{len(self)} of {len(self.tested)} tested gates are significant"
        rows = []
        for test in self.significant[:SHOWN]:
            rows.append((test.receiver, test.label, product_text(test.strongest_interaction[0]), repr(test)))
        return card("GateTests", summary, ("receiver", "label", "strongest interaction", ""), rows)


def test_gates(
    model: Model,
    data: Data,
    circuit: Circuit | None = None,
    *,
    test: Pairs | None = None,
    of: Circuit | None = None,
    groupings: Sequence[GroupsBy] = GROUPINGS,
    most: int = MOST_RECEIVERS,
    confirm: bool = True,
    seed: int = 0,
    compute: Compute | None = None,
) -> GateTests:
    """Search for the strongest gates of a circuit, or of the whole model, and test them on held-out pairs.

    Args:
        model: The model.
        data: Pairs to search on, or a task, of which the train pairs are searched and the others held out.
        circuit: Test within this circuit: edges outside it stay corrupted. By default the whole model.
        test: The held-out pairs. Without them, those of the task, or the second half of the pairs.
        of: Only edges of this circuit are put into groups, in `circuit` or the whole model.
        groupings: How edges are grouped: "ports" (of heads), "partners" (edges with the same partners), or both.
        most: Number of receivers that are tested for each grouping.
        confirm: Whether to repeat significant interactions on the logit difference of the whole model.
        seed: Of the orders in which senders become clean in the search for partners.
        compute: Where to run.

    Returns:
        All tests; those that are significant by iterating.

    Raises:
        GatewiseError: Unknown groupings, fewer than 8 pairs in either half, or a circuit of another model.
    """
    search, held_out = search_and_held_out(model, data, test, circuit, compute=compute)
    search.check_circuits([] if of is None else [of])
    unknown = [grouping for grouping in groupings if grouping not in GROUPINGS]
    if unknown or not groupings:
        raise GatewiseError(f"groupings are {', '.join(GROUPINGS)}; got {', '.join(unknown) or 'none'}.")
    candidates, looked_at = _find_candidates(PatchedBatches(search, circuit), of, groupings, most, seed)
    return _test(PatchedBatches(held_out, circuit), candidates, looked_at, len(candidates) if confirm else 0)


test_gates.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def test_receivers(
    model: Model,
    data: Data,
    gates: Gates,
    receivers: Sequence[str],
    *,
    confirm: int = MOST_RECEIVERS,
    compute: Compute | None = None,
) -> GateTests:
    """Test given receivers in the whole model: the ports of heads, and of other nodes the edges by who found them.

    Nothing is searched for, so that all pairs may serve as a test.

    Args:
        model: The model.
        data: Pairs, or a task, of which the held-out pairs are used.
        gates: The circuits of both directions, which group the edges of MLPs and logits: noising only, denoising only,
            both.
        receivers: Names of nodes.
        confirm: How many of the largest significant interactions are repeated on the logit difference of the model.
        compute: Where to run.

    Returns:
        All tests, of the receivers that have two groups or more.
    """
    batches = gate_batches(model, data, compute=compute)
    graph = model.graph
    candidates = []
    for node in [find_node(graph, name) for name in receivers]:
        is_head = len(graph.ports_of(node)) > 1
        groups = port_groups(graph, node, edges_into(graph, node)) if is_head else _groups_by_direction(gates, node)
        if len(groups) > 1:
            candidates.append(candidate_of_masks(graph, node, groups))
    return _test(batches, candidates, len(receivers), confirm)


test_receivers.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def _test(batches: PatchedBatches, candidates: Sequence[Candidate], looked_at: int, confirm: int) -> GateTests:
    """Test candidates, mark the significant ones, and confirm the first few of those."""
    if not candidates:
        return GateTests((), looked_at)
    measured = zip(candidates, measure_candidates(batches, candidates), strict=True)
    ranked = sorted(measured, key=lambda entry: -entry[1].interaction_size)
    # Benjamini-Hochberg: of the tests that pass, at most 5 % are expected to be of gates that are none.
    passed = discoveries([test.p_value for _, test in ranked])
    tests = []
    for (_, test), passes in zip(ranked, passed, strict=True):
        tests.append(replace(test, significant=passes and test.interaction_size > FLOOR))
    chosen = [index for index, test in enumerate(tests) if test.significant][:confirm]
    confirmed = confirm_tests(batches, [ranked[index][0] for index in chosen], [tests[index] for index in chosen])
    for index, test in zip(chosen, confirmed, strict=True):
        tests[index] = test
    return GateTests(tuple(tests), looked_at)


def _find_candidates(
    batches: PatchedBatches, of: Circuit | None, groupings: Sequence[GroupsBy], most: int, seed: int
) -> tuple[list[Candidate], int]:
    """Gates worth testing, by what the search pairs show, and how many receivers were looked at."""
    graph, circuit = batches.model.graph, batches.circuit
    chosen = of if circuit is None else circuit if of is None else circuit & of
    edges = {node: edges_into(graph, node, chosen) for node in [*range(len(graph.senders)), LOGITS]}
    edges = {node: mask for node, mask in edges.items() if int(mask.sum()) > 1}
    candidates = []
    if "ports" in groupings:
        by_port = {node: port_groups(graph, node, mask) for node, mask in edges.items() if len(mask) > 1}
        candidates += _strongest_candidates(batches, by_port, most)
    if "partners" in groupings:
        candidates += _strongest_candidates(batches, _groups_by_partners(batches, edges, most, seed), most)
    return candidates, len(edges)


def port_groups(graph: Graph, node: int, edges: Tensor) -> dict[str, Tensor]:
    """Each port of a head as a group, named Q, K and V, of these edges into it. [port, sender] of bool each"""
    groups = {}
    for row, port in enumerate(graph.ports_of(node)):
        mask = torch.zeros_like(edges)
        mask[row] = edges[row]
        if bool(mask.any()):
            groups[graph.ports[port][-2].upper()] = mask  # a23.h3<k> -> K
    return groups


def _groups_by_direction(gates: Gates, node: int) -> dict[str, Tensor]:
    """The edges that noising alone found, that denoising alone found, and that both did. [port, sender] of bool each"""
    masks = {_DIRECTIONS[kind]: edges_into(gates.graph, node, circuit) for kind, circuit in gates.by_type.items()}
    return {name: mask for name, mask in masks.items() if bool(mask.any())}


def _groups_by_partners(
    batches: PatchedBatches, edges: Mapping[int, Tensor], most: int, seed: int
) -> dict[int, dict[str, Tensor]]:
    """Groups of edges with the same partners, at the receivers in which Ns and Dn scores come to differ most."""
    graph = batches.model.graph
    arising, scores = local_and_downstream(batches)
    local = arising[0].abs()
    strength = torch.maximum(scores.abs().amax(dim=0), local)  # [port, sender]
    bend = {node: float((local[list(graph.ports_of(node))] * mask).sum()) for node, mask in edges.items()}
    bent = sorted(bend, key=lambda node: -bend[node])[:most]
    groups = {}
    with progress_bar("partners", len(bent)) as bar:
        for node in bent:
            strongest = strongest_edges(edges[node], strength[list(graph.ports_of(node))])
            masks = cluster_by_partners(batches, node, strongest, seed)
            groups[node] = {f"G{number}": mask for number, mask in enumerate(masks, 1)}
            bar.advance()
    return groups


def _strongest_candidates(
    batches: PatchedBatches, groups: Mapping[int, Mapping[str, Tensor]], most: int
) -> list[Candidate]:
    """The gates with the strongest interactions on the search pairs, each in the context in which it is stronger."""
    graph = batches.model.graph
    several = {node: masks for node, masks in groups.items() if len(masks) > 1}
    candidates = [candidate_of_masks(graph, node, masks, batches.circuit) for node, masks in several.items()]
    if not candidates:
        return []
    sized = []
    for candidate, test in zip(candidates, measure_candidates(batches, candidates), strict=True):
        corrupted, clean = test.interaction_size, replace(test, rest="clean").interaction_size
        # Where the rest does nothing both are the same but for rounding, which must not choose.
        if clean > corrupted + _TIE:
            sized.append((clean, replace(candidate, rest="clean")))
        else:
            sized.append((corrupted, candidate))
    sized.sort(key=lambda entry: -entry[0])
    return [candidate for size, candidate in sized[:most] if size > FLOOR]
