"""Finding gates: which groups of edges act together, in a circuit or in the whole model.

On the search pairs, receivers are looked at in two ways: their ports as groups (heads), and groups of their strongest
edges with equal partners (heads, MLPs, logits). Those with the largest interactions are tested on held-out pairs: the
whole table, its label and intervals; Benjamini-Hochberg over all tests; then on the logit difference of the whole
model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.display import SHOWN, card
from gatewise.engine.patching.node_patching import LOGITS, Batches
from gatewise.engine.setting import Data
from gatewise.errors import GatewiseError
from gatewise.gate_types import GateType
from gatewise.gates.labels import Gates
from gatewise.gates.testing import harsanyi
from gatewise.gates.testing.candidates import Candidate, Rest, find_node, gate_of_masks
from gatewise.gates.testing.clustering import cluster, strongest_edges
from gatewise.gates.testing.gate_test import (
    FLOOR,
    GateTest,
    confirmed,
    in_context,
    measure,
    search_and_test,
    setting_of,
)
from gatewise.gates.testing.partners import local_and_downstream
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import discoveries
from gatewise.tasks.pairs import Pairs

GroupsBy = Literal["ports", "partners"]
GROUPINGS: tuple[GroupsBy, ...] = ("ports", "partners")
MOST_RECEIVERS = 20  # that are tested in each way of grouping
_CONTEXTS: tuple[Rest, ...] = ("corrupted", "clean")
_TIE = 1e-9  # shares that differ by less are equal
_DIRECTIONS: dict[GateType, str] = {"AND": "Ns only", "OR": "Dn only", "ADDER": "both"}
_PORT_NAMES = {"q": "Q", "k": "K", "v": "V"}


@dataclass(frozen=True, eq=False)
class GateTests:
    """Gates that were tested on held-out pairs, the largest interaction first."""

    tested: tuple[GateTest, ...]
    significant: tuple[bool, ...]  # for each: above the floor, and among the tests that Benjamini-Hochberg lets stand
    looked_at: int  # receivers on the search pairs

    @property
    def found(self) -> tuple[GateTest, ...]:
        """The tested ones that stand."""
        return tuple(one for one, significant in zip(self.tested, self.significant, strict=True) if significant)

    def __iter__(self) -> Iterator[GateTest]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def to_json(self) -> dict[str, Any]:
        rows = [one.to_json() | {"significant": ok} for one, ok in zip(self.tested, self.significant, strict=True)]
        return {"looked_at": self.looked_at, "tested": rows}

    def __repr__(self) -> str:
        lines = [f"<Interactions: {len(self)} of {len(self.tested)} tested stand, {self.looked_at} receivers looked at"]
        return "\n".join([*lines, *(f"  {one!r}" for one in self.found[:SHOWN])]) + ">"

    def _repr_html_(self) -> str:
        summary = f"{len(self)} of {len(self.tested)} tested stand"
        rows = [(one.receiver, one.label, " x ".join(sorted(one.interaction[0])), repr(one)) for one in self.found]
        return card("GateTests", summary, ("receiver", "label", "strongest interaction", ""), rows[:SHOWN])


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
    floor: float = FLOOR,
    seed: int = 0,
    compute: Compute | None = None,
) -> GateTests:
    """The strongest gates of a circuit, or of the whole model, tested on held-out pairs.

    test: the held-out pairs; without them the second half of `pairs` is held out. of: only edges of this circuit are
    put into groups, within `circuit` or the model. most: receivers that are tested for each grouping.
    """
    search, held_out = search_and_test(model, data, test, circuit, compute)
    search.check_circuits([] if of is None else [of])
    unknown = [one for one in groupings if one not in GROUPINGS]
    if unknown or not groupings:
        raise GatewiseError(f"groupings are {', '.join(GROUPINGS)}; got {', '.join(unknown) or 'none'}.")
    on = Batches(search, circuit)
    gates, looked_at = _candidates(on, of, groupings, most, floor, seed)
    if not gates:
        return GateTests((), (), looked_at)
    return _tested(Batches(held_out, circuit), gates, looked_at, len(gates) if confirm else 0, floor)


test_gates.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def test_receivers(
    model: Model,
    data: Data,
    gates: Gates,
    receivers: Sequence[str],
    *,
    confirm: int = MOST_RECEIVERS,
    floor: float = FLOOR,
    compute: Compute | None = None,
) -> GateTests:
    """Test these receivers in the whole model: the ports of heads, and what each direction found of other nodes' edges.

    Nothing is searched for, so that all pairs may serve as a test. confirm: how many of the largest interactions are
    looked for in the logit difference of the whole model.
    """
    on = Batches(setting_of(model, data, compute=compute))
    graph = on.model.graph
    nodes = [find_node(graph, name) for name in receivers]
    masks = {node: port_masks(on, node) if len(_ports(on, node)) > 1 else _by_direction(gates, node) for node in nodes}
    several = [gate_of_masks(graph, node, groups) for node, groups in masks.items() if len(groups) > 1]
    return _tested(on, several, len(nodes), confirm, floor) if several else GateTests((), (), len(nodes))


test_receivers.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def _tested(on: Batches, gates: Sequence[Candidate], looked_at: int, confirm: int, floor: float) -> GateTests:
    found, total = measure(on, gates)
    tested = [
        GateTest(gate.receiver, gate.groups, gate.rest, table, total, floor=floor)
        for gate, table in zip(gates, found, strict=True)
    ]
    order = sorted(range(len(tested)), key=lambda place: -abs(tested[place].interaction[1].value))
    gates, tested = [gates[place] for place in order], [tested[place] for place in order]
    passed = discoveries([one.p for one in tested])
    significant = [ok and abs(one.interaction[1].value) > floor for ok, one in zip(passed, tested, strict=True)]
    places = [place for place, ok in enumerate(significant) if ok][:confirm]
    for place, one in zip(places, confirmed(on, [(gates[i], tested[i]) for i in places]), strict=True):
        tested[place] = one
    return GateTests(tuple(tested), tuple(significant), looked_at)


def _candidates(
    on: Batches, of: Circuit | None, groupings: Sequence[GroupsBy], most: int, floor: float, seed: int
) -> tuple[list[Candidate], int]:
    """Gates worth testing, by what the search pairs show, and how many receivers were looked at."""
    graph = on.model.graph
    kept = next(iter(on)).in_circuit
    chosen = kept if of is None else kept & graph.matrix(of.mask)
    nodes = [node for node, ports in enumerate(graph.ports_of_sender) if ports] + [LOGITS]
    edges = {node: chosen[_ports(on, node)] for node in nodes}
    edges = {node: mask for node, mask in edges.items() if int(mask.sum()) > 1}
    gates = []
    if "ports" in groupings:
        several = {node: mask for node, mask in edges.items() if int(mask.any(dim=1).sum()) > 1}
        found = [gate_of_masks(graph, node, port_masks(on, node, mask), on.circuit) for node, mask in several.items()]
        gates += _largest(on, found, most, floor)
    if "partners" in groupings:
        gates += _largest(on, _by_partners(on, edges, most, seed), most, floor)
    return gates, len(edges)


def _ports(on: Batches, node: int) -> list[int]:
    graph = on.model.graph
    return list(graph.ports_of(node))


def port_masks(on: Batches, node: int, edges: Tensor | None = None) -> dict[str, Tensor]:
    """Each port of a head as a group: of these edges, or of all. [port, sender] of bool"""
    groups = {}
    edges = next(iter(on)).in_circuit[_ports(on, node)] if edges is None else edges
    for place, port in enumerate(_ports(on, node)):
        mask = torch.zeros_like(edges)
        mask[place] = edges[place]
        if bool(mask.any()):
            groups[_PORT_NAMES[on.model.graph.ports[port][-2]]] = mask
    return groups


def _by_direction(gates: Gates, node: int) -> dict[str, Tensor]:
    """The edges that noising alone found, that denoising alone found, and that both did. [port, sender] of bool"""
    graph = gates.graph
    ports = list(graph.ports_of(node))
    masks = {_DIRECTIONS[kind]: graph.matrix(circuit.mask)[ports] for kind, circuit in gates.by_type.items()}
    return {name: mask for name, mask in masks.items() if bool(mask.any())}


def _by_partners(on: Batches, edges: dict[int, Tensor], most: int, seed: int) -> list[Candidate]:
    """Groups of edges with equal partners, at the receivers in which scores differ most."""
    arising, scores = local_and_downstream(on)
    strength = torch.maximum(scores.abs().amax(dim=0), arising[0].abs())
    bend = {node: float((arising[0][_ports(on, node)].abs() * mask).sum()) for node, mask in edges.items()}
    found = []
    bent = sorted(bend, key=lambda node: -bend[node])[:most]
    with progress_bar("partners", len(bent)) as bar:
        for node in bent:
            masks = cluster(on, node, strongest_edges(edges[node], strength[_ports(on, node)]), seed)
            if len(masks) > 1:
                groups = {f"G{i + 1}": mask for i, mask in enumerate(masks)}
                found.append(gate_of_masks(on.model.graph, node, groups, on.circuit))
            bar.advance()
    return found


def _largest(on: Batches, gates: Sequence[Candidate], most: int, floor: float) -> list[Candidate]:
    """The gates with the largest interactions on the search pairs, in the context in which each is larger."""
    if not gates:
        return []
    found, total = measure(on, gates)
    ranked = []
    for gate, table in zip(gates, found, strict=True):
        sizes = {rest: _size(table, total, len(gate.groups), rest) for rest in _CONTEXTS}
        rest: Rest = "clean" if sizes["clean"] > sizes["corrupted"] + _TIE else "corrupted"
        ranked.append((sizes[rest], replace(gate, rest=rest)))
    ranked = sorted((one for one in ranked if one[0] > floor), key=lambda one: -one[0])
    return [gate for _, gate in ranked[:most]]


def _size(table: Tensor, total: Tensor, groups: int, rest: Rest) -> float:
    """The largest Harsanyi interaction of two or more groups."""
    values = in_context(table, groups, rest).mean(dim=-1) / total.mean()
    return float(harsanyi.harsanyi_interactions(values)[harsanyi.interaction_sets(groups)].abs().max())
