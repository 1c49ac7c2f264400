"""Gate indices of single edges: exact Ns and Dn effects at their receivers, all other edges as one partner."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine.patching.node_patching import LOGITS, NodePatching
from gatewise.engine.setting import Data
from gatewise.gates.testing.harsanyi import gate_index
from gatewise.gates.testing.measurement import gate_batches
from gatewise.gates.testing.partners import single_edges
from gatewise.models.model import Model


@dataclass(frozen=True, eq=False)
class EdgeIndices:
    """Gate indices of single edges at their receivers, all other edges of the receiver as one partner."""

    edges: tuple[int, ...]  # indices in graph.edges
    effects: Tensor  # [Ns or Dn effect, edge, example], in units of the logit difference
    total_effect: Tensor  # [example], clean minus corrupted logit difference

    @property
    def ns(self) -> Tensor:
        """Normalised Ns effects: lost if only this edge is noised. [edge]"""
        return self.effects[0].mean(dim=-1) / self.total_effect.mean()

    @property
    def dn(self) -> Tensor:
        """Normalised Dn effects: restored if only this edge is denoised. [edge]"""
        return self.effects[1].mean(dim=-1) / self.total_effect.mean()

    def gamma(self, floor: float) -> Tensor:
        """Gate indices: 1 AND, -1 OR, 0 ADDER; NaN where neither effect is above the floor. [edge]"""
        return gate_index(self.ns, self.dn, floor)


def edge_indices(model: Model, data: Data, of: Circuit, *, compute: Compute | None = None) -> EdgeIndices:
    """Measure exact Ns and Dn effects of edges at their receivers.

    Args:
        model: The model.
        data: Pairs, a task or a setting to measure on.
        of: The edges.
        compute: Where to run.

    Returns:
        The effects of each edge, and its gate index.
    """
    batches = gate_batches(model, data, None, compute=compute)
    batches.setting.check_circuits([of])
    graph, chosen = model.graph, model.graph.matrix(of.mask)
    column = torch.zeros(graph.n_edges, dtype=torch.long)
    column[of.indices] = torch.arange(len(of))
    effects, totals = [], []
    for receivers in batches:
        totals.append(receivers.total_effect.cpu())
        effects.append(torch.zeros(2, len(of), len(totals[-1]), dtype=torch.float64))
        for node in [*range(len(graph.senders)), LOGITS]:
            ports = list(graph.ports_of(node))
            edges = chosen[ports] & receivers.in_circuit[ports]
            if bool(edges.any()):
                effects[-1][:, column[graph.edge_index[ports][edges]]] = _single_effects(receivers, node, edges)
    return EdgeIndices(tuple(of.indices), torch.cat(effects, dim=-1), torch.cat(totals))


def _single_effects(receivers: NodePatching, node: int, edges: Tensor) -> Tensor:
    """Ns and Dn effects of each edge of a mask [port of the node, sender] on one batch. [2, edge, example]"""
    into, single = receivers.in_circuit[list(receivers.graph.ports_of(node))], single_edges(edges)
    count = len(single)
    clean = torch.cat([into[None], into & ~single, single])
    coupled_heads = torch.arange(len(clean)) <= count  # on the side of the other edges
    whole, without, alone = receivers.values(node, clean, coupled_heads).cpu().split([1, count, count])
    return torch.stack([whole - without, alone])
