"""What determines the result of a search: the store names it by a hash of this."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch

from gatewise.circuits.packed import graph_entry
from gatewise.engine.batches import parse_bytes
from gatewise.files import as_plain
from gatewise.methods.contract import Problem
from gatewise.store import SCHEMA

_NOT_A_MATTER_OF_RESULTS = ("name_or_path", "_name_or_path", "transformers_version", "architectures", "dtype")


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


def _architecture(module: Any) -> Any:
    """What besides the weights decides a transformers model's outputs: norms, scales, positions."""
    config = getattr(module, "config", None)
    if config is None:
        return None
    entries = {key: value for key, value in config.to_dict().items() if key not in _NOT_A_MATTER_OF_RESULTS}
    return json.loads(json.dumps(entries, default=str, sort_keys=True))
