"""`gatewise evaluate`: how good circuits are, as a table or as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.text import Text

from gatewise.cli.circuit_files import load_recorded, read_circuits
from gatewise.cli.options import (
    FoldingTable,
    JsonOption,
    Machine,
    SkipBadOption,
    TestOption,
    Workers,
    options_apart,
    print_json,
    print_remark,
)

if TYPE_CHECKING:
    from gatewise.evaluation import Evaluation, Evaluations
    from gatewise.tasks import Pairs


@options_apart
def evaluate_command(
    machine: Machine,
    workers: Workers,
    circuits: Annotated[list[Path], typer.Argument(help="Circuit files: gatewise, EAP-IG, MIB or Edge-Pruning.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="The model [what the files say].")] = None,
    task: Annotated[str | None, typer.Option("--task", "-t", help="The task [what the files say].")] = None,
    examples: Annotated[int | None, typer.Option("--examples", "-n", help="Held-out pairs [64].")] = None,
    test: TestOption = None,
    skip_bad: SkipBadOption = False,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the pairs and random circuits [the files'].")] = None,
    random: Annotated[int, typer.Option(help="Random circuits of each size to compare with.")] = 3,
    explain: Annotated[bool, typer.Option("--explain", help="Also verdicts in words, and what columns mean.")] = False,
    per_example: Annotated[bool, typer.Option("--per-example", help="Also every held-out pair by itself.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate circuit files on held-out pairs: faithful, complete, sparse, accurate?

    Task, model and seed are those that the files were found with, unless others are given.
    Files of several sizes also give MIB's areas over the share of edges: CPR (how much of the logit difference circuits
    keep, high is good) and CMD (how far from the model they are, low is good).

    Examples:

    ```
    gatewise evaluate found/eap-ns-100.json found/eap-ns-50.json
    gatewise evaluate found/eap-ns-100.json -n 8 --per-example
    gatewise evaluate found/eap-ns-100.json --task sa -n 8 --explain
    ```
    """
    from gatewise.circuits.circuit import Circuit
    from gatewise.evaluation import evaluate
    from gatewise.evaluation.evaluation_table import LEGEND, as_table
    from gatewise.evaluation.verdicts import complete, doubts, downgraded, faithful

    known = read_circuits(circuits)
    records = {file: {} if circuit is None else circuit.provenance for file, circuit in known.items()}
    asked = {"model": model, "task": task, "examples": examples, "seed": seed, "test": test, "skip_bad": skip_bad}
    subject = load_recorded(records, machine, **asked)  # type: ignore[arg-type]
    loaded, made = subject.model, subject.task
    read = [Circuit.load(file, loaded.graph) if circuit is None else circuit for file, circuit in known.items()]
    evaluations = evaluate(
        loaded,
        made,
        read,
        random_circuits=random,
        seed=made.seed,
        names=[path.stem for path in circuits],
        ablation=subject.ablation,
        compute=machine.compute(workers),
    )
    several = len({evaluation.edges for evaluation in evaluations}) > 1
    areas = {"cpr": evaluations.cpr, "cmd": evaluations.cmd} if several else {}
    if as_json:
        rows = evaluations.to_json()
        for row, evaluation in zip(rows, evaluations, strict=True) if per_example else ():
            row["per_example"] = evaluation.per_example
        print_json({"task": made.name, "model": loaded.name, "circuits": rows, **areas})
        return
    console, first = Console(highlight=False), evaluations[0]
    console.print(
        f"{first.examples} held-out pairs of {made.name} in {loaded.name}: logit difference "
        f"{first.full.logit_diff.mean:.2f}, accuracy {first.full.accuracy.mean:.0%}; on corrupted prompts "
        f"{first.empty.logit_diff.mean:.2f}, {first.empty.accuracy.mean:.0%}.",
        markup=False,
    )
    against = doubts(first, made.problems())
    for remark in against:
        print_remark(console, **asdict(remark))
    console.print(as_table(evaluations))
    if areas:
        console.print(_areas(evaluations), markup=False)
    if explain:
        console.print(Text(LEGEND, style="dim"))
    for evaluation in evaluations:
        if explain or per_example:
            console.print(Text(evaluation.name, style="bold"))
        verdicts = [faithful(evaluation), complete([evaluation])] if explain else []
        for remark in downgraded(verdicts) if against else verdicts:
            print_remark(console, **asdict(remark))
        if per_example:
            console.print(_examples(evaluation, made.test))


def _areas(evaluations: Evaluations) -> str:
    """CPR and CMD with what is best on these sizes, and what random circuits have."""
    shares = [1 - evaluation.sparsity for evaluation in evaluations]
    best, (cpr, cmd) = max(shares) - min(shares), evaluations.areas_by_chance
    random = ("", "") if math.isnan(cpr) else (f", random circuits {cpr:.4f}", f", random circuits {cmd:.4f}")
    return (
        f"CPR {evaluations.cpr:.4f} (high is good; all of the model at these sizes: {best:.4f}{random[0]})\n"
        f"CMD {evaluations.cmd:.4f} (low is good; all of the model: 0{random[1]})"
    )


def _examples(evaluation: Evaluation, pairs: Pairs) -> FoldingTable:
    """The KL and the logit differences of the model, the circuit and the rest on each pair."""
    headers = ("clean prompt", "KL(G||C)", "logit diff", "of the circuit", "without it")
    table = FoldingTable(*headers, numbers=True, box=box.SIMPLE_HEAD)
    for example, row in zip(pairs, evaluation.per_example, strict=True):
        names = ("circuit_kl_from_full", "full_logit_diff", "circuit_logit_diff", "complement_logit_diff")
        table.add_row(Text(example.clean), *(f"{row[name]:.2f}" for name in names))
    return table
