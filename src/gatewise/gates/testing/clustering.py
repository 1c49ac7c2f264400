"""Groups of edges for one receiver: edges with the same partners belong together.

The partners of an edge are the senders with whom its Ns and Dn effects come to differ (`partners`). Within an AND of
two groups the members of one group have no partners among themselves, and all of them have the other group: their rows
of partner shares point the same way. So rows are clustered by their cosine, the most alike first, until none are alike
any more (average linkage); edges without partners stay out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from gatewise.engine.patching.node_patching import PatchedBatches
from gatewise.gates.testing.candidates import MOST_GROUPS, edges_into
from gatewise.gates.testing.partners import draw_orders, exact_partners, sender_masks, single_edges

ALIKE = 0.4  # cosine of two rows of partner shares from which on they are one group
MOST_EDGES = 16  # of a receiver whose rows are compared; all its other edges move together
_SILENT = 0.1  # of the largest row's norm: smaller rows have no partner
_ROUNDING = 1e-4  # normalised effect below which nothing is looked at
_ORDERS = 2


def cluster_by_partners(batches: PatchedBatches, node: int, edges: Tensor, seed: int = 0) -> list[Tensor]:
    """Put edges of a receiver into up to four groups by their partners, the group with the largest effects first.

    Edges that are all alike, as those of a threshold or a saturating sum, are dealt out to three groups (few to one
    each): any such groups show the gate.

    Args:
        batches: The search pairs.
        node: The receiver.
        edges: Those to be grouped. [port, sender] of bool
        seed: Of the orders in which senders become clean.

    Returns:
        Groups as such masks; none if fewer than two edges have partners.
    """
    if int(edges.sum()) < 2:
        return []
    single = single_edges(edges)
    senders = edges.any(dim=0).nonzero().flatten().tolist()
    movers = sender_masks(edges_into(batches.model.graph, node, batches.circuit), senders, others=True)
    signed, sizes = exact_partners(batches, node, movers, single, draw_orders(len(movers), _ORDERS, seed))
    # Columns of the senders only: all other edges together are a partner that every edge may have, which groups none.
    rows = torch.cat([signed[:, : len(senders)], sizes[:, : len(senders)]], dim=1)
    total = sum(receivers.summed_effect for receivers in batches)
    weights = rows.norm(dim=1) / abs(total)
    with_partners = (weights > max(_SILENT * float(weights.max()), _ROUNDING)).nonzero().flatten().tolist()
    if len(with_partners) < 2:
        return []
    groups = _average_linkage(rows, with_partners)
    if len(groups) == 1:
        (alike,) = groups
        parts = len(alike) if len(alike) <= MOST_GROUPS else 3
        groups = [alike[part::parts] for part in range(parts)]
    groups.sort(key=lambda group: -float(weights[group].sum()))
    return [single[group].any(dim=0) for group in groups[:MOST_GROUPS]]


def strongest_edges(edges: Tensor, strength: Tensor, most: int = MOST_EDGES) -> Tensor:
    """The strongest of a receiver's edges. [port, sender] of bool; strength: [port, sender]"""
    values = torch.where(edges, strength, -1.0).flatten()
    chosen = torch.zeros(edges.numel(), dtype=torch.bool)
    chosen[values.topk(min(most, int(edges.sum()))).indices] = True
    return chosen.reshape(edges.shape)


def _average_linkage(rows: Tensor, members: Sequence[int]) -> list[list[int]]:
    """Join the two groups with the largest mean cosine between their rows, until no two are alike."""
    unit = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)
    cosine = unit @ unit.T
    groups = [[member] for member in members]
    while len(groups) > 1:
        pairs = list(itertools.combinations(range(len(groups)), 2))
        alike = [float(cosine[groups[i]][:, groups[j]].mean()) for i, j in pairs]
        if max(alike) < ALIKE:
            break
        i, j = pairs[alike.index(max(alike))]
        groups[i] += groups.pop(j)
    return groups
