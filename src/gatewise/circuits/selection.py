"""Choosing the edges of a circuit of exactly n edges from one strength per edge: the strongest, or connected ones.

The n strongest edges need not lie on any path from the input to the logits; a circuit without a path is the empty
circuit in disguise. The *connected* selection takes edges in order of strength too, but each together with what it
needs to lie on a path: the way from the input to its sender and from its receiver to what is included already, chosen
so that its weakest edge is as strong as can be. These closing edges count towards n; an edge whose closing does not fit
any more is passed over, so that the rest is filled with edges between included nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError

Selection = Literal["top", "connected"]


def check_selection(select: str) -> None:
    if select not in get_args(Selection):
        raise GatewiseError(f"select is 'top' (the strongest edges) or 'connected' (all on a path), got {select!r}.")


def number_of_edges(size: int | float, graph: Graph) -> int:
    """A whole number as it is; a share below 1 of the graph's edges as a number, at least 1."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    if isinstance(size, float) and 0 < size < 1:
        return max(1, round(size * graph.n_edges))
    raise GatewiseError(
        f"edges is a whole number, or a share between 0 and 1 of the {graph.n_edges:,} edges, such as 0.01; "
        f"got {size!r}."
    )


def select_edges(graph: Graph, strength: Tensor, size: int, select: Selection = "top") -> Tensor:
    """Mask of exactly `size` edges; of equally strong ones, the first in order. [edge] of bool"""
    check_selection(select)
    order = torch.argsort(strength, descending=True, stable=True).cpu()
    if select == "top":
        mask = torch.zeros(strength.shape, dtype=torch.bool)
        mask[order[:size]] = True
        return mask
    return _Connected(graph, order).select(size)


class _Connected:
    """A circuit that grows by paths. Nodes are senders; the last one is `logits`."""

    def __init__(self, graph: Graph, order: Tensor) -> None:
        self.graph = graph
        self.order: list[int] = order.tolist()
        rank = torch.empty(len(order), dtype=torch.long)
        rank[order] = torch.arange(len(order))
        self.rank: list[int] = rank.tolist()  # 0 is the strongest
        self.output = len(graph.senders)
        port_node = [self.output if node < 0 else node for node in graph.port_sender]
        self.sender: list[int] = graph.edge_sender.tolist()
        self.receiver = [port_node[port] for port in graph.edge_port.tolist()]
        self.sources = set(range(graph.sender_slices[0].stop))
        self.best = self._best_edges()
        self.chosen: set[int] = set()
        self.included: set[int] = set()  # nodes on a path from a source to the logits

    def _best_edges(self) -> list[list[int]]:
        """For each receiver, the strongest edge from each of its senders, from the last sender to the first."""
        best: dict[tuple[int, int], int] = {}
        for edge in self.order:
            best.setdefault((self.receiver[edge], self.sender[edge]), edge)
        found: list[list[int]] = [[] for _ in range(self.output + 1)]
        for (receiver, _), edge in sorted(best.items(), reverse=True):
            found[receiver].append(edge)
        return found

    def select(self, size: int) -> Tensor:
        self._grow(size, self._ways)
        while len(self.chosen) < size:  # what is left needs more edges than are missing
            before = len(self.chosen)
            self._grow(size, self._short_ways)
            if len(self.chosen) == before:  # one is missing, and a new node takes two
                self._drop_weakest()
        mask = torch.zeros(self.graph.n_edges, dtype=torch.bool)
        mask[list(self.chosen)] = True
        return mask

    def _grow(self, size: int, ways: Callable[[], tuple[list[int], list[int]]]) -> None:
        """Take edges in order of strength, each with its closing, while they fit."""
        into, onward = ways()
        for edge in self.order:
            if edge in self.chosen:
                continue
            new = self._path(edge, into, onward)
            if len(self.chosen) + len(new) > size:
                continue
            self.chosen.update(new)
            nodes = {node for one in new for node in (self.sender[one], self.receiver[one])}
            if not nodes <= self.included:
                self.included |= nodes
                into, onward = ways()
            if len(self.chosen) == size:
                return

    def _ways(self) -> tuple[list[int], list[int]]:
        """The first edge of the strongest way from a source to each node, and from each node to what is included.

        -1 where no edge is needed. A way is as strong as its weakest edge; of equally strong ones the shorter.
        """
        into, onward = [-1] * (self.output + 1), [-1] * (self.output + 1)
        weakest = [(-1, 0)] * (self.output + 1)  # rank of the weakest edge of the way, and its length
        for node in range(self.output + 1):
            if node in self.sources or node in self.included:
                continue
            ways = [(self._join(weakest[self.sender[edge]], edge), edge) for edge in self.best[node]]
            weakest[node], into[node] = min(ways)
        weakest = [(self.graph.n_edges, 0)] * (self.output + 1)
        for node in range(self.output, -1, -1):
            if node == self.output or node in self.included:
                weakest[node], onward[node] = (-1, 0), -1
            for edge in self.best[node]:
                sender, way = self.sender[edge], self._join(weakest[node], edge)
                if sender not in self.included and way < weakest[sender]:
                    weakest[sender], onward[sender] = way, edge
        return into, onward

    def _short_ways(self) -> tuple[list[int], list[int]]:
        """The same by single edges: from a source, and to the logits."""
        into, onward = [-1] * (self.output + 1), [-1] * (self.output + 1)
        for node in range(self.output):
            if node in self.included:
                continue
            onward[node] = next(edge for edge in self.best[self.output] if self.sender[edge] == node)
            if node not in self.sources:
                direct = [edge for edge in self.best[node] if self.sender[edge] in self.sources]
                into[node] = min(direct, key=self.rank.__getitem__)
        return into, onward

    def _join(self, way: tuple[int, int], edge: int) -> tuple[int, int]:
        return max(way[0], self.rank[edge]), way[1] + 1

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

    def _drop_weakest(self) -> None:
        """Give up the weakest edge that no path needs, so that a path of two edges fits."""
        for edge in sorted(self.chosen, key=self.rank.__getitem__, reverse=True):
            rest = self.graph.circuit(sorted(self.chosen - {edge}))
            if len(rest.connected()) == len(rest):
                self.chosen.remove(edge)
                self.included = {node for one in self.chosen for node in (self.sender[one], self.receiver[one])}
                self.order.remove(edge)  # not again
                return
        raise AssertionError("a connected circuit has an edge that can go")
