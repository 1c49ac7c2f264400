"""Circuit files: JSON that EAP-IG and MIB tools read, with our record added, and lists of edges. No pickle.

{"cfg": {n_layers, n_heads, parallel_attn_mlp, d_model},
 "nodes": {name: {"in_graph": bool}},
 "edges": {"sender->port": {"score": float, "in_graph": bool}},      a positive score helps the task; MIB also takes
                                                                     circuits without any score
 "gatewise": {...}}                                                  ignored by others

Without all scores, a file lists the edges of the circuit only, so that its size is the circuit's: whoever reads it
takes the others as outside. A list has Edge-Pruning's pairs or our names: `[["a5.h9", "a9.h6.q"], "a5.h9->m8"]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from gatewise.archive import is_arrays
from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise.files import read_json, shown, write_json

_FORMAT = 2  # 1 listed every edge, always
_WHAT = "a circuit file (EAP-IG/MIB JSON or Edge-Pruning's list of edges)"
_MAX_SIZE = {"n_layers": 1_000, "n_heads": 1_000, "d_model": 1_000_000}
_MOST_NODES = 2_000  # of a logic model: its table of edges grows with their square
_MOST_EDGES = 20_000_000  # of a graph that a small file describes, and that is made to read it
PARTLY_SCORED = "scores"  # in the provenance of a circuit whose file had the scores of its own edges only
EdgeListNames = Literal["eap-ig", "edge-pruning-gpt2", "edge-pruning-llama"]
_EDGE_LIST_NAMES: dict[EdgeListNames, tuple[tuple[str, ...], str]] = {
    "eap-ig": (("input",), "logits"),
    "edge-pruning-gpt2": (("tok_embeds", "pos_embeds"), "resid_post"),
    "edge-pruning-llama": (("embeds",), "resid_post"),
}
_EDGE_PRUNING_NAMES = {"embeds": "input", "tok_embeds": "input", "pos_embeds": "input", "resid_post": "logits"}


def circuit_to_json(circuit: Circuit, *, all_scores: bool = True) -> dict[str, Any]:
    """Return the content of a circuit file, with every edge or with those of the circuit."""
    graph, inside = circuit.graph, circuit.mask.tolist()
    scores = (circuit.mask if circuit.scores is None else circuit.scores).double().tolist()
    if not all(map(math.isfinite, scores)):
        raise GatewiseError("the circuit has scores that are not finite; a circuit file cannot hold them.")
    present = set(circuit.nodes)
    block: dict[str, Any] = {
        "format": _FORMAT,
        "qkv": graph.qkv,
        "scored": circuit.scores is not None,
        "provenance": dict(circuit.provenance),
    }
    if not all_scores:
        block["graph_edges"] = graph.n_edges
    if graph.sublayers[0].nodes != ("input",) or all(sublayer.kind != "attention" for sublayer in graph.sublayers):
        block["sublayers"] = [list(sublayer.nodes) for sublayer in graph.sublayers[:-1]]
    return {
        "cfg": graph.config(),
        "nodes": {node: {"in_graph": node in present} for node in graph.nodes if all_scores or node in present},
        "edges": {
            name: {"score": score, "in_graph": in_graph}
            for name, score, in_graph in zip(graph.edges, scores, inside, strict=True)
            if all_scores or in_graph
        },
        "gatewise": block,
    }


def save_circuit(circuit: Circuit, path: str | Path, *, all_scores: bool = False) -> None:
    """Write a circuit file. all_scores: also the edges outside the circuit, with their scores"""
    write_json(Path(path), circuit_to_json(circuit, all_scores=all_scores))


def save_edge_list(circuit: Circuit, path: str | Path, *, names: EdgeListNames = "eap-ig") -> None:
    """Write Edge-Pruning's format: `[["a5.h9", "a9.h6.q"], ...]`.

    Args:
        circuit: The circuit to write.
        path: Of the file.
        names: What stands for `input` and `logits`. Edge-Pruning's GPT-2 has two nodes for the input, so that an edge
            from it is written twice.
    """
    if names not in _EDGE_LIST_NAMES:
        raise GatewiseError(f"names is one of {', '.join(_EDGE_LIST_NAMES)}, got {names!r}.")
    sources, sink = _EDGE_LIST_NAMES[names]
    pairs = []
    for name in circuit.edges:
        sender, port = name.split("->")
        port = sink if port == "logits" else port.replace("<", ".").rstrip(">")
        pairs += [[source, port] for source in (sources if sender == "input" else (sender,))]
    write_json(Path(path), pairs)


def load_circuit(path: str | Path, graph: Graph | None = None) -> Circuit:
    """Read a circuit file of any of the formats.

    Args:
        path: Of the file.
        graph: What the circuit must belong to; needed for Edge-Pruning's list.

    Returns:
        The circuit.

    Raises:
        GatewiseError: If the file cannot be read, or is of another graph.
    """
    if is_arrays(Path(path)):
        raise GatewiseError(
            f"{path} is no circuit file, but maybe a gates file: gatewise.Gates.load(path) reads it, and its "
            f"export(folder) writes its circuits."
        )
    return circuit_from(read_json(Path(path), _WHAT), path, graph)


def circuit_from(content: Any, path: str | Path, graph: Graph | None = None) -> Circuit:
    """Make the circuit of the parsed content of a file of any of the formats; `path` is named in errors."""
    if isinstance(content, list):
        return _from_edge_list(path, content, graph)
    if not isinstance(content, dict):
        raise GatewiseError(f"{path} holds a {type(content).__name__} where {_WHAT} holds an object or a list.")
    edges = _entry(content, "edges", dict, path)
    block = content.get("gatewise", {})
    if not isinstance(block, dict):
        raise GatewiseError(f"{path}: 'gatewise' holds a {type(block).__name__}, expected an object.")
    config = _entry(content, "cfg", dict, path)
    sizes = {key: _entry(config, key, int, f"{path}, 'cfg'") for key in _MAX_SIZE if key in config or key != "d_model"}
    partly = block.get("graph_edges")  # a file that lists the circuit's own edges says how many there are
    qkv = block.get("qkv") if partly else "split" if any(name.endswith(">") for name in edges) else "merged"
    if qkv not in ("split", "merged"):
        raise GatewiseError(f"{path}: gatewise.qkv is {shown(qkv)}, expected 'split' or 'merged'.")
    parallel = bool(config.get("parallel_attn_mlp", False))
    if partly:
        _check_size(sizes, block, qkv, parallel, path)
    described = described_graph(
        sizes, block.get("sublayers"), partly or len(edges), f"{path}: cfg", parallel=parallel, qkv=qkv
    )
    if graph is not None and graph != described:
        raise GatewiseError(
            f"{path} is a circuit of {described!r}, but {graph!r} was expected. Load the matching model."
        )
    graph = graph or described  # the one that was given has its tables already
    if (partly or len(edges)) != graph.n_edges:
        raise GatewiseError(
            f"{path}: 'edges' lists {len(edges):,} edges, its 'cfg' implies {graph.n_edges:,}. "
            f"Every edge has to be listed, with in_graph false for those outside the circuit."
        )
    mask, scores = _edge_values(edges, graph, path)
    provenance = block.get("provenance", {})
    if not isinstance(provenance, dict):
        raise GatewiseError(f"{path}: gatewise.provenance holds a {type(provenance).__name__}, expected an object.")
    if partly and scores is not None and len(edges) < graph.n_edges:
        provenance = {**provenance, PARTLY_SCORED: "of the circuit's edges only"}
    return Circuit(graph, mask, helping_sign(scores, provenance) if block.get("scored", True) else None, provenance)


def _check_size(sizes: Mapping[str, int], block: Mapping[str, Any], qkv: str, parallel: bool, path: str | Path) -> None:
    """Refuse, before it is made, a graph that is not as large as the file says, or too large for what lists so few."""
    stated = block["graph_edges"]
    if type(stated) is not int or not 0 < stated <= _MOST_EDGES:
        raise GatewiseError(
            f"{path}: gatewise.graph_edges is {shown(stated)}, expected a number of at most {_MOST_EDGES:,}. Circuits "
            f"of larger graphs are written with all scores."
        )
    if block.get("sublayers") is None:
        layers, heads = sizes["n_layers"], sizes["n_heads"]
        ports, implied = heads * (3 if qkv == "split" else 1), 1 + layers * (heads + 1)
        for layer in range(layers):
            senders = 1 + layer * (heads + 1)
            implied += ports * senders + senders + (0 if parallel else heads)
        if implied != stated:
            raise GatewiseError(f"{path}: gatewise.graph_edges is {stated:,}, its 'cfg' implies {implied:,} edges.")


def helping_sign(scores: Tensor | None, provenance: Mapping[str, Any]) -> Tensor | None:
    """Return scores of a file with the sign that they have today: positive where an edge helps.

    EAP-IG's own files have it too, since its scores are of a loss. Version 1 of our EAP and EAP-IG had the other one,
    but for KL, which is a loss already.
    """
    if scores is None or provenance.get("method") not in ("eap", "eap-ig") or provenance.get("method_version") != "1":
        return scores
    metric = provenance.get("metric")
    return scores if isinstance(metric, Mapping) and metric.get("name") == "kl" else -scores


def _edge_values(edges: Mapping[str, Any], graph: Graph, path: str | Path) -> tuple[Tensor, Tensor | None]:
    """Which edges are in the circuit, and their scores, None if no edge has one.

    No edge may be there twice, in two spellings.
    """
    listed = [False] * graph.n_edges
    mask, scores = [False] * graph.n_edges, [0.0] * graph.n_edges
    scored = any(isinstance(value, dict) and "score" in value for value in edges.values())
    for name, value in edges.items():
        index = graph.find(name)
        if index is None:
            raise GatewiseError(f"{path}: 'edges' has {shown(name)}, which is no edge of {graph!r}.")
        if listed[index]:
            raise GatewiseError(f"{path}: 'edges' has {graph.edges[index]!r} twice, in two spellings.")
        if not isinstance(value, dict):
            raise GatewiseError(
                f"{path}: edge {name!r} holds {shown(value)}, expected {{'score': ..., 'in_graph': ...}}."
            )
        listed[index] = True
        mask[index] = _entry(value, "in_graph", bool, f"{path}, edge {name!r}")
        if scored:
            scores[index] = _number(value, "score", f"{path}, edge {name!r}")
    return torch.tensor(mask), torch.tensor(scores, dtype=torch.float64) if scored else None


def described_graph(
    sizes: Mapping[str, Any], sublayers: Any, edges: int, where: str, *, parallel: bool = False, qkv: Any = "split"
) -> Graph:
    """Make the graph that a file describes, if the file can hold it.

    Args:
        sizes: Numbers of layers and heads, and the width of the residual stream.
        sublayers: Node names of each sublayer of a logic model; None for a transformer.
        edges: How many edges the file lists. Sizes are compared with it before anything of these sizes is made.
        where: Named in errors.
        parallel: Whether attention and MLP of a layer read the same.
        qkv: Whether heads have three ports or one.

    Returns:
        The graph.
    """
    for key, value in sizes.items():
        if type(value) is not int or not 1 <= value <= _MAX_SIZE[key]:
            raise GatewiseError(f"{where}.{key} is {shown(value)}, expected 1 to {_MAX_SIZE[key]:,}.")
    if sublayers is not None:
        if not (isinstance(sublayers, list) and sublayers and all(map(_is_names, sublayers))):
            raise GatewiseError(f"the sublayers of {where} have to be a list of lists of node names.")
        names = [name for sublayer in sublayers for name in sublayer]
        if len(names) > _MOST_NODES or len(set(names) | {"logits"}) <= len(names):
            raise GatewiseError(
                f"the sublayers of {where} name {len(names):,} nodes; expected at most {_MOST_NODES:,} different ones, "
                f"none of them 'logits'."
            )
        return Graph.layered(sublayers[0], sublayers[1:], sizes.get("d_model", 1))
    layers, heads = sizes["n_layers"], sizes["n_heads"]
    if layers * (heads + 1) > edges:  # each node reads something
        raise GatewiseError(
            f"{where} says {layers:,} layers of {heads:,} heads, which are more nodes than the {edges:,} edges listed. "
            f"Every edge has to be listed, with in_graph false for those outside the circuit."
        )
    return Graph.transformer(layers, heads, sizes.get("d_model", 1), parallel=parallel, qkv=qkv)


def _from_edge_list(path: str | Path, content: list[Any], graph: Graph | None) -> Circuit:
    if graph is None:
        raise GatewiseError(
            f"{path} is a bare list of edges, which does not say of which graph. "
            f"Pass it: Circuit.load({Path(path).name!r}, model.graph)."
        )
    names = []
    for i, ends in enumerate(content):
        if isinstance(ends, str):
            names.append(ends)
            continue
        if not (_is_names(ends) and len(ends) == 2):
            raise GatewiseError(
                f"{path}: entry {i} is {shown(ends)}, expected a name such as 'a5.h9->a9.h6<q>', or [sender, port] "
                f"such as ['a5.h9', 'a9.h6.q']."
            )
        sender, port = (_EDGE_PRUNING_NAMES.get(name, name) for name in ends)
        names.append(f"{sender}->{port}")
    try:
        return graph.circuit(names)
    except GatewiseError as error:
        raise GatewiseError(f"{path}: {error}") from error


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)


def _entry(content: Mapping[str, Any], key: str, kind: type, where: str | Path) -> Any:
    if key not in content:
        raise GatewiseError(f"{where}: the key {key!r} is missing. {_WHAT.capitalize()} was expected.")
    value = content[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise GatewiseError(f"{where}: {key!r} is {shown(value)}, expected {kind.__name__}.")
    return value


def _number(content: Mapping[str, Any], key: str, where: str) -> float:
    value = content.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # a whole number of hundreds of digits
            number = math.inf
        if math.isfinite(number):
            return number
    raise GatewiseError(f"{where}: {key!r} is {shown(value)}, expected a finite number.")
