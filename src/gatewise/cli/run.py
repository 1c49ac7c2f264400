"""`gatewise run`: from a model and a task to circuits, gates, measures and a report, in one command."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from gatewise.cli.options import (
    DEFAULT_MODEL,
    ExamplesOption,
    JsonOption,
    Machine,
    MethodOption,
    ModelArgument,
    SeedOption,
    SettingsOption,
    TaskOption,
    Workers,
    load_task,
    make_folder,
    open_store,
    options_apart,
    parse_parameters,
    print_remark,
    warnings_as_lines,
    whole_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatewise.logic.interactions import Interaction
    from gatewise.report.data import Command
    from gatewise.report.investigation import Investigation

_GATES_SHOWN = 4


@options_apart
def run_command(
    machine: Machine,
    team: Workers,
    model: ModelArgument = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    method: MethodOption = "eap",
    edges: Annotated[int, typer.Option(help="Edges of each circuit.")] = 500,
    sizes: Annotated[str | None, typer.Option(help="Smaller sizes for the slider: 50,100 [halves, for eap].")] = None,
    all_gates: Annotated[bool, typer.Option("--all", help="Test every gate by truth tables (slow).")] = False,
    examples: ExamplesOption = 32,
    random: Annotated[int, typer.Option(help="Random circuits of the same size to compare with.")] = 1,
    seed: SeedOption = 0,
    settings: SettingsOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for all files [runs/MODEL-TASK-...].")] = None,
    store: Annotated[str | None, typer.Option(help="Folder or URL that keeps results [OUT/store].")] = None,
    export: Annotated[
        bool, typer.Option("--export", help="Also write the circuits as JSON for EAP-IG and MIB, to OUT/circuits.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find a task's circuits and gates in a model, measure and test them, and write a report to explore.

    Writes report.html (open it in a browser), gates.safetensors, tables.json and evaluation.json, and answers here:
    how faithful, how complete, which gates, can I trust it, what next.

    Examples:

    ```
    gatewise run tiny --task ioi --edges 100
    gatewise run tiny --task my.csv --edges 100
    ```
    """
    parameters = parse_parameters(method, settings or [])
    folder = out or Path("runs") / _file_name(f"{model}-{Path(task).stem}-{method}-{edges}")
    given = {
        "model": model, "task": task, "method": method, "edges": edges, "sizes": sizes, "all_gates": all_gates,
        "examples": examples, "random": random, "seed": seed, "settings": settings, "groups": (machine, team),
        "export": export,
    }  # fmt: skip

    def command(changes: Mapping[str, Any]) -> str:
        return _command({**given, **changes}, None if changes else folder)

    smaller = None if sizes is None else whole_numbers("--sizes", sizes)
    make_folder(folder)
    from gatewise.report.investigation import investigate

    kept = open_store(str(folder / "store") if store is None else store)
    loaded, made = load_task(model, task, machine, examples=examples, seed=seed)
    with warnings_as_lines():
        found = investigate(
            loaded,
            made,
            method,
            edges=edges,
            sizes=smaller,
            all_gates=all_gates,
            random_circuits=random,
            seed=seed,
            memory=machine.memory,
            store=kept,
            workers=team.workers,
            ray=team.ray,
            **parameters,
        )
    files = found.save(folder, command, export=export)
    if as_json:
        print(json.dumps(_content(found, files, command), indent=2))
    else:
        _show(found, files, command)


def _command(given: Mapping[str, Any], out: Path | None) -> str:
    """The command line of an investigation with these arguments."""
    words = ["gatewise", "run", given["model"]]
    for name in ("task", "method", "edges", "sizes", "examples", "random", "seed"):
        words += [f"--{name}", str(given[name])] if given[name] is not None else []
    words += ["--all"] if given["all_gates"] else []
    words += ["--export"] if given["export"] else []
    words += [word for setting in given["settings"] or [] for word in ("--set", setting)]
    words += [word for group in given["groups"] for word in group.words]
    words += ["--out", str(out)] if out is not None else []
    return shlex.join(words)


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip("-.")


def _content(found: Investigation, files: list[Path], command: Command) -> dict[str, Any]:
    from gatewise.report.data import report_data

    data = report_data(found, command)
    sentences = ("headline", "doubts", "facts", "trust", "next")
    shown = ("command", "model", "sizes", *sentences, "curves", "proportions", "agreement")
    stability = None if found.stability is None else dict(found.stability)
    return {
        **{key: data[key] for key in shown},
        "stability": stability,
        "calibration": None
        if found.calibration is None
        else {name: one.rank_correlation for name, one in found.calibration.items()},
        "seconds": data["seconds"],
        "files": [str(file) for file in files],
    }


def _show(found: Investigation, files: list[Path], command: Command) -> None:
    from gatewise.report.verdicts import doubts, facts, next_steps, trust

    console = Console(highlight=False)
    record = found.gates.ns.provenance
    title = f"{record['task']} in {found.model}"
    console.print(
        Text(title, style="bold"), Text(f"{record['method']}, {found.sizes[-1]:,} edges, {found.seconds:.0f} s")
    )
    for remark in (*doubts(found), *facts(found)):
        print_remark(console, remark)
    for gate in list(found.interactions or ())[:_GATES_SHOWN]:
        console.print(Padding(Text(_gate_line(gate), style="dim"), (0, 4)))
    console.print(Text("Can I trust it?", style="bold"))
    for remark in trust(found):
        print_remark(console, remark)
    console.print(Text("What next?", style="bold"))
    console.print(Text(f"  open {files[0]} in a browser: the circuit to explore"), soft_wrap=True)
    for step in next_steps(found):
        how = f":\n  {command(step.changes)}" if step.changes else ""
        console.print(Text.assemble((f"  {step.why}", "dim"), how), soft_wrap=True)


def _gate_line(gate: Interaction) -> str:
    """How each group acts, by the interval of its gate index, and the largest interaction."""
    names, size = gate.interaction
    indices = {name: index for name, index in gate.intervals["gamma"].items() if not math.isnan(index.value)}
    acts = [
        f"{name} {gate.group_labels[name]} ({one.value:+.2f}, {one.low:+.2f} to {one.high:+.2f})"
        for name, one in indices.items()
    ]
    stands = "" if gate.confirmed is None else ", confirmed" if gate.confirmed else ", not confirmed"
    return f"{gate.receiver}: {', '.join(acts)}; {' x '.join(sorted(names))} {size.value:+.2f} of the margin{stands}"
