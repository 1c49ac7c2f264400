"""`gatewise reconcile` and `gatewise conflict`: what to take away so that some tasks are gone and others stay."""

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
    from gatewise.circuits.circuit import Circuit
    from gatewise.gates.labels import Gates
    from gatewise.gates.reconciliation.conflict import Conflicts
    from gatewise.gates.reconciliation.formulas import LabelsBy
    from gatewise.gates.reconciliation.reconcile import Reconciliation
    from gatewise.gates.reconciliation.trials import TriedRemoval


_MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Run all tasks without these edges, on held-out pairs, beside others.")
]


@options_apart
def reconcile_command(
    machine: Machine,
    remove: Annotated[list[Path], typer.Option(help="A gates file of a task to remove; may be given several times.")],
    keep: Annotated[list[Path] | None, typer.Option(help="The same of a task to keep.")] = None,
    by: Annotated[str, typer.Option(help="split (labels of the split) or tested (`gatewise gates --test`).")] = "split",
    share: Annotated[
        float, typer.Option(help="Of its effect that a receiver has to keep, or to lose; more than 0.5.")
    ] = 0.9,
    seconds: Annotated[float, typer.Option(help="After which the best removal found so far is taken.")] = 60.0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Circuit file for the edges to remove.")] = None,
    measure: _MeasureOption = False,
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
    from gatewise.gates.reconciliation.reconcile import reconcile

    kept, removed = ([Gates.load(path) for path in paths] for paths in (keep or [], remove))
    answer = reconcile(kept, removed, share=share, by=cast("LabelsBy", by), seconds=seconds)
    if out is not None and answer.removal is not None:
        names = {"kept": [path.name for path in keep or []], "removed": [path.name for path in remove]}
        answer.removal.with_provenance(**names).save(out)
    trials = _trials(machine, answer, answer.removal, kept, removed, model, examples, seed) if measure else []
    if as_json:
        more = {"trials": [one.to_json() for one in trials]} if measure else {}
        print(json.dumps({**answer.to_json(), **more}, indent=2))
    else:
        _show(answer, trials, out)


@options_apart
def conflict_command(
    machine: Machine,
    a: Annotated[Path, typer.Argument(help="A gates file (`gatewise gates --out`) of one task.")],
    b: Annotated[Path, typer.Argument(help="A gates file of another task on the same model.")],
    keep: Annotated[str, typer.Option(help="The task to keep, a or b; the other one is to be removed.")] = "a",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Circuit file for the edges to remove.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show all shared edges, not the first 30.")] = False,
    measure: _MeasureOption = False,
    model: ModelOption = "",
    examples: ExamplesOption = 64,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Ask whether one task can be removed and another kept: which edges clash, and which clashes dissolve.

    The task to keep needs its AND and ADDER edges and one edge of each OR gate; the task to remove must lose its OR and
    ADDER edges and one edge of each AND gate. This is a rule of thumb: `gatewise reconcile` asks a solver. --measure
    removes the edges from the model [that of the gates files] and shows what is left of both tasks.

    Examples:

    ```
    gatewise gates tiny --task ioi --edges 200 --out ioi.safetensors
    gatewise gates tiny --task gt --edges 200 --out gt.safetensors
    gatewise conflict ioi.safetensors gt.safetensors --out removal.json
    gatewise conflict ioi.safetensors gt.safetensors --keep b --measure -n 8
    ```
    """
    if keep not in ("a", "b"):
        raise GatewiseError(f"--keep is a or b, the first or the second file; got {keep!r}.")
    from gatewise.gates.labels import Gates
    from gatewise.gates.reconciliation.conflict import find_conflicts

    names = (a, b) if keep == "a" else (b, a)
    kept, removed = (Gates.load(path) for path in names)
    found = find_conflicts(kept, removed)
    if out is not None:
        found.removal.with_provenance(kept=names[0].name, removed=names[1].name).save(out)
    trials = _trials(machine, None, found.removal, [kept], [removed], model, examples, seed) if measure else []
    if as_json:
        more = {"trials": [one.to_json() for one in trials]} if measure else {}
        print(json.dumps({"keep": str(names[0]), "remove": str(names[1]), **found.to_json(), **more}, indent=2))
    else:
        _show_conflicts(found, names, None if every else 30)
        if out is not None:
            print(f"The edges to remove are in {out}.")
        if trials:
            Console().print(_table(trials))


def _trials(
    machine: Machine,
    answer: Reconciliation | None,
    removal: Circuit | None,
    keep: Sequence[Gates],
    remove: Sequence[Gates],
    model: str,
    examples: int,
    seed: int,
) -> list[TriedRemoval]:
    from gatewise.gates.labels import task_names
    from gatewise.gates.reconciliation.trials import other_removals, try_removals
    from gatewise.tasks import task

    names = task_names([*keep, *remove])
    records: list[Any] = [gates.ns.provenance for gates in (*keep, *remove)]
    unknown = [name for name, one in zip(names, records, strict=True) if "task" not in one]
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
    others = other_removals(keep, remove, None if removal is None else len(removal), seed)
    asked = {name: place < len(keep) for place, name in enumerate(names)} if answer is None else answer
    return try_removals(loaded, pairs, asked, others, machine.compute())


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
        say(f"Share of its effect that each task has left, by logic: {levels}.")
        if not answer.monotone:
            say("Some gates work against others, so removing still more may bring a task back.")
        if out is not None:
            say(f"The edges to remove are in {out}.")
    if trials:
        console.print(_table(trials))
        for one in trials:
            if one.wrong is not None:
                said = "works" if one.keep else "is gone"
                say(f"Logic says that {one.task} {said}; the gate that misleads most: {one.wrong}.")


def _table(trials: Sequence[TriedRemoval]) -> FoldingTable:
    tasks = {one.task: "kept" if one.keep else "removed" for one in trials}
    table = FoldingTable("removed", "edges", box=box.SIMPLE_HEAD, caption="accuracy, normalised effect, KL")
    for task, role in tasks.items():
        table.add_column(f"{task} ({role})", justify="right")
    by_removal: dict[str, dict[str, TriedRemoval]] = {}
    for one in trials:
        by_removal.setdefault(one.removal, {})[one.task] = one
    for removal, by_task in by_removal.items():
        found = [by_task[task] for task in tasks]
        cells = [f"{float(one.accuracy):.2f}, {one.share:.2f}, {float(one.kl):.2f}" for one in found]
        table.add_row(removal, str(found[0].edges), *cells)
    return table


def _show_conflicts(found: Conflicts, names: tuple[Path, Path], limit: int | None) -> None:
    console = Console()
    order = {"conflict": 0, "dissolved by OR": 1, "dissolved by AND": 2}
    clashes = sorted(found.clashes, key=lambda clash: order[clash.verdict])
    table = FoldingTable("edge", "to keep", "to remove", "verdict", "because of", box=box.SIMPLE_HEAD)
    for clash in clashes[:limit]:
        reason = {
            "conflict": "each edge of its AND gate is needed" if clash.remove == "AND" else "needed, and must go",
            "dissolved by OR": f"stays: {_some(clash.instead)}",
            "dissolved by AND": f"goes: {_some(clash.instead)}",
        }[clash.verdict]
        table.add_row(clash.edge, clash.keep, clash.remove, clash.verdict, reason)
    console.print(table)
    if limit is not None and len(clashes) > limit:
        console.print(f"... and {len(clashes) - limit:,} more; --all shows them.", highlight=False)
    verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in found.counts().items())
    console.print(
        f"to keep {names[0]}: {len(found.keep):,} edges; to remove {names[1]}: {len(found.remove):,} edges; shared "
        f"{len(clashes):,}: {verdicts}.\n"
        + (
            f"No conflict is left: removing {len(found.removal):,} edges should take one task away and spare the other."
            if found.compatible
            else f"{len(found.removal):,} edges can go; the conflicts keep the rest of the task to remove in place."
        ),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _some(edges: tuple[str, ...]) -> str:
    return ", ".join(edges[:2]) + (f" and {len(edges) - 2} more" if len(edges) > 2 else "")
