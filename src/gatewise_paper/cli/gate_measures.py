"""`gatewise misalignment` and `gatewise ablate-gates`: measures of what `gatewise gates` found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console

from gatewise.cli import options

GatesArgument = Annotated[Path, typer.Argument(help="File that `gatewise gates --out` wrote.")]


@options.options_apart
def misalignment_command(
    machine: options.Machine,
    gates: GatesArgument,
    model: options.ModelOption = options.DEFAULT_MODEL,
    task: options.TaskOption = "ioi",
    examples: options.ExamplesOption = 64,
    seed: options.SeedOption = 0,
    as_json: options.JsonOption = False,
) -> None:
    """Measure the paper's misalignment scores of AND and OR edges, in both contexts.

    Example:

    ```
    gatewise gates tiny --task sa --edges 50 -n 8 --out gates.safetensors
    gatewise misalignment gates.safetensors --model tiny --task sa -n 8
    ```
    """
    from gatewise.gates.labels import Gates
    from gatewise_paper.measures.misalignment import CONTEXTS, Sampling, misalignment

    labelled, sampling = Gates.load(gates), Sampling(seed=seed)
    loaded, pairs = options.load_task(model, task, machine, examples=examples, seed=seed)
    table = options.FoldingTable("misalignment", "type", "score", "edges", "connected", "", box=box.SIMPLE_HEAD)
    plain: dict[str, dict[str, object]] = {}
    for context in CONTEXTS:
        scores = misalignment(
            loaded, pairs.train, labelled, context=context, sampling=sampling, compute=machine.compute()
        )
        plain[context] = {kind: score.to_json() for kind, score in scores.items()}
        for kind, score in scores.items():
            shown = f"{score.mean:.4f} ± {score.std:.4f}" if score.reason is None else "-"
            table.add_row(context, kind, shown, str(score.edges), str(score.connected), score.reason or "")
    if as_json:
        print(json.dumps(plain, indent=2))
    else:
        Console().print(table)


@options.options_apart
def ablate_gates_command(
    machine: options.Machine,
    gates: GatesArgument,
    model: options.ModelOption = options.DEFAULT_MODEL,
    task: options.TaskOption = "ioi",
    repeats: Annotated[int, typer.Option(help="Pairs of edges drawn from each gate.")] = 30,
    examples: options.ExamplesOption = 64,
    seed: options.SeedOption = 0,
    as_json: options.JsonOption = False,
) -> None:
    """Measure how KL changes when one and two edges of each gate are removed from the model.

    Example:

    ```
    gatewise gates tiny --task sa --edges 50 -n 8 --out gates.safetensors
    gatewise ablate-gates gates.safetensors --model tiny --task sa --repeats 5
    ```
    """
    from gatewise.gates.labels import Gates
    from gatewise_paper.measures.gate_ablation import ablate_gates

    loaded, pairs = options.load_task(model, task, machine, examples=examples, seed=seed)
    ablations = ablate_gates(
        loaded, pairs.train, Gates.load(gates), repeats=repeats, seed=seed, compute=machine.compute()
    )
    if as_json:
        plain = {kind: ablation.to_json() for kind, ablation in ablations.items()}
        print(json.dumps({**plain, "repeats": repeats, "seed": seed}, indent=2))
        return
    table = options.FoldingTable("change of KL", "gates", "one edge removed", "two edges removed", box=box.SIMPLE_HEAD)
    for kind, ablation in ablations.items():
        boxes = ["-", "-"]
        if ablation.gates:
            boxes = [f"{median:+.2g} ({low:+.2g} to {high:+.2g})" for _, low, median, high, _ in ablation.quartiles]
        table.add_row(kind, str(len(ablation.gates)), *boxes)
    Console().print(table)
