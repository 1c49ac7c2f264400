"""`gatewise run`: from a model and a task to circuits, gates, measures and a report, in one command."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from gatewise.cli.answers import circumstances, keep_answer, kept_answer
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
    parse_method,
    print_remark,
    warnings_as_lines,
    whole_numbers,
)
from gatewise.files import as_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatewise.gates.testing.gate_test import GateTest
    from gatewise.report.data import Command
    from gatewise.report.investigation import Report

_GATES_SHOWN = 4
_SHOWN_ONLY = ("title", "searched", "gate lines")  # of an answer: not in its JSON


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
    folder = out or Path("runs") / _file_name(f"{model}-{Path(task).stem}-{method}-{edges}")
    given = {
        "model": model, "task": task, "method": method, "edges": edges, "sizes": sizes, "all_gates": all_gates,
        "examples": examples, "random": random, "seed": seed, "settings": settings, "groups": (machine, team),
        "export": export,
    }  # fmt: skip

    def command(changes: Mapping[str, Any]) -> str:
        return _command({**given, **changes}, None if changes else folder)

    asked = circumstances(f"{command({})} --store {store}", model, task, method)
    answer = kept_answer(folder, asked)
    if answer is None:
        bound = parse_method(method, settings)
        smaller = None if sizes is None else whole_numbers("--sizes", sizes)
        make_folder(folder)
        from gatewise.report.investigation import make_report

        kept = open_store(str(folder / "store") if store is None else store)
        loaded, made = load_task(model, task, machine, examples=examples, seed=seed)
        with warnings_as_lines():
            found = make_report(
                loaded,
                made,
                bound,
                edges=edges,
                sizes=smaller,
                all_gates=all_gates,
                random_circuits=random,
                seed=seed,
                compute=machine.compute(team, kept),
            )
        files = found.save(folder, command, export=export)
        answer = _answer(found, files, command)
        keep_answer(folder, asked, answer, files)
    else:
        print(f"nothing has changed since this was asked: the answer is in {folder}", file=sys.stderr)
    if as_json:
        print(json.dumps({name: value for name, value in answer.items() if name not in _SHOWN_ONLY}, indent=2))
    else:
        _show(answer)


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


def _answer(found: Report, files: list[Path], command: Command) -> dict[str, Any]:
    """What is printed, as plain data."""
    from gatewise.report.data import report_data

    data = report_data(found, command)
    sentences = ("headline", "doubts", "facts", "trust", "next")
    told = ("command", "model", "sizes", *sentences, "curves", "proportions", "agreement")
    record = found.gates.ns.provenance
    answer = {
        **{key: data[key] for key in told},
        "stability": found.stability,
        "calibration": None
        if found.calibration is None
        else {name: one.rank_correlation for name, one in found.calibration.items()},
        "seconds": data["seconds"],
        "files": [str(file) for file in files],
        "title": data["title"],
        "searched": f"{record['method']}, {found.sizes[-1]:,} edges, {found.seconds:.0f} s",
        "gate lines": [_gate_line(gate) for gate in list(found.interactions or ())[:_GATES_SHOWN]],
    }
    plain: dict[str, Any] = as_plain(answer)
    return plain


def _show(answer: Mapping[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(Text(answer["title"], style="bold"), Text(answer["searched"]))
    for remark in (*answer["doubts"], *answer["facts"]):
        print_remark(console, **remark)
    for line in answer["gate lines"]:
        console.print(Padding(Text(line, style="dim"), (0, 4)))
    console.print(Text("Can I trust it?", style="bold"))
    for remark in answer["trust"]:
        print_remark(console, **remark)
    console.print(Text("What next?", style="bold"))
    console.print(Text(f"  open {answer['files'][0]} in a browser: the circuit to explore"), soft_wrap=True)
    for step in answer["next"]:
        how = f":\n  {step['command']}" if step["command"] else ""
        console.print(Text.assemble((f"  {step['why']}", "dim"), how), soft_wrap=True)


def _gate_line(gate: GateTest) -> str:
    """How each group acts, by the interval of its gate index, and the largest interaction."""
    names, size = gate.strongest_interaction
    indices = {name: index for name, index in gate.intervals.gamma.items() if not math.isnan(index.value)}
    acts = [
        f"{name} {gate.group_labels[name]} ({one.value:+.2f}, {one.low:+.2f} to {one.high:+.2f})"
        for name, one in indices.items()
    ]
    significant = "" if gate.confirmed is None else ", confirmed" if gate.confirmed else ", not confirmed"
    strongest = f"{' x '.join(sorted(names))} {size.value:+.2f} of the logit difference"
    return f"{gate.receiver}: {', '.join(acts)}; {strongest}{significant}"
