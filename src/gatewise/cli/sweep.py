"""`gatewise sweep`: a grid of searches, as far as they are not in the store, and one table of all of them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gatewise.cli.options import JsonOption, Machine, Workers, options_apart, warnings_as_lines

EXIT_INCOMPLETE = 1


@options_apart
def sweep_command(
    machine: Machine,
    workers: Workers,
    grid: Annotated[Path, typer.Argument(help="TOML file: models, tasks, methods, directions, sizes, seeds.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the table; made if it is not there.")],
    store: Annotated[str | None, typer.Option(help="Folder or URL that keeps results [OUT/store].")] = None,
    retries: Annotated[int, typer.Option(help="Further tries of a cell whose process dies.")] = 2,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what is missing, and how long it takes.")
    ] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Import methods that the grid names as module:Name, which runs them.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run what is missing of a grid of searches, evaluate on held-out pairs, and collect one tidy table.

    Start it again after whatever ended it: it resumes. Exits with 1 if cells failed; they are listed. What is said here
    about the model and the machine stands in place of what the grid says.

    Examples:

    ```
    gatewise sweep grid.toml --out sweep --dry-run
    gatewise sweep grid.toml --out sweep
    ```
    """
    from gatewise.compute import Compute
    from gatewise.sweep import read_grid, run_sweep

    with warnings_as_lines():
        report = run_sweep(
            replace(read_grid(grid, trust_code=trust_code), **machine.given),
            out,
            retries=retries,
            dry_run=dry_run,
            tell=lambda text: print(text, file=sys.stderr),
            compute=Compute(workers=workers.workers, ray=workers.ray, store=store, gpus=workers.gpus),
        )
    for cell, problem in report.failures[:20]:
        print(f"failed: {cell}: {' '.join(problem.split())}", file=sys.stderr)
    if len(report.failures) > 20:
        print(f"... and {len(report.failures) - 20} more", file=sys.stderr)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    elif not dry_run:
        files = ", ".join(str(file) for file in report.files)
        print(f"{len(report.rows)} rows, {len(report.failures)} failed cells, {report.seconds:.1f} s: {files}")
        if not any(file.suffix == ".parquet" for file in report.files) and report.rows:
            print("no Parquet: pip install 'gatewise[parquet]' adds it", file=sys.stderr)
    if not report.complete:
        raise typer.Exit(EXIT_INCOMPLETE)
