"""`gatewise evaluate`: how good circuits are, as a table or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gatewise.cli.options import (
    DEFAULT_MODEL,
    ExamplesOption,
    JsonOption,
    Machine,
    ModelOption,
    SeedOption,
    TaskOption,
    load_task,
    options_apart,
)


@options_apart
def evaluate_command(
    machine: Machine,
    circuits: Annotated[list[Path], typer.Argument(help="Circuit files: gatewise, EAP-IG, MIB or Edge-Pruning.")],
    model: ModelOption = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    examples: ExamplesOption = 64,
    seed: SeedOption = 0,
    random: Annotated[int, typer.Option(help="Random circuits of each size to compare with.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Evaluate circuit files on held-out pairs: faithful, complete, sparse, accurate?

    Examples:

        gatewise evaluate found/eap-ns-100.json --model tiny --task ioi
        gatewise evaluate found/*.json importances.json --model gpt2 --json
    """
    from gatewise.circuits.circuit import Circuit
    from gatewise.evaluation import evaluate
    from gatewise.evaluation.table import as_table

    loaded, made = load_task(model, task, machine, examples=examples, seed=seed)
    found = [Circuit.load(path, loaded.graph) for path in circuits]
    names = [path.stem for path in circuits]
    result = evaluate(loaded, made.test, found, random_circuits=random, seed=seed, names=names, memory=machine.memory)
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        Console().print(as_table(result))
