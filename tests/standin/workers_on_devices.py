"""What test_workers_on_devices.py starts as a process: searches, an evaluation and a sweep, by workers with devices.

Prints what each gave as one JSON object. Processes that it starts know the stand-in by `torch.backends`.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from standin_calls import dies_once

import gatewise as gw
from gatewise.engine.metrics import Metric
from gatewise.errors import GatewiseWarning
from gatewise.methods.edge_pruning.method import EdgePruning
from gatewise.sweep import run_sweep
from gatewise.sweep.grid import grid_from

GRID: dict[str, Any] = {
    "models": "tiny", "tasks": "ioi", "directions": ["ns", "dn"], "examples": 4, "test_examples": 4,
    "random_circuits": 0, "sizes": [20], "methods": {"eap": {}},
}  # fmt: skip
MEMORY = "20MB"  # many small batches


def work(compute: gw.Compute, device: str, folder: Path) -> dict[str, Any]:
    """Scores of many pairs, circuits of both directions, an evaluation, a search whose worker dies, and a sweep."""
    model = gw.load_model("tiny", device=device)
    pairs = gw.task("ioi", model, examples=96, test_examples=8)
    circuits = gw.discover_all(model, pairs.train[:8], EdgePruning(steps=2), sizes=(50,), compute=compute)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metric = Metric("dies once", dies_once)
        survived = gw.score_edges(model, pairs.train, metric=metric, compute=compute)
    report = run_sweep(grid_from({**GRID, "device": device.partition(":")[0]}), folder, compute=compute)
    return {
        "eap": gw.score_edges(model, pairs.train, compute=compute).values.tolist(),
        "edge-pruning": {direction: found[0].edges for direction, found in circuits.items()},
        "evaluate": gw.evaluate(model, pairs.test, model.graph.random_circuit(300), compute=compute).row(),
        "survived": survived.values.tolist(),
        "said": [str(warning.message) for warning in caught if issubclass(warning.category, GatewiseWarning)],
        "failures": [problem for _, problem in report.failures],
        "table": [[repr(value) for value in row.values()] for row in report.rows],
    }


if __name__ == "__main__":
    device, folder, workers, ray, gpus = sys.argv[1:]
    torch.set_num_threads(1)
    chosen = {"ray": ray, "gpus": float(gpus)} if ray else {"workers": int(workers)}
    compute = gw.Compute(memory=MEMORY, **chosen)  # type: ignore[arg-type]
    Path(folder, "outcome.json").write_text(json.dumps(work(compute, device, Path(folder))))
