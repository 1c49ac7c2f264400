"""How far to trust a search: which gates to test, whether halves of the pairs agree, how exact the scores are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.selection import select_edges
from gatewise.compute import Compute
from gatewise.engine.patching.exact_effects import exact_effects
from gatewise.engine.runs.activations import Direction
from gatewise.engine.setting import Setting
from gatewise.evaluation import overlap
from gatewise.gates.labels import Gates
from gatewise.methods.base import Method, SearchDirection
from gatewise.methods.discovery import discover_all
from gatewise.models.model import Model
from gatewise.statistics import rank_correlation
from gatewise.tasks.pairs import Pairs

DRAWN = 60  # edges that the page opens with


@dataclass(frozen=True)
class Calibration:
    """Exact effects on the logit difference of the edges that the page opens with, and how well scores rank them."""

    exact: Mapping[int, float]  # edge index -> what it adds to the logit difference
    rank_correlation: float | None  # with the scores; None if those do not estimate effects


def edge_strength(gates: Gates) -> Tensor:
    """How strong each edge is in the direction that ranks it higher, relative to that direction's strongest. [edge]"""
    by_direction = []
    for circuit in (gates.ns, gates.dn):
        scores = circuit.mask.double() if circuit.scores is None else circuit.scores.double().abs()
        scores = torch.where(circuit.mask, scores, 0.0)
        by_direction.append(scores / scores.max().clamp(min=1e-300))
    return torch.stack(by_direction).amax(dim=0)


def strongest_gates(gates: Gates, receivers: int, senders: int) -> Circuit:
    """The strongest `senders` edges of each of the `receivers` ports whose edges are strongest in sum."""
    graph, strength = gates.graph, edge_strength(gates)
    by_port = graph.by_receiver(gates.sound.indices)
    ports = [port for port, edges in by_port.items() if len(edges) >= 2]
    ports.sort(key=lambda port: -float(strength[by_port[port]].sum()))
    chosen: list[int] = []
    for port in ports[:receivers]:
        chosen += sorted(by_port[port], key=lambda edge: -float(strength[edge]))[:senders]
    return graph.circuit(chosen)


def strongest_nodes(gates: Gates, most: int) -> list[str]:
    """The nodes that write, whose edges in and out are strongest in sum."""
    graph, strength = gates.graph, edge_strength(gates)
    total = dict.fromkeys(graph.senders, 0.0)
    for edge in gates.sound.indices:
        value = float(strength[edge])
        total[graph.senders[int(graph.edge_sender[edge])]] += value
        receiver = graph.port_node[int(graph.edge_port[edge])]
        if receiver in total:
            total[receiver] += value
    return sorted((name for name in total if total[name] > 0), key=lambda name: -total[name])[:most]


def compare_halves(
    model: Model, pairs: Pairs, method: Method, circuits: Mapping[Direction, Circuit], *, seed: int, compute: Compute
) -> dict[Direction, float]:
    """Jaccard index of the circuits that two halves of the pairs find; `circuits` are what all pairs found."""
    middle = len(pairs) // 2
    sizes: dict[SearchDirection, Sequence[int]] = {direction: (len(circuits[direction]),) for direction in circuits}
    first = discover_all(model, pairs[:middle], method, tuple(sizes), sizes=sizes, seed=seed, compute=compute)
    if not method.additive:
        second = discover_all(model, pairs[middle:], method, tuple(sizes), sizes=sizes, seed=seed, compute=compute)
    jaccard: dict[Direction, float] = {}
    for direction, whole in circuits.items():
        (part,) = first[direction]
        # Where scores are means over examples, the second half's follow without a second search.
        other = _other_half(whole, part, middle / len(pairs)) if method.additive else second[direction][0]
        jaccard[direction] = overlap([part, other]).mean_jaccard
    return jaccard


def _other_half(whole: Circuit, part: Circuit, share: float) -> Circuit:
    """The circuit that the other examples find: the whole's scores are the mean of both, weighted by their shares."""
    assert whole.scores is not None
    assert part.scores is not None
    scores = (whole.scores.double() - share * part.scores.double()) / (1 - share)
    return Circuit(whole.graph, select_edges(whole.graph, scores.abs(), len(whole), "top"), scores)


def drawn_edges(gates: Gates, most: int = DRAWN) -> list[int]:
    """The strongest edges of the union, with which the page opens; of equally strong ones the last, as there."""
    strength = edge_strength(gates)
    return sorted(gates.sound.indices, key=lambda edge: (float(strength[edge]), edge))[-most:]


def calibrate(
    setting: Setting, circuit: Circuit, direction: Direction, edges: Sequence[int], *, estimates: bool
) -> Calibration:
    """Measure what edges add to the logit difference in the whole model, and how far the scores rank them so."""
    effects = exact_effects(setting.model, setting, edges, direction).logit_diff
    correlation = None
    if estimates and circuit.scores is not None:
        correlation = rank_correlation(circuit.scores[list(edges)].double(), effects)
    return Calibration(dict(zip(edges, effects.tolist(), strict=True)), correlation)
