"""With whom an edge's Ns and Dn effects come to differ: inside its receiver or downstream, and which senders do it.

At the receiver, senders become clean one at a time, in a random order and in all ports at once; what an edge is worth
changes as each of them does. The changes along an order telescope, so that their sum does not depend on it:

    exact      the edge's worth is v(clean with it) - v(clean without it);    partners sum to n - d
    gradient   the edge's worth is its slope;    partners sum to the local part of s_ns - s_dn, its own move included

Means over orders (each and its reverse) are partners P; means of the size of changes, which see thresholds that P does
not, are Q. All are normalised effects.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.compute import Compute
from gatewise.display import SHOWN, card
from gatewise.engine.patching.node_patching import LOGITS, Batches, Receivers
from gatewise.engine.setting import Data
from gatewise.gates.testing.candidates import Candidate, read_gate
from gatewise.gates.testing.gate_test import FLOOR, RESAMPLES, measure, setting_of
from gatewise.gates.testing.harsanyi import gate_index, way_of_acting
from gatewise.models.model import Model
from gatewise.statistics import percentile_interval, resampling_weights

ORDERS = 4  # half of them drawn, the others their reverses


@dataclass(frozen=True, eq=False)
class EdgePartners:
    """Why an edge matters more (or less) to noising than to denoising. Shares of the logit difference; positive
    helps."""

    edge: str
    ns: float  # exact, at the receiver: what is lost if only this edge goes
    dn: float  # what it brings alone
    score_ns: float  # EAP's estimates on the logit difference
    score_dn: float
    local: float  # of score_ns - score_dn, what arises in the receiver
    downstream: float  # and what arises after it
    exact: dict[str, float]  # sender -> share; they sum to ns - dn
    gradient: dict[str, float]  # sender -> share; they sum to `local`, the edge's own sender included

    @property
    def strongest(self) -> list[str]:
        """Senders by the size of their exact share, largest first."""
        return sorted(self.exact, key=lambda sender: -abs(self.exact[sender]))

    def __repr__(self) -> str:
        first = ", ".join(f"{sender} {self.exact[sender]:+.3f}" for sender in self.strongest[:3])
        return (
            f"<Partners of {self.edge}: n {self.ns:+.3f}, d {self.dn:+.3f} at the receiver, with {first}; "
            f"of the scores' difference {self.local:+.3f} local, {self.downstream:+.3f} downstream>"
        )

    def _repr_html_(self) -> str:
        rows = [(one, f"{self.exact[one]:+.3f}", f"{self.gradient[one]:+.3f}") for one in self.strongest[:SHOWN]]
        return card("EdgePartners", repr(self).strip("<>"), ("sender", "exact", "by gradient"), rows)


def edge_partners(
    model: Model,
    data: Data,
    edge: str,
    *,
    circuit: Circuit | None = None,
    orders: int = ORDERS,
    seed: int = 0,
    compute: Compute | None = None,
) -> EdgePartners:
    """Where and with whom the difference of an edge's Ns and Dn effects arises, within a circuit or the model."""
    setting = setting_of(model, data, circuit, compute=compute)
    graph, index = setting.graph, setting.graph.index(edge)
    port, sender = int(graph.edge_port[index]), int(graph.edge_sender[index])
    gate = read_gate(graph, graph.port_node[port], {"edge": edge}, "group", circuit)
    place = int(gate.masks[0].any(dim=1).nonzero()[0, 0])
    on = Batches(setting, circuit)
    (table,), total = measure(on, [gate])
    alone, rest, everything = (table[row].mean() / total.mean() for row in (1, 2, 3))
    arising, scores = local_and_downstream(on)
    movers = gate.masks.any(dim=0).any(dim=0).nonzero().flatten().tolist()
    paths = draw_orders(len(movers), orders, seed)
    masks = _sender_masks(gate, movers)
    exact = worth_changes(on, gate.node, masks, gate.masks[:1], paths)[0][0]
    slopes = slope_changes(on, gate.node, masks, [sender], paths)[place, 0]
    shares = 1 / float(total.sum())
    names = [graph.senders[mover] for mover in movers]
    return EdgePartners(
        graph.edges[index],
        ns=float(everything - rest),
        dn=float(alone),
        score_ns=float(scores[0, port, sender]),
        score_dn=float(scores[1, port, sender]),
        local=float(arising[0, port, sender]),
        downstream=float(arising[1, port, sender]),
        exact=dict(zip(names, (exact * shares).tolist(), strict=True)),
        gradient=dict(zip(names, (slopes * shares).tolist(), strict=True)),
    )


@dataclass(frozen=True, eq=False)
class EdgeIndices:
    """Exact effects of single edges at their receivers, all other edges as one partner. Shares of the logit
    difference."""

    graph: Graph
    edges: tuple[int, ...]  # indices in graph.edges
    effects: (
        Tensor  # [lost if only this edge goes, brought by it alone; edge, example], in units of the logit difference
    )
    total: Tensor  # [example], difference of the logit difference between the two runs

    @property
    def ns(self) -> Tensor:
        return self.effects[0].mean(dim=-1) / self.total.mean()

    @property
    def dn(self) -> Tensor:
        return self.effects[1].mean(dim=-1) / self.total.mean()

    def gamma(self, floor: float = FLOOR) -> Tensor:
        """Gate indices: 1 AND, -1 OR, 0 ADDER; NaN where neither effect is above the floor. [edge]"""
        return gate_index(self.ns, self.dn, floor)

    def labels(self, floor: float = FLOOR) -> list[str]:
        """How each edge acts beside all others of its receiver, by the interval of its gate index over pairs."""
        weights = resampling_weights(len(self.total), RESAMPLES)
        low, high = percentile_interval(gate_index(*(self.effects @ weights / (self.total @ weights))))
        ends = zip(self.gamma(floor).tolist(), low.tolist(), high.tolist(), strict=True)
        return [way_of_acting(*one) for one in ends]

    def __repr__(self) -> str:
        known = self.gamma()[~self.gamma().isnan()]
        mean = f"{float(known.mean()):+.2f}" if len(known) else "-"
        return f"<EdgeIndices of {len(self.edges):,} edges: {len(known):,} above the floor, mean gate index {mean}>"


def edge_indices(
    model: Model,
    data: Data,
    of: Circuit,
    *,
    circuit: Circuit | None = None,
    compute: Compute | None = None,
) -> EdgeIndices:
    """Exact Ns and Dn effects at their receivers of all edges of `of`, in the model or within a circuit."""
    setting = setting_of(model, data, circuit, compute=compute)
    setting.check_circuits([of])
    graph, on = setting.graph, Batches(setting, circuit)
    chosen = graph.matrix(of.mask)
    edges = of.indices
    place = torch.zeros(graph.n_edges, dtype=torch.long)
    place[edges] = torch.arange(len(edges))
    effects, totals = [], []
    for receivers in on:
        totals.append(receivers.total_effect.cpu())
        effects.append(torch.zeros(2, len(edges), len(totals[-1]), dtype=torch.float64))
        for node in [*range(len(graph.senders)), LOGITS]:
            ports = list(receivers.graph.ports_of(node))
            places = (chosen[ports] & receivers.in_circuit[ports]).nonzero()
            if len(places):
                mine = graph.edge_index[ports][places[:, 0], places[:, 1]]
                effects[-1][:, place[mine]] = _single_effects(receivers, node, places)
    return EdgeIndices(graph, tuple(edges), torch.cat(effects, dim=-1), torch.cat(totals))


def _single_effects(receivers: Receivers, node: int, places: Tensor) -> Tensor:
    """n and d of edges [edge, (port of the node, sender)] on one batch. [2, edge, example]"""
    kept = receivers.in_circuit[list(receivers.graph.ports_of(node))]
    single = torch.zeros(len(places), *kept.shape, dtype=torch.bool)
    single[torch.arange(len(places)), places[:, 0], places[:, 1]] = True
    clean = torch.cat([kept[None], kept & ~single, single])
    siblings = torch.arange(len(clean)) <= len(places)
    values = receivers.values(node, clean, siblings).cpu()
    whole, without, alone = values.split([1, len(places), len(places)])
    return torch.stack([whole - without, alone])


def local_and_downstream(on: Batches) -> tuple[Tensor, Tensor]:
    """Parts of s_ns - s_dn (local, downstream), and s_ns and s_dn, as shares. [2, port, sender] each"""
    parts = [receivers.parts() for receivers in on]
    total = sum(float(receivers.total_effect.sum()) for receivers in on)
    arising, scores = (torch.stack(some).sum(dim=0) / total for some in zip(*parts, strict=True))
    return arising, scores


def draw_orders(count: int, orders: int, seed: int) -> list[list[int]]:
    """Random orders of `count` groups, each followed by its reverse."""
    rng = random.Random(seed)
    found: list[list[int]] = []
    while len(found) < orders:
        order = rng.sample(range(count), count)
        found += [order, order[::-1]]
    return found[:orders]


def _sender_masks(gate: Candidate, movers: Sequence[int]) -> Tensor:
    """The edges that become clean with each sender. [sender, port, sender]"""
    everything = gate.masks.any(dim=0)
    found = torch.zeros(len(movers), *everything.shape, dtype=torch.bool)
    for row, mover in enumerate(movers):
        found[row, :, mover] = everything[:, mover]
    return found


def _way(masks: Tensor, order: Sequence[int]) -> Tensor:
    """Clean edges after none, one, ... all groups of an order. [step, port, sender]"""
    steps = torch.cat([torch.zeros_like(masks[:1]), masks[list(order)]])
    return steps.cumsum(dim=0) > 0


def _siblings(steps: int) -> Tensor:
    """Coupled heads go over half way, so that both ends are the two runs."""
    return torch.arange(steps) * 2 >= steps


def worth_changes(
    on: Batches, node: int, masks: Tensor, edges: Tensor, paths: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """P and Q, exact: how what edges are worth changes as each group moves, mean over orders, summed over examples.

    masks: [group, port, sender], the edges that each group moves; edges: [edge, port, sender], each for itself.
    -> [edge, group] each
    """
    signed = torch.zeros(len(edges), len(masks), dtype=torch.float64)
    size = torch.zeros_like(signed)
    for order in paths:
        way = _way(masks, order)[:, None]
        clean = torch.stack([way | edges, way & ~edges])  # [with, step, edge, port, sender]
        siblings = _siblings(len(way))[:, None].expand(2, -1, len(edges))
        worth = torch.zeros(len(way), len(edges), dtype=torch.float64)
        for receivers in on:
            values = receivers.values(node, clean.flatten(0, 2), siblings.flatten()).sum(dim=-1)
            with_edge, without = values.cpu().reshape(clean.shape[:3])
            worth += with_edge - without
        changes = worth.diff(dim=0).T
        signed[:, list(order)] += changes / len(paths)
        size[:, list(order)] += changes.abs() / len(paths)
    return signed, size


def slope_changes(
    on: Batches, node: int, masks: Tensor, senders: Sequence[int], paths: Sequence[Sequence[int]]
) -> Tensor:
    """P by gradient: how slopes of edges change as each group moves. -> [port, edge's sender, group]"""
    found = torch.zeros(masks.shape[1], len(senders), len(masks), dtype=torch.float64)
    for order in paths:
        way = _way(masks, order)
        slopes = sum(receivers.slopes(node, way, _siblings(len(way)), senders) for receivers in on)
        found[..., list(order)] += torch.as_tensor(slopes).diff(dim=0).movedim(0, -1) / len(paths)
    return found
