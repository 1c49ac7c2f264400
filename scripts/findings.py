"""Gates of SmolLM2-135M: the numbers of docs/findings.md, as JSON lines, one per task, method and size.

    python scripts/findings.py --methods eap --out findings.jsonl
    python scripts/findings.py --methods acdc --set tolerance=0.5 --set runs=2 --store found --out findings.jsonl
    python scripts/findings.py --methods acdc --threshold 0.02 --out findings.jsonl
    python scripts/findings.py --table --out findings.jsonl

For each: edges by type under the plain split, how far the split's labels agree with truth tables, what the tests saw
instead, and the paper's misalignment scores within the sound circuit. Lines that are in the file are not made again.
`--table` prints the lines of the file as rows of the table.
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
from gatewise.logic.find import label_agreement
from gatewise.logic.truth import labels_by_test, truth_tables
from gatewise.models.model import Model


def gates_of(model: Model, pairs: gw.Pairs, method: str, target: dict[str, Any], **more: Any) -> list[gw.Gates]:
    """Gates at every size, or at one threshold. One search per direction serves all sizes."""
    names = ("ns", "dn", "ns+dn") if method == "eap" else ("ns", "dn")
    found = [gw.discover(model, pairs, method, name, **target, **more) for name in names]
    by_size = zip(*(one if isinstance(one, list) else [one] for one in found), strict=True)
    return [gw.split_gates(ns, dn, joint=joint[0] if joint else None) for ns, dn, *joint in by_size]


def finding(model: Model, pairs: gw.Pairs, gates: gw.Gates) -> dict[str, Any]:
    """One line."""
    started = time.process_time()
    tables = truth_tables(model, pairs, gates.sound, measures=("receiver",))
    agreement = label_agreement(gates, labels_by_test(tables))
    tested = time.process_time()
    scores = misalignment(model, pairs, gates, context="sound", sampling=Sampling(samples=5, draws=5))
    keys = ("tau", "kept_at_tau", "divergence")
    notes = [circuit.provenance.get("notes", {}) for circuit in (gates.ns, gates.dn)]
    return {
        "ns": len(gates.ns),
        "dn": len(gates.dn),
        "notes": [{key: one[key] for key in keys if key in one} for one in notes],
        "by_type": {kind: len(circuit) for kind, circuit in gates.by_type.items()},
        "layer_span": gates.layer_span(),
        "outside": gates.outside(),
        "agreement": agreement.to_json(),
        "confident": sum(table.confident for table in tables) / max(1, len(tables)),
        "tables": len(tables),
        "misalignment": {kind: [one.mean, one.std] for kind, one in scores.scores.items()},
        "cpu_seconds_tables": round(tested - started, 1),
    }


def row(line: dict[str, Any]) -> str:
    """A row of the table in docs/findings.md."""
    task, method, target = line["key"]
    table = line["agreement"]["table"]
    tested = [
        ", ".join(f"{n} {label}" for label, n in sorted(table[kind].items(), key=lambda x: -x[1])) or "-"
        for kind in ("AND", "OR", "ADDER")
    ]
    scores = ["-" if mean != mean else f"{mean:.4f} ± {std:.4f}" for mean, std in line["misalignment"].values()]
    share = line["agreement"]["share"]
    cells = [
        task,
        f"{method.upper()}, {target}",
        f"{line['ns']}, {line['dn']}",
        ", ".join(f"{one['tau']:.3g} ({one['kept_at_tau']})" for one in line["notes"] if one) or "-",
        ", ".join(str(n) for n in line["by_type"].values()),
        str(line["agreement"]["edges"]),
        "-" if share is None else f"{share:.0%}",
        *tested,
        *scores,
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tasks", nargs="+", default=["ioi", "gt", "sa"])
    parser.add_argument("--methods", nargs="+", default=["eap", "acdc"])
    parser.add_argument("--edges", nargs="+", type=int, default=[50, 100, 200])
    parser.add_argument("--threshold", type=float, help="instead of edges: ACDC's tau, in both directions")
    parser.add_argument("--set", action="append", default=[], help="a parameter of the method: key=value")
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", help="folder that keeps circuits")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="print what is in the file")
    arguments = parser.parse_args()
    lines = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    if arguments.table:
        print("\n".join(row(line) for line in lines))
        return
    keys = {tuple(line["key"]) for line in lines}
    model = gw.load_model(arguments.model)
    parameters = {key: json.loads(value) for key, _, value in (one.partition("=") for one in arguments.set)}
    by_threshold = arguments.threshold is not None
    target = {"threshold": arguments.threshold} if by_threshold else {"edges": arguments.edges}
    names = [f"tau {arguments.threshold}"] if by_threshold else [str(size) for size in arguments.edges]
    for method in arguments.methods:
        for task in arguments.tasks:
            if all((task, method, name) in keys for name in names):
                continue
            pairs = gw.task(task, model, examples=arguments.examples, seed=arguments.seed).train
            found = gates_of(model, pairs, method, target, store=arguments.store, seed=arguments.seed, **parameters)
            for name, gates in zip(names, found, strict=True):
                key = (task, method, name)
                if key not in keys:
                    line = {"key": key, "threads": torch.get_num_threads(), **finding(model, pairs, gates)}
                    with arguments.out.open("a") as stream:
                        stream.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
