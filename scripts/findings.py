"""Gates of SmolLM2-135M: the numbers of docs/findings.md, as JSON lines, one per task, method and size.

    python scripts/findings.py --tasks ioi gt sa --out findings.jsonl

For each: edges by type under the plain split, how far the split's labels agree with truth tables, what the tests saw
instead, and the paper's misalignment scores within the sound circuit. Lines that are in the file are not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import gatewise as gw
from gatewise.logic.alignment import Sampling, misalignment
from gatewise.logic.find import find_gates, label_agreement
from gatewise.logic.truth import labels_by_test, truth_tables
from gatewise.models.model import Model


def finding(model: Model, pairs: gw.Pairs, method: str, target: dict[str, Any]) -> dict[str, Any]:
    """One line."""
    started = time.process_time()
    gates = find_gates(model, pairs, method, joint=method == "eap", **target)
    found = time.process_time()
    tables = truth_tables(model, pairs, gates.sound, measures=("receiver",))
    agreement = label_agreement(gates, labels_by_test(tables))
    tested = time.process_time()
    scores = misalignment(model, pairs, gates, context="sound", sampling=Sampling(samples=5, draws=5))
    return {
        "ns": len(gates.ns),
        "dn": len(gates.dn),
        "by_type": {kind: len(circuit) for kind, circuit in gates.by_type.items()},
        "layer_span": gates.layer_span(),
        "outside": gates.outside(),
        "agreement": agreement.to_json(),
        "confident": sum(table.confident for table in tables) / max(1, len(tables)),
        "tables": len(tables),
        "misalignment": {kind: str(getattr(scores, kind, "")) for kind in ("and_", "or_")} | {"text": repr(scores)},
        "cpu_seconds": {"search": round(found - started, 1), "tables": round(tested - found, 1)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tasks", nargs="+", default=["ioi", "gt", "sa"])
    parser.add_argument("--methods", nargs="+", default=["eap", "acdc"])
    parser.add_argument("--edges", nargs="+", type=int, default=[50, 100, 200])
    parser.add_argument("--threshold", type=float, default=0.02, help="ACDC's tau, in both directions")
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    model = gw.load_model(arguments.model)
    done = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    keys = {tuple(json.loads(line)["key"]) for line in done}
    for method in arguments.methods:
        targets: list[dict[str, Any]] = [{"edges": size} for size in arguments.edges]
        for target in targets if method == "eap" else [{"threshold": arguments.threshold}]:
            for task in arguments.tasks:
                key = (task, method, json.dumps(target))
                if key in keys:
                    continue
                pairs = gw.task(task, model, examples=arguments.examples, seed=arguments.seed).train
                line = {"key": key, "threads": torch.get_num_threads(), **finding(model, pairs, method, target)}
                with arguments.out.open("a") as stream:
                    stream.write(json.dumps(line) + "\n")
                print(json.dumps(line)[:300], flush=True)


if __name__ == "__main__":
    main()
