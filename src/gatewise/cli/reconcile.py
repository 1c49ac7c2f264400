"""`gatewise reconcile`: what to take away so that some tasks are gone and others stay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich import box
from rich.console import Console

from gatewise.cli.options import (
    ExamplesOption,
    FoldingTable,
    JsonOption,
    Machine,
    ModelOption,
    SeedOption,
    load,
    options_apart,
)
from gatewise.errors import GatewiseError

if TYPE_CHECKING:
    from gatewise.gates.labels import Gates
    from gatewise.gates.reconciliation import Reconciliation, TriedRemoval
    from gatewise.gates.reconciliation.formulas import LabelsBy


@options_apart
def reconcile_command(
    machine: Machine,
    remove: Annotated[list[Path], typer.Option(help="A gates file of a task to remove; may be given several times.")],
    keep: Annotated[list[Path] | None, typer.Option(help="The same of a task to keep.")] = None,
    by: Annotated[
        str, typer.Option(help="split (set-difference labels) or tested (`gatewise gates --test`).")
    ] = "split",
    share: Annotated[
        float, typer.Option(help="Of its effect that a receiver has to keep, or to lose; more than 0.5.")
    ] = 0.9,
    seconds: Annotated[float, typer.Option(help="After which the best removal found so far is taken.")] = 60.0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Circuit file for the edges to remove.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run all tasks without these edges, on held-out pairs, beside others.")
    ] = False,
    model: ModelOption = "",
    examples: ExamplesOption = 64,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Take some tasks away and keep others: the fewest edges that do it by the tasks' gates, or which gates clash.

    Every task becomes a formula over edges, and a MaxSAT solver answers. It needs python-sat: pip install
    "gatewise[sat]". --measure removes the edges from the model [that of the gates files] and says where logic and model
    disagree. Exit code 0 whatever the answer is.

    Examples:

    ```
    gatewise gates tiny --task ioi --edges 100 --out ioi.safetensors
    gatewise gates tiny --task gt --edges 100 --out gt.safetensors
    gatewise reconcile --keep ioi.safetensors --remove gt.safetensors --json
    gatewise reconcile --remove gt.safetensors --measure -n 8
    ```
    """
    from gatewise.gates.labels import Gates
    from gatewise.gates.reconciliation import reconcile

    to_keep, to_remove = ([Gates.load(path) for path in paths] for paths in (keep or [], remove))
    answer = reconcile(to_keep, to_remove, share=share, by=cast("LabelsBy", by), seconds=seconds)
    if out is not None and answer.removal is not None:
        names = {"kept": [path.name for path in keep or []], "removed": [path.name for path in remove]}
        answer.removal.with_provenance(**names).save(out)
    trials = _measure(machine, answer, to_keep, to_remove, model, examples, seed) if measure else []
    if as_json:
        measured = {"trials": [trial.to_json() for trial in trials]} if measure else {}
        print(json.dumps({**answer.to_json(), **measured}, indent=2))
    else:
        _show(answer, trials, out)


def _measure(
    machine: Machine,
    answer: Reconciliation,
    keep: Sequence[Gates],
    remove: Sequence[Gates],
    model: str,
    examples: int,
    seed: int,
) -> list[TriedRemoval]:
    from gatewise.gates.reconciliation import other_removals, try_removals
    from gatewise.tasks import task

    names = [formula.name for formula in answer.formulas]
    records: list[Any] = [gates.ns.provenance for gates in (*keep, *remove)]
    unknown = [name for name, record in zip(names, records, strict=True) if "task" not in record]
    if unknown or not (model or "model" in records[0]):
        raise GatewiseError(
            "--measure needs gates files that name their model and task, such as `gatewise gates --out` writes; "
            f"{', '.join(unknown) or 'the first file'} does not."
        )
    loaded = load(model or records[0]["model"], machine)
    reading: dict[str, Any] = {"bos": machine.bos, "first_token": machine.first_token}
    pairs = {
        name: task(record["task"], loaded, examples=examples, seed=seed, **reading).test
        for name, record in zip(names, records, strict=True)
    }
    others = other_removals(keep, remove, None if answer.removal is None else len(answer.removal), seed)
    return try_removals(loaded, pairs, answer, others, compute=machine.compute())


def _show(answer: Reconciliation, trials: Sequence[TriedRemoval], out: Path | None) -> None:
    console = Console()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    if answer.removal is None:
        say("These tasks cannot be told apart: every removal that takes away what has to go breaks what has to stay.")
        fewer = "without any one of them there would be a removal" if answer.core_is_minimal else "fewer may clash, too"
        say(f"The gates that clash; {fewer}:")
        for gate in answer.core:
            say(f"  {gate}")
    else:
        levels = ", ".join(f"{name} {level:.2f}" for name, level in answer.levels().items())
        proven = "no fewer do" if answer.smallest else f"the best in the time; at least {answer.at_least} are needed"
        say(f"Take away {len(answer.removal)} edges ({proven}): {', '.join(answer.removal.edges)}")
        say(f"Fraction of its effect that each task has left, by logic: {levels}.")
        if not answer.monotone:
            say("Some gates work against others, so removing still more may bring a task back.")
        if out is not None:
            say(f"The edges to remove are in {out}.")
    if trials:
        console.print(_table(trials))
    for trial in trials:
        if trial.misleading_gate is not None:
            prediction = "works" if trial.keep else "is gone"
            say(f"Logic says that {trial.task} {prediction}; the gate that misleads most: {trial.misleading_gate}.")


def _table(trials: Sequence[TriedRemoval]) -> FoldingTable:
    """A row for each removal, a column for each task."""
    table = FoldingTable("removed", "edges", box=box.SIMPLE_HEAD, caption="accuracy, normalised effect, KL")
    rows: dict[str, list[str]] = {}
    for trial in trials:
        heading = f"{trial.task} ({'kept' if trial.keep else 'removed'})"
        if heading not in [column.header for column in table.columns]:
            table.add_column(heading, justify="right")
        cell = f"{float(trial.accuracy):.2f}, {trial.share:.2f}, {float(trial.kl):.2f}"
        rows.setdefault(trial.removal, [trial.removal, str(trial.edges)]).append(cell)
    for cells in rows.values():
        table.add_row(*cells)
    return table
