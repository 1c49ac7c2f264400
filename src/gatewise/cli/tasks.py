"""`gatewise tasks`: list the tasks, show examples with a model's answers, check one's own file, measure models."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from gatewise.cli.options import DEFAULT_MODEL, FoldingTable, JsonOption, Machine, ModelOption, load, options_apart
from gatewise.errors import GatewiseWarning

if TYPE_CHECKING:
    from gatewise.evaluation.task_check import Ability, Preview
    from gatewise.tasks.parsing import Row

_SHOWN = 3  # examples of a check

tasks_app = typer.Typer(help="List tasks, show their examples, check your own.", no_args_is_help=True)


@tasks_app.command("list")
def list_tasks(as_json: JsonOption = False) -> None:
    """List the built-in tasks and their options.

    Example:

    ```
    gatewise tasks list
    ```
    """
    from gatewise.tasks.registry import RECIPES, task_options

    if as_json:
        listed = [{"name": r.name, "summary": r.summary, "options": task_options(r.name)} for r in RECIPES.values()]
        print(json.dumps(listed, indent=2))
        return
    console = Console(highlight=False)
    for recipe in RECIPES.values():
        console.print(f"[bold]{recipe.name}[/bold]: {recipe.summary}")
        for option, values in task_options(recipe.name).items():
            console.print(f"  {option}: {values[0]}, or {' or '.join(values[1:])}")
    console.print("An option is written behind the name: ioi:corruption=all-names,held_out=templates")
    console.print("Your own: a .csv or .jsonl file with the columns clean, corrupted, correct, incorrect.")


@tasks_app.command("show")
@options_apart
def show_task(
    machine: Machine,
    name: Annotated[str, typer.Argument(help="A task, or the path of a .csv or .jsonl file.")],
    model: ModelOption = DEFAULT_MODEL,
    examples: Annotated[int, typer.Option("--examples", "-n", help="How many to show.")] = 5,
    seed: Annotated[int, typer.Option("--seed", help="Which ones.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show examples of a task, with the probabilities a model gives to correct and incorrect answers on both sides.

    Examples:

    ```
    gatewise tasks show ioi --model tiny
    gatewise tasks show ioi:corruption=all-names --model tiny
    gatewise tasks show my.csv --model tiny -n 10
    ```
    """
    from gatewise.evaluation.task_check import preview
    from gatewise.tasks import task

    loaded = load(model, machine)
    made = task(name, loaded, examples=examples, seed=seed, bos=machine.bos, first_token=machine.first_token)
    shown = preview(loaded, made.train, compute=machine.compute())
    if as_json:
        found = {"task": made.name, "model": loaded.name, "seed": seed, "bos": made.bos}
        print(json.dumps({**found, "examples": [asdict(example) for example in shown]}, indent=2))
        return
    console = Console()
    console.print(_table(shown))
    console.print(
        f"{made.name} for {loaded.name}, seed {seed}, {'with' if made.bos else 'without'} BOS. "
        f"Probabilities are totals over the right and over the incorrect answers.",
        markup=False,
        highlight=False,
    )


@tasks_app.command("check")
@options_apart
def check_task(
    machine: Machine,
    path: Annotated[str, typer.Argument(help="The .csv or .jsonl file, or a built-in task.")],
    model: ModelOption = DEFAULT_MODEL,
    as_json: JsonOption = False,
) -> None:
    """Read a file of pairs, check every line, and tell what makes it doubtful for a model, with and without BOS.

    The file has the columns clean, corrupted, correct, incorrect; both prompts of a line need equally many tokens.

    Examples:

    ```
    gatewise tasks check my.csv --model tiny
    gatewise tasks check my.jsonl --model tiny --first-token
    ```
    """
    from gatewise.evaluation import ability, check_task
    from gatewise.evaluation.task_check import bos_problem, preview
    from gatewise.tasks import task
    from gatewise.tasks.parsing import BadRowsError, doubtful_rows
    from gatewise.tasks.registry import RECIPES, parse_name
    from gatewise.tasks.task_files import MOST_PAIRS, read_lines

    short, _ = parse_name(path)
    lines: list[Row] = [] if short in RECIPES else read_lines(Path(short))[0]  # before the model is loaded
    reading: dict[str, Any] = {"first_token": machine.first_token, "examples": MOST_PAIRS if lines else 64}
    loaded = load(model, machine)
    try:
        made = task(path, loaded, bos=machine.bos, **reading)
    except BadRowsError as error:
        _refuse(path, error.problems, doubtful_rows(lines), as_json)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GatewiseWarning)  # printed below
        problems = [*check_task(loaded, made, compute=machine.compute()), *doubtful_rows(lines)]
    sizes = {"train": len(made.train), "test": len(made.test)}
    search = ability(loaded, made.train, compute=machine.compute())
    found = {made.bos: ability(loaded, made.test, compute=machine.compute())}
    if loaded.tokenizer.bos_token_id is not None:
        other = task(path, loaded, bos=not made.bos, **reading)
        found[other.bos] = ability(loaded, other.test, compute=machine.compute())
        problem = bos_problem(found[made.bos], found[other.bos], bos=made.bos)
        problems += [] if problem is None else [problem]
    examples = preview(loaded, made.test[:_SHOWN], compute=machine.compute())
    if as_json:
        abilities = {"with_bos" if with_bos else "without_bos": asdict(one) for with_bos, one in found.items()}
        known = {"task": made.name, "model": loaded.name, **sizes, "bos": made.bos, "searched_on": asdict(search)}
        shown = {**known, **abilities, "examples": [asdict(one) for one in examples], "warnings": problems}
        print(json.dumps(shown, indent=2))
        return
    Console().print(_table(examples))
    print(f"{made.name} for {loaded.name}: {sizes['train']} pairs to search on, {sizes['test']} to test on.")
    print(f"pairs to search on: {_said(search)}")
    for with_bos, one in found.items():
        words = f"{'with' if with_bos else 'without'} BOS{' (chosen)' if with_bos == made.bos else ''}"
        print(f"pairs to test on, {words}: {_said(one)}")
    for problem in problems:
        print(f"warning: {problem}")
    if not problems:
        print("No objections.")


def _said(one: Ability) -> str:
    return (
        f"pairwise accuracy {one.pairwise_accuracy:.1%}, right as the most probable word {one.top1_accuracy:.1%}, "
        f"logit difference "
        f"{one.logit_diff_clean:.2f} clean, {one.logit_diff_corrupted:.2f} corrupted"
    )


def _refuse(path: str, problems: list[str], doubts: list[str], as_json: bool) -> NoReturn:
    """Name every bad line, and the others that add nothing."""
    if as_json:
        print(json.dumps({"task": path, "bad_lines": problems, "warnings": doubts}, indent=2))
    else:
        print("\n".join([*problems, *(f"warning: {one}" for one in doubts)]))
        print(f"{len(problems)} bad line{'s' if problems[1:] else ''} in {path}.")
    raise typer.Exit(1)


@tasks_app.command("measure")
@options_apart
def measure_tasks(
    machine: Machine,
    names: Annotated[list[str] | None, typer.Argument(help="Tasks [the built-in ones with all options].")] = None,
    model: ModelOption = DEFAULT_MODEL,
    examples: Annotated[int, typer.Option("--examples", "-n", help="How many held-out pairs.")] = 64,
    seed: Annotated[int, typer.Option("--seed", help="Which ones.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure how well a model does tasks: accuracies and logit differences on held-out pairs.

    Examples:

    ```
    gatewise tasks measure --model tiny -n 8
    gatewise tasks measure ioi my.csv --model tiny
    ```
    """
    from gatewise.evaluation import ability
    from gatewise.tasks import task
    from gatewise.tasks.registry import all_task_names

    loaded = load(model, machine)
    reading: dict[str, Any] = {"bos": machine.bos, "first_token": machine.first_token}
    tests = [task(name, loaded, examples=examples, seed=seed, **reading).test for name in names or all_task_names()]
    found = {pairs.name: ability(loaded, pairs, compute=machine.compute()) for pairs in tests}
    if as_json:
        print(json.dumps({name: asdict(one) for name, one in found.items()}, indent=2))
    else:
        Console().print(_abilities(found))


def _abilities(found: dict[str, Ability]) -> FoldingTable:
    table = FoldingTable(
        "task",
        "pairs",
        "pairwise accuracy",
        "top is right",
        "logit difference clean",
        "logit difference corrupted",
        box=None,
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for name, one in found.items():
        shares = (f"{one.pairwise_accuracy:.1%}", f"{one.top1_accuracy:.1%}")
        table.add_row(name, str(one.pairs), *shares, f"{one.logit_diff_clean:.2f}", f"{one.logit_diff_corrupted:.2f}")
    return table


def _table(shown: list[Preview]) -> FoldingTable:
    table = FoldingTable("prompt", "correct", "incorrect", "P(right)", "P(wrong)", show_lines=False)
    for example in shown:
        correct, incorrect = _answers(example.correct), _answers(example.incorrect)
        clean = (f"{example.right_on_clean:.3f}", f"{example.wrong_on_clean:.3f}")
        corrupted = (f"{example.right_on_corrupted:.3f}", f"{example.wrong_on_corrupted:.3f}")
        table.add_row(Text(example.clean), correct, incorrect, *clean)
        table.add_row(Text(example.corrupted, style="dim"), "", "", *corrupted, end_section=True)
    return table


def _answers(answers: tuple[str, ...]) -> Text:
    """All of them, or the first and the last of many."""
    words = [answer.strip() or repr(answer) for answer in answers]
    return Text(" ".join(words) if len(words) <= 3 else f"{words[0]} .. {words[-1]}")
