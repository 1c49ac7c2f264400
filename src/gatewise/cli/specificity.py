"""`gatewise specificity`: whether circuits are their tasks' own, as a table, a figure or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console

from gatewise.cli.options import (
    DEFAULT_MODEL,
    ExamplesOption,
    FoldingTable,
    JsonOption,
    Machine,
    MethodOption,
    ModelArgument,
    SeedOption,
    StoreOption,
    Workers,
    load,
    open_store,
    options_apart,
    print_json,
    warnings_as_lines,
)


@options_apart
def specificity_command(
    machine: Machine,
    workers: Workers,
    model: ModelArgument = DEFAULT_MODEL,
    tasks: Annotated[
        list[str] | None, typer.Option("--task", "-t", help="A task, once for each [ioi, gt and sa].")
    ] = None,
    method: MethodOption = "eap",
    direction: Annotated[str, typer.Option(help="ns, dn or ns+dn.")] = "ns",
    edges: Annotated[int | None, typer.Option(help="Of each circuit [500, at most a tenth of the graph].")] = None,
    examples: ExamplesOption = 32,
    random: Annotated[int, typer.Option(help="Random circuits of each kind to compare with.")] = 2,
    seed: SeedOption = 0,
    figure: Annotated[Path | None, typer.Option(help="Also draw the matrix: .svg, .pdf or .png.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what each task's circuit does for the other tasks and for ordinary text.

    For each circuit and column: what the circuit alone keeps, and what its removal destroys, on held-out pairs, beside
    random circuits of equal size and of equal layers; then the edges that all tasks share, and those of one alone.

    Examples:

    ```
    gatewise specificity tiny --edges 100 -n 8
    ```
    """
    from gatewise.circuits.drawing import check_can_draw
    from gatewise.tasks import task as make_task
    from gatewise.validity.figure import draw_matrix
    from gatewise.validity.matrix import specificity

    if figure is not None:
        check_can_draw(figure)
    loaded = load(model, machine)
    with warnings_as_lines():
        made = [
            make_task(name, loaded, examples=examples, test_examples=examples, seed=seed)
            for name in tasks or ("ioi", "gt", "sa")
        ]
        matrix = specificity(
            loaded,
            made,
            method=method,
            direction=direction,  # type: ignore[arg-type]
            edges=edges,
            random_circuits=random,
            seed=seed,
            compute=machine.compute(workers, None if store is None else open_store(store)),
        )
    if figure is not None:
        draw_matrix(matrix, figure)
    if as_json:
        print_json(matrix.to_json())
        return
    console = Console(highlight=False)
    console.print("kept by the circuit alone / destroyed by its removal, as shares of the KL", markup=False)
    table = FoldingTable("circuit", *matrix.columns, box=box.SIMPLE_HEAD)
    for row, cells in matrix.cells.items():
        shown = [f"{cells[c].recovered.value:.2f} / {cells[c].destroyed.value:.2f}" for c in matrix.columns]
        table.add_row(row, *shown)
    console.print(table)
    for line in [matrix.sentence(task) for task in matrix.tasks] + [part.sentence for part in matrix.parts]:
        console.print(line, markup=False)
    if figure is not None:
        console.print(f"written to {figure}", markup=False)
