"""`Scores`: one number for every edge of a graph, by a method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.display import SHOWN, card


@dataclass(frozen=True, eq=False)
class Scores:
    """One number per edge, in the order of `graph.edges`."""

    graph: Graph
    values: Tensor  # [edge]
    provenance: Mapping[str, Any]

    def __getitem__(self, edge: str) -> float:
        return float(self.values[self.graph.index(edge)])

    def _circuit(self) -> Circuit:
        return Circuit(self.graph, self.graph.full().mask, self.values.cpu(), self.provenance)

    def top(self, count: int = 20) -> dict[str, float]:
        """Return the strongest edges with their scores.

        Args:
            count: How many, by absolute value.

        Returns:
            Score by edge, the strongest first.
        """
        return self._circuit().top(count)

    def to_frame(self) -> Any:
        """Make a pandas frame of all edges.

        Returns:
            A row for each edge with its score, the strongest first.
        """
        return self._circuit().to_frame()

    def _made(self) -> str:
        return f"by {self.provenance.get('method')} {self.provenance.get('direction')} of {len(self.values):,} edges"

    def __repr__(self) -> str:
        shown = ", ".join(f"{edge} {score:.4g}" for edge, score in self.top(3).items())
        return f"<Scores {self._made()}; strongest {shown}>"

    def _repr_html_(self) -> str:
        rows = [(edge, f"{score:.4g}") for edge, score in self.top(SHOWN).items()]
        return card("Scores", self._made(), ("edge", "score"), rows)
