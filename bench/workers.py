"""One search by several processes: EAP on many IOI pairs of SmolLM2, against one process on one thread and on two.

    python bench/workers.py                      # 2,000 pairs: some eight minutes of a quiet machine
    python bench/workers.py --examples 256

Every way runs once in a fresh process, the model loaded before the clock starts; the start of workers counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

WAYS: dict[str, dict[str, Any]] = {
    "one process, one thread": {"threads": 1},
    "one process, two threads": {"threads": 2},
    "workers=2": {"workers": 2},
}


def measure(way: str, model_name: str, examples: int) -> dict[str, Any]:
    """In this process."""
    import hashlib

    import torch

    from gatewise import Compute, load_model, score_edges, task

    asked = dict(WAYS[way])
    torch.set_num_threads(asked.pop("threads", 1))
    model = load_model(model_name)
    pairs = task("ioi", model, examples=examples, test_examples=1).train
    score_edges(model, pairs[:2])
    begun = time.perf_counter()
    found = score_edges(model, pairs, compute=Compute(**asked))
    seconds = time.perf_counter() - begun
    return {"seconds": seconds, "scores": hashlib.sha256(found.values.numpy().tobytes()).hexdigest()[:16]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--inside", choices=list(WAYS), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        print(json.dumps(measure(asked.inside, asked.model, asked.examples)))
        return
    for way in WAYS:
        command = [sys.executable, __file__, "--model", asked.model, "--examples", str(asked.examples), "--inside", way]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(f"{way:26} {found['seconds']:8.1f} s   scores {found['scores']}", flush=True)


if __name__ == "__main__":
    main()
