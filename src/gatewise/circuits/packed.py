"""Graphs and circuits as plain data and arrays: exact, small, and read at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gatewise.circuits.graph import Graph


def graph_entry(graph: Graph) -> dict[str, Any]:
    """What a graph can be made of again."""
    if any(stage.kind == "attention" for stage in graph.stages):
        sizes = {"n_layers": graph.n_layers, "n_heads": graph.n_heads, "d_model": graph.d_model}
        return {**sizes, "parallel": graph.parallel, "qkv": graph.qkv}
    return {"stages": [list(stage.nodes) for stage in graph.stages[:-1]], "d_model": graph.d_model}


def graph_of(entry: Mapping[str, Any]) -> Graph:
    if "stages" in entry:
        return Graph.layered(entry["stages"][0], entry["stages"][1:], entry["d_model"])
    return Graph.transformer(**entry)
