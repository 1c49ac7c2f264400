"""Groups of edges for one receiver: edges with the same partners belong together.

The rows of partners P and Q (`logic.telescoping`), exact and on the search pairs, say with whom each edge interacts.
Within an AND of two groups P is 0, and all members of a group have the other group as partners: their rows point the
same way. Rows are joined, the most alike first, until none are alike any more; edges without partners stay out.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from gatewise.engine.patching.node_patching import Batches
from gatewise.gates.testing.candidates import MOST_GROUPS
from gatewise.gates.testing.partners import draw_orders, worth_changes

ALIKE = 0.4  # cosine of two rows of partners from which on they are one group
_SILENT = 0.1  # of the largest row: smaller ones have no partner
_ROUNDING = 1e-4  # of the logit difference: nothing smaller is looked at
MOST_EDGES = 16  # of a receiver whose rows are compared; all its other edges move as one group
_ORDERS = 2


def cluster(on: Batches, node: int, edges: Tensor, seed: int = 0) -> list[Tensor]:
    """Up to four groups of a receiver's edges by their partners, the heaviest first.

    edges: [port, sender] of bool, those to be grouped. -> such masks. Edges that are all alike, as those of a threshold
    or a saturating sum, are dealt out to three groups (few to one each): any such groups show the gate.
    """
    chosen = edges.nonzero().tolist()
    if len(chosen) < 2:
        return []
    senders = sorted({sender for _, sender in chosen})
    masks = _all_groups(on, node, edges, senders)
    single = torch.stack([_mask(edges, [edge]) for edge in chosen])
    changes = worth_changes(on, node, masks, single, draw_orders(len(masks), _ORDERS, seed))
    rows = torch.cat([one[:, : len(senders)] for one in changes], dim=1)  # whom all have as a partner tells none apart
    weights = rows.norm(dim=1) / abs(sum(float(one.total_effect.sum()) for one in on))
    speaking = (weights > max(_SILENT * float(weights.max()), _ROUNDING)).nonzero().flatten().tolist()
    if len(speaking) < 2:
        return []
    found = _join(rows, speaking)
    if len(found) == 1:
        parts = len(found[0]) if len(found[0]) <= MOST_GROUPS else 3
        found = [found[0][part::parts] for part in range(parts)]
    found.sort(key=lambda group: -float(weights[group].sum()))
    return [_mask(edges, [chosen[i] for i in group]) for group in found[:MOST_GROUPS]]


def _all_groups(on: Batches, node: int, edges: Tensor, senders: list[int]) -> Tensor:
    """What moves together: each sender in all ports, and everything else at once. [group, port, sender]"""
    receivers = next(iter(on))
    ports = list(receivers.graph.ports_of(node))
    kept = receivers.in_circuit[ports]
    found = torch.zeros(len(senders) + 1, *edges.shape, dtype=torch.bool)
    for row, sender in enumerate(senders):
        found[row, :, sender] = kept[:, sender]
    found[-1] = kept & ~found[:-1].any(dim=0)
    return found if bool(found[-1].any()) else found[:-1]


def _join(rows: Tensor, members: list[int]) -> list[list[int]]:
    """Join the two most alike groups until no two are alike: mean cosine between the rows of both."""
    unit = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)
    cosine = unit @ unit.T
    groups = [[member] for member in members]
    while len(groups) > 1:
        pairs = list(itertools.combinations(range(len(groups)), 2))
        alike = [float(cosine[groups[i]][:, groups[j]].mean()) for i, j in pairs]
        if max(alike) < ALIKE:
            break
        i, j = pairs[alike.index(max(alike))]
        groups[i] = groups[i] + groups.pop(j)
    return groups


def _mask(edges: Tensor, members: list[list[int]]) -> Tensor:
    found = torch.zeros_like(edges)
    for port, sender in members:
        found[port, sender] = True
    return found


def strongest_edges(receivers_edges: Tensor, strength: Tensor, most: int = MOST_EDGES) -> Tensor:
    """The strongest of a receiver's edges. [port, sender] of bool each; strength: [port, sender]"""
    values = torch.where(receivers_edges, strength, -1.0).flatten()
    count = min(most, int(receivers_edges.sum()))
    found = torch.zeros(receivers_edges.numel(), dtype=torch.bool)
    found[values.topk(count).indices] = True
    return found.reshape(receivers_edges.shape)
