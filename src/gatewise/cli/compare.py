"""`gatewise compare`: two circuits side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console

from gatewise.cli.options import FoldingTable, JsonOption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatewise.circuits.comparison import Comparison, Counts
    from gatewise.circuits.literature import Recall


def compare_command(
    a: Annotated[Path, typer.Argument(help="A circuit file (gatewise, EAP-IG, MIB, Edge-Pruning) or a gates file.")],
    b: Annotated[Path, typer.Argument(help="Another one, or ioi-published or gt-published.")],
    top: Annotated[int, typer.Option(help="Nodes to show, those that differ most.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Compare two circuits: overlap, and differences by node, layer and gate type.

    B may be another tool's circuit of the same model, or the published circuit of GPT-2 small, of which only the nodes
    are known: then recall is shown.

    Examples:

    ```
    gatewise compare found/eap-ns-100.json found/eap-ns-50.json
    gatewise compare gates.safetensors found/eap-ns-100.json --json
    gatewise compare found/gpt2.json ioi-published
    ```
    """
    from gatewise.circuits.circuit import Labelled
    from gatewise.circuits.comparison import compare
    from gatewise.circuits.literature import PUBLISHED, compare_with_published
    from gatewise.gates.labels import load_labelled, load_two

    if str(b) in PUBLISHED:
        what = load_labelled(a)
        recall = compare_with_published(what.circuit if isinstance(what, Labelled) else what, str(b))
        if as_json:
            print(json.dumps(recall.to_json(), indent=2))
        else:
            _show_recall(recall, a, str(b))
        return
    both = load_two(a, b)
    found = compare(*both)
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
        return
    _show(found, a, b, top)
    if all(isinstance(one, Labelled) for one in both):
        print(f"Of two tasks: gatewise reconcile --keep {a} --remove {b} asks whether one can go and the other stay.")


def _show(found: Comparison, a: Path, b: Path, top: int) -> None:
    console = Console()
    share = found.hamming / found.graph_edges
    lines = [
        f"A: {a}, {found.edges_a:,} edges",
        f"B: {b}, {found.edges_b:,} edges",
        f"shared {found.total.shared:,}, only in A {found.total.only_a:,}, only in B {found.total.only_b:,}",
        f"Jaccard {found.jaccard:.3f} (two random circuits of these sizes: {found.chance:.3f})",
        f"Hamming distance {found.hamming:,} ({share:.2%} of {found.graph_edges:,} edges)",
    ]
    if found.rank_correlation is not None:
        lines.append(f"rank correlation of |score| over all edges {found.rank_correlation:.3f}")
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    columns = list(dict.fromkeys(kind for row in found.types.values() for kind in row))
    table = _table("A \\ B", *columns)
    for kind, row in found.types.items():
        table.add_row(kind, *(f"{row.get(other, 0):,}" for other in columns))
    console.print(table)
    console.print(_counts("layer of the receiver", found.layers))
    shown = dict(list(found.nodes.items())[:top])
    console.print(_counts(f"node ({len(shown)} of {len(found.nodes)}, most different first)", shown))


def _counts(title: str, parts: Mapping[str, Counts]) -> FoldingTable:
    table = _table(title, "only A", "shared", "only B")
    for name, counts in parts.items():
        table.add_row(name, f"{counts.only_a:,}", f"{counts.shared:,}", f"{counts.only_b:,}")
    return table


def _table(first: str, *others: Any) -> FoldingTable:
    table = FoldingTable(box=box.SIMPLE_HEAD)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _show_recall(recall: Recall, a: Path, name: str) -> None:
    table = FoldingTable("role", "found", "missing", box=box.SIMPLE_HEAD)
    for role, present in recall.present.items():
        table.add_row(role, " ".join(present), " ".join(recall.missing[role]))
    console = Console()
    console.print(table)
    precision = "-" if recall.precision is None else f"{recall.precision:.0%}"
    console.print(
        f"{a} has {recall.recall:.0%} of the nodes of {name} (as many nodes drawn at random: {recall.chance:.0%}); "
        f"of its own nodes of these kinds {precision} are published ones.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
