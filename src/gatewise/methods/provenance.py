"""The facts that determine a search's result, listed once: for its provenance and for its key in the store."""

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

# The same weights and pairs give the same circuit whatever they are called: these facts are for people.
_FOR_PEOPLE = {"model", "task", "examples", "bos", "directed", "versions"}
# Too long for the file of every circuit, or told there by the circuits themselves.
_FOR_THE_KEY = {"architecture", "graph", "sizes"}
_WITHOUT_EFFECT = {"name_or_path", "_name_or_path", "transformers_version", "architectures", "dtype"}


def facts(problem: Problem, method: Method) -> dict[str, Any]:
    """List everything that determines the result of a search, and what people call it, as plain data."""
    model, pairs, setting = problem.model, problem.pairs, problem.setting
    return {
        "method": method.name,
        "method_version": method.version,
        "directed": method.directed,
        "direction": ", ".join(problem.directions),
        "parameters": as_plain(dataclasses.asdict(method)),
        "sizes": {direction: list(sizes) for direction, sizes in problem.sizes.items()},
        "threshold": None if problem.threshold is None else float(problem.threshold),
        "select": problem.select,
        "seed": problem.seed,
        "ablation": setting.ablation,
        "noise_seed": setting.seed if setting.ablation == "noise" else None,
        "metric": None if setting.metric is None else setting.metric.record(),
        "model": model.name,
        "weights": model.fingerprint,
        "architecture": _architecture(model.hf),
        "graph": graph_entry(model.graph),
        "task": pairs.name,
        "examples": len(pairs),
        "data": pairs.fingerprint,
        "bos": model.tokenizer is not None and pairs.begins_with(model.tokenizer.bos_token_id),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "memory": setting.memory,  # decides the batches, and so the order of sums
        "versions": versions(),
    }


def ingredients(problem: Problem, method: Method) -> dict[str, Any]:
    """Return the facts that make the key under which the result is stored.

    Of a method that ranks once the scores are stored, from which all circuits are cut: neither sizes nor a threshold
    matter.
    """
    known = {name: value for name, value in facts(problem, method).items() if name not in _FOR_PEOPLE}
    # Workers search on any device of a kind, and each has its own free memory: the key says what was asked for.
    known["device"] = problem.model.device.type
    if problem.setting.memory_from_device:
        known["memory"] = "free memory of the device"
    return known | {"sizes": "all", "threshold": None, "select": None} if method.ranks_once else known


def provenance(
    problem: Problem, direction: SearchDirection, method: Method, times: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the facts that every circuit of a direction carries, and what the search took."""
    known = facts(problem.only(direction), method)
    return {**{name: value for name, value in known.items() if name not in _FOR_THE_KEY}, "time": dict(times)}


def storable(problem: Problem) -> bool:
    """True if the facts tell everything: not with a metric that has no version."""
    metric = problem.setting.metric
    return metric is None or metric.version is not None


def versions() -> dict[str, str]:
    """Return the versions of what numbers may depend on."""
    names = ("gatewise", "torch", "transformers")
    return {**{name: version(name) for name in names}, "python": platform.python_version()}


def _architecture(module: Any) -> Any:
    """Return what besides the weights decides a transformers model's outputs: norms, scales, positions."""
    config = getattr(module, "config", None)
    if config is None:
        return None
    entries = {key: value for key, value in config.to_dict().items() if key not in _WITHOUT_EFFECT}
    return json.loads(json.dumps(entries, default=str, sort_keys=True))


class Clock:
    """Measures what a search takes, from now on."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.time(), time.process_time()

    def times(self) -> dict[str, Any]:
        """Return the time of day, and the seconds since the start."""
        return {
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(time.time() - self._wall, 3),
            # On all threads; not an accelerator's.
            "cpu_seconds": round(time.process_time() - self._cpu, 3),
        }
