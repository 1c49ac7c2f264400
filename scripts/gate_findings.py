"""What docs/findings.md says about gates: the split's labels against exact gate indices, and which gates there are.

    python scripts/gate_findings.py --task ioi --out gates.json

The split is EAP's, of `--edges` edges by noising and as many by denoising. Its own index of an edge is that of its two
scores; the exact one, at the receiver on held-out pairs, has all other edges as partner.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import gatewise as gw
from gatewise.engine.receivers import Batches
from gatewise.logic.dividends import gate_index
from gatewise.logic.telescoping import edge_indices, local_and_downstream
from gatewise.statistics import rank_correlation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--task", default="ioi")
    parser.add_argument("--edges", type=int, default=300)
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--test-examples", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=20, help="receivers that are tested for each grouping")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    model = gw.load_model(options.model)
    task = gw.task(
        options.task, model, examples=options.examples, test_examples=options.test_examples, seed=options.seed
    )
    gates = gw.find_gates(model, task.train, "eap", edges=options.edges, joint=False)
    found: dict[str, Any] = {key: str(value) for key, value in vars(options).items() if key != "out"}
    found["split"] = split_against_indices(model, task, gates)
    started = time.process_time()
    tested = gw.find_interactions(model, task.train, test=task.test, of=gates.sound, most=options.most)
    found["cpu_seconds"] = time.process_time() - started
    found["interactions"] = tested.to_json()
    options.out.write_text(json.dumps(found, indent=2))
    print(json.dumps(found["split"], indent=2))
    print(tested)


def split_against_indices(model: gw.Model, task: gw.Task, gates: gw.Gates) -> dict[str, Any]:
    """Rank correlation of the split's index with the exact one, mean index and median local share by label."""
    graph = model.graph
    arising, scores = (graph.vector(values) for values in local_and_downstream(Batches(gw.Setting(model, task.train))))
    exact = edge_indices(model, task.test, gates.sound)
    edges = list(exact.edges)
    own, gamma = gate_index(scores[0], scores[1])[edges], exact.gamma(0.0)
    large = torch.maximum(exact.ns.abs(), exact.dn.abs()) > 0.005
    local = (arising[0].abs() / (arising[0].abs() + arising[1].abs()).clamp(min=1e-300))[edges]
    by_label = {}
    for kind, circuit in gates.by_type.items():
        mine = circuit.mask[edges]
        by_label[kind] = {
            "edges": int(mine.sum()),
            "mean_gamma": float(gamma[mine & ~gamma.isnan()].mean()),
            "median_local_share": float(local[mine].median()),
        }
    return {
        "rank_correlation": rank_correlation(own, gamma),
        "rank_correlation_above_floor": rank_correlation(own[large], gamma[large]),
        "edges_above_floor": int(large.sum()),
        "by_label": by_label,
    }


if __name__ == "__main__":
    main()
