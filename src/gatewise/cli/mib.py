"""`gatewise mib`: a submission folder for the circuit track of MIB."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, cast

import typer

from gatewise.cli.options import JsonOption, print_json


def mib_command(
    circuits: Annotated[list[Path], typer.Argument(help="Circuit files, of several tasks and models if you like.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the submission; made if it is not there.")],
    task: Annotated[str, typer.Option(help="Task, as MIB names it [what the file says].")] = "",
    model: Annotated[str, typer.Option(help="Model, as MIB names it: gpt2, qwen2.5, gemma2, llama3.")] = "",
    rank: Annotated[str, typer.Option(help="Importance: absolute score, signed score, or auto.")] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Write circuits as a submission to MIB's circuit track: one folder TASK_MODEL each, with importances.json.

    One file of a task and model has to have scores. Several files of different sizes become nine circuits instead, one
    for each of MIB's sizes. MIB asks for at least two tasks and two models.

    Example:

    ```
    gatewise mib found/gpt2.json --task ioi --model gpt2 --out submission
    ```
    """
    from gatewise.circuits.circuit import Circuit
    from gatewise.circuits.mib import Rank, SubmittedCircuit, write_submission

    entries = [SubmittedCircuit(Circuit.load(path), str(path), task, model) for path in circuits]
    written = write_submission(entries, out, rank=cast("Rank", rank))  # checked there
    if as_json:
        print_json({name: [str(path) for path in paths] for name, paths in written.items()})
    else:
        for name, paths in written.items():
            print(f"{name}: {', '.join(path.name for path in paths)}")
    tasks, models = ({name.split("_")[part] for name in written} for part in (0, 1))
    if min(len(tasks), len(models)) < 2:
        print(
            f"note: MIB takes submissions of at least 2 tasks and 2 models; here are {len(tasks)} and {len(models)}.",
            file=sys.stderr,
        )
