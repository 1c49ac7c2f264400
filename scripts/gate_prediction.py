"""What docs/findings.md says about prediction: the logit difference of unseen subsets of ports, by sums, pairs and
gates.

    python scripts/gate_prediction.py --task ioi --out docs/results/gates
    python scripts/gate_prediction.py --out docs/results/gates --table

Writes MODEL-TASK.json and .svg into the folder; `--table` prints the tables of all files in it.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch
import transformers

import gatewise as gw
from gatewise.gates import predict

SHOWN = ("sum, Ns", "sum, Dn", "sum, mean", "sum, fitted", "pairs, mean", "sum, composed", "gates, composed")


def table(folder: Path) -> str:
    """R2 as it is and after a line, of all models and tasks in the folder."""
    lines = [
        f"| cell | mean, deviation | {' | '.join(SHOWN)} | search pairs |",
        "|" + " --- |" * (len(SHOWN) + 3),
    ]
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        by_name = {one["name"]: one for one in found["predictors"]}
        r2 = [f"{by_name[name]['r2']['value']:.2f}, {by_name[name]['calibrated_r2']['value']:.2f}" for name in SHOWN]
        r2 = [f"{cell} ({by_name[name]['parameters']})" for name, cell in zip(SHOWN, r2, strict=True)]
        measured, again = found["measured"], found["again"]["value"]
        cells = [f"{found['model']}, {found['task']}", f"{measured['mean']:.2f}, {measured['deviation']:.2f}"]
        lines.append(f"| {' | '.join([*cells, *r2, f'{again:.2f}'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--task", default="ioi")
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--test-examples", type=int, default=64)
    parser.add_argument("--receivers", type=int, default=12)
    parser.add_argument("--subsets", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="print what is in the folder")
    options = parser.parse_args()
    if options.table:
        print(table(options.out))
        return
    model = gw.load_model(options.model)
    sizes = {"examples": options.examples, "test_examples": options.test_examples}
    task = gw.task(options.task, model, **sizes, seed=options.seed)
    started = time.process_time()
    found = predict(
        model, task.train, test=task.test, receivers=options.receivers, subsets=options.subsets, seed=options.seed
    )
    about = {
        "model": options.model,
        "task": options.task,
        "seed": options.seed,
        "cpu_seconds": round(time.process_time() - started),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "gatewise": gw.__version__,
        },
    }
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"{options.model}-{options.task}"
    (options.out / f"{name}.json").write_text(json.dumps(about | found.to_json(), indent=1) + "\n")
    found.draw(options.out / f"{name}.svg")
    print(found)
    print(found.program)


if __name__ == "__main__":
    main()
