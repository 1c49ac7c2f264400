"""Graphs and circuits as plain data and arrays: exact, small, read at once. `gatewise.archive` has the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatewise.archive import DamagedError
from gatewise.circuits.circuit import Circuit
from gatewise.circuits.formats import described_graph, helping_sign
from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise.files import as_plain


def graph_entry(graph: Graph) -> dict[str, Any]:
    """Return what a graph can be made of again."""
    if any(sublayer.kind == "attention" for sublayer in graph.sublayers):
        sizes = {"n_layers": graph.n_layers, "n_heads": graph.n_heads, "d_model": graph.d_model}
        return {**sizes, "parallel": graph.parallel, "qkv": graph.qkv}
    return {"sublayers": [list(sublayer.nodes) for sublayer in graph.sublayers[:-1]], "d_model": graph.d_model}


def pack_circuits(circuits: Sequence[Circuit]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Pack circuits of one graph: masks as bits, and each tensor of scores once, however many circuits share it."""
    if not circuits or any(circuit.graph != circuits[0].graph for circuit in circuits):
        raise GatewiseError(f"circuits of one graph are stored together, at least one; got {len(circuits)}.")
    scores: list[Tensor] = []
    entries = []
    for circuit in circuits:
        index = None
        if circuit.scores is not None:
            index = next((i for i, known in enumerate(scores) if _identical(known, circuit.scores)), len(scores))
            scores += [circuit.scores] if index == len(scores) else []
        entries.append({"edges": len(circuit), "scores": index, "provenance": as_plain(circuit.provenance)})
    bits = np.packbits(torch.stack([circuit.mask.cpu() for circuit in circuits]).numpy(), axis=1)
    arrays = {"masks": torch.from_numpy(bits), **{f"scores.{i}": values for i, values in enumerate(scores)}}
    return {"graph": graph_entry(circuits[0].graph), "circuits": entries}, arrays


def unpack_circuits(plain: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> list[Circuit]:
    """Return what `pack_circuits` was given. Raises DamagedError."""
    try:
        bits = arrays["masks"].numpy()
        graph = _graph_of(plain["graph"], 8 * bits.shape[1])
        masks = np.unpackbits(bits, axis=1, count=graph.n_edges).astype(bool)
        circuits = []
        for entry, mask in zip(plain["circuits"], masks, strict=True):
            record = dict(entry["provenance"])
            scores = None if entry["scores"] is None else helping_sign(arrays[f"scores.{entry['scores']}"], record)
            circuits.append(Circuit(graph, torch.from_numpy(mask), scores, record))
        return circuits
    except (ValueError, TypeError, KeyError, IndexError, GatewiseError) as error:
        raise DamagedError(f"its circuits cannot be understood ({error})") from error


def _graph_of(entry: Mapping[str, Any], most_edges: int) -> Graph:
    names = ("d_model",) if "sublayers" in entry else ("n_layers", "n_heads", "d_model")
    sizes, ways = {name: entry[name] for name in names}, {"parallel": False, "qkv": "split", **entry}
    graph = described_graph(
        sizes, entry.get("sublayers"), most_edges, "its graph", parallel=bool(ways["parallel"]), qkv=ways["qkv"]
    )
    if not most_edges - 8 < graph.n_edges <= most_edges:
        raise DamagedError(f"its graph has {graph.n_edges:,} edges, its masks have about {most_edges:,}")
    return graph


def _identical(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.dtype == b.dtype and torch.equal(a, b))
