"""`gatewise truth`: methods and labelling rules against models whose gates are known."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich import box
from rich.console import Console

from gatewise.cli.options import FoldingTable, JsonOption
from gatewise.gate_types import GATE_TYPES

if TYPE_CHECKING:
    from gatewise.gate_types import GateType
    from gatewise.statistics import Interval
    from gatewise_paper.truth.labels import StudyResult


def truth_command(
    models: Annotated[int | None, typer.Option(help="Synthetic models [100; with --gates 20 of each kind].")] = None,
    gates: Annotated[
        bool, typer.Option("--gates", help="Judge gates across ports and of groups on every synthetic kind, instead.")
    ] = False,
    nested: Annotated[bool, typer.Option("--nested", help="Gates read gates.")] = False,
    noise: Annotated[float, typer.Option(help="Standard deviation of stray weights and of what sources emit.")] = 0.0,
    methods: Annotated[
        str, typer.Option(help="Of eap,acdc,edge-pruning,ranking (both slow); none for none.")
    ] = "eap,acdc",
    baselines: Annotated[str, typer.Option(help="Of orders,exhaustive (slow),completed; none for none.")] = "none",
    share: Annotated[float, typer.Option(help="Share of the total effect that an edge has to carry.")] = 0.01,
    fan_in: Annotated[tuple[int, int], typer.Option(help="Senders of a gate: fewest and most.")] = (2, 5),
    sources: Annotated[int, typer.Option(help="Sources of a model: with 120 and 3 layers it is a large graph.")] = 8,
    layers: Annotated[int, typer.Option(help="Layers of two gates and a distractor each.")] = 2,
    types: Annotated[str, typer.Option(help="Types of gates that are drawn, such as ADDER alone.")] = "AND,OR,ADDER",
    seed: Annotated[int, typer.Option(help="Seed of the first model; the others follow.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure precision, recall and label accuracy on random models of AND, OR and ADDER gates.

    Examples:

    ```
    gatewise truth --models 10 --methods eap
    gatewise truth --models 2 --methods ranking --types ADDER
    gatewise truth --gates --models 1 --noise 0.05
    ```
    """
    if gates:
        _show_kinds(20 if models is None else models, noise, seed, as_json)
        return
    from gatewise_paper.truth.labels import Study, benchmark

    models = 100 if models is None else models
    kinds = tuple(cast("GateType", kind.upper()) for kind in _names(types))
    study = Study(models, nested, noise, fan_in, share, seed, sources, layers, kinds)
    measured = benchmark(study, _names(methods), _names(baselines))
    if as_json:
        print(json.dumps(asdict(measured), indent=2))
        return
    console = Console()
    console.print(_searches(measured))
    if measured.labels:
        console.print(_labels(measured))
    seconds = ", ".join(f"{name} {value:.2f}" for name, value in measured.seconds.items())
    console.print(
        f"{models} models, shares in % of edges with 95 % intervals over models; found: ns | dn; "
        f"false gates: found edges, true or not, that are labelled AND or OR and are not. "
        f"Seconds per model: {seconds}.",
        highlight=False,
    )


def _show_kinds(models: int, noise: float, seed: int, as_json: bool) -> None:
    """Error of the gate index, right labels, gates found (or seen where none is) and groups recovered, by kind."""
    from gatewise_paper.truth.gate_kinds import kind_rows

    rows = kind_rows(models, noise, seed)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = FoldingTable("kind", "error of gamma", "label right", "found", "false", "Rand index", box=box.SIMPLE_HEAD)
    for row in rows:
        seen = (f"{row.discovered:.0%}", "-") if row.gate else ("-", f"{row.discovered:.0%}")
        index = "-" if row.rand_index is None else f"{row.rand_index:.2f}"
        table.add_row(row.kind, f"{row.gamma_error:.3f}", f"{row.right_label:.0%}", *seen, index)
    Console().print(table)


def _names(text: str) -> list[str]:
    return [] if text == "none" else [name.strip() for name in text.split(",") if name.strip()]


def _searches(measured: StudyResult) -> FoldingTable:
    by_type = (f"of {kind}" for kind in GATE_TYPES)
    table = FoldingTable("method", "direction", "precision", "recall", *by_type, box=box.SIMPLE_HEAD)
    for row in measured.searches:
        shares = (row.precision, row.recall, *row.recall_by_type.values())
        table.add_row(row.method, row.direction, *map(_text, shares))
    return table


def _labels(measured: StudyResult) -> FoldingTable:
    table = FoldingTable("method", "labels", "right", *GATE_TYPES, "false gates", "mistakes", box=box.SIMPLE_HEAD)
    for row in measured.labels:
        mistakes = ", ".join(f"{count} {what}" for what, count in list(row.mistakes.items())[:2])
        table.add_row(
            row.method, row.rule, *map(_text, (row.accuracy, *row.by_type.values(), row.false_gates)), mistakes
        )
    return table


def _text(share: Interval | None) -> str:
    """In %, with its interval if it has one."""
    if share is None:
        return "-"
    interval = f" ({100 * share.low:.3g}-{100 * share.high:.3g})" if share.low < share.high else ""
    return f"{100 * share.value:.1f}{interval}"
