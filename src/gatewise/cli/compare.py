"""`gatewise compare` and `gatewise conflict`: two circuits side by side, and two tasks at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console

from gatewise.cli.options import FoldingTable, JsonOption
from gatewise.errors import GatewiseError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatewise.circuits.compare import Comparison, Counts
    from gatewise.circuits.published import Recall
    from gatewise.logic.conflict import Conflicts


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
    from gatewise.circuits.compare import compare
    from gatewise.circuits.published import PUBLISHED, compare_with_published
    from gatewise.logic.gates import load_labelled, load_two

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


def conflict_command(
    a: Annotated[Path, typer.Argument(help="A gates file (`gatewise gates --out`) of one task.")],
    b: Annotated[Path, typer.Argument(help="A gates file of another task on the same model.")],
    keep: Annotated[str, typer.Option(help="The task to keep, a or b; the other one is to be removed.")] = "a",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Circuit file for the edges to remove.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show all shared edges, not the first 30.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask whether one task can be removed and another kept: which edges clash, and which clashes dissolve.

    The task to keep needs its AND and ADDER edges and one edge of each OR gate; the task to remove must lose its OR and
    ADDER edges and one edge of each AND gate. To measure what removal does, evaluate the file of --out on both tasks
    and read the columns G\\C, the model without these edges.

    Examples:

    ```
    gatewise gates tiny --task ioi --edges 200 --out ioi.safetensors
    gatewise gates tiny --task gt --edges 200 --out gt.safetensors
    gatewise conflict ioi.safetensors gt.safetensors --out removal.json
    gatewise evaluate removal.json --model tiny --task ioi
    ```
    """
    if keep not in ("a", "b"):
        raise GatewiseError(f"--keep is a or b, the first or the second file; got {keep!r}.")
    from gatewise.logic.conflict import find_conflicts
    from gatewise.logic.gates import Gates

    first, second = Gates.load(a), Gates.load(b)
    found = find_conflicts(first, second) if keep == "a" else find_conflicts(second, first)
    names = (a, b) if keep == "a" else (b, a)
    if out is not None:
        found.removal.with_provenance(kept=names[0].name, removed=names[1].name).save(out)
    if as_json:
        print(json.dumps({"keep": str(names[0]), "remove": str(names[1]), **found.to_json()}, indent=2))
    else:
        _show_conflicts(found, names, None if every else 30)
        if out is not None:
            print(f"The edges to remove are in {out}.")


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
    for role in recall.found:
        table.add_row(role, " ".join(recall.found[role]), " ".join(recall.missing[role]))
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


def _show_conflicts(found: Conflicts, names: tuple[Path, Path], limit: int | None) -> None:
    console = Console()
    order = {"conflict": 0, "dissolved by OR": 1, "dissolved by AND": 2}
    clashes = sorted(found.clashes, key=lambda clash: order[clash.verdict])
    table = FoldingTable("edge", "to keep", "to remove", "verdict", "because of", box=box.SIMPLE_HEAD)
    for clash in clashes[:limit]:
        reason = {
            "conflict": "each edge of its AND gate is needed" if clash.remove == "AND" else "needed, and must go",
            "dissolved by OR": f"stays: {_some(clash.instead)}",
            "dissolved by AND": f"goes: {_some(clash.instead)}",
        }[clash.verdict]
        table.add_row(clash.edge, clash.keep, clash.remove, clash.verdict, reason)
    console.print(table)
    if limit is not None and len(clashes) > limit:
        console.print(f"... and {len(clashes) - limit:,} more; --all shows them.", highlight=False)
    verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in found.counts().items())
    console.print(
        f"to keep {names[0]}: {len(found.keep):,} edges; to remove {names[1]}: {len(found.remove):,} edges; shared "
        f"{len(clashes):,}: {verdicts}.\n"
        + (
            f"No conflict is left: removing {len(found.removal):,} edges should take one task away and spare the other."
            if found.compatible
            else f"{len(found.removal):,} edges can go; the conflicts keep the rest of the task to remove in place."
        ),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _some(edges: tuple[str, ...]) -> str:
    return ", ".join(edges[:2]) + (f" and {len(edges) - 2} more" if len(edges) > 2 else "")
