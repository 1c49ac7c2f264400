"""What determines the result of a search: for its provenance, and for the key under which it is stored."""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch

from gatewise.circuits.serialization import graph_entry
from gatewise.files import as_plain
from gatewise.methods.base import Method, Problem, SearchDirection
from gatewise.store import SCHEMA

_NOT_A_MATTER_OF_RESULTS = ("name_or_path", "_name_or_path", "transformers_version", "architectures", "dtype")


def ingredients(problem: Problem, method: Method, config: Any) -> dict[str, Any]:
    """Everything that determines the results of a search, as plain data."""
    model, setting = problem.model, problem.setting
    return {
        "schema": SCHEMA,
        "weights": model.fingerprint,
        "architecture": _architecture(model.hf),
        "graph": graph_entry(model.graph),
        "pairs": problem.pairs.fingerprint,
        "ablation": setting.ablation,
        "noise": setting.seed if setting.ablation == "noise" else None,
        "metric": None if setting.metric is None else setting.metric.record(),
        "method": {"name": method.name, "version": method.version},
        "directions": list(problem.directions),
        "parameters": as_plain(dataclasses.asdict(config)),
        "sizes": {direction: list(sizes) for direction, sizes in problem.sizes.items()},
        "select": problem.select,
        "threshold": None if problem.threshold is None else float(problem.threshold),
        "seed": problem.seed,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "memory": setting.memory,  # decides the batches, and so the order of sums
    }


def _architecture(module: Any) -> Any:
    """What besides the weights decides a transformers model's outputs: norms, scales, positions."""
    config = getattr(module, "config", None)
    if config is None:
        return None
    entries = {key: value for key, value in config.to_dict().items() if key not in _NOT_A_MATTER_OF_RESULTS}
    return json.loads(json.dumps(entries, default=str, sort_keys=True))


def versions() -> dict[str, str]:
    """Of what numbers may depend on."""
    names = ("gatewise", "torch", "transformers")
    return {**{name: version(name) for name in names}, "python": platform.python_version()}


def storable(problem: Problem) -> bool:
    """Whether the ingredients tell all: not with a metric that has no version."""
    metric = problem.setting.metric
    return metric is None or metric.version is not None


class Clock:
    """What a search takes, from now on."""

    def __init__(self) -> None:
        self._wall, self._processor = time.time(), time.process_time()

    def times(self) -> dict[str, Any]:
        return {
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(time.time() - self._wall, 3),
            # On all threads; not an accelerator's.
            "cpu_seconds": round(time.process_time() - self._processor, 3),
        }


def provenance(
    problem: Problem, direction: SearchDirection, method: Method, config: Any, times: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that determines a result, and what it took."""
    model, pairs, setting = problem.model, problem.pairs, problem.setting
    return {
        "method": method.name,
        "directed": method.directed,
        "direction": direction,
        "parameters": dataclasses.asdict(config),
        "threshold": problem.threshold,
        "select": problem.select,
        "seed": problem.seed,
        "ablation": setting.ablation,
        "metric": None if setting.metric is None else setting.metric.record(),
        "model": model.name,
        "weights": model.fingerprint,
        "task": pairs.name,
        "examples": len(pairs),
        "data": pairs.fingerprint,
        "bos": model.tokenizer is not None and pairs.begins_with(model.tokenizer.bos_token_id),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "time": dict(times),
    }
