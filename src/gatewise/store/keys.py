"""What a stored result is called: a hash of everything that determines it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch

from gatewise.circuits.graph import Graph
from gatewise.engine.batches import parse_bytes
from gatewise.store.values import as_plain

if TYPE_CHECKING:
    from gatewise.methods.contract import Problem

SCHEMA = 1  # raise it when a method or an entry changes its meaning: older entries are then no longer found
_NOT_A_MATTER_OF_RESULTS = ("name_or_path", "_name_or_path", "transformers_version", "architectures", "dtype")


def key_of(plain: Any) -> str:
    """A name for plain data: 32 hexadecimal digits."""
    text = json.dumps(plain, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def ingredients(problem: Problem, method: str, config: Any) -> dict[str, Any]:
    """Everything that determines the result of a search, as plain data."""
    model = problem.model
    return {
        "schema": SCHEMA,
        "weights": model.fingerprint,
        "architecture": _architecture(model.hf),
        "graph": graph_entry(model.graph),
        "pairs": problem.pairs.fingerprint,
        "method": method,
        "direction": problem.direction,
        "parameters": as_plain(dataclasses.asdict(config)),
        "sizes": list(problem.sizes),
        "threshold": None if problem.threshold is None else float(problem.threshold),
        "seed": problem.seed,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "memory": parse_bytes(problem.memory),  # decides the batches, and so the order of sums
    }


def graph_entry(graph: Graph) -> dict[str, Any]:
    """What a graph can be made of again."""
    if any(stage.kind == "attention" for stage in graph.stages):
        sizes = {"n_layers": graph.n_layers, "n_heads": graph.n_heads, "d_model": graph.d_model}
        return {**sizes, "parallel": graph.parallel, "qkv": graph.qkv}
    return {"stages": [list(stage.nodes) for stage in graph.stages[:-1]], "d_model": graph.d_model}


def _architecture(module: Any) -> Any:
    """What besides the weights decides a transformers model's outputs: norms, scales, positions."""
    config = getattr(module, "config", None)
    if config is None:
        return None
    entries = {key: value for key, value in config.to_dict().items() if key not in _NOT_A_MATTER_OF_RESULTS}
    return json.loads(json.dumps(entries, default=str, sort_keys=True))
