"""Forecasts of `gatewise plan` against measured peaks, and EAP's memory and time against the number of examples.

    python bench/plan.py                    # the table of docs/big-models.md
    python bench/plan.py --examples         # EAP on 100, 1,000 and 10,000 examples of IOI

Each search runs in a fresh process. Measured is the peak of its resident memory (VmHWM) once the model is loaded, so it
includes Python, torch and the weights; and the time of its processor, on one thread. Edge Pruning runs two steps, which
is when its memory is full; ACDC runs at a threshold that keeps few edges, to be quick.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gatewise.methods import Method

SIZES: dict[str, dict[str, Any]] = {  # a built-in name, or the shape of a random GPT-2
    "tiny": {"tau": 0.01, "acdc_examples": 64},
    "gpt2": {"shape": (12, 12, 768), "tau": 0.5, "acdc_examples": 16},
    "smollm2-135m": {"tau": 1.0, "acdc_examples": 16},
}
METHODS = ("eap", "acdc", "edge-pruning")


def measure(name: str, method: str, examples: int) -> dict[str, float]:
    """In this process: load, forget the peak, search."""
    import torch
    from measure import forget_peak, peak_resident
    from shapes import lively_gpt2

    from gatewise import discover, load_model, task
    from gatewise.plan.sources import subject

    torch.set_num_threads(1)
    size = SIZES[name]
    if "shape" in size:
        layers, heads, width = size["shape"]
        model = load_model(lively_gpt2(layers, heads, width))
        pairs = subject(name, "ioi", examples, "float32").pairs
        pairs.corrupted[:, -7:] = torch.randint(2, 50_000, (examples, 7))
    else:
        model = load_model(name)
        pairs = task("ioi", model, examples=examples, test_examples=1).train
    forget_peak()
    started = time.process_time()
    discover(model, pairs, bound(method), **asked(name, method))
    return {"peak": peak_resident(), "seconds": time.process_time() - started}


def asked(name: str, method: str) -> dict[str, Any]:
    """What is searched for."""
    return {
        "eap": {"edges": 100},
        "acdc": {"threshold": SIZES[name]["tau"]},
        "edge-pruning": {"edges": 100},
    }[method]


def bound(method: str) -> Method:
    """The method with parameters that keep a measurement short."""
    from gatewise.methods import find_method

    return find_method(method).with_parameters({"steps": 2} if method == "edge-pruning" else {})


def in_fresh_process(*arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"measuring {arguments} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(names: list[str], methods: list[str]) -> None:
    from gatewise.plan import forecast

    print("| model | method | examples | forecast MB | measured MB | off by | forecast s | measured s |", flush=True)
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for name in names:
        for method in methods:
            examples = SIZES[name]["acdc_examples"] if method == "acdc" else 64
            known = {key: value for key, value in asked(name, method).items() if key != "threshold"}
            expected = forecast(name, "ioi", bound(method), examples=examples, **known)
            found = in_fresh_process("--measure", name, method, str(examples))
            off = expected.peak / found["peak"] - 1
            shown = "" if method == "acdc" else f"{expected.seconds:.1f}"
            print(
                f"| {name} | {method} | {examples} | {expected.peak / 1e6:,.0f} | {found['peak'] / 1e6:,.0f} "
                f"| {off:+.0%} | {shown} | {found['seconds']:.1f} |",
                flush=True,
            )


def against_examples(name: str) -> None:
    print("| examples | peak MB | ms per example |\n| ---: | ---: | ---: |", flush=True)
    for examples in (100, 1_000, 10_000):
        found = in_fresh_process("--measure", name, "eap", str(examples))
        print(f"| {examples:,} | {found['peak'] / 1e6:,.1f} | {found['seconds'] / examples * 1e3:.2f} |", flush=True)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", nargs=3, metavar=("MODEL", "METHOD", "EXAMPLES"))
    parser.add_argument("--examples", action="store_true", help="EAP against the number of examples")
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--methods", default=",".join(METHODS))
    options = parser.parse_args()
    if options.measure:
        name, method, examples = options.measure
        print(json.dumps(measure(name, method, int(examples))))
    elif options.examples:
        against_examples(options.models.split(",")[0])
    else:
        compare(options.models.split(","), options.methods.split(","))


if __name__ == "__main__":
    main()
