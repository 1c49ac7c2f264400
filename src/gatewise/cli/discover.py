"""`gatewise discover` finds circuits and writes them to files; `gatewise methods` lists the ways to find them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console

from gatewise.cli.options import (
    DEFAULT_MODEL,
    ExamplesOption,
    FaithfulnessOption,
    FoldingTable,
    JsonOption,
    Machine,
    MethodOption,
    ModelArgument,
    SeedOption,
    SettingsOption,
    SkipBadOption,
    StoreOption,
    TaskOption,
    TestOption,
    Workers,
    load_task,
    make_folder,
    open_store,
    options_apart,
    parse_method,
    warnings_as_lines,
    whole_numbers,
)
from gatewise.errors import GatewiseError

if TYPE_CHECKING:
    from gatewise.circuits.circuit import Circuit
    from gatewise.methods.base import SearchDirection
    from gatewise.methods.smallest import SmallestCircuit

EXIT_NOT_REACHED = 1


@options_apart
def discover_command(
    machine: Machine,
    workers: Workers,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the circuit files; made if it is not there.")],
    model: ModelArgument = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    method: MethodOption = "eap",
    direction: Annotated[
        str, typer.Option(help="ns (noising), dn (denoising), ns+dn, or several at once: ns,dn,ns+dn.")
    ] = "ns",
    edges: Annotated[list[str] | None, typer.Option(help="Edges of the circuit; several: 100,200 or repeated.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Instead of edges: the method's own threshold.")] = None,
    faithfulness: FaithfulnessOption = None,
    select: Annotated[str, typer.Option(help="top: the strongest edges; connected: all on a path.")] = "top",
    ablation: Annotated[
        str, typer.Option(help="What removed edges carry: patching, or zero, mean, noise (ns only).")
    ] = "patching",
    metric: Annotated[
        str | None,
        typer.Option(help="What the search keeps: kl or logit_diff; default: the method's."),
    ] = None,
    examples: ExamplesOption = 64,
    test: TestOption = None,
    skip_bad: SkipBadOption = False,
    seed: SeedOption = 0,
    settings: SettingsOption = None,
    store: StoreOption = None,
    all_scores: Annotated[
        bool, typer.Option("--all-scores", help="Also write edges outside the circuit, with scores: for MIB; large.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find circuits in a model and write each to a file that EAP-IG and MIB tools read, too.

    With --faithfulness it is the smallest circuit that keeps that share of the KL, on a third of the examples that the
    search does not see. If none does, that is said, and it exits with 1.

    Examples:

    ```
    gatewise discover tiny --edges 100 --out found
    gatewise discover tiny --faithfulness 0.7 --out found
    gatewise discover tiny --method acdc --threshold 0.05 -n 8 --out found
    gatewise discover tiny --edges 100,200 --direction ns+dn --out found
    gatewise discover tiny --edges 50 --select connected --out found
    ```
    """
    sizes = whole_numbers("--edges", *(edges or []))
    if faithfulness is not None:
        if threshold is not None or len(sizes) > 1:
            raise GatewiseError(
                "--faithfulness chooses the size: leave out --threshold, and give one --edges at most, the largest "
                "size that is allowed."
            )
    elif bool(sizes) == (threshold is not None):
        raise GatewiseError(
            "give either --edges (such as 500, or 100,200,500) or --threshold, not both; or --faithfulness."
        )
    bound = parse_method(method, settings)
    directions = cast("list[SearchDirection]", direction.split(","))  # all choices are checked by check_choices
    from gatewise.methods.discovery import discover_all
    from gatewise.methods.searching import check_choices
    from gatewise.methods.smallest import check_faithfulness, check_ranks_once, smallest_circuits

    check_choices(directions, select, ablation, metric)
    if faithfulness is not None:
        check_faithfulness(faithfulness)
        check_ranks_once(bound)
    make_folder(out)
    opened = None if store is None else open_store(store)
    loaded, made = load_task(model, task, machine, examples=examples, seed=seed, test=test, skip_bad=skip_bad)
    options: dict[str, Any] = {
        "select": select if threshold is None else "top",
        "seed": seed,
        "ablation": ablation,
        "metric": metric,
        "compute": machine.compute(workers, opened),
    }
    choices: list[SmallestCircuit] = []
    with warnings_as_lines():
        if faithfulness is None:
            by_direction = discover_all(
                loaded, made.train, bound, directions, sizes=sizes or None, threshold=threshold, **options
            )
            circuits = [circuit for sized in by_direction.values() for circuit in sized]
        else:
            most = sizes[0] if sizes else None
            smallest = smallest_circuits(
                loaded, made.train, bound, directions, faithfulness=faithfulness, edges=most, **options
            )
            choices = list(smallest.values())
            circuits = [choice.circuit for choice in choices if choice.circuit is not None]
    files = [out / f"{_label(circuit, threshold)}.json" for circuit in circuits]
    for circuit, file in zip(circuits, files, strict=True):
        circuit.save(file, all_scores=all_scores)
    _show(circuits, files, choices, as_json)
    if any(choice.edges is None for choice in choices):
        raise typer.Exit(EXIT_NOT_REACHED)


def methods_command(as_json: JsonOption = False) -> None:
    """List the methods with their parameters and defaults, which `gatewise discover --set` changes.

    Examples:

    ```
    gatewise methods
    gatewise methods --json
    ```
    """
    from gatewise.methods.parameters import parameters_of
    from gatewise.methods.registry import methods

    if as_json:
        entries = []
        for method in methods().values():
            parameters = parameters_of(method).values()
            entries.append(
                {
                    "name": method.name,
                    "summary": method.summary,
                    "directed": method.directed,
                    "threshold": method.threshold_meaning,
                    "parameters": {
                        p.name: {"default": p.value, "values": p.values, "meaning": p.meaning} for p in parameters
                    },
                }
            )
        print(json.dumps(entries, indent=2))
        return
    console = Console()
    for method in methods().values():
        console.print(f"[bold]{method.name}[/bold]: {method.summary}", highlight=False)
        table = FoldingTable(box=None, show_header=False, padding=(0, 2, 0, 2))
        table.add_row("--threshold", "", method.threshold_meaning)
        for parameter in parameters_of(method).values():
            table.add_row(f"--set {parameter.name}=", str(parameter.value), parameter.meaning or parameter.values)
        console.print(table)


def _label(circuit: Circuit, threshold: float | None) -> str:
    size = str(len(circuit)) if threshold is None else f"t{threshold:g}"
    return f"{circuit.provenance['method']}-{circuit.provenance['direction']}-{size}"


def _show(circuits: list[Circuit], files: list[Path], choices: list[SmallestCircuit], as_json: bool) -> None:
    if as_json:
        print(json.dumps(_content(circuits, files, choices), indent=2))
        return
    if circuits:
        _show_circuits(circuits, files)
    for choice in choices:
        print(choice)


def _content(circuits: list[Circuit], files: list[Path], choices: list[SmallestCircuit]) -> dict[str, Any]:
    names = ("method", "parameters", "select", "ablation", "metric", "model", "task", "examples", "seed")
    content = {name: circuits[0].provenance[name] for name in names} if circuits else {}
    if choices:
        content["faithfulness"] = {choice.direction: choice.record() for choice in choices}
    return {**content, "circuits": _rows(circuits, files)}


def _rows(circuits: list[Circuit], files: list[Path]) -> list[dict[str, Any]]:
    return [
        {
            "file": str(file),
            "direction": circuit.provenance["direction"],
            "edges": len(circuit),
            "nodes": len(circuit.nodes),
            "connected": len(circuit.connected()),
            "sparsity": circuit.sparsity,
            "seconds": circuit.provenance["time"]["seconds"],
        }
        for circuit, file in zip(circuits, files, strict=True)
    ]


def _show_circuits(circuits: list[Circuit], files: list[Path]) -> None:
    rows, record = _rows(circuits, files), circuits[0].provenance
    table = FoldingTable("circuit", "edges", "nodes", "on a path", "sparsity", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        counts = (f"{row['edges']:,}", f"{row['nodes']:,}", f"{row['connected']:,}")
        table.add_row(row["file"], *counts, f"{row['sparsity']:.2%}")
    directions = ", ".join(dict.fromkeys(str(row["direction"]) for row in rows))
    console = Console()
    console.print(table)
    console.print(
        f"{record['method']} {directions} on {record['examples']} pairs of {record['task']} for "
        f"{record['model']}, seed {record['seed']}: {record['time']['seconds']:.1f} s.",
        highlight=False,
        markup=False,
    )
