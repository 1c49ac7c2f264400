"""With whom an edge's Ns and Dn effects come to differ: inside its receiver or downstream, and which senders do it.

At the receiver, senders become clean one at a time, in a random order and in all ports at once, and the effect of an
edge changes as each of them does. The changes along an order telescope, so that their sum does not depend on it:

    exact      effect of an edge: v(clean edges with it) - v(clean edges without it)     changes sum to n - d
    gradient   effect of an edge: its slope there        changes sum to the local part of s_ns - s_dn, its own included

The mean of the changes over orders is the partner share P of a sender; the mean of their sizes Q also sees thresholds,
where changes of both signs cancel. n and d are the edge's Ns and Dn effects at the receiver (`harsanyi`), s_ns and s_dn
EAP's scores of the two directions. Everything public is a normalised effect.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.devices import fetched
from gatewise.engine.patching.node_patching import PatchedBatches
from gatewise.engine.setting import Data
from gatewise.gates.testing.candidates import read_candidate
from gatewise.gates.testing.gate_test import measure_candidates
from gatewise.gates.testing.measurement import gate_batches
from gatewise.models.model import Model

ORDERS = 4  # half of them drawn, the others their reverses


@dataclass(frozen=True, eq=False)
class EdgePartners:
    """Why an edge matters more (or less) to noising than to denoising, in normalised effects."""

    edge: str
    ns: float  # exact, at the receiver: lost if only this edge is noised
    dn: float  # restored if only this edge is denoised
    score_ns: float  # EAP's estimates, end to end; positive if the clean edge raises the logit difference
    score_dn: float
    local: float  # part of score_ns - score_dn that arises in the receiver
    downstream: float  # and after it
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
    """Find where, and with which senders, the difference of an edge's Ns and Dn effects arises.

    Args:
        model: The model.
        data: Pairs, at least 8 of them, or a task, of which the held-out pairs are used.
        edge: Name of the edge, such as "m18->a23.h3<k>".
        circuit: Look within this circuit: edges outside it stay corrupted. By default the whole model.
        orders: Number of orders in which the receiver's senders become clean.
        seed: Of the orders.
        compute: Where to run.

    Returns:
        Exact effects, EAP's scores with their local and downstream part, and the share of every sender of the receiver.

    Raises:
        GatewiseError: No such edge, or not in the circuit; too few pairs, or pairs that the model does not tell apart.
    """
    batches = gate_batches(model, data, circuit, compute=compute)
    graph, index = model.graph, model.graph.index(edge)
    port, sender = int(graph.edge_port[index]), int(graph.edge_sender[index])
    candidate = read_candidate(graph, graph.port_node[port], {"edge": edge}, "group", circuit)
    (test,) = measure_candidates(batches, [candidate])
    arising, scores = local_and_downstream(batches)
    edges = candidate.masks.any(dim=0)  # all edges of the receiver
    senders = edges.any(dim=0).nonzero().flatten().tolist()
    movers, paths = sender_masks(edges, senders), draw_orders(len(senders), orders, seed)
    exact, _ = exact_partners(batches, candidate.node, movers, candidate.masks[:1], paths)
    slopes = gradient_partners(batches, candidate.node, movers, [sender], paths)
    total, names = test.total_effect.sum(), [graph.senders[mover] for mover in senders]
    own_port = graph.ports_of(candidate.node).index(port)
    return EdgePartners(
        graph.edges[index],
        ns=test.ns["edge"],
        dn=test.dn["edge"],
        score_ns=float(scores[0, port, sender]),
        score_dn=float(scores[1, port, sender]),
        local=float(arising[0, port, sender]),
        downstream=float(arising[1, port, sender]),
        exact=dict(zip(names, (exact[0] / total).tolist(), strict=True)),
        gradient=dict(zip(names, (slopes[own_port, 0] / total).tolist(), strict=True)),
    )


def local_and_downstream(batches: PatchedBatches) -> tuple[Tensor, Tensor]:
    """Local and downstream part of s_ns - s_dn of every edge; and s_ns and s_dn. [2, port, sender] each"""
    parts, total = [], 0.0
    for receivers in batches:
        parts.append(torch.stack(receivers.parts()))
        total += receivers.summed_effect
    arising, scores = torch.stack(parts).sum(dim=0) / total
    return arising, scores


def draw_orders(count: int, orders: int, seed: int) -> list[list[int]]:
    """Random orders of `count` movers, each followed by its reverse."""
    rng = random.Random(seed)
    drawn: list[list[int]] = []
    while len(drawn) < orders:
        order = rng.sample(range(count), count)
        drawn += [order, order[::-1]]
    return drawn[:orders]


def single_edges(edges: Tensor) -> Tensor:
    """Each edge of a mask by itself. [port, sender] of bool -> [edge, port, sender] of bool"""
    indices = edges.flatten().nonzero().flatten()
    return torch.nn.functional.one_hot(indices, edges.numel()).bool().reshape(-1, *edges.shape)


def sender_masks(edges: Tensor, senders: Sequence[int], *, others: bool = False) -> Tensor:
    """The edges that become clean with each sender, in all ports; and, if asked for, with all other senders at once.

    edges: [port, sender] of bool -> [mover, port, sender] of bool
    """
    masks = torch.nn.functional.one_hot(torch.tensor(senders), edges.shape[1]).bool()[:, None] & edges
    left = edges & ~masks.any(dim=0)
    return torch.cat([masks, left[None]]) if others and bool(left.any()) else masks


def exact_partners(
    batches: PatchedBatches, node: int, movers: Tensor, edges: Tensor, orders: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """P and Q, exact: how the effect of edges changes as each mover becomes clean, mean over orders.

    Args:
        batches: The pairs.
        node: The receiver.
        movers: The edges that become clean together. [mover, port, sender] of bool
        edges: Those whose effects are taken, each for itself. [edge, port, sender] of bool
        orders: In which movers become clean.

    Returns:
        Means of changes and of their sizes, summed over pairs and not normalised. [edge, mover] each
    """
    signed = torch.zeros(len(edges), len(movers), dtype=torch.float64)
    sizes = torch.zeros_like(signed)
    by_order = []
    for order in orders:
        steps = _clean_steps(movers, order)[:, None]
        clean = torch.stack([steps | edges, steps & ~edges])  # [with or without the edge, step, edge, port, sender]
        coupled_heads = _coupled_heads(len(steps))[:, None].expand(2, -1, len(edges))
        effects: Tensor | None = None
        for receivers in batches:
            values = receivers.values(node, clean.flatten(0, 2), coupled_heads.flatten()).sum(dim=-1)
            with_edge, without = values.reshape(clean.shape[:3])
            effects = with_edge - without if effects is None else effects + (with_edge - without)
        assert effects is not None  # there are pairs
        by_order.append(effects)
    for order, effects in zip(orders, fetched(by_order), strict=True):
        changes = effects.double().diff(dim=0).T
        signed[:, list(order)] += changes / len(orders)
        sizes[:, list(order)] += changes.abs() / len(orders)
    return signed, sizes


def gradient_partners(
    batches: PatchedBatches, node: int, movers: Tensor, senders: Sequence[int], orders: Sequence[Sequence[int]]
) -> Tensor:
    """P by gradient: how the slopes of edges of these senders change. -> [port, edge's sender, mover]"""
    signed = torch.zeros(movers.shape[1], len(senders), len(movers), dtype=torch.float64)
    for order in orders:
        steps = _clean_steps(movers, order)
        slopes = sum(receivers.slopes(node, steps, _coupled_heads(len(steps)), senders) for receivers in batches)
        signed[..., list(order)] += torch.as_tensor(slopes).diff(dim=0).movedim(0, -1) / len(orders)
    return signed


def _clean_steps(movers: Tensor, order: Sequence[int]) -> Tensor:
    """Clean edges after none, one, ... all movers of an order. [step, port, sender]"""
    steps = torch.cat([torch.zeros_like(movers[:1]), movers[list(order)]])
    return steps.cumsum(dim=0) > 0


def _coupled_heads(steps: int) -> Tensor:
    """Whether heads that a norm couples with the receiver are clean: from half way on, so that both ends are runs."""
    return torch.arange(steps) * 2 >= steps
