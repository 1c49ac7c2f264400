"""`gatewise test-gate`: how groups of edges into one node act together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich import box
from rich.console import Console

from gatewise.cli.options import (
    ExamplesOption,
    FoldingTable,
    JsonOption,
    Machine,
    ModelArgument,
    SeedOption,
    TaskOption,
    load_task,
    options_apart,
)
from gatewise.errors import GatewiseError

if TYPE_CHECKING:
    from gatewise.gates.testing.candidates import Rest
    from gatewise.gates.testing.gate_test import GateTest
    from gatewise.gates.testing.search import GateTests
    from gatewise.statistics import Interval


@options_apart
def test_gate_command(
    machine: Machine,
    model: ModelArgument,
    receiver: Annotated[str, typer.Argument(help="A node that reads: a head (a23.h3), an MLP (m18) or logits.")],
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group", "-g", help="NAME=EDGE,EDGE,... or NAME=PORT, once for each group [each port of a head]."
        ),
    ] = None,
    rest: Annotated[str, typer.Option(help="What the node's other edges carry: corrupted or clean; or group.")] = (
        "corrupted"
    ),
    task: TaskOption = "ioi",
    examples: ExamplesOption = 64,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Test how groups of edges into one node act together: AND, OR, ADDER or something else.

    All sets of groups are made clean at the node, the others corrupted; what the node then puts out is valued along the
    gradient of the logit difference, and the strongest interaction is repeated on the logit difference of the whole
    model.

    Examples:

    ```
    gatewise test-gate tiny a1.h0 --examples 16
    gatewise test-gate tiny a1.h0 -g "edge=m0->a1.h0<k>" --rest group
    ```
    """
    from gatewise.gates.testing.gate_test import test_gate

    groups = dict(map(_parse, group)) if group else {kind: f"<{kind}>" for kind in "qkv"}
    loaded, made = load_task(model, task, machine, examples=examples, seed=seed)
    found = test_gate(loaded, made.train, receiver, groups, rest=cast("Rest", rest), compute=machine.compute())
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
        return
    console = Console()
    console.print(_table(found))
    console.print(_all_groups(found))
    console.print(verdict(found), highlight=False, markup=False)


def _parse(text: str) -> tuple[str, list[str]]:
    name, equals, members = text.partition("=")
    if not equals or not name or not members:
        raise GatewiseError(f"a group is NAME=EDGE,EDGE,... or NAME=PORT, got {text!r}.")
    return name, members.split(",")


def _table(found: GateTest) -> FoldingTable:
    table = FoldingTable("clean", "worth", "95 %", "beyond its subsets", "95 %", box=box.SIMPLE_HEAD)
    for names, worth in found.intervals["values"].items():
        more = found.intervals["harsanyi_interactions"][names]
        table.add_row(" ".join(sorted(names)), _value(worth), _range(worth), _value(more), _range(more))
    return table


def _all_groups(found: GateTest) -> FoldingTable:
    table = FoldingTable("group", "edges", "n", "d", "gate index", "95 %", "acts as", box=box.SIMPLE_HEAD)
    for name in found.all_groups:
        edges = str(len(found.groups[name])) if name in found.groups else "all others"
        n, d, gamma = (found.intervals[key][name] for key in ("ns", "dn", "gamma"))
        table.add_row(name, edges, _value(n), _value(d), _value(gamma), _range(gamma), found.group_labels[name])
    return table


def verdict(found: GateTest) -> str:
    """The label in a sentence, and whether the whole model says the same."""
    names, size = found.interaction
    said = f"{found.receiver} is {found.label} of {', '.join(found.members)}; {' x '.join(sorted(names))} "
    said += f"{_value(size)} ({_range(size)})"
    if found.confirmed is not None:
        sides = [f"{side} {_value(one)} ({_range(one)})" for side, one in found.confirmed.on_logit_diff.items()]
        said += f"; on the logit difference, with the rest of the model {', '.join(sides)}: "
        said += "confirmed" if found.confirmed else "not confirmed"
    return said + "."


def found_table(found: GateTests, most: int = 20) -> FoldingTable:
    """Tested gates that stand, one row each."""
    columns = ("receiver", "gate", "groups (edges)", "strongest interaction", "95 %", "gate index", "confirmed")
    table = FoldingTable(*columns, box=box.SIMPLE_HEAD)
    for one in found.found[:most]:
        names, size = one.interaction
        groups = ", ".join(f"{name} ({len(edges)})" for name, edges in one.groups.items())
        indices = ", ".join(f"{name} {value:+.2f} {one.group_labels[name]}" for name, value in one.gamma.items())
        significant = "" if one.confirmed is None else "yes" if one.confirmed else "no"
        strongest = f"{' x '.join(sorted(names))} {_value(size)}"
        table.add_row(one.receiver, one.label, groups, strongest, _range(size), indices, significant)
    return table


def _value(found: Interval) -> str:
    return f"{found.value:+.3f}"


def _range(found: Interval) -> str:
    return f"{found.low:+.3f} to {found.high:+.3f}"
