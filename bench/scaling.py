"""How the cost of EAP and ACDC grows with edges, examples, tokens and layers. Writes docs/img/scaling.svg.

    python bench/scaling.py --threads 1 --clock cpu --out bench/results/scaling.json

Random GPT-2s of a small width, one thing changed at a time. ACDC's tau is looked for anew at each point, so that
about 1 % of the edges stay. A plot can be drawn again from a result: `--draw FILE`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see engine.py

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from measure import CLOCKS, environment
from shapes import lively_gpt2, random_prompts

from gatewise.engine.setting import Setting
from gatewise.methods import score_edges
from gatewise.methods.acdc._threshold import next_threshold
from gatewise.methods.acdc.search import Searcher
from gatewise.methods.base import Problem
from gatewise.models.transformer import adapt
from gatewise.tasks.pairs import Pairs

HEAD, VOCABULARY = 32, 2000  # width of a head, words
SHARE, NEAR, TRIES = 0.01, 1.35, 7  # of the edges ACDC keeps; within this factor is near enough; searches for it
FIGURE = Path(__file__).parent.parent / "docs" / "img" / "scaling.svg"


@dataclass(frozen=True)
class Point:
    """Where the cost is measured."""

    layers: int = 6
    heads: int = 8
    examples: int = 8
    tokens: int = 12


SERIES: dict[str, list[Point]] = {
    "edges": [Point(heads=heads) for heads in (2, 4, 8, 16)],  # same layers, more heads (and a wider model)
    "examples": [Point(examples=examples) for examples in (2, 4, 8, 16, 32)],
    "tokens": [Point(tokens=tokens) for tokens in (6, 12, 24, 48)],
    "layers": [Point(layers=layers) for layers in (2, 4, 6, 9, 12)],
}


def measure(point: Point, now: Callable[[], float]) -> dict[str, Any]:
    """F, EAP and ACDC at one point, in seconds."""
    hf = lively_gpt2(point.layers, point.heads, point.heads * HEAD, VOCABULARY)
    model = adapt(hf, name="scaling")
    clean, corrupted = random_prompts(VOCABULARY, point.examples, point.tokens)
    pairs = Pairs.from_tokens(clean, corrupted, correct=[0] * point.examples, incorrect=[1] * point.examples)

    @torch.no_grad()
    def plain() -> object:
        return model.hf(pairs.clean)

    searcher = Searcher(Problem(Setting(model, pairs), ("ns",), threshold=0.0))
    counts: dict[float, int] = {}
    found: dict[float, tuple[float, int]] = {}
    threshold, wanted = 0.03, SHARE * model.graph.n_edges
    for _ in range(TRIES):
        started = now()
        outcome = searcher.search(threshold)
        found[threshold] = (now() - started, outcome.trials)
        counts[threshold] = outcome.edges
        if wanted / NEAR <= counts[threshold] <= wanted * NEAR:
            break
        threshold = next_threshold(counts, wanted)
    nearest = min(counts, key=lambda tau: abs(math.log(max(counts[tau], 0.5) / wanted)))
    seconds, trials = found[nearest]
    return {
        **asdict(point),
        "edges": model.graph.n_edges,
        "plain_seconds": fastest(plain, now),
        "eap_seconds": fastest(lambda: score_edges(model, pairs, "eap", "ns"), now),
        "acdc_seconds": seconds,
        "threshold": nearest,
        "kept": counts[nearest],
        "trials": trials,
    }


def fastest(call: Callable[[], object], now: Callable[[], float], repeats: int = 3) -> float:
    """Seconds of the fastest of some calls, after one that does not count."""
    call()
    found = []
    for _ in range(repeats):
        started = now()
        call()
        found.append(now() - started)
    return min(found)


def exponent(rows: list[dict[str, Any]], axis: str, key: str) -> float:
    """Slope of log cost against log size, by least squares."""
    x = torch.tensor([math.log(row[axis]) for row in rows])
    y = torch.tensor([math.log(row[key]) for row in rows])
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


def draw(result: dict[str, Any], path: Path) -> None:
    """The four series, logarithmic both ways."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("drawing needs matplotlib: pip install -c constraints.txt 'gatewise[figures]'")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "gatewise"  # the same file for the same numbers
    import matplotlib.pyplot as plt

    lines = {"acdc_seconds": ("ACDC, about 1 % kept", "o"), "eap_seconds": ("EAP", "s"), "plain_seconds": ("F", "^")}
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.6), sharey=True, layout="constrained")
    for plot, (axis, rows) in zip(axes, result["series"].items(), strict=True):
        for key, (label, marker) in lines.items():
            slope = exponent(rows, axis, key)
            plot.plot(
                [row[axis] for row in rows],
                [row[key] for row in rows],
                marker=marker,
                label=f"{label}: exponent {slope:.1f}",
            )
        plot.set(xscale="log", yscale="log", xlabel=axis)
        ticks = [row[axis] for row in rows]
        plot.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        plot.minorticks_off()
        plot.grid(alpha=0.3)
        plot.legend(fontsize=8)
    clock, threads = result["environment"]["clock"], result["environment"]["threads"]
    axes[0].set_ylim(top=40 * axes[0].get_ylim()[1])  # room for the legends
    axes[0].set_ylabel(f"seconds ({clock}, threads: {threads})")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    options = _parse()
    torch.set_num_threads(options.threads)
    if options.draw:
        return draw(json.loads(options.draw.read_text()), options.figure)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    known: dict[Point, dict[str, Any]] = {}
    series: dict[str, list[dict[str, Any]]] = {}
    for axis, points in SERIES.items():
        series[axis] = []
        for point in points:
            if point not in known:
                known[point] = measure(point, CLOCKS[options.clock])
            row = known[point]
            series[axis].append(row)
            print(
                f"{axis:8} {row[axis]:6,}  edges {row['edges']:6,}  kept {row['kept']:4}  trials {row['trials']:6,}  "
                f"F {row['plain_seconds']:.4f} s  EAP {row['eap_seconds']:.4f} s  ACDC {row['acdc_seconds']:.2f} s",
                flush=True,
            )
        slopes = {key: exponent(series[axis], axis, f"{key}_seconds") for key in ("plain", "eap", "acdc")}
        print(f"{axis:8} exponents: " + ", ".join(f"{key} {slope:.2f}" for key, slope in slopes.items()))
    result = {"environment": environment(options.clock), "series": series}
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    return draw(result, options.figure)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Cost of EAP and ACDC against edges, examples, tokens and layers.")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads [2]")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu: for a busy machine [wall]")
    parser.add_argument("--out", type=Path, help="write the numbers to this file")
    parser.add_argument("--figure", type=Path, default=FIGURE, help="where to draw [docs/img/scaling.svg]")
    parser.add_argument("--draw", type=Path, help="only draw what --out wrote before")
    return parser.parse_args()


if __name__ == "__main__":
    main()
