"""`gatewise run`: from a model and a task to circuits, gates, measures and a report, in one command."""

from __future__ import annotations

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

from gatewise.cli.answers import circumstances, store_answer, stored_answer
from gatewise.cli.options import (
    DEFAULT_MODEL,
    JsonOption,
    Machine,
    MethodOption,
    ModelArgument,
    SeedOption,
    SettingsOption,
    SkipBadOption,
    TaskOption,
    TestOption,
    Workers,
    load_task,
    make_folder,
    open_store,
    option_words,
    options_apart,
    parse_method,
    print_json,
    print_remark,
    warnings_as_lines,
    whole_numbers,
)
from gatewise.files import as_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatewise.gates.testing.gate_test import GateTest
    from gatewise.report import Report

DEFAULT_METHOD, DEFAULT_FAITHFULNESS = "ranking", 0.75
_EDGES = 500  # if neither a size nor a faithfulness is asked for
_EXAMPLES, _EXAMPLES_BY_FAITHFULNESS = 32, 96  # a third of which chooses the size
_GATES_SHOWN = 4
_OF_THE_DATA = (
    "model",
    "sizes",
    "faithfulness",
    "headline",
    "doubts",
    "facts",
    "trust",
    "curves",
    "proportions",
    "agreement",
    "seconds",
)
_SHOWN_ONLY = ("title", "searched", "gate lines")  # of an answer: not in its JSON


@options_apart
def run_command(
    machine: Machine,
    workers: Workers,
    model: ModelArgument = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    method: MethodOption = DEFAULT_METHOD,
    faithfulness: Annotated[
        float | None, typer.Option(help="The share of the KL to keep, which decides the size [0.75 for ranking].")
    ] = None,
    edges: Annotated[
        int | None, typer.Option(help="Edges of each circuit [500]; beside --faithfulness the most of them [2000].")
    ] = None,
    sizes: Annotated[str | None, typer.Option(help="Smaller sizes for the slider: 50,100 [halves].")] = None,
    all_gates: Annotated[bool, typer.Option("--all-gates", help="Test every gate by truth tables (slow).")] = False,
    examples: Annotated[
        int | None,
        typer.Option("--examples", "-n", help="Pairs to search on [32; 96 and 32 held out by faithfulness]."),
    ] = None,
    test: TestOption = None,
    skip_bad: SkipBadOption = False,
    random: Annotated[int, typer.Option(help="Random circuits of the same size to compare with.")] = 1,
    seed: SeedOption = 0,
    seeds: Annotated[int, typer.Option(help="Trainings that labels have to agree on; ranking and edge-pruning.")] = 1,
    settings: SettingsOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for all files [runs/MODEL-TASK-...].")] = None,
    store: Annotated[str | None, typer.Option(help="Folder or URL that keeps results [OUT/store].")] = None,
    export: Annotated[
        bool, typer.Option("--export", help="Also write the circuits as JSON for EAP-IG and MIB, to OUT/circuits.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find a task's circuits and gates in a model, measure and test them, and write a report to explore.

    The size is the smallest at which the circuits of both directions together are as faithful as asked for, under
    noising and under denoising, on a third of the pairs that the search
    does not see; --edges asks for a size instead. Writes report.html (open it in a browser), gates.safetensors,
    tables.json and evaluation.json, and answers here: how faithful, how complete, which gates, can I trust it, what
    next.

    Examples:

    ```
    gatewise run tiny --task ioi
    gatewise run tiny --task my.csv --method eap --edges 100
    ```
    """
    by_default = faithfulness is None and edges is None and method == DEFAULT_METHOD
    goal = DEFAULT_FAITHFULNESS if by_default else faithfulness
    edges = _EDGES if goal is None and edges is None else edges
    size = edges if goal is None else f"{goal:g}"
    folder = out or Path("runs") / _file_name(f"{model}-{Path(task).stem}-{method}-{size}")
    given = {
        "task": task, "method": method, "faithfulness": goal, "edges": edges, "sizes": sizes,
        "examples": examples, "random": random,
        "seed": seed, "seeds": None if seeds == 1 else seeds,
        "all_gates": all_gates or None, "export": export or None, "set": settings, "test": test,
        "skip_bad": skip_bad or None,
        **machine.given, **workers.given,
    }  # fmt: skip
    command = _command(model, {**given, "out": folder})
    tasks = [task] if test is None else [task, test]
    now = circumstances(f"{command} --store {store}", model, tasks, method, settings or ())
    answer = stored_answer(folder, now)
    if answer is None:
        from gatewise.methods.smallest import FEWEST_PAIRS, check_faithfulness, check_ranks_once

        bound = parse_method(method, settings)
        if not settings:
            bound = bound.for_report(goal)
        if goal is not None:
            check_faithfulness(goal)
            check_ranks_once(bound)
        smaller = None if sizes is None else whole_numbers("--sizes", sizes)
        make_folder(folder)
        from gatewise.report import make_report
        from gatewise.report.headline import next_steps

        opened = open_store(str(folder / "store") if store is None else store)
        loaded, made = load_task(
            model,
            task,
            machine,
            examples=examples or (_EXAMPLES if goal is None else _EXAMPLES_BY_FAITHFULNESS),
            test_examples=examples or _EXAMPLES,
            seed=seed,
            test=test,
            skip_bad=skip_bad,
            say_problems=False,
        )
        if by_default and len(made.train) < 2 * FEWEST_PAIRS:
            print(
                f"warning: {len(made.train)} pairs are too few to choose a size on, so that it is {_EDGES} edges; "
                f"--edges asks for another, and {2 * FEWEST_PAIRS} pairs are enough.",
                file=sys.stderr,
            )
            goal, edges = None, _EDGES
        with warnings_as_lines():
            report = make_report(
                loaded,
                made,
                bound,
                edges=edges,
                faithfulness=goal,
                sizes=smaller,
                all_gates=all_gates,
                random_circuits=random,
                seed=seed,
                seeds=seeds,
                compute=machine.compute(workers, opened),
            )
        steps = {
            step.why: _command(model, {**given, **step.changes}) if step.changes else "" for step in next_steps(report)
        }
        files = report.save(folder, command=command, next_commands=list(steps.values()), export=export)
        answer = _answer(report, files, command, steps)
        store_answer(folder, now, answer, files)
    else:
        print(f"nothing has changed since this was asked: the answer is in {folder}", file=sys.stderr)
    if as_json:
        print_json({name: value for name, value in answer.items() if name not in _SHOWN_ONLY})
    else:
        _show(answer)


def _command(model: str, options: Mapping[str, Any]) -> str:
    """The command line of a run with these options."""
    return shlex.join(["gatewise", "run", model, *option_words(options)])


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip("-.")


def _answer(report: Report, files: list[Path], command: str, steps: Mapping[str, str]) -> dict[str, Any]:
    """What is printed, as plain data."""
    calibration = report.calibration
    answer: dict[str, Any] = as_plain(
        {
            "command": command,
            **{key: report.page_data[key] for key in _OF_THE_DATA},
            "next": [{"why": why, "command": text} for why, text in steps.items()],
            "stability": report.stability,
            "calibration": calibration and {name: part.rank_correlation for name, part in calibration.items()},
            "files": [str(file) for file in files],
            "title": report.page_data["title"],
            "searched": f"{report.gates.ns.provenance['method']}, {report.sizes[-1]:,} edges, {report.seconds:.0f} s",
            "gate lines": [_gate_line(gate) for gate in list(report.gate_tests or ())[:_GATES_SHOWN]],
        }
    )
    return answer


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
        command = f":\n  {step['command']}" if step["command"] else ""
        console.print(Text.assemble((f"  {step['why']}", "dim"), command), soft_wrap=True)


def _gate_line(gate: GateTest) -> str:
    """How each group acts, by the interval of its gate index, and the largest interaction."""
    acts = []
    for name, index in gate.intervals.gamma.items():
        if not math.isnan(index.value):
            interval = f"{index.value:+.2f}, {index.low:+.2f} to {index.high:+.2f}"
            acts.append(f"{name} {gate.group_labels[name]} ({interval})")
    names, size = gate.strongest_interaction
    line = f"{gate.receiver}: {', '.join(acts)}; {' x '.join(sorted(names))} normalised effect {size.value:+.2f}"
    if gate.confirmed is None:
        return line
    return f"{line}, {'' if gate.confirmed else 'not '}confirmed end to end"
