"""`gatewise gates`: find AND, OR and ADDER gates, and if asked, test them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich import box
from rich.console import Console

from gatewise.cli.gate_test import tests_table
from gatewise.cli.options import (
    DEFAULT_MODEL,
    ExamplesOption,
    FaithfulnessOption,
    FoldingTable,
    JsonOption,
    Machine,
    MethodOption,
    ModelArgument,
    SeedOption,
    SettingsOption,
    SkipBadOption,
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
    from gatewise.compute import Compute
    from gatewise.gates.discovery import Agreement
    from gatewise.gates.labels import Gates, Rule
    from gatewise.gates.testing.search import GateTests
    from gatewise.models.model import Model
    from gatewise.tasks import Task

_SEARCH_PAIRS = 16  # on which gates to test are looked for: partners cost the most, and are only a choice


@options_apart
def gates_command(
    machine: Machine,
    processes: Workers,
    model: ModelArgument = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    method: MethodOption = "eap",
    edges: Annotated[int | None, typer.Option(help="Edges of each circuit [500, if no threshold].")] = None,
    threshold: Annotated[float | None, typer.Option(help="Instead of edges: the method's own threshold.")] = None,
    faithfulness: FaithfulnessOption = None,
    rule: Annotated[str, typer.Option(help="Set-difference labels: plain (the paper's) or repaired (CLUE's).")] = (
        "plain"
    ),
    joint: Annotated[bool, typer.Option(help="Also search the paper's Ns+Dn circuit.")] = True,
    seeds: Annotated[
        int | None, typer.Option(help="Trainings that labels have to agree on [2 for ranking and edge-pruning].")
    ] = None,
    test: Annotated[
        bool,
        typer.Option("--test", help="Test gates of groups and ports on held-out pairs, and labels by pairs of edges."),
    ] = False,
    examples: ExamplesOption = 64,
    skip_bad: SkipBadOption = False,
    seed: SeedOption = 0,
    settings: SettingsOption = None,
    store: StoreOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for the gates: .safetensors.")] = None,
    figure: Annotated[Path | None, typer.Option("--draw", help="File for a figure: .svg, .pdf or .png.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find a circuit by noising and one by denoising, and label their edges AND, OR and ADDER.

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
    opened = None if store is None else open_store(store)
    loaded, pairs = load_task(model, task, machine, examples=examples, seed=seed, skip_bad=skip_bad)
    with warnings_as_lines():
        gates = find_gates(
            loaded,
            pairs.train,
            bound,
            edges=500 if edges is None and threshold is None and faithfulness is None else edges,
            threshold=threshold,
            faithfulness=faithfulness,
            rule=cast("Rule", rule),  # checked by label_gates
            joint=joint,
            seeds=seeds,
            seed=seed,
            compute=machine.compute(processes, opened),
        )
    if out is not None:  # before the tests: they may take long
        gates.save(out)
    if figure is not None:
        gates.draw(figure)
    tests = _test(loaded, pairs, gates, machine.compute()) if test else None
    if tests is not None and tests.gates is not None and out is not None:
        gates.with_tested(tests.gates).save(out)
    if as_json:
        print(json.dumps(_content(gates) | ({} if tests is None else tests.to_json()), indent=2))
    else:
        _show(Console(), gates, tests, out)


@dataclass(frozen=True, eq=False)
class _Tests:
    """What --test adds."""

    labels: dict[str, TestedLabel]  # of edges, by pairs of them
    agreement: Agreement
    gates: GateTests | None  # of groups; None for too few pairs

    def to_json(self) -> dict[str, Any]:
        gates = {} if self.gates is None else {"gate_tests": self.gates.to_json()}
        return {"agreement": self.agreement.to_json(), "tested_labels": self.labels, **gates}


def _test(model: Model, task: Task, gates: Gates, compute: Compute) -> _Tests:
    from gatewise.gates.discovery import label_agreement
    from gatewise.gates.testing.measurement import FEWEST
    from gatewise.gates.testing.pair_tables import labels_by_test, test_edge_pairs
    from gatewise.gates.testing.search import test_gates

    labels = labels_by_test(test_edge_pairs(model, task.train, gates.sound, compute=compute))
    tests = None
    if min(len(task.train), len(task.test)) >= FEWEST:
        tests = test_gates(model, task.train[:_SEARCH_PAIRS], test=task.test, of=gates.sound, compute=compute)
    return _Tests(labels, label_agreement(gates, labels), tests)


def _content(gates: Gates) -> dict[str, Any]:
    record = gates.ns.provenance
    span = gates.layer_span()
    return {
        **{key: record[key] for key in ("method", "parameters", "model", "task", "examples", "seed")},
        "rule": gates.rule,
        "edges": {"ns": len(gates.ns), "dn": len(gates.dn), "sound": len(gates.sound)},
        "by_type": {kind: len(circuit) for kind, circuit in gates.by_type.items()},
        "unlabelled": len(gates.unlabelled),
        "proportions": gates.proportions(),
        "layer_span": {kind: value if value == value else None for kind, value in span.items()},
        "joint_outside": gates.joint_outside(),
        "seed_overlap": None if gates.seed_overlap is None else asdict(gates.seed_overlap),
        "gates": [{"receiver": gate.receiver, "type": gate.type, "edges": list(gate.edges)} for gate in gates],
    }


def _show(console: Console, gates: Gates, tests: _Tests | None, out: Path | None) -> None:
    console.print(repr(gates), markup=False, highlight=False)
    shares, spans = gates.proportions(), gates.layer_span()
    table = FoldingTable("type", "edges", "share", "gates", "layers crossed", box=box.SIMPLE_HEAD)
    for kind, circuit in gates.by_type.items():
        count = sum(gate.type == kind for gate in gates)
        crossed = f"{spans[kind]:.1f}" if circuit else "-"
        table.add_row(kind, f"{len(circuit):,}", f"{shares[kind]:.0%}", f"{count:,}", crossed)
    console.print(table)
    outside = gates.joint_outside()
    if outside is not None:
        console.print(f"{outside:.0%} of the Ns+Dn circuit's edges are in neither circuit.", highlight=False)
    if tests is not None:
        if tests.gates is not None:
            _show_gate_tests(console, tests.gates)
        _show_agreement(console, tests.agreement)
    if out is not None:
        console.print(f"written to {out}", highlight=False, markup=False)


def _show_gate_tests(console: Console, tests: GateTests) -> None:
    if len(tests):
        console.print(tests_table(tests))
    console.print(
        f"{len(tests)} of {len(tests.tested)} gates tested on held-out pairs are significant, of {tests.looked_at} "
        f"receivers; effects are normalised by the difference between the runs.",
        highlight=False,
    )


def _show_agreement(console: Console, agreement: Agreement) -> None:
    labels = sorted({label for row in agreement.table.values() for label in row}, key=TESTED_LABELS.index)
    table = FoldingTable("by set difference", *(f"{label} by test" for label in labels), "agree", box=box.SIMPLE_HEAD)
    for kind, row in agreement.table.items():
        agreed = f"{agreement.of_type(kind):.0%}" if row else "-"
        table.add_row(kind, *(str(row.get(label, 0)) for label in labels), agreed)
    console.print(table)
    console.print(
        f"set-difference and tested labels agree on {agreement.share:.1%} of {agreement.edges:,} edges; "
        f"{agreement.untested:,} have no partner to be tested with.",
        highlight=False,
    )
