"""`gatewise smallest`: how small each method's circuit can be, for the faithfulness that is asked for."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console

from gatewise.cli.options import (
    DEFAULT_MODEL,
    ExamplesOption,
    FoldingTable,
    JsonOption,
    Machine,
    ModelArgument,
    TaskOption,
    Workers,
    make_folder,
    options_apart,
    print_json,
    warnings_as_lines,
)
from gatewise.errors import GatewiseError
from gatewise.files import as_plain

EXIT_INCOMPLETE = 1


@options_apart
def smallest_command(
    machine: Machine,
    workers: Workers,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for table, figure and store; made if not there.")],
    model: ModelArgument = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    methods: Annotated[str, typer.Option(help="Methods that rank all edges at once, with commas between.")] = (
        "eap,eap-ig,ranking"
    ),
    direction: Annotated[str, typer.Option(help="ns, dn, ns+dn, or several: ns,ns+dn.")] = "ns",
    faithfulness: Annotated[str, typer.Option(help="Shares of the KL to keep, with commas between.")] = "0.5,0.75,0.85",
    edges: Annotated[int | None, typer.Option(help="The most edges that are allowed [half of the graph].")] = None,
    seeds: Annotated[int, typer.Option(help="Searches of each method, each on pairs of its own.")] = 3,
    examples: ExamplesOption = 64,
    store: Annotated[str | None, typer.Option(help="Folder or URL that keeps results [OUT/store].")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the smallest circuits that keep a share of the KL, by each method, with intervals over seeds.

    A third of the examples is kept from the search to choose sizes on; circuits are measured on held-out pairs. Writes
    smallest.md, smallest.svg and table.csv. Start it again after whatever ended it: it resumes.

    Examples:

    ```
    gatewise smallest tiny --methods eap --seeds 2 -n 24 --out small
    ```
    """
    from gatewise.circuits.drawing import check_can_draw
    from gatewise.compute import Compute
    from gatewise.files import write_atomically
    from gatewise.sweep import run_sweep
    from gatewise.sweep.grid import grid_from
    from gatewise.sweep.size_comparison import HEADERS, as_markdown, compare_sizes, draw_sizes

    if seeds < 1:
        raise GatewiseError(f"--seeds is a number of searches, at least 1; got {seeds}.")
    figure, table = out / "smallest.svg", out / "smallest.md"
    check_can_draw(figure)
    choices: dict[str, Any] = {
        "models": [model],
        "tasks": [task],
        "methods": methods.split(","),
        "directions": direction.split(","),
        "faithfulness": _shares(faithfulness),
        "seeds": list(range(seeds)),
        "examples": examples,
        "test_examples": examples,
        "random_circuits": 0,
        **machine.given,
    }
    grid = grid_from(choices if edges is None else choices | {"most_edges": edges})
    make_folder(out)
    with warnings_as_lines():
        report = run_sweep(
            grid,
            out,
            tell=lambda text: print(text, file=sys.stderr),
            compute=Compute(workers=workers.workers, ray=workers.ray, store=store),
        )
    for cell, problem in report.failures:
        print(f"failed: {cell}: {' '.join(problem.split())}", file=sys.stderr)
    summaries = compare_sizes(report.rows)
    if summaries:
        write_atomically(table, as_markdown(summaries).encode())
        draw_sizes(summaries, figure)
    if as_json:
        print_json(as_plain([asdict(summary) for summary in summaries]))
    elif summaries:
        console, shown = Console(highlight=False), FoldingTable(*HEADERS, numbers=True, box=box.SIMPLE_HEAD)
        for summary in summaries:
            shown.add_row(*summary.cells())
        console.print(shown)
        console.print(f"written to {table}, {figure} and {out / 'table.csv'}", markup=False)
    if not report.complete:
        raise typer.Exit(EXIT_INCOMPLETE)


def _shares(text: str) -> list[float]:
    try:
        return [float(share) for share in text.split(",")]
    except ValueError:
        raise GatewiseError(f"--faithfulness {text}: expected shares between 0 and 1, such as 0.75,0.85.") from None
