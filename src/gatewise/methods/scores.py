"""Scores: what a method thinks of every edge of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.notebook import card, strongest


@dataclass(frozen=True, eq=False)
class Scores:
    """One number per edge, in the order of `graph.edges`."""

    graph: Graph
    values: Tensor  # [edge]
    provenance: Mapping[str, Any]

    def __getitem__(self, edge: str) -> float:
        return float(self.values[self.graph.index(edge)])

    def _made(self) -> str:
        return f"by {self.provenance.get('method')} {self.provenance.get('direction')} of {len(self.values):,} edges"

    def __repr__(self) -> str:
        best = torch.argsort(self.values.abs(), descending=True)[:3].tolist()
        shown = ", ".join(f"{self.graph.edges[i]} {float(self.values[i]):.4g}" for i in best)
        return f"<Scores {self._made()}; strongest {shown}>"

    def _repr_html_(self) -> str:
        rows = [(self.graph.edges[i], f"{self.values[i]:.4g}") for i in strongest(self.values)]
        return card("Scores", self._made(), ("edge", "score"), rows)
