"""`gatewise gates`: find AND, OR and ADDER gates, and if asked, test them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich import box
from rich.console import Console

from gatewise.cli.gate_test import found_table
from gatewise.cli.options import (
    DEFAULT_MODEL,
    ExamplesOption,
    FoldingTable,
    JsonOption,
    Machine,
    MethodOption,
    ModelArgument,
    SeedOption,
    SettingsOption,
    StoreOption,
    TaskOption,
    Workers,
    load_task,
    open_store,
    options_apart,
    parse_method,
    warnings_as_lines,
)
from gatewise.gate_types import TESTED_LABELS, TestedLabel

if TYPE_CHECKING:
    from gatewise.circuits.graph import Grouping
    from gatewise.compute import Compute
    from gatewise.gates.discovery import Agreement
    from gatewise.gates.labels import Gates, Rule
    from gatewise.gates.testing.search import GateTests
    from gatewise.models.model import Model
    from gatewise.tasks import Task

_SEARCHED = 16  # pairs on which gates to test are looked for: partners cost the most, and are only a choice


@options_apart
def gates_command(
    machine: Machine,
    team: Workers,
    model: ModelArgument = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    method: MethodOption = "eap",
    edges: Annotated[int | None, typer.Option(help="Edges of the noising circuit [500, if no threshold].")] = None,
    ratio: Annotated[float, typer.Option(help="|Ns| : |Dn|; the denoising circuit has edges / ratio edges.")] = 1.0,
    threshold: Annotated[float | None, typer.Option(help="Instead of edges: the method's own threshold.")] = None,
    rule: Annotated[str, typer.Option(help="plain (the paper's split) or repaired (CLUE's).")] = "plain",
    by: Annotated[str, typer.Option(help="Receivers of gates: port or node.")] = "port",
    joint: Annotated[bool, typer.Option(help="Also search the paper's Ns+Dn circuit.")] = True,
    test: Annotated[
        bool,
        typer.Option("--test", help="Test gates of groups and ports on held-out pairs, and labels by pairs of edges."),
    ] = False,
    examples: ExamplesOption = 64,
    seed: SeedOption = 0,
    settings: SettingsOption = None,
    store: StoreOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for the gates: .safetensors.")] = None,
    export: Annotated[Path | None, typer.Option(help="Folder for the circuits, as JSON for EAP-IG and MIB.")] = None,
    figure: Annotated[Path | None, typer.Option("--draw", help="File for a figure: .svg, .pdf or .png.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find a circuit by noising and one by denoising, and split them into AND, OR and ADDER gates.

    An edge that only noising finds is AND, one that only denoising finds is OR, one that both find is ADDER. --test
    measures how groups of these edges and whole ports act together at their receivers, and whether pairs of edges into
    one port behave as they were labelled.

    Examples:

    ```
    gatewise gates tiny --edges 100 --out gates.safetensors --draw it.svg
    gatewise gates synthetic:combined --method acdc --threshold 0.01 --test
    gatewise gates tiny --task sa --edges 50 -n 8 --json
    ```
    """
    bound = parse_method(method, settings)
    from gatewise.circuits.drawing import check_can_draw
    from gatewise.gates.discovery import find_gates
    from gatewise.gates.labels import check_gates_path

    if figure is not None:
        check_can_draw(figure)
    if out is not None:
        check_gates_path(out)
    kept = None if store is None else open_store(store)
    loaded, made = load_task(model, task, machine, examples=examples, seed=seed)
    pairs = made.train
    with warnings_as_lines():
        gates = find_gates(
            loaded,
            pairs,
            bound,
            edges=500 if edges is None and threshold is None else edges,
            ratio=ratio,
            threshold=threshold,
            rule=cast("Rule", rule),  # checked by split_gates
            by=cast("Grouping", by),
            joint=joint,
            seed=seed,
            compute=machine.compute(team, kept),
        )
    if out is not None:
        gates.save(out)
    if export is not None:
        gates.export(export)
    if figure is not None:
        gates.draw(figure)
    measures = _Measures()
    if test:
        measures.test(loaded, made, gates, machine.compute())
        if out is not None and measures.interactions is not None:
            gates.with_tested(measures.interactions).save(out)
    if as_json:
        print(json.dumps(_content(gates) | measures.to_json(), indent=2))
    else:
        _show(gates, measures, out)


@dataclass(eq=False)
class _Measures:
    """What was asked about the gates."""

    tested: dict[str, TestedLabel] | None = None
    agreement: Agreement | None = None
    interactions: GateTests | None = None

    def test(self, model: Model, task: Task, gates: Gates, compute: Compute) -> None:
        from gatewise.gates.discovery import label_agreement
        from gatewise.gates.testing.gate_test import FEWEST
        from gatewise.gates.testing.pair_tables import labels_by_test, test_edge_pairs
        from gatewise.gates.testing.search import test_gates

        self.tested = labels_by_test(test_edge_pairs(model, task.train, gates.sound, compute=compute))
        self.agreement = label_agreement(gates, self.tested)
        if min(len(task.train), len(task.test)) >= FEWEST:
            search = task.train[:_SEARCHED]
            found = test_gates(model, search, test=task.test, of=gates.sound, compute=compute)
            self.interactions = found

    def to_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {}
        if self.agreement is not None:
            content |= {"agreement": self.agreement.to_json(), "tested_labels": self.tested}
        if self.interactions is not None:
            content["interactions"] = self.interactions.to_json()
        return content


def _content(gates: Gates) -> dict[str, Any]:
    record = gates.ns.provenance
    span = gates.layer_span()
    return {
        **{key: record[key] for key in ("method", "parameters", "model", "task", "examples", "seed")},
        "rule": gates.rule,
        "by": gates.grouping,
        "edges": {"ns": len(gates.ns), "dn": len(gates.dn), "sound": len(gates.sound)},
        "by_type": {kind: len(circuit) for kind, circuit in gates.by_type.items()},
        "unlabelled": len(gates.unlabelled),
        "proportions": gates.proportions(),
        "layer_span": {kind: value if value == value else None for kind, value in span.items()},
        "joint_outside": gates.outside(),
        "gates": [{"receiver": gate.receiver, "type": gate.type, "edges": list(gate.edges)} for gate in gates],
    }


def _show(gates: Gates, measures: _Measures, out: Path | None) -> None:
    console = Console()
    console.print(repr(gates), markup=False, highlight=False)
    shares, spans = gates.proportions(), gates.layer_span()
    table = FoldingTable("type", "edges", "share", "gates", "layers crossed", box=box.SIMPLE_HEAD)
    for kind, circuit in gates.by_type.items():
        count = sum(gate.type == kind for gate in gates)
        crossed = f"{spans[kind]:.1f}" if circuit else "-"
        table.add_row(kind, f"{len(circuit):,}", f"{shares[kind]:.0%}", f"{count:,}", crossed)
    console.print(table)
    outside = gates.outside()
    if outside is not None:
        console.print(f"{outside:.0%} of the Ns+Dn circuit's edges are in neither circuit.", highlight=False)
    if measures.interactions is not None:
        _show_interactions(console, measures.interactions)
    if measures.agreement is not None:
        _show_agreement(console, measures.agreement)
    if out is not None:
        console.print(f"written to {out}", highlight=False, markup=False)


def _show_interactions(console: Console, found: GateTests) -> None:
    if len(found):
        console.print(found_table(found))
    console.print(
        f"{len(found)} of {len(found.tested)} gates tested on held-out pairs stand, of {found.looked_at} receivers; "
        f"normalised effects between the runs.",
        highlight=False,
    )


def _show_agreement(console: Console, agreement: Agreement) -> None:
    labels = sorted({label for row in agreement.table.values() for label in row}, key=TESTED_LABELS.index)
    table = FoldingTable("by split", *(f"{label} by test" for label in labels), "agree", box=box.SIMPLE_HEAD)
    for kind, row in agreement.table.items():
        agreed = f"{agreement.of_type(kind):.0%}" if row else "-"
        table.add_row(kind, *(str(row.get(label, 0)) for label in labels), agreed)
    console.print(table)
    console.print(
        f"split and tested labels agree on {agreement.share:.1%} of {agreement.edges:,} edges; "
        f"{agreement.only_split:,} have no partner to be tested with.",
        highlight=False,
    )
