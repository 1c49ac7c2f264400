"""`gatewise truth`: methods and labelling rules against models whose gates are known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from gatewise.cli.options import JsonOption
from gatewise.gate_types import GATE_TYPES

if TYPE_CHECKING:
    from gatewise.paper.ground_truth import Share, StudyResult


def truth_command(
    models: Annotated[int, typer.Option(help="Random planted models.")] = 100,
    nested: Annotated[bool, typer.Option("--nested", help="Gates read gates.")] = False,
    noise: Annotated[float, typer.Option(help="Deviation of stray weights and of what sources emit.")] = 0.0,
    methods: Annotated[str, typer.Option(help="Of eap,acdc,edge-pruning (slow); none for none.")] = "eap,acdc",
    baselines: Annotated[str, typer.Option(help="Of orders,exhaustive (slow); none for none.")] = "none",
    share: Annotated[float, typer.Option(help="Share of the total effect that an edge has to carry.")] = 0.01,
    fan_in: Annotated[tuple[int, int], typer.Option(help="Senders of a gate: fewest and most.")] = (2, 5),
    seed: Annotated[int, typer.Option(help="Seed of the first model; the others follow.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure precision, recall and label accuracy on random models of AND, OR and ADDER gates.

    Example:

        gatewise truth --models 10 --methods eap
    """
    from gatewise.paper.ground_truth import Study, benchmark

    study = Study(models, nested, noise, fan_in, share, seed)
    result = benchmark(study, _names(methods), _names(baselines))
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
        return
    console = Console(width=max(110, Console().width))
    console.print(_searches(result))
    console.print(_labels(result))
    seconds = ", ".join(f"{name} {value:.2f}" for name, value in result.seconds.items())
    console.print(
        f"{models} models, shares in % of edges with 95 % intervals over models; found: ns | dn. "
        f"Seconds per model: {seconds}.",
        highlight=False,
    )


def _names(text: str) -> list[str]:
    return [] if text == "none" else [name.strip() for name in text.split(",") if name.strip()]


def _searches(result: StudyResult) -> Table:
    by_type = (f"of {kind}" for kind in GATE_TYPES)
    table = Table("method", "direction", "precision", "recall", *by_type, box=box.SIMPLE_HEAD)
    for row in result.searches:
        shares = (row.precision, row.recall, *row.recall_by_type.values())
        table.add_row(row.method, row.direction, *map(_text, shares))
    return table


def _labels(result: StudyResult) -> Table:
    table = Table("method", "labels", "right", *GATE_TYPES, "mistakes", box=box.SIMPLE_HEAD)
    for row in result.labels:
        mistakes = ", ".join(f"{count} {what}" for what, count in list(row.mistakes.items())[:2])
        table.add_row(row.method, row.rule, *map(_text, (row.accuracy, *row.by_type.values())), mistakes)
    return table


def _text(share: Share | None) -> str:
    return "-" if share is None else str(share)
