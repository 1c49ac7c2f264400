"""Which edges and verdicts half precision changes: circuits found in bfloat16 and float16 beside those in float32.

    python bench/precision.py --models tiny smollm2-135m gemma3-270m --methods eap
    python bench/precision.py --models tiny --methods eap ranking acdc --out precision.json

For each model, method and dtype: the share of edges that a circuit of 100, 500 and 2,000 edges has in common with the
one found in float32 (ACDC: circuits of one threshold, as the Jaccard index), the rank correlation of all scores, and
whether the circuit of 500 edges, evaluated in that dtype on held-out pairs, is called as faithful.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.evaluation.verdicts import faithful
from gatewise.models.model import Model
from gatewise.statistics import rank_correlation
from gatewise.tasks import Task

DTYPES = ("float32", "bfloat16", "float16")
SIZES = (100, 500, 2_000)
JUDGED = 500  # edges of the circuit that is evaluated


def circuits_of(model: Model, task: Task, method: str, threshold: float) -> list[Circuit]:
    """One circuit for each size, or the one of ACDC's threshold."""
    if method == "acdc":
        return [gw.discover(model, task, "acdc", threshold=threshold)]
    sizes = [size for size in SIZES if size < model.graph.n_edges]
    return list(gw.discover_all(model, task, method, ["ns"], sizes=sizes)["ns"])


def compared(name: str, method: str, examples: int, threshold: float) -> list[dict[str, Any]]:
    """A row for each dtype, those of half precision beside float32."""
    rows, reference = [], list[Circuit]()
    for dtype in DTYPES:
        begun = time.process_time()
        model = gw.load_model(name, dtype=dtype)
        task = gw.task("ioi", model, examples=examples)
        circuits = circuits_of(model, task, method, threshold)
        judged = next((circuit for circuit in circuits if len(circuit) == JUDGED), circuits[-1])
        evaluation = gw.evaluate(model, task, judged, random_circuits=0)
        row: dict[str, Any] = {"model": name, "method": method, "dtype": dtype}
        row["faithful"] = f"{faithful(evaluation).level}: {faithful(evaluation).answer}"
        reference = reference or circuits
        for circuit, other in zip(circuits, reference, strict=True):
            shared, either = len(circuit & other), len(circuit | other)
            row[f"overlap {len(other)}"] = shared / either if method == "acdc" else shared / len(other)
        if circuits[-1].scores is not None and reference[-1].scores is not None:
            scores = (circuits[-1].scores.double().abs(), reference[-1].scores.double().abs())
            row["rank correlation"] = rank_correlation(*scores)
        row["seconds"] = round(time.process_time() - begun, 1)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["tiny"])
    parser.add_argument("--methods", nargs="+", default=["eap"])
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--threshold", type=float, default=0.02, help="tau of ACDC")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for name in options.models:
        for method in options.methods:
            rows += compared(name, method, options.examples, options.threshold)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
