"""Nodes, ports and edges of a model: plain data that knows nothing about weights.

A *node* writes to the residual stream (`input`, head `a5.h9`, MLP `m8`); a *port* is a place where a node reads (a
head has `<q>`, `<k>`, `<v>`; an MLP and `logits` have one). A *sublayer* is a group of nodes that are computed
together. Every port of a sublayer sees the same senders, and those are always the first `reads` ones in order of
writing.

Orders are those of EAP-IG, so that files and matrices can be compared: senders and ports layer by layer, the ports of
a layer as all q, all k, all v, then the MLP; edges in EAP-IG's order of construction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from gatewise.errors import GatewiseError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gatewise.circuits.circuit import Circuit

QKV = Literal["split", "merged"]
SublayerKind = Literal["source", "attention", "pointwise", "output"]
Grouping = Literal["port", "node"]  # what an edge goes into
LOGITS = -1  # as a node: the only one that reads and does not write, so it has no sender index

_HEAD_ALIAS = re.compile(r"^[aA](\d{1,9})\.h?(\d{1,9})$")
_PORT_ALIAS = re.compile(r"^(.*?)(?:<([qkv])>|\.([qkv]))?$")


@dataclass(frozen=True)
class Sublayer:
    """Nodes that are computed together, and the ports through which they read the first `reads` senders."""

    kind: SublayerKind
    nodes: tuple[str, ...]  # in order of sender index; empty for the output
    ports: tuple[str, ...]  # in order of port index; empty for a source
    reads: int
    layer: int


@dataclass(frozen=True)
class _Block:
    """Ports whose edges are listed together: for each sender, each of these ports."""

    ports: tuple[int, ...]  # global port indices, in listing order
    reads: int
    start: int  # index of the block's first edge


class EdgeNames(Sequence[str]):
    """The names of all edges, made when asked for: a large model has millions."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __len__(self) -> int:
        return self._graph.n_edges

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        sender, port = int(self._graph.edge_sender[index]), int(self._graph.edge_port[index])
        return f"{self._graph.senders[sender]}->{self._graph.ports[port]}"

    def __iter__(self) -> Iterator[str]:
        senders, ports = self._graph.senders, self._graph.ports
        pairs = zip(self._graph.edge_sender.tolist(), self._graph.edge_port.tolist(), strict=True)
        return (f"{senders[s]}->{ports[p]}" for s, p in pairs)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._graph.find(name) is not None

    def __repr__(self) -> str:
        return f"<{len(self):,} edges: {self[0]}, ..., {self[-1]}>"


@dataclass(frozen=True)
class Graph:
    """All edges of a model. Two graphs are equal if their sublayers are."""

    sublayers: tuple[Sublayer, ...]
    n_layers: int
    n_heads: int
    d_model: int
    parallel: bool = False  # MLP and heads of a layer read the same senders
    qkv: QKV = "split"

    @classmethod
    def transformer(
        cls, n_layers: int, n_heads: int, d_model: int, *, parallel: bool = False, qkv: QKV = "split"
    ) -> Graph:
        """Make the graph of a decoder: `n_layers` times (heads, MLP), between `input` and `logits`.

        Args:
            n_layers: Number of layers.
            n_heads: Query heads of each layer.
            d_model: Width of the residual stream.
            parallel: Whether MLP and heads of a layer read the same senders, as in GPT-NeoX.
            qkv: `split` for a port each for q, k and v; `merged` for one port per head.

        Returns:
            The graph, with all edges that the architecture has.
        """
        if qkv not in ("split", "merged"):
            raise GatewiseError(f"qkv is 'split' (a port each for q, k and v) or 'merged' (one per head), got {qkv!r}.")
        suffixes = ("<q>", "<k>", "<v>") if qkv == "split" else ("",)
        sublayers = [Sublayer("source", ("input",), (), 0, -1)]
        written = 1
        for layer in range(n_layers):
            heads = tuple(f"a{layer}.h{head}" for head in range(n_heads))
            ports = tuple(head + suffix for suffix in suffixes for head in heads)
            sublayers.append(Sublayer("attention", heads, ports, written, layer))
            seen_by_mlp = written if parallel else written + n_heads
            sublayers.append(Sublayer("pointwise", (f"m{layer}",), (f"m{layer}",), seen_by_mlp, layer))
            written += n_heads + 1
        sublayers.append(Sublayer("output", (), ("logits",), written, n_layers))
        return cls(tuple(sublayers), n_layers, n_heads, d_model, parallel, qkv)

    @classmethod
    def layered(cls, sources: Sequence[str], layers: Sequence[Sequence[str]], d_model: int) -> Graph:
        """Make the graph of a logic model: sources without inputs, then layers of one-port nodes, then `logits`.

        Args:
            sources: Names of the nodes that only write.
            layers: Names of each layer's nodes.
            d_model: Width of the residual stream.

        Returns:
            The graph, in which every node reads all nodes of earlier layers.
        """
        sublayers = [Sublayer("source", tuple(sources), (), 0, -1)]
        written = len(sources)
        for index, nodes in enumerate(layers):
            sublayers.append(Sublayer("pointwise", tuple(nodes), tuple(nodes), written, index))
            written += len(nodes)
        sublayers.append(Sublayer("output", (), ("logits",), written, len(layers)))
        return cls(tuple(sublayers), len(layers), max(map(len, (sources, *layers))), d_model)

    def receivers(self, grouping: Grouping = "port") -> tuple[str, ...]:
        """Name what an edge into each port goes into: the port itself, or its node.

        Args:
            grouping: `port` or `node`.

        Returns:
            A name for each port, in order of port index.
        """
        return self.ports if grouping == "port" else self.port_node

    def by_receiver(self, edges: Iterable[int], grouping: Grouping = "port") -> dict[str, list[int]]:
        """Group edges by what they go into.

        Args:
            edges: Edge indices.
            grouping: `port` or `node`.

        Returns:
            Edge indices by the name of their receiver, in the order in which they are given.
        """
        names, groups = self.receivers(grouping), dict[str, list[int]]()
        for edge in edges:
            groups.setdefault(names[int(self.edge_port[edge])], []).append(edge)
        return groups

    @cached_property
    def senders(self) -> tuple[str, ...]:
        """All writing nodes, in order of sender index."""
        return tuple(node for sublayer in self.sublayers for node in sublayer.nodes)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        return (*self.senders, "logits")

    @cached_property
    def ports(self) -> tuple[str, ...]:
        """All ports, in order of port index."""
        return tuple(port for sublayer in self.sublayers for port in sublayer.ports)

    @cached_property
    def sender_layer(self) -> tuple[int, ...]:
        return tuple(sublayer.layer for sublayer in self.sublayers for _ in sublayer.nodes)

    @cached_property
    def port_node(self) -> tuple[str, ...]:
        """The node that each port belongs to."""
        return tuple(_split_port(port)[0] for port in self.ports)

    @cached_property
    def port_sender(self) -> tuple[int, ...]:
        """Sender index of the node that each port belongs to; `LOGITS` for that of `logits`."""
        return tuple(self._sender_index.get(node, LOGITS) for node in self.port_node)

    @cached_property
    def ports_of_sender(self) -> tuple[tuple[int, ...], ...]:
        """The ports of each writing node."""
        ports: list[list[int]] = [[] for _ in self.senders]
        for port, sender in enumerate(self.port_sender):
            if sender != LOGITS:
                ports[sender].append(port)
        return tuple(map(tuple, ports))

    def ports_of(self, node: int) -> tuple[int, ...]:
        """Return the ports of any node.

        Args:
            node: A sender index, or `LOGITS`.

        Returns:
            Port indices: q, k and v of a head, one of an MLP or of `logits`, none of a source.
        """
        return (len(self.ports) - 1,) if node == LOGITS else self.ports_of_sender[node]

    @cached_property
    def sublayer_of_port(self) -> tuple[int, ...]:
        return tuple(i for i, sublayer in enumerate(self.sublayers) for _ in sublayer.ports)

    @cached_property
    def sublayer_of_sender(self) -> tuple[int, ...]:
        return tuple(i for i, sublayer in enumerate(self.sublayers) for _ in sublayer.nodes)

    @cached_property
    def port_layer(self) -> tuple[int, ...]:
        return tuple(sublayer.layer for sublayer in self.sublayers for _ in sublayer.ports)

    @cached_property
    def sender_slices(self) -> tuple[slice, ...]:
        """Where each sublayer's nodes stand among the senders."""
        return _slices([len(sublayer.nodes) for sublayer in self.sublayers])

    @cached_property
    def port_slices(self) -> tuple[slice, ...]:
        """Where each sublayer's ports stand among the ports."""
        return _slices([len(sublayer.ports) for sublayer in self.sublayers])

    @cached_property
    def _blocks(self) -> tuple[_Block, ...]:
        groups: list[tuple[list[int], int]] = []  # ports in listing order, and how many senders they read
        for sublayer, ports in zip(self.sublayers, self.port_slices, strict=True):
            if sublayer.kind == "source":
                continue
            listing = list(range(ports.start, ports.stop))
            if sublayer.kind == "attention" and self.qkv == "split":  # listed head by head: q, k, v
                heads = len(sublayer.nodes)
                listing = [ports.start + kind * heads + head for head in range(heads) for kind in range(3)]
            if self.parallel and sublayer.kind == "pointwise":  # listed with the heads that read the same senders
                groups[-1][0].extend(listing)
            else:
                groups.append((listing, sublayer.reads))
        blocks, start = [], 0
        for listing, reads in groups:
            blocks.append(_Block(tuple(listing), reads, start))
            start += len(listing) * reads
        return tuple(blocks)

    @cached_property
    def n_edges(self) -> int:
        last = self._blocks[-1]
        return last.start + len(last.ports) * last.reads

    @cached_property
    def edge_sender(self) -> Tensor:
        """Sender index of every edge. [edge]"""
        return torch.cat([torch.arange(b.reads).repeat_interleave(len(b.ports)) for b in self._blocks])

    @cached_property
    def edge_port(self) -> Tensor:
        """Port index of every edge. [edge]"""
        return torch.cat([torch.tensor(b.ports).repeat(b.reads) for b in self._blocks])

    @cached_property
    def edge_index(self) -> Tensor:
        """Edge index by [port, sender]; -1 where there is no edge."""
        table = torch.full((len(self.ports), len(self.senders)), -1)
        table[self.edge_port, self.edge_sender] = torch.arange(self.n_edges)
        return table

    @property
    def edges(self) -> EdgeNames:
        """Names of all edges, in EAP-IG's order of construction."""
        return EdgeNames(self)

    @cached_property
    def _sender_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.senders)}

    @cached_property
    def _port_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.ports)}

    def find_sender(self, name: str) -> int | None:
        """Look up a writing node.

        Args:
            name: Its name, in any accepted spelling.

        Returns:
            Its sender index; None if there is no such node.
        """
        return self._sender_index.get(_node_name(name))

    def find_port(self, name: str) -> int | None:
        """Look up a port.

        Args:
            name: Its name, in any accepted spelling.

        Returns:
            Its port index; None if there is no such port.
        """
        return self._port_index.get(_port_name(name))

    def find(self, name: str) -> int | None:
        """Look up an edge.

        Args:
            name: Sender and port joined by `->`, each in any accepted spelling.

        Returns:
            Its edge index; None if there is no such edge.
        """
        sender_name, arrow, port_name = name.partition("->")
        sender, port = self.find_sender(sender_name), self.find_port(port_name)
        if not arrow or sender is None or port is None:
            return None
        index = int(self.edge_index[port, sender])
        return None if index < 0 else index

    def index(self, name: str) -> int:
        """Look up an edge that has to exist.

        Args:
            name: Sender and port joined by `->`, each in any accepted spelling.

        Returns:
            Its edge index.

        Raises:
            GatewiseError: There is no such edge; the message says what is wrong with the name.
        """
        index = self.find(name)
        if index is None:
            raise GatewiseError(self._why_unknown(name))
        return index

    def indices(self, name: str) -> list[int]:
        """Look up the edges that a name means: one edge, or without a port all edges between two nodes.

        Args:
            name: Sender and port, or sender and receiving node, joined by `->`.

        Returns:
            Their edge indices: `a5.h9->a9.h6` means those into q, k and v.

        Raises:
            GatewiseError: There is no such edge.
        """
        sender_name, _, receiver = name.partition("->")
        node, sender = self.find_sender(receiver), self.find_sender(sender_name)
        if self.find(name) is not None or node is None or sender is None:
            return [self.index(name)]
        edges = [int(self.edge_index[port, sender]) for port in self.ports_of_sender[node]]
        if not edges or min(edges) < 0:
            raise GatewiseError(f"edge {name!r} does not exist: {sender_name} writes after {receiver} reads.")
        return edges

    def _why_unknown(self, name: str) -> str:
        sender_name, arrow, port_name = name.partition("->")
        example = self.edges[self.n_edges // 2]
        if not arrow:
            return f"edge {name!r} has no '->'; write it as sender->port, for example {example!r}."
        if self.find_sender(sender_name) is None:
            return f"edge {name!r}: there is no sender {sender_name!r} in {self!r}; senders are {_brief(self.senders)}."
        if self.find_port(port_name) is None:
            return f"edge {name!r}: there is no port {port_name!r} in {self!r}; ports are {_brief(self.ports)}."
        return f"edge {name!r} does not exist: {sender_name} writes after {port_name} reads."

    def matrix(self, values: Tensor) -> Tensor:
        """Arrange values of edges by port and sender.

        Args:
            values: One for each edge. [..., edge]

        Returns:
            The same as a matrix, 0 where there is no edge. [..., port, sender]
        """
        out = values.new_zeros(*values.shape[:-1], len(self.ports), len(self.senders))
        out[..., self.edge_port.to(values.device), self.edge_sender.to(values.device)] = values
        return out

    def vector(self, matrix: Tensor) -> Tensor:
        """Pick the values of edges out of a matrix: the inverse of `matrix`.

        Args:
            matrix: Values by port and sender. [..., port, sender]

        Returns:
            One value for each edge. [..., edge]
        """
        return matrix[..., self.edge_port.to(matrix.device), self.edge_sender.to(matrix.device)]

    def circuit(self, edges: Iterable[str] | Iterable[int]) -> Circuit:
        """Make the circuit of these edges.

        Args:
            edges: Names, in any accepted spelling, or edge indices. A name without a port, such as `a5.h9->a9.h6`,
                means the edges into all of the receiver's ports.

        Returns:
            The circuit that keeps these edges and no others.
        """
        from gatewise.circuits.circuit import Circuit

        indices: list[int] = []
        for edge in edges:
            indices += [edge] if isinstance(edge, int) else self.indices(edge)
        return Circuit.from_indices(self, indices)

    def full(self) -> Circuit:
        """Make the circuit of all edges.

        Returns:
            The circuit that does what the whole model does.
        """
        return ~self.empty()

    def empty(self) -> Circuit:
        """Make the circuit of no edges.

        Returns:
            The circuit in which every edge is patched.
        """
        return self.circuit([])

    def random_circuit(self, edges: int, seed: int = 0) -> Circuit:
        """Draw a circuit of exactly this many edges uniformly.

        Args:
            edges: How many.
            seed: The same seed draws the same edges.

        Returns:
            The circuit.

        Raises:
            GatewiseError: The graph has fewer edges.
        """
        if not 0 <= edges <= self.n_edges:
            raise GatewiseError(f"a random circuit of {edges} edges was asked for; the graph has {self.n_edges:,}.")
        generator = torch.Generator().manual_seed(seed)
        return self.circuit(torch.randperm(self.n_edges, generator=generator)[:edges].tolist())

    def config(self) -> dict[str, Any]:
        """Describe the graph for a circuit file.

        Returns:
            The `cfg` entry, with the keys of EAP-IG.
        """
        return {
            "n_layers": self.n_layers,
            "n_heads": self.n_heads,
            "parallel_attn_mlp": self.parallel,
            "d_model": self.d_model,
        }

    def __repr__(self) -> str:
        return (
            f"<Graph: {self.n_layers} layers x {self.n_heads} heads, {len(self.senders)} senders, "
            f"{len(self.ports)} ports, {self.n_edges:,} edges>"
        )

    def _repr_html_(self) -> str:
        from gatewise.display import card

        return card("Graph", repr(self).removeprefix("<Graph: ").removesuffix(">"))


def _slices(counts: Sequence[int]) -> tuple[slice, ...]:
    ends = torch.tensor(counts).cumsum(0).tolist()
    return tuple(slice(end - count, end) for end, count in zip(ends, counts, strict=True))


def _node_name(name: str) -> str:
    """Canonical spelling: `A5.9`, `a5.9` and `a5.h9` are one node."""
    match = _HEAD_ALIAS.match(name.strip())
    return f"a{int(match[1])}.h{int(match[2])}" if match else name.strip()


def _split_port(name: str) -> tuple[str, str]:
    match = _PORT_ALIAS.match(name.strip())
    assert match is not None  # the pattern accepts any text
    return match[1], match[2] or match[3] or ""


def _port_name(name: str) -> str:
    """Canonical spelling: `a9.6.q` and `a9.h6<q>` are one port."""
    node, kind = _split_port(name)
    return _node_name(node) + (f"<{kind}>" if kind else "")


def _brief(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:3])}, ..., {', '.join(names[-2:])}"
