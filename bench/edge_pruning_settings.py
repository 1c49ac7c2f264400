"""Edge Pruning's settings: the published ones against ours, at equal numbers of edges, on held-out pairs.

    python bench/edge_pruning_settings.py --model tiny --task gt --edges 18 36 90 --seeds 3

prints KL(G || C) on the training pairs and on held-out pairs, the steps taken and the CPU time, for each setting,
in seconds and in F (transformers' own forward of all training pairs), and EAP's circuit of the same size beside them.
Use one thread (OMP_NUM_THREADS=1) for times. `published` is the setting of Bhaskar et al. (2024) with our exact number
of edges at the end; `one change` rows put one of our changes back, to show what it is worth; `warm` trains the sizes
one from the other, `rank all` takes all sizes from the training of the smallest.

`--steps` prints instead what the gradient of a step costs, in F, on random masks with so many edges open (`--edges`):
one mask for all pairs, and a mask for each of all pairs and of half of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.engine.setting import Setting
from gatewise.methods import EdgePruning, discover_all
from gatewise.methods.objective import Objective

PUBLISHED: dict[str, Any] = {
    "steps": 3000,
    "ramp": 2500 / 3000,
    "schedule": "linear",  # and with it beta2 0.999, weight decay 0.01, and the rate 0.8 of the lambdas
    "rate": 0.8,
    "warm_up": 200 / 3000,
    "cool_down": 2800 / 3000,
    "start": 10.0,
    "patience": 0,
    "draw": "one",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "ours": {},
    "published": PUBLISHED,
    "published, our steps": {**PUBLISHED, "steps": EdgePruning.steps},
    "ours, 150 steps": {"steps": 150},
    "ours, 600 steps": {"steps": 600},
    "ours, 1,000 steps": {"steps": 1000},
    "one mask for all": {"draw": "one"},
    "one mask for all, 1,000 steps": {"draw": "one", "steps": 1000},
    "one change: linear schedule and gap, its optimiser": {"schedule": "linear"},
    "one change: rates fall from the warm-up on": {"cool_down": 0.95},
    "one change: rate 0.8": {"rate": 0.8},
    "one change: start 10": {"start": 10.0},
}
TOGETHER: dict[str, dict[str, Any]] = {"ours, warm": {}, "ours, rank all": {"rank_all": True}}


# What the project wants of 500 edges of SmolLM2-135M on 8 IOI pairs: the most F of a training, by setting, and the most
# KL on held-out pairs, that of 300 steps with one mask for all.
WANTED: dict[str, tuple[float, float | None]] = {"ours": (400, 0.338), "ours, 1,000 steps": (1200, None)}


def find(
    args: argparse.Namespace, model: gw.Model, pairs: gw.Pairs, name: str, seed: int
) -> tuple[list[Circuit], list[int]]:
    """The circuits of all sizes under one setting, and the steps each took."""
    if name == "eap":
        by_direction = discover_all(model, pairs, "eap", [args.direction], sizes=args.edges)
        return list(by_direction[args.direction]), [0 for _ in args.edges]
    method = EdgePruning(**{**SETTINGS, **TOGETHER}[name])
    groups: list[list[int]] = [args.edges] if name in TOGETHER else [[size] for size in args.edges]
    circuits: list[Circuit] = []
    for sizes in groups:
        circuits += discover_all(model, pairs, method, [args.direction], sizes=sizes, seed=seed)[args.direction]
    return circuits, [sum(circuit.provenance["notes"]["steps"]) for circuit in circuits]


def rows(args: argparse.Namespace) -> list[list[str]]:
    model = gw.load_model(args.model)
    task = gw.task(args.task, model, examples=args.examples)
    found = []
    for name in args.settings:
        seeds = range(1 if name == "eap" else args.seeds)
        plain = plain_seconds(model, task.train)
        started = time.process_time()
        results = [find(args, model, task.train, name, seed) for seed in seeds]
        seconds = (time.process_time() - started) / len(results)
        plain = statistics.mean([plain, plain_seconds(model, task.train)])
        for i, size in enumerate(args.edges):
            circuits = [circuits[i] for circuits, _ in results]
            steps = round(statistics.mean(steps[i] for _, steps in results))
            train, test = (divergences(model, pairs, circuits) for pairs in (task.train, task.test))
            cost = [f"{steps}", f"{seconds:.0f}", f"{seconds / plain:.0f}", wanted(args, name, size)]
            found.append([name, f"{size}", shown(train), shown(test), *cost])
            print("  ".join(found[-1]), flush=True)
    return found


def wanted(args: argparse.Namespace, name: str, size: int) -> str:
    """The limits of a row, if it has any."""
    if (args.model, args.task, args.examples, size) != ("smollm2-135m", "ioi", 8, 500) or name not in WANTED:
        return ""
    most, kl = WANTED[name]
    return f"{most:.0f} F" + ("" if kl is None else f", KL {kl}")


def step_costs(args: argparse.Namespace) -> None:
    """The gradient of a step, for each number of open edges."""
    model = gw.load_model(args.model)
    pairs = gw.task(args.task, model, examples=args.examples).train
    plain = plain_seconds(model, pairs)
    jobs = {"one mask": (len(pairs), False), "a mask for each": (len(pairs), True), "for half": (len(pairs) // 2, True)}
    for size in args.edges:
        chosen = model.graph.random_circuit(size, seed=0).mask
        draw = torch.rand(len(pairs), model.graph.n_edges, generator=torch.Generator().manual_seed(0)) * chosen
        for name, (count, each) in jobs.items():
            objective = Objective(Setting(model, pairs[:count]), (args.direction,), count)
            step = partial(objective, draw[:count] if each else draw[0], 0)
            step()  # prepares both runs
            seconds = min(cpu_seconds(step) for _ in range(2))
            print(f"{size} edges open, {name}: {seconds / plain:.2f} F", flush=True)
    print(f"F: {plain:.3f} s before, {plain_seconds(model, pairs):.3f} s after")


def plain_seconds(model: gw.Model, pairs: gw.Pairs) -> float:
    """Processor time of F, the median of five."""

    @torch.no_grad()
    def call() -> object:
        return model.hf(pairs.clean)

    return statistics.median(cpu_seconds(call) for _ in range(5))


def cpu_seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def divergences(model: gw.Model, pairs: gw.Pairs, circuits: Sequence[Circuit]) -> list[float]:
    return [item.faithfulness.mean for item in gw.evaluate(model, pairs, list(circuits), random_circuits=0)]


def shown(values: Sequence[float]) -> str:
    """Mean over seeds, and the range."""
    return f"{statistics.mean(values):.4f} ({min(values):.4f}..{max(values):.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["eap", *SETTINGS, *TOGETHER]
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--task", default="gt")
    parser.add_argument("--direction", default="ns", choices=["ns", "dn", "ns+dn"])
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--edges", type=int, nargs="+", default=[18, 36, 90])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--settings", nargs="+", default=names, choices=names)
    parser.add_argument("--steps", action="store_true", help="what a step costs, by the number of open edges")
    args = parser.parse_args()
    if args.steps:
        step_costs(args)
        return
    table = Table(
        "setting", "edges", "KL, training pairs", "KL, held-out pairs", "steps", "seconds, all sizes", "F", "wanted"
    )
    for row in rows(args):
        table.add_row(*row)
    console = Console()
    console.print(f"{args.model}, {args.task}, {args.direction}, {args.examples} pairs; ours is")
    console.print(dataclasses.asdict(EdgePruning()))
    console.print(table)


if __name__ == "__main__":
    main()
