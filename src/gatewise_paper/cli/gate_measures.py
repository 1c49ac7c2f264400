"""`gatewise misalignment` and `gatewise ablate-gates`: measures of what `gatewise gates` found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console

from gatewise.cli.options import (
    DEFAULT_MODEL,
    ExamplesOption,
    FoldingTable,
    JsonOption,
    Machine,
    ModelOption,
    SeedOption,
    TaskOption,
    load_task,
    options_apart,
)

if TYPE_CHECKING:
    from gatewise_paper.measures.gate_ablation import Ablations
    from gatewise_paper.measures.misalignment import Misalignment

GatesArgument = Annotated[Path, typer.Argument(help="File that `gatewise gates --out` wrote.")]


@options_apart
def misalignment_command(
    machine: Machine,
    gates: GatesArgument,
    model: ModelOption = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    examples: ExamplesOption = 64,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
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

    found = Gates.load(gates)
    loaded, made = load_task(model, task, machine, examples=examples, seed=seed)
    scores = [
        misalignment(
            loaded, made.train, found, context=context, sampling=Sampling(seed=seed), compute=machine.compute()
        )
        for context in CONTEXTS
    ]
    if as_json:
        print(json.dumps({score.context: score.to_json() for score in scores}, indent=2))
    else:
        Console().print(_misalignment_table(scores))


@options_apart
def ablate_gates_command(
    machine: Machine,
    gates: GatesArgument,
    model: ModelOption = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    repeats: Annotated[int, typer.Option(help="Pairs of edges drawn from each gate.")] = 30,
    examples: ExamplesOption = 64,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
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

    found = Gates.load(gates)
    loaded, made = load_task(model, task, machine, examples=examples, seed=seed)
    ablations = ablate_gates(loaded, made.train, found, repeats=repeats, seed=seed, compute=machine.compute())
    if as_json:
        print(json.dumps(ablations.to_json(), indent=2))
    else:
        Console().print(_ablation_table(ablations))


def _misalignment_table(found: list[Misalignment]) -> FoldingTable:
    """Mean and deviation over samples; `alone` runs each type by itself, `sound` within the sound circuit."""
    table = FoldingTable("misalignment", "type", "score", "edges", "connected", "", box=box.SIMPLE_HEAD)
    for one in found:
        for kind, score in one.scores.items():
            shown = f"{score.mean:.4f} ± {score.std:.4f}" if score.reason is None else "-"
            table.add_row(one.context, kind, shown, str(score.edges), str(score.connected), score.reason or "")
    return table


def _ablation_table(found: Ablations) -> FoldingTable:
    """Median and quartiles of the change of KL over gates and draws."""
    table = FoldingTable("change of KL", "gates", "one edge removed", "two edges removed", box=box.SIMPLE_HEAD)
    for kind, one in found.by_type.items():
        boxes = [f"{q[2]:+.2g} ({q[1]:+.2g} to {q[3]:+.2g})" if one.gates else "-" for q in map(one.quartiles, (1, 2))]
        table.add_row(kind, str(len(one.gates)), *boxes)
    return table
