"""`gatewise toy`: the paper's Table 1 from the synthetic models."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich import box
from rich.console import Console

from gatewise.cli.options import FoldingTable, JsonOption

_AS_PRINTED = {True: "yes", False: "NO", None: "-"}  # None: the paper has no such line


def toy_command(
    seeds: Annotated[int, typer.Option(help="Runs of each method.")] = 6, as_json: JsonOption = False
) -> None:
    """Show which gates each method recovers in each direction, on models whose gates are known: the paper's Table 1.

    Ns+Dn and the method `ranking` are not in the paper's table.

    Example:

    ```
    gatewise toy --seeds 1
    ```
    """
    from gatewise_paper.toy_models import GATES, table, to_json

    rows = table(seeds=seeds)
    if as_json:
        print(json.dumps(to_json(rows), indent=2))
        return
    shown = FoldingTable("direction", "method", *GATES, "faithful", "complete", "as in the paper", box=box.SIMPLE_HEAD)
    for row in rows:
        entries = ["one edge" if entry == "partial" else entry for entry in row.entries]
        shown.add_row(row.direction, row.method, *entries, _AS_PRINTED[row.as_in_the_paper])
    Console().print(shown)
