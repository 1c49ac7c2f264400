"""`gatewise reproduce`: the paper's tables and figures, on a model of your size."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatewise.cli.options import JsonOption, parse_settings, warnings_as_lines, whole_numbers
from gatewise.errors import GatewiseError, GatewiseWarning

if TYPE_CHECKING:
    from gatewise_paper.presets import Preset


def reproduce_command(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments, or all. None: list them.")] = None,
    preset: Annotated[
        str, typer.Option(help="quick (tiny), laptop (gemma3-270m), smollm2 (smollm2-135m) or paper (gpt2).")
    ] = "quick",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder [reproduction/PRESET].")] = None,
    workers: Annotated[int | None, typer.Option(help="Searches at a time [one per core].")] = None,
    ray: Annotated[str | None, typer.Option(help="A Ray cluster instead: HOST:PORT or auto; shares --out.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model: a name, a Hugging Face id or a folder.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Other numbers of edges, such as 50,100.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Another number of seeds, for everything.")] = None,
    pairs: Annotated[int | None, typer.Option(help="Another number of pairs to search on.")] = None,
    held_out: Annotated[int | None, typer.Option(help="Another number of pairs to measure on.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Another number of removals for each receiver.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Only these tasks, such as ioi,gt.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these methods, such as eap,acdc.")] = None,
    tested_gates: Annotated[
        str | None, typer.Option(help="Tasks with tested gates beside set differences, such as ioi; or none.")
    ] = None,
    unlearn: Annotated[str | None, typer.Option(help="unlearning: a file of prompts, instead of a template.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="METHOD.key=value of a method.")] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Choose the sizes that verdicts are about, add them to this file, and stop.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the paper's tables and figures, each with a verdict. An interrupted run resumes where it stopped.

    `gatewise reproduce all` makes everything on `tiny`; `--preset laptop` does it on real models, for hours.

    Examples:

    ```
    gatewise reproduce
    gatewise reproduce cost --tasks ioi --methods eap --seeds 1
    ```
    """
    from gatewise_paper.experiments import EXPERIMENTS
    from gatewise_paper.presets import find_preset
    from gatewise_paper.runner import reproduce

    if not names and calibrate is None:
        listed = [{"name": e.name, "title": e.title, "labels": e.labels} for e in EXPERIMENTS.values()]
        lines = [f"{e.name:22} {e.title} ({', '.join(e.labels)})" for e in EXPERIMENTS.values()]
        print(json.dumps(listed, indent=2) if as_json else "\n".join(lines))
        return
    chosen = find_preset(preset)
    changes: dict[str, Any] = {
        "model": model,
        "tasks": _names(tasks),
        "methods": _names(methods),
        "tested_tasks": () if tested_gates == "none" else _names(tested_gates),
        "sizes": None if sizes is None else whole_numbers("--sizes", sizes),
        "seeds": seeds,
        "pairs": pairs,
        "held_out": held_out,
        "ablating": None if repeats is None else chosen.ablating._replace(repeats=repeats),
        "forgetting": None if unlearn is None else chosen.forgetting._replace(source=unlearn),
        "parameters": _parameters(settings or []),
    }
    chosen = chosen.changed(**{key: value for key, value in changes.items() if value is not None})
    if calibrate is not None:
        _calibrate(chosen, calibrate)
        return
    with warnings_as_lines():
        summary = reproduce(
            names or [],
            chosen,
            out=out or Path("reproduction") / preset,
            workers=workers,
            ray=ray,
            options=[
                word for word in _options_of_the_outcome(sys.argv[1:]) if word not in ("reproduce", *(names or []))
            ],
        )
    if as_json:
        print(json.dumps(json.loads(summary.with_name("results.json").read_text()), indent=2))
    else:
        print(_verdicts(summary.with_name("results.json"), names or []))
        print(f"\n{summary}")


def _options_of_the_outcome(arguments: Sequence[str]) -> Iterator[str]:
    """What of a command determines its outcome: not where it is written, by whom it is made, nor how it is shown."""
    words = iter(arguments)
    for word in words:
        if word in ("--out", "-o", "--workers", "--ray"):
            next(words, None)
        elif not word.startswith(("--out=", "--workers=", "--ray=", "--json", "--debug")):
            yield word


def _calibrate(preset: Preset, path: Path) -> None:
    from gatewise.files import read_json, write_atomically
    from gatewise_paper.lab import Lab
    from gatewise_paper.size_calibration import calibrate

    known = read_json(path, "the sizes that gatewise reproduce has chosen") if path.is_file() else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GatewiseWarning)  # that small circuits have no path is the question here
        known[preset.model] = calibrate(Lab(preset, path.parent))
    write_atomically(path, (json.dumps(known, indent=1) + "\n").encode())
    for task, measures in known[preset.model]["tasks"].items():
        for measure, sizes in measures.items():
            judged = ", ".join(map(str, sizes["judged"])) or "none"
            print(f"{task} {measure}: {judged}; primary {sizes['primary']}")


def _verdicts(results: Path, names: Sequence[str]) -> str:
    """Those of this run; a folder may have others."""
    content = json.loads(results.read_text())
    return "\n".join(
        f"{name}: {verdict['judgement']}: {verdict['claim']}"
        for name, outcome in content["experiments"].items()
        if name in names or "all" in names
        for verdict in outcome["verdicts"]
    )


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def _parameters(settings: list[str]) -> dict[str, dict[str, Any]]:
    """Parameters of the methods, by `METHOD.key=value`."""
    from gatewise.methods import find_method

    parameters: dict[str, dict[str, Any]] = {}
    for text in settings:
        method, dot, rest = text.partition(".")
        if not dot:
            raise GatewiseError(f"--set {text!r}: write METHOD.key=value, such as edge-pruning.steps=100.")
        parameters.setdefault(method, {}).update(find_method(method).parse(parse_settings([rest])))
    return parameters
