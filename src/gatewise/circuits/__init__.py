"""Nodes, edges and sets of edges: what they are, their files, pictures and comparisons. Knows nothing about weights."""

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph

__all__ = ["Circuit", "Graph"]
