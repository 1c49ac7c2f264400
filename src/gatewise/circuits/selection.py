"""Choosing the edges of a circuit of exactly n edges from one strength per edge: the strongest, or connected ones.

The n strongest edges need not lie on any path from the input to the logits; a circuit without a path is the empty
circuit in disguise. The *connected* selection takes edges in order of strength too, but each together with what it
needs to lie on a path: the way from the input to its sender and from its receiver to what is included already, chosen
so that its weakest edge is as strong as can be. These closing edges count towards n; an edge whose closing does not fit
any more is passed over, so that the rest is filled with edges between included nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError

Selection = Literal["top", "connected"]


def check_selection(select: str) -> None:
    """Refuse a way to select that there is not."""
    if select not in get_args(Selection):
        raise GatewiseError(f"select is 'top' (the strongest edges) or 'connected' (all on a path), got {select!r}.")


def number_of_edges(size: int | float, graph: Graph) -> int:
    """Return a whole number as it is; a share below 1 of the graph's edges as a number, at least 1."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    if isinstance(size, float) and 0 < size < 1:
        return max(1, round(size * graph.n_edges))
    raise GatewiseError(
        f"edges is a whole number, or a share between 0 and 1 of the {graph.n_edges:,} edges, such as 0.01; "
        f"got {size!r}."
    )


def select_edges(graph: Graph, strength: Tensor, size: int, select: Selection = "top") -> Tensor:
    """Return a mask of exactly `size` edges; of equally strong ones, the first in order. [edge] of bool"""
    return select_each(graph, strength, [size], select)[0]


def select_each(graph: Graph, strength: Tensor, sizes: Sequence[int], select: Selection = "top") -> list[Tensor]:
    """Do the same for several sizes, which share what they have in common."""
    check_selection(select)
    order = torch.argsort(strength, descending=True, stable=True).cpu()
    edges = {size: order[:size] for size in sizes}
    if select == "connected":
        edges = _Connected(graph, order).select(sizes)
    masks = torch.zeros(len(sizes), graph.n_edges, dtype=torch.bool)
    for mask, size in zip(masks, sizes, strict=True):
        mask[edges[size]] = True
    return list(masks)


class _Connected:
    """A circuit that grows by paths. Nodes are senders; the last one is `logits`."""

    def __init__(self, graph: Graph, order: Tensor) -> None:
        self.graph = graph
        self.order: list[int] = order.tolist()
        self.rank = np.empty(graph.n_edges, dtype=np.int64)  # 0 is the strongest
        self.rank[order.numpy()] = np.arange(graph.n_edges)
        self.output = len(graph.senders)
        port_node = np.array([self.output if node < 0 else node for node in graph.port_sender])
        senders, receivers = graph.edge_sender.cpu().numpy(), port_node[graph.edge_port.cpu().numpy()]
        self.sender: list[int] = senders.tolist()
        self.receiver: list[int] = receivers.tolist()
        self.sublayers = [np.arange(rows.start, rows.stop) for rows in graph.sender_slices] + [np.array([self.output])]
        self.sources = set(self.sublayers[0].tolist())
        # Of the strongest edge from a sender to a receiver; without one, weaker than any. [receiver, sender]
        self.best_rank = np.full((self.output + 1, self.output + 1), graph.n_edges)
        np.minimum.at(self.best_rank, (receivers, senders), self.rank)
        self.best_edge = np.append(order.numpy(), 0)[self.best_rank]
        self.chosen: set[int] = set()
        self.included: set[int] = set()  # nodes on a path from a source to the logits
        self.given_up: set[int] = set()

    def select(self, sizes: Sequence[int]) -> dict[int, Tensor]:
        """Edges by size. Circuits of all sizes grow alike up to the first path that does not fit."""
        edges, start = {}, 0
        for size in sorted(set(sizes)):
            start = self._grow(size, self._ways, start, pass_over=False)
            edges[size] = self._copy()._filled(size, start)
        return edges

    def _copy(self) -> _Connected:
        """What is chosen from here on is its own."""
        other = copy(self)
        other.chosen, other.included, other.given_up = set(self.chosen), set(self.included), set(self.given_up)
        return other

    def _filled(self, size: int, start: int) -> Tensor:
        """Exactly so many edges, those from index `start` of the order on added."""
        self._grow(size, self._ways, start)
        while len(self.chosen) < size:  # what is left needs more edges than are missing
            before = len(self.chosen)
            self._grow(size, self._short_ways)
            if len(self.chosen) == before:  # one is missing, and a new node takes two
                self._drop_weakest()
        return torch.tensor(sorted(self.chosen))

    def _grow(
        self, size: int, ways: Callable[[], tuple[list[int], list[int]]], start: int = 0, *, pass_over: bool = True
    ) -> int:
        """Take edges in order of strength from index `start` on, each with its closing, while they fit.

        pass_over: what does not fit; else growth stops there. Returns the index where it stopped.
        """
        into, onward = ways()
        for at in range(start, len(self.order)):
            if len(self.chosen) == size:
                return at
            edge = self.order[at]
            if edge in self.chosen or edge in self.given_up:
                continue
            new = self._path(edge, into, onward)
            if len(self.chosen) + len(new) > size:
                if pass_over:
                    continue
                return at
            self.chosen.update(new)
            nodes = self._ends(new)
            if not nodes <= self.included:
                self.included |= nodes
                into, onward = ways()
        return len(self.order)

    def _ways(self) -> tuple[list[int], list[int]]:
        """The first edge of the strongest way from a source to each node, and from each node to what is included.

        -1 where no edge is needed. A way is as strong as its weakest edge; of equally strong ones the shorter, then the
        one by the first edge (into a node) or by the last receiver (onward).
        """
        nodes = self.output + 1
        there = np.zeros(nodes, dtype=bool)
        there[list(self.included)] = True
        into, onward = np.full(nodes, -1), np.full(nodes, -1)
        weakest, length = np.full(nodes, -1), np.zeros(nodes, dtype=np.int64)  # rank of the way's weakest edge; edges
        for sublayer in self.sublayers[1:]:
            new = sublayer[~there[sublayer]]
            # One number that orders ways by their weakest edge, then by their length: the length is less than `nodes`.
            way = np.maximum(weakest, self.best_rank[new]) * nodes + length + 1
            first = (way * self.graph.n_edges + self.best_edge[new]).argmin(axis=1)
            weakest[new], length[new] = np.divmod(way[np.arange(len(new)), first], nodes)
            into[new] = self.best_edge[new, first]
        weakest[:], length[:] = -1, 0
        for sublayer in reversed(self.sublayers[:-1]):
            new = sublayer[~there[sublayer]]
            way = np.maximum(weakest[:, None], self.best_rank[:, new]) * nodes + length[:, None] + 1
            first = self.output - way[::-1].argmin(axis=0)
            weakest[new], length[new] = np.divmod(way[first, np.arange(len(new))], nodes)
            onward[new] = self.best_edge[first, new]
        return into.tolist(), onward.tolist()

    def _short_ways(self) -> tuple[list[int], list[int]]:
        """The same by single edges: from a source, and to the logits."""
        into, onward = [-1] * (self.output + 1), [-1] * (self.output + 1)
        from_sources = self.best_rank[:, self.sublayers[0]].argmin(axis=1)
        for node in range(self.output):
            if node in self.included:
                continue
            onward[node] = int(self.best_edge[self.output, node])
            if node not in self.sources:
                into[node] = int(self.best_edge[node, from_sources[node]])
        return into, onward

    def _path(self, edge: int, into: list[int], onward: list[int]) -> set[int]:
        """The edge and what closes it, without what is there already."""
        path, node = {edge}, self.sender[edge]
        while into[node] >= 0:
            path.add(into[node])
            node = self.sender[into[node]]
        node = self.receiver[edge]
        while onward[node] >= 0:
            path.add(onward[node])
            node = self.receiver[onward[node]]
        return path - self.chosen

    def _ends(self, edges: set[int]) -> set[int]:
        return {self.sender[edge] for edge in edges} | {self.receiver[edge] for edge in edges}

    def _drop_weakest(self) -> None:
        """Give up the weakest edge that no path needs, so that a path of two edges fits."""
        for edge in sorted(self.chosen, key=self.rank.__getitem__, reverse=True):
            rest = self.graph.circuit(sorted(self.chosen - {edge}))
            if len(rest.connected()) == len(rest):
                self.chosen.remove(edge)
                self.included = self._ends(self.chosen)
                self.given_up.add(edge)
                return
        raise AssertionError("a connected circuit has an edge that can go")
