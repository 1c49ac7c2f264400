"""Circuits: sets of edges of one graph, immutable, with the record of where they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError


@dataclass(frozen=True, eq=False, repr=False)
class Circuit:
    """A set of edges. Combine with `&`, `|`, `-`, `^` and `~`; two circuits are equal if their edges are.

    Attributes:
        graph: The graph that the edges belong to.
        mask: Which edges of the graph are in the circuit. [edge] of bool
        scores: What the method measured for every edge of the graph, if it did. [edge]
        provenance: Where the circuit came from, as plain data.
    """

    graph: Graph
    mask: Tensor
    scores: Tensor | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mask.shape != (self.graph.n_edges,) or self.mask.dtype != torch.bool:
            raise GatewiseError(
                f"a circuit needs one bool per edge of its graph ({self.graph.n_edges:,}); "
                f"got {self.mask.dtype} of shape {tuple(self.mask.shape)}."
            )
        if self.scores is not None and self.scores.shape != self.mask.shape:
            raise GatewiseError(f"scores need the shape of the mask, {tuple(self.mask.shape)}.")

    @classmethod
    def from_indices(cls, graph: Graph, indices: Iterable[int]) -> Circuit:
        """Make the circuit of some edges.

        Args:
            graph: The graph that the edges belong to.
            indices: Indices in `graph.edges`.

        Returns:
            The circuit.

        Raises:
            GatewiseError: If there is no edge with such an index.
        """
        chosen = torch.tensor(list(indices), dtype=torch.long)
        if bool(((chosen < 0) | (chosen >= graph.n_edges)).any()):
            raise GatewiseError(f"edge indices run from 0 to {graph.n_edges - 1:,}; got {chosen.tolist()[:8]}.")
        mask = torch.zeros(graph.n_edges, dtype=torch.bool)
        mask[chosen] = True
        return cls(graph, mask)

    def _mask_of(self, other: Circuit) -> Tensor:
        if not isinstance(other, Circuit):
            raise TypeError(f"a circuit combines with a circuit, not with {type(other).__name__}")
        if self.graph != other.graph:
            raise GatewiseError(f"circuits of different graphs cannot be combined: {self.graph!r} and {other.graph!r}.")
        return other.mask

    def __and__(self, other: Circuit) -> Circuit:
        return Circuit(self.graph, self.mask & self._mask_of(other))

    def __or__(self, other: Circuit) -> Circuit:
        return Circuit(self.graph, self.mask | self._mask_of(other))

    def __sub__(self, other: Circuit) -> Circuit:
        return Circuit(self.graph, self.mask & ~self._mask_of(other))

    def __xor__(self, other: Circuit) -> Circuit:
        return Circuit(self.graph, self.mask ^ self._mask_of(other))

    def __invert__(self) -> Circuit:
        return Circuit(self.graph, ~self.mask)

    def __le__(self, other: Circuit) -> bool:
        return not bool((self.mask & ~self._mask_of(other)).any())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Circuit) and self.graph == other.graph and torch.equal(self.mask, other.mask)

    def __hash__(self) -> int:
        return hash((self.graph.n_edges, self.mask.numpy().tobytes()))

    def __len__(self) -> int:
        return self._size

    @cached_property
    def _size(self) -> int:
        return int(self.mask.sum())

    def __bool__(self) -> bool:
        return self._size > 0

    def __contains__(self, edge: str) -> bool:
        return bool(self.mask[self.graph.index(edge)])

    @property
    def indices(self) -> list[int]:
        """Indices of the edges in `graph.edges`."""
        return self.mask.nonzero().flatten().tolist()

    @property
    def edges(self) -> list[str]:
        """Names of the edges, in the order of `graph.edges`."""
        names = self.graph.edges
        return [names[i] for i in self.indices]

    def __iter__(self) -> Iterator[str]:
        return iter(self.edges)

    def top(self, count: int = 20) -> dict[str, float]:
        """Return the strongest edges.

        Args:
            count: How many.

        Returns:
            Scores by edge, the largest absolute value first; without scores, the first edges with 1.
        """
        return {edge: score for _, edge, score in self._ranked(count)}

    def _ranked(self, count: int | None = None) -> list[tuple[int, str, float]]:
        from gatewise.display import strongest

        scores = self.mask.float() if self.scores is None else self.scores
        best = strongest(scores, self.indices, len(self) if count is None else count) if self else []
        return [(i, self.graph.edges[i], float(scores[i])) for i in best]

    def to_frame(self) -> Any:
        """Make a pandas frame of the edges.

        Returns:
            A row for each edge with its sender, receiver, port and score, the strongest first.
        """
        from gatewise.display import frame

        graph, rows = self.graph, []
        for i, edge, score in self._ranked():
            sender, port = graph.senders[int(graph.edge_sender[i])], int(graph.edge_port[i])
            into = {"receiver": graph.port_node[port], "port": graph.ports[port]}
            rows.append({"edge": edge, "sender": sender, **into, "score": score})
        return frame(rows)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of which edges these are, for keys; scores and provenance do not count."""
        return hashlib.sha256(self.mask.cpu().numpy().tobytes()).hexdigest()[:16]

    @property
    def sparsity(self) -> float:
        """Share of the graph's edges that are not in the circuit."""
        return 1 - len(self) / self.graph.n_edges

    @property
    def nodes(self) -> list[str]:
        """Nodes that an edge of the circuit touches, in order."""
        present = {self.graph.senders[i] for i in self.graph.edge_sender[self.mask].tolist()}
        present |= {self.graph.port_node[i] for i in self.graph.edge_port[self.mask].tolist()}
        return [node for node in self.graph.nodes if node in present]

    def connected(self) -> Circuit:
        """Leave out dangling edges. Never applied silently.

        Returns:
            The edges that lie on a path from a source to `logits`.
        """
        graph = self.graph
        reached = set(graph.sublayers[0].nodes)
        order = {node: i for i, node in enumerate(graph.nodes)}
        edges = []
        for i in self.indices:
            edges.append((i, graph.senders[int(graph.edge_sender[i])], graph.port_node[int(graph.edge_port[i])]))
        edges.sort(key=lambda edge: order[edge[1]])  # senders first to last: one pass each way is enough
        for _, sender, receiver in edges:
            if sender in reached:
                reached.add(receiver)
        useful = {"logits"}
        for _, sender, receiver in reversed(edges):
            if receiver in useful:
                useful.add(sender)
        return Circuit.from_indices(
            graph, [i for i, sender, receiver in edges if sender in reached and receiver in useful]
        )

    @property
    def inclusion(self) -> Mapping[str, float]:
        """Share of resamples of the pairs whose circuit of this size contains each edge, by its name.

        Raises:
            GatewiseError: The circuit was not resampled.
        """
        known = self.provenance.get("confidence")
        shares = known.get("inclusion") if isinstance(known, Mapping) else None
        if not isinstance(shares, Mapping):
            raise GatewiseError(
                "this circuit was not resampled, so it does not know how sure its edges are. Use the circuit of "
                "gw.resample_circuit(model, task, method, direction, edges=...)."
            )
        return shares

    def confident(self, share: float = 0.95) -> Circuit:
        """Keep the edges that nearly every resample of the pairs contains.

        Args:
            share: The least share of resamples, above 0 and up to 1.

        Returns:
            The edges that are in at least that share. The rest, `circuit - circuit.confident()`, is doubtful.

        Raises:
            GatewiseError: The circuit was not resampled, or the share is none.
        """
        if not 0 < share <= 1:
            raise GatewiseError(f"share is above 0 and at most 1, such as 0.95; got {share!r}.")
        shares = self.inclusion
        sure = [index for index in self.indices if shares.get(self.graph.edges[index], 0.0) >= share]
        return Circuit(self.graph, Circuit.from_indices(self.graph, sure).mask, self.scores, self.provenance)

    def with_provenance(self, **entries: Any) -> Circuit:
        """Add entries to the provenance.

        Args:
            **entries: Plain data.

        Returns:
            The same circuit with these entries.
        """
        return Circuit(self.graph, self.mask, self.scores, {**self.provenance, **entries})

    def save(self, path: str | Path, *, all_scores: bool = False) -> None:
        """Write as JSON that EAP-IG and MIB tools read, with a `gatewise` block. See `gatewise.circuits.formats`.

        Args:
            path: Of the file.
            all_scores: Also list the edges outside the circuit, with their scores: large, and what MIB's importances
                are made of.
        """
        from gatewise.circuits.formats import save_circuit

        save_circuit(self, path, all_scores=all_scores)

    def draw(self, path: str | Path, *, max_edges: int = 300, title: str | None = None) -> None:
        """Draw a static figure. See `gatewise.circuits.drawing`.

        Args:
            path: Of a file that ends in .svg, .pdf or .png.
            max_edges: Of a larger circuit only the strongest edges are drawn.
            title: Below the figure; by default none.
        """
        from gatewise.circuits.drawing import draw

        draw(self, path, max_edges=max_edges, title=title)

    @classmethod
    def load(cls, path: str | Path, graph: Graph | None = None) -> Circuit:
        """Read a circuit file of gatewise, EAP-IG, MIB or Edge-Pruning.

        Args:
            path: Of the file.
            graph: What the circuit must belong to; needed for Edge-Pruning's list, which does not say it.

        Returns:
            The circuit.

        Raises:
            GatewiseError: If the file cannot be read, or is of another graph.
        """
        from gatewise.circuits.formats import load_circuit

        return load_circuit(path, graph)

    def _summary(self) -> str:
        made = " ".join(str(self.provenance[k]) for k in ("method", "direction") if k in self.provenance)
        return (
            f"{len(self):,} of {self.graph.n_edges:,} edges ({self.sparsity:.2%} sparse), {len(self.nodes)} of "
            f"{len(self.graph.nodes)} nodes{f', found by {made}' if made else ''}"
        )

    def __repr__(self) -> str:
        shown = [self.graph.edges[i] for i in self.indices[:3]]
        return (
            f"<Circuit: {self._summary()}{': ' + ', '.join(shown) if shown else ''}{', ...' if len(self) > 3 else ''}>"
        )

    def _repr_html_(self) -> str:
        from gatewise.display import SHOWN, card

        if self.scores is None:
            return card("Circuit", self._summary(), ("edge",), [(edge,) for edge in self.edges[:SHOWN]])
        rows = [(edge, f"{score:.4g}") for edge, score in self.top(SHOWN).items()]
        return card("Circuit", self._summary(), ("edge", "score"), rows)


@dataclass(frozen=True, eq=False)
class Labelled:
    """A circuit whose edges may have a kind, such as a gate type: drawn in colours, compared kind by kind."""

    circuit: Circuit
    kinds: Mapping[int, str]  # edge -> kind

    @property
    def graph(self) -> Graph:
        return self.circuit.graph
