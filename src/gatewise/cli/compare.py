"""`gatewise compare`: two circuits side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console

from gatewise.cli.circuit_files import differences
from gatewise.cli.options import FoldingTable, JsonOption, Machine, print_json
from gatewise.errors import GatewiseError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatewise.circuits.circuit import Circuit, Labelled
    from gatewise.circuits.comparison import Comparison, Counts
    from gatewise.circuits.literature import Recall

_NODES_SHOWN = 10


def compare_command(
    a: Annotated[Path, typer.Argument(help="A circuit file (gatewise, EAP-IG, MIB, Edge-Pruning) or a gates file.")],
    b: Annotated[Path, typer.Argument(help="Another one, or ioi-published or gt-published.")],
    listed: Annotated[int, typer.Option("--list", help="Edges to list that only one of the two has.")] = 10,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also search A's circuit on another draw of pairs, and compare with it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two circuits: overlap, the edges that differ, and differences by node, layer and gate type.

    B may be another tool's circuit of the same model, or the published circuit of GPT-2 small, of which only the nodes
    are known: then recall is shown.

    Examples:

    ```
    gatewise compare found/eap-ns-100.json found/eap-ns-50.json --baseline
    gatewise compare gates.safetensors found/eap-ns-100.json --json
    gatewise compare found/gpt2.json ioi-published
    ```
    """
    from gatewise.circuits.circuit import Labelled
    from gatewise.circuits.comparison import compare
    from gatewise.circuits.literature import PUBLISHED, compare_with_published
    from gatewise.gates.labels import load_labelled, load_two

    if str(b) in PUBLISHED:
        loaded = load_labelled(a)
        recall = compare_with_published(loaded.circuit if isinstance(loaded, Labelled) else loaded, str(b))
        if as_json:
            print_json(recall.to_json())
        else:
            _show_recall(recall, a, str(b))
        return
    both = load_two(a, b)
    comparison = compare(*both)
    redrawn = _baseline(a, both[0]) if baseline else None
    if as_json:
        content = {} if redrawn is None else {"baseline_jaccard": redrawn.jaccard}
        print_json({**comparison.to_json(), **content})
        return
    _show(comparison, a, b, redrawn)
    for name, edges in (("A", comparison.only_a), ("B", comparison.only_b)):
        if edges and listed:
            more = f", and {len(edges) - listed:,} more" if len(edges) > listed else ""
            print(f"only in {name}, strongest first: {', '.join(edges[:listed])}{more}")
    first, second = (one.circuit if isinstance(one, Labelled) else one for one in both)
    for sentence in differences(first.provenance, second.provenance):
        print(f"note: the two are of different searches: {sentence}.", file=sys.stderr)
    if all(isinstance(circuit, Labelled) for circuit in both):
        print(f"Of two tasks: gatewise reconcile --keep {a} --remove {b} asks whether one can go and the other stay.")


def _baseline(path: Path, given: Circuit | Labelled) -> Comparison:
    """A beside the circuit that the same search finds on another draw of pairs: how much of a difference is chance."""
    from gatewise.circuits.circuit import Labelled
    from gatewise.circuits.comparison import compare
    from gatewise.cli.circuit_files import load_recorded
    from gatewise.methods import discover, find_method

    circuit = given.circuit if isinstance(given, Labelled) else given
    record = circuit.provenance
    if "method" not in record or "direction" not in record:
        raise GatewiseError(f"{path} does not say how it was found, so that the search cannot be done again.")
    seed = int(record.get("seed", 0)) + 1
    recorded = load_recorded({str(path): {**record, "seed": seed, "data": None}}, Machine())
    again = discover(
        recorded.model,
        recorded.task,
        find_method(str(record["method"])).with_parameters(record.get("parameters", {})),
        record["direction"],
        edges=len(circuit),
        select=record.get("select", "top"),
        seed=seed,
        ablation=recorded.ablation,
    )
    return compare(circuit, again)


def _show(comparison: Comparison, a: Path, b: Path, redrawn: Comparison | None) -> None:
    console, total = Console(highlight=False), comparison.total
    share = comparison.hamming / comparison.graph_edges
    lines = [
        f"A: {a}, {comparison.edges_a:,} edges",
        f"B: {b}, {comparison.edges_b:,} edges",
        f"shared {total.shared:,}, only in A {total.only_a:,}, only in B {total.only_b:,}",
        f"Jaccard {comparison.jaccard:.3f} (two random circuits of these sizes: {comparison.chance:.3f})",
        f"Hamming distance {comparison.hamming:,} ({share:.2%} of {comparison.graph_edges:,} edges)",
    ]
    if redrawn is not None:
        lines.append(f"Jaccard of A with the same search on another draw of pairs: {redrawn.jaccard:.3f}")
    if comparison.rank_correlation is not None:
        lines.append(f"rank correlation of |score| over all edges {comparison.rank_correlation:.3f}")
    console.print("\n".join(lines), markup=False, soft_wrap=True)
    columns = list(dict.fromkeys(str(kind) for row in comparison.types.values() for kind in row))
    table = FoldingTable("A \\ B", *columns, numbers=True, box=box.SIMPLE_HEAD)
    for kind, row in comparison.types.items():
        table.add_row(kind, *(f"{row.get(other, 0):,}" for other in columns))
    console.print(table)
    console.print(_counts("layer of the receiver", comparison.layers))
    shown = dict(list(comparison.nodes.items())[:_NODES_SHOWN])
    console.print(_counts(f"node ({len(shown)} of {len(comparison.nodes)}, most different first)", shown))


def _counts(title: str, parts: Mapping[str, Counts]) -> FoldingTable:
    table = FoldingTable(title, "only A", "shared", "only B", numbers=True, box=box.SIMPLE_HEAD)
    for name, counts in parts.items():
        table.add_row(name, f"{counts.only_a:,}", f"{counts.shared:,}", f"{counts.only_b:,}")
    return table


def _show_recall(recall: Recall, a: Path, name: str) -> None:
    table = FoldingTable("role", "found", "missing", box=box.SIMPLE_HEAD)
    for role, present in recall.present.items():
        table.add_row(role, " ".join(present), " ".join(recall.missing[role]))
    console = Console(highlight=False)
    console.print(table)
    precision = "-" if recall.precision is None else f"{recall.precision:.0%}"
    console.print(
        f"{a} has {recall.recall:.0%} of the nodes of {name} (as many nodes drawn at random: {recall.chance:.0%}); "
        f"of its own nodes of these kinds {precision} are published ones.",
        markup=False,
        soft_wrap=True,
    )
