"""Circuits to store, and whether two lists of circuits are the same."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.circuits.selection import select_edges

KEY = "ab" + "0" * 30


def some_circuits(graph: Graph | None = None) -> list[Circuit]:
    """Three sizes of one ranking, and one circuit without scores."""
    graph = graph or Graph.transformer(2, 3, 8)
    scores = torch.randn(graph.n_edges, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = [
        Circuit(graph, select_edges(graph, scores, size), scores, {"method": "eap", "edges": size, "sizes": [1, 2]})
        for size in (1, 5, graph.n_edges)
    ]
    return [*found, graph.empty()]


def same(a: Sequence[Circuit], b: Sequence[Circuit]) -> bool:
    def scores_match(x: Circuit, y: Circuit) -> bool:
        if x.scores is None or y.scores is None:
            return x.scores is y.scores
        return x.scores.dtype == y.scores.dtype and torch.equal(x.scores, y.scores)

    pairs = list(zip(a, b, strict=True))
    return all(x == y and scores_match(x, y) and x.provenance == y.provenance for x, y in pairs)
