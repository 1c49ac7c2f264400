"""`gatewise evaluate` and `gatewise demo`: how good circuits are, as a table or as JSON."""

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
    MemoryOption,
    ModelArgument,
    SeedOption,
    TaskOption,
    load,
)


def evaluate_command(
    circuits: Annotated[list[Path], typer.Argument(help="Circuit files: gatewise, EAP-IG, MIB or Edge-Pruning.")],
    model: Annotated[str, typer.Option("--model", "-m", help="The model they belong to.")] = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    examples: ExamplesOption = 64,
    seed: SeedOption = 0,
    random: Annotated[int, typer.Option(help="Random circuits of each size to compare with.")] = 3,
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate circuit files on held-out pairs: faithful, complete, sparse, accurate?"""
    from gatewise.circuit import Circuit
    from gatewise.evaluation import evaluate
    from gatewise.evaluation.table import as_table
    from gatewise.tasks import task as make_task

    loaded = load(model)
    found = [Circuit.load(path, loaded.graph) for path in circuits]
    pairs = make_task(task, loaded, examples=examples, seed=seed).test
    names = [path.stem for path in circuits]
    result = evaluate(loaded, pairs, found, random_circuits=random, seed=seed, names=names, memory=memory)
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        Console().print(as_table(result))


def demo_command(
    model: ModelArgument = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    examples: ExamplesOption = 32,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Load a model, make a task, and evaluate the full graph, the empty circuit and random circuits."""
    from gatewise.evaluation import evaluate
    from gatewise.evaluation.table import as_table
    from gatewise.tasks import task as make_task
    from gatewise.tasks.preview import preview

    loaded = load(model)
    made = make_task(task, loaded, examples=examples, seed=seed)
    graph, pairs = loaded.graph, made.train
    shares = (0.01, 0.1, 0.5, 0.9, 0.99)
    circuits = [graph.random_circuit(round(graph.n_edges * share), seed=seed) for share in shares]
    names = [f"random {share:.0%}" for share in shares]
    result = evaluate(loaded, pairs, circuits, random_circuits=0, names=names)
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
        return
    console = Console()
    example = preview(loaded, pairs[:1])[0]
    console.print(f"{loaded!r}\n{pairs!r}", markup=False, highlight=False)
    console.print(
        f"clean:     {example.clean!r} -> P(right) {example.right_on_clean:.2f}, "
        f"P(wrong) {example.wrong_on_clean:.2f}\n"
        f"corrupted: {example.corrupted!r} -> P(right) {example.right_on_corrupted:.2f}, "
        f"P(wrong) {example.wrong_on_corrupted:.2f}\n",
        markup=False,
        highlight=False,
    )
    console.print(as_table(result))
