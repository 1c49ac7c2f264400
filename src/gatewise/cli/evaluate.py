"""`gatewise evaluate`: how good circuits are, as a table or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.text import Text

from gatewise.cli.options import (
    DEFAULT_MODEL,
    ExamplesOption,
    FoldingTable,
    JsonOption,
    Machine,
    ModelOption,
    SeedOption,
    TaskOption,
    Workers,
    load_task,
    options_apart,
    print_remark,
)

if TYPE_CHECKING:
    from gatewise.evaluation import Evaluation
    from gatewise.tasks import Pairs


@options_apart
def evaluate_command(
    machine: Machine,
    team: Workers,
    circuits: Annotated[list[Path], typer.Argument(help="Circuit files: gatewise, EAP-IG, MIB or Edge-Pruning.")],
    model: ModelOption = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    examples: ExamplesOption = 64,
    seed: SeedOption = 0,
    random: Annotated[int, typer.Option(help="Random circuits of each size to compare with.")] = 3,
    per_example: Annotated[bool, typer.Option("--per-example", help="Also every held-out pair by itself.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate circuit files on held-out pairs: faithful, complete, sparse, accurate?

    Files of several sizes also give MIB's areas over the share of edges: CPR (how much of the logit difference circuits
    keep, high is good) and CMD (how far from the model they are, low is good).

    Examples:

    ```
    gatewise evaluate found/eap-ns-100.json --model tiny --task ioi
    gatewise evaluate found/eap-ns-100.json found/eap-ns-50.json -m tiny
    gatewise evaluate found/eap-ns-100.json --model tiny -n 8 --per-example
    ```
    """
    from gatewise.circuits.circuit import Circuit
    from gatewise.evaluation import evaluate
    from gatewise.evaluation.evaluation_table import as_table

    loaded, made = load_task(model, task, machine, examples=examples, seed=seed)
    found = [Circuit.load(path, loaded.graph) for path in circuits]
    names = [path.stem for path in circuits]
    compute = machine.compute(team)
    result = evaluate(loaded, made.test, found, random_circuits=random, seed=seed, names=names, compute=compute)
    areas = {"cpr": result.cpr, "cmd": result.cmd} if len({one.edges for one in result}) > 1 else {}
    if as_json:
        single = [{"per_example": one.per_example} if per_example else {} for one in result]
        listed = [{**one, **more} for one, more in zip(result.to_json(), single, strict=True)]
        print(json.dumps({"circuits": listed, **areas}, indent=2))
        return
    console = Console(highlight=False)
    console.print(as_table(result))
    for one in result:
        console.print(Text(one.name, style="bold"))
        _judge(console, one, made.problems())
        if per_example:
            console.print(_examples(one, made.test))
    if areas:
        console.print(f"CPR {areas['cpr']:.3f} (high is good), CMD {areas['cmd']:.3f} (low is good)")


def _judge(console: Console, one: Evaluation, problems: list[str]) -> None:
    from gatewise.evaluation.verdicts import complete, doubts, downgraded, faithful

    against = doubts(one, problems)
    remarks = [faithful(one), complete([one])]
    for remark in (*against, *(downgraded(remarks) if against else remarks)):
        print_remark(console, remark.level, remark.title, remark.text, remark.answer)


def _examples(one: Evaluation, pairs: Pairs) -> FoldingTable:
    """Each pair: what the model, the circuit and the rest make of it."""
    table = FoldingTable("clean prompt", "KL(G||C)", "logit_diff", "of the circuit", "without it", box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for example, row in zip(pairs, one.per_example, strict=True):
        names = ("circuit_kl_from_full", "full_logit_diff", "circuit_logit_diff", "complement_logit_diff")
        table.add_row(Text(example.clean), *(f"{row[name]:.2f}" for name in names))
    return table
