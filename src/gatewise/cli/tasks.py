"""`gatewise tasks`: list the tasks, show examples with a model's answers, check one's own file, measure models."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from gatewise.cli.options import (
    DEFAULT_MODEL,
    FoldingTable,
    JsonOption,
    Machine,
    ModelOption,
    SkipBadOption,
    TestOption,
    load,
    load_task,
    options_apart,
    print_json,
)
from gatewise.errors import GatewiseWarning, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatewise.evaluation import Ability
    from gatewise.evaluation.prompts import ShownExample
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
        print_json([{"name": r.name, "summary": r.summary, "options": task_options(r.name)} for r in RECIPES.values()])
        return
    console = Console(highlight=False)
    for recipe in RECIPES.values():
        console.print(f"[bold]{recipe.name}[/bold]: {recipe.summary}")
        for option, values in task_options(recipe.name).items():
            console.print(f"  {option}: {values[0]}, or {' or '.join(values[1:])}")
    console.print("An option is written behind the name: ioi:corruption=all-names,held_out=templates")
    console.print(
        "Your own: a .csv or .jsonl file with the columns clean, corrupted, correct, incorrect, and if you like split "
        "(train or test). Written my.csv:split=rows, prompts may be both in train and in test."
    )


@tasks_app.command("show")
@options_apart
def show_task(
    machine: Machine,
    name: Annotated[str, typer.Argument(help="A task, or the path of a .csv or .jsonl file.")],
    model: ModelOption = DEFAULT_MODEL,
    examples: Annotated[int, typer.Option("--examples", "-n", help="How many to show.")] = 5,
    skip_bad: SkipBadOption = False,
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
    from gatewise.evaluation.prompts import shown_examples

    loaded, made = load_task(model, name, machine, examples=examples, seed=seed, skip_bad=skip_bad, say_problems=False)
    shown = shown_examples(loaded, made.train, compute=machine.compute())
    if as_json:
        known = {"task": made.name, "model": loaded.name, "seed": seed, "bos": made.bos}
        print_json({**known, "examples": [asdict(example) for example in shown]})
        return
    console = Console(highlight=False)
    console.print(_table(shown))
    console.print(
        f"{made.name} for {loaded.name}, seed {seed}, {_bos(made.bos)}. "
        f"Probabilities are totals over the correct and over the incorrect answers.",
        markup=False,
    )


@tasks_app.command("check")
@options_apart
def check_task(
    machine: Machine,
    path: Annotated[str, typer.Argument(help="The .csv or .jsonl file, or a built-in task.")],
    model: ModelOption = DEFAULT_MODEL,
    test: TestOption = None,
    skip_bad: SkipBadOption = False,
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
    from gatewise.evaluation.prompts import shown_examples
    from gatewise.evaluation.task_check import bos_problem
    from gatewise.tasks import task
    from gatewise.tasks.parsing import BadRowsError, doubtful_rows
    from gatewise.tasks.registry import RECIPES, parse_name
    from gatewise.tasks.task_files import MOST_PAIRS, read_lines

    short, _ = parse_name(path)
    lines: list[Row] = [] if short in RECIPES else read_lines(Path(short))[0]  # before the model is loaded
    reading: dict[str, Any] = {
        "first_token": machine.first_token,
        "examples": MOST_PAIRS if lines else 64,
        "skip_bad": skip_bad,
        "test": test,
    }
    loaded, compute = load(model, machine), machine.compute()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GatewiseWarning)  # printed below
        try:
            made = task(path, loaded, bos=machine.bos, **reading)
        except BadRowsError as error:
            _refuse(path, error.problems, doubtful_rows(lines), as_json)
        problems = [*check_task(loaded, made, compute=compute), *doubtful_rows(lines)]
        on_train = ability(loaded, made.train, compute=compute)
        on_test = {made.bos: ability(loaded, made.test, compute=compute)}
        if loaded.tokenizer.bos_token_id is not None:
            other = task(path, loaded, bos=not made.bos, **reading)
            on_test[other.bos] = ability(loaded, other.test, compute=compute)
            problem = bos_problem(on_test[made.bos], on_test[other.bos], bos=made.bos)
            problems += [] if problem is None else [problem]
    examples = shown_examples(loaded, made.test[:_SHOWN], compute=compute)
    if as_json:
        known = {"task": made.name, "model": loaded.name, "train": len(made.train), "test": len(made.test)}
        abilities = {_bos(bos).replace(" BOS", "_bos"): asdict(measured) for bos, measured in on_test.items()}
        shown = {"examples": [asdict(example) for example in examples], "warnings": problems}
        print_json({**known, "bos": made.bos, "searched_on": asdict(on_train), **abilities, **shown})
        return
    Console().print(_table(examples))
    print(f"{made.name} for {loaded.name}: {len(made.train)} pairs to search on, {len(made.test)} to test on.")
    print(f"pairs to search on: {_sentence(on_train)}")
    for bos, measured in on_test.items():
        print(f"pairs to test on, {_bos(bos)}{' (chosen)' if bos == made.bos else ''}: {_sentence(measured)}")
    for problem in problems:
        print(f"warning: {problem}")
    if not problems:
        print("No objections.")


def _bos(bos: bool) -> str:
    return "with BOS" if bos else "without BOS"


def _sentence(measured: Ability) -> str:
    return (
        f"pairwise accuracy {measured.pairwise_accuracy:.1%}, top-1 accuracy {measured.top1_accuracy:.1%}, logit "
        f"difference {measured.logit_diff_clean:.2f} clean, {measured.logit_diff_corrupted:.2f} corrupted"
    )


def _refuse(path: str, problems: list[str], doubts: list[str], as_json: bool) -> NoReturn:
    """Name every bad line, and the others that add nothing."""
    if as_json:
        print_json({"task": path, "bad_lines": problems, "warnings": doubts})
    else:
        print(printable("\n".join([*problems, *(f"warning: {doubt}" for doubt in doubts)])))
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
    measured = {pairs.name: ability(loaded, pairs, compute=machine.compute()) for pairs in tests}
    if as_json:
        print_json({name: asdict(row) for name, row in measured.items()})
        return
    headers = ("task", "pairs", "pairwise accuracy", "top-1 accuracy", "logit diff clean", "logit diff corrupted")
    table = FoldingTable(*headers, numbers=True, box=None)
    for name, row in measured.items():
        shares = (f"{row.pairwise_accuracy:.1%}", f"{row.top1_accuracy:.1%}")
        table.add_row(name, str(row.pairs), *shares, f"{row.logit_diff_clean:.2f}", f"{row.logit_diff_corrupted:.2f}")
    Console().print(table)


def _table(examples: Sequence[ShownExample]) -> FoldingTable:
    table = FoldingTable("prompt", "correct", "incorrect", "P(correct)", "P(incorrect)", show_lines=False)
    for example in examples:
        clean, corrupted = (example.answers[side] for side in ("clean", "corrupted"))
        answers = (_shortened(example.correct), _shortened(example.incorrect))
        table.add_row(Text(example.clean), *answers, f"{clean.correct:.3f}", f"{clean.incorrect:.3f}")
        probabilities = (f"{corrupted.correct:.3f}", f"{corrupted.incorrect:.3f}")
        table.add_row(Text(example.corrupted, style="dim"), "", "", *probabilities, end_section=True)
    return table


def _shortened(answers: tuple[str, ...]) -> Text:
    """All answers, or the first and the last of many."""
    words = [answer.strip() or repr(answer) for answer in answers]
    return Text(" ".join(words) if len(words) <= 3 else f"{words[0]} .. {words[-1]}")
