"""ACDC from end to end: time, F and memory of whole searches, for each edge of the graph too, beside AutoCircuit.

Every case runs in a process of its own, since a search takes too long to be repeated in rounds; F is timed before it,
after it and every 20 seconds in between, and the median counts. The thresholds are those that keep about the wanted
number of edges; `--find CASE` looks for one again. Cases of more than a minute or so run with `--long` only.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see engine.py

import argparse
import cProfile
import io
import json
import pstats
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measure import CLOCKS, Stopwatch, environment
from rich.console import Console
from rich.table import Table
from shapes import lively_gpt2, random_prompts

import gatewise as gw
from gatewise.engine.setting import Setting
from gatewise.methods.acdc._threshold import next_threshold
from gatewise.methods.acdc.method import Acdc, notes_of
from gatewise.methods.acdc.search import Searcher
from gatewise.methods.base import Problem
from gatewise.models.model import Model
from gatewise.models.transformer import adapt
from gatewise.tasks.pairs import Pairs

_LEAST_SPEEDUP = 1.6  # the project's limit for two threads


@dataclass(frozen=True)
class Case:
    """One search to measure."""

    make: Callable[[], tuple[Model, Pairs]]
    threshold: float
    wanted: int  # edges to keep, about
    exactly: bool = False  # look for that number, with as many taus as it takes
    most_f: float | None = None  # the project's limits for the whole search, in F and in seconds of one thread
    most_seconds: float | None = None
    peer: str | None = None  # the figure of peers.py to compare with
    times_fewer: float | None = None  # the project's limit: how many times fewer seconds per edge than the peer
    long: bool = True


def gpt2_width(layers: int, examples: int = 32) -> tuple[Model, Pairs]:
    """GPT-2 small's width, and pairs of 15 tokens that differ from the first token on."""
    model = adapt(lively_gpt2(layers), name=f"gpt2-width-{layers}")
    clean, corrupted = random_prompts(model.vocabulary_size, examples, tokens=15)
    return model, Pairs.from_tokens(clean, corrupted, correct=[0] * examples, incorrect=[1] * examples)


def smollm2() -> tuple[Model, Pairs]:
    """SmolLM2-135M, and the first 8 IOI prompts of 14 tokens."""
    model = gw.load_model("smollm2-135m")
    pairs = gw.task("ioi", model, examples=64, seed=0).train
    rows = [row for row in range(len(pairs)) if int(pairs.lengths[row]) == 14][:8]
    return model, Pairs.from_tokens(
        [pairs.clean[row, -14:].tolist() for row in rows],
        [pairs.corrupted[row, -14:].tolist() for row in rows],
        [int(pairs.correct[row, 0]) for row in rows],
        [int(pairs.incorrect[row, 0]) for row in rows],
    )


def gemma3() -> tuple[Model, Pairs]:
    """Gemma-3-270M, whose norms couple the heads of a layer, and 8 IOI pairs."""
    model = gw.load_model("gemma3-270m")
    return model, gw.task("ioi", model, examples=8, test_examples=1, seed=0).train


def subject_agreement() -> tuple[Model, Pairs]:
    """SmolLM2-135M, and 8 SA pairs."""
    model = gw.load_model("smollm2-135m")
    return model, gw.task("sa", model, examples=8, test_examples=1, seed=0).train


CASES = {
    "2 layers, 1 %": Case(lambda: gpt2_width(2), 0.15, 6, peer="2 layers, 1 %", times_fewer=100, long=False),
    "2 layers, 5 %": Case(lambda: gpt2_width(2), 0.06, 30, peer="2 layers, 5 %", times_fewer=100, long=False),
    "12 layers, 0.4 %": Case(lambda: gpt2_width(12), 0.01, 140, peer="12 layers", times_fewer=300),
    "smollm2-135m, tau 0.01": Case(smollm2, 0.01, 105, most_f=150),
    "smollm2-135m, SA": Case(subject_agreement, 0.01, 100, exactly=True, most_seconds=300),
    "gemma3-270m, tau 0.01": Case(gemma3, 0.01, 100, most_seconds=100),
    "smollm2-135m, 500 edges": Case(smollm2, 1e-3, 500, most_f=1500),
}


def measure(name: str, threshold: float, clock: str, profile: bool = False) -> dict[str, Any]:
    """Run one case in this process."""
    case = CASES[name]
    model, pairs = case.make()

    @torch.no_grad()
    def plain() -> object:
        return model.hf(pairs.clean)

    profiler = cProfile.Profile(CLOCKS[clock])
    watch = Stopwatch(clock, plain)
    if profile:
        profiler.enable()
    problem = Problem(Setting(model, pairs), ("ns",), {"ns": (case.wanted,)} if case.exactly else {})
    if case.exactly:
        (finding,) = Acdc().search(problem)["ns"]
        kept, notes = finding.mask, finding.notes
    else:
        outcome = Searcher(problem).search(threshold, watch.pause)
        kept, notes = outcome.mask, notes_of(outcome, 1)
    profiler.disable()
    seconds, plain_seconds, extra_mb = watch.stop()
    if profile:
        text = io.StringIO()
        pstats.Stats(profiler, stream=text).sort_stats("cumulative").print_stats(60).sort_stats("tottime").print_stats(
            30
        )
        print(text.getvalue(), file=sys.stderr)
    edges = model.graph.n_edges
    return {
        "case": name,
        "model": model.name,
        "pairs": len(pairs),
        "tokens": pairs.width,
        "edges": edges,
        "threshold": notes["tau"],
        "kept": int(kept.sum()),
        "thresholds_tried": notes["thresholds_tried"],
        "trials": notes["trials"],
        "canonical": notes["canonical_evaluations"],
        "divergence": notes["divergence"][0],
        "seconds": seconds,
        "plain_seconds": plain_seconds,
        "f": seconds / plain_seconds,
        "milliseconds_per_edge": 1000 * seconds / edges,
        "f_per_edge": seconds / plain_seconds / edges,
        "extra_mb": extra_mb,
        "most_f": case.most_f,
        "most_seconds": case.most_seconds,
    }


def find(name: str) -> None:
    """Look for the threshold that keeps about the wanted number of edges."""
    case = CASES[name]
    model, pairs = case.make()
    searcher = Searcher(Problem(Setting(model, pairs), ("ns",), threshold=case.threshold))
    counts: dict[float, int] = {}
    threshold = case.threshold
    for _ in range(8):
        counts[threshold] = searcher.search(threshold).edges
        print(f"tau {threshold:.3g} keeps {counts[threshold]} of {model.graph.n_edges} edges", flush=True)
        if abs(counts[threshold] - case.wanted) <= 0.15 * case.wanted:
            break
        threshold = float(f"{next_threshold(counts, case.wanted):.2g}")


def compared(found: dict[str, Any], peers: dict[str, Any]) -> dict[str, Any]:
    """Put the peer's figure beside ours: the ratio of F per edge, since F is what both processes share."""
    case = CASES[found["case"]]
    figure = peers.get("figures", {}).get(case.peer)
    if figure is None:
        return found
    if figure["pairs"] != found["pairs"]:
        sys.exit(f"{case.peer}: the peer was measured on {figure['pairs']} pairs, we on {found['pairs']}.")
    return {
        **found,
        "peer_seconds_per_edge": figure["seconds_per_edge"],
        "peer_f_per_edge": figure["f_per_edge"],
        "peer_extrapolated": figure["extrapolated"],
        "times_fewer_seconds": 1000 * figure["seconds_per_edge"] / found["milliseconds_per_edge"],
        "times_fewer_f": figure["f_per_edge"] / found["f_per_edge"],
        "least_times_fewer": case.times_fewer,
    }


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="ACDC, ns, whole searches", title_justify="left")
    table.add_column("case")
    columns = ("edges", "tau", "kept", "trials", "seconds", "limit", "F", "limit", "ms/edge", "F/edge", "extra MB")
    peers = any("times_fewer_f" in row for row in rows)
    for column in (*columns, *(("AutoCircuit F/edge", "times fewer", "limit") if peers else ())):
        table.add_column(column, justify="right")
    for row in rows:
        cells = [
            f"{row['edges']:,}",
            f"{row['threshold']:g}",
            f"{row['kept']:,}",
            f"{row['trials']:,}",
            f"{row['seconds']:.1f}",
            "" if row["most_seconds"] is None else f"{row['most_seconds']:,.0f}",
            f"{row['f']:,.1f}",
            "" if row["most_f"] is None else f"{row['most_f']:,.0f}",
            f"{row['milliseconds_per_edge']:.2f}",
            f"{row['f_per_edge']:.5f}",
            f"{row['extra_mb']:,.0f}",
        ]
        missed = row["most_f"] is not None and row["f"] > row["most_f"]
        missed = missed or (row["most_seconds"] is not None and row["seconds"] > row["most_seconds"])
        if "times_fewer_f" in row:
            mark = "~" if row["peer_extrapolated"] else ""
            cells += [f"{mark}{row['peer_f_per_edge']:.2f}", f"{mark}{row['times_fewer_f']:,.0f}"]
            cells += [f"{row['least_times_fewer']:,.0f}"]
            missed = missed or row["times_fewer_f"] < row["least_times_fewer"]
        elif peers:
            cells += ["", "", ""]
        table.add_row(row["case"], *cells, style="bold red" if missed else "")
    return table


def main() -> None:
    options = _parse()
    torch.set_num_threads(options.threads)
    if options.find:
        return find(options.find)
    if options.inside:
        threshold = options.threshold or CASES[options.inside].threshold
        return print(json.dumps(measure(options.inside, threshold, options.clock, options.profile)))
    if options.speedup:
        return speedup(options.speedup)
    peers = json.loads(options.peers.read_text()) if options.peers else {}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.only or [name for name, case in CASES.items() if options.long or not case.long]:
        print(f"measuring {name} ...", file=sys.stderr)
        rows.append(compared(_in_fresh_process(name, options), peers))
    result = json.dumps({"environment": environment(options.clock), "peers": peers, "cases": rows}, indent=2)
    if options.json:
        print(result)
    else:
        console = Console(width=150)
        console.print(", ".join(f"{key} {value}" for key, value in environment(options.clock).items()), highlight=False)
        console.print(as_table(rows))
        console.print("Extra MB: peak of the case's own process during the search. ~: extrapolated from a sample.")
    if options.out:
        options.out.write_text(result + "\n")
    return None


def speedup(name: str) -> None:
    """Wall time of a case with one thread and with two."""
    one, two = (_in_fresh_process(name, _parse(["--threads", str(n), "--clock", "wall"])) for n in (1, 2))
    ratio = one["seconds"] / two["seconds"]
    missed = "missed" if ratio < _LEAST_SPEEDUP else "met"
    print(f"{name}: {one['seconds']:.0f} s on one thread, {two['seconds']:.0f} s on two: {ratio:.2f} times")
    print(f"limit {_LEAST_SPEEDUP} times: {missed}. F: {one['plain_seconds']:.3f} and {two['plain_seconds']:.3f} s")


def _in_fresh_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    arguments = ["--threads", str(options.threads), "--clock", options.clock, "--inside", name]
    arguments += ["--profile"] if options.profile else []
    arguments += ["--threshold", str(options.threshold)] if options.threshold else []
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} failed")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ACDC from end to end, in units of a plain forward pass.")
    parser.add_argument("--only", action="append", choices=list(CASES), help="a case; may be repeated [the short ones]")
    parser.add_argument("--long", action="store_true", help="all cases: some half an hour")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads [2]")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu: for a busy machine [wall]")
    parser.add_argument("--peers", type=Path, help="what peers.py wrote, to compare with")
    parser.add_argument("--threshold", type=float, help="another tau than the case's")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--find", choices=list(CASES), help="look for the tau of a case instead")
    parser.add_argument(
        "--speedup", choices=list(CASES), help="how many times faster two threads are, alone on a machine"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    parser.add_argument("--inside", choices=list(CASES), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
