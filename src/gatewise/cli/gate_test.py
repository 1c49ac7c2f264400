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

_MOST_ROWS = 20


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

    All sets of groups are made clean at the node, the others corrupted. Effects of the node's output are measured along
    the gradient of the logit difference, and the strongest interaction once more end to end, on the logit difference of
    the whole model.

    Examples:

    ```
    gatewise test-gate tiny a1.h0 --examples 16
    gatewise test-gate tiny a1.h0 -g "edge=m0->a1.h0<k>" --rest group
    ```
    """
    from gatewise.gates.testing.gate_test import test_gate

    groups = dict(map(_parse_group, group)) if group else {kind: f"<{kind}>" for kind in "qkv"}
    loaded, pairs = load_task(model, task, machine, examples=examples, seed=seed)
    test = test_gate(loaded, pairs.train, receiver, groups, rest=cast("Rest", rest), compute=machine.compute())
    if as_json:
        print(json.dumps(test.to_json(), indent=2))
        return
    console = Console()
    console.print(_effects_table(test))
    console.print(_groups_table(test))
    console.print(verdict(test), highlight=False, markup=False)


def _parse_group(text: str) -> tuple[str, list[str]]:
    name, equals, members = text.partition("=")
    if not equals or not name or not members:
        raise GatewiseError(f"a group is NAME=EDGE,EDGE,... or NAME=PORT, got {text!r}.")
    return name, members.split(",")


def _effects_table(test: GateTest) -> FoldingTable:
    table = FoldingTable("clean", "normalised effect", "95 %", "interaction", "95 %", box=box.SIMPLE_HEAD)
    for names, effect in test.intervals.effects.items():
        interaction = test.intervals.interactions[names]
        table.add_row(" ".join(sorted(names)), _value(effect), _range(effect), _value(interaction), _range(interaction))
    return table


def _groups_table(test: GateTest) -> FoldingTable:
    table = FoldingTable("group", "edges", "Ns", "Dn", "gate index", "95 %", "acts as", box=box.SIMPLE_HEAD)
    spans = test.intervals
    for name in test.operands:
        edges = str(len(test.groups[name])) if name in test.groups else "all others"
        effects = (_value(spans.ns[name]), _value(spans.dn[name]))
        index = (_value(spans.gamma[name]), _range(spans.gamma[name]))
        table.add_row(name, edges, *effects, *index, test.group_labels[name])
    return table


def verdict(test: GateTest) -> str:
    """The label in a sentence, and whether the whole model says the same."""
    names, size = test.strongest_interaction
    sentence = f"{test.receiver} is {test.label} of {', '.join(test.members)}; {' x '.join(sorted(names))} "
    sentence += f"{_value(size)} ({_range(size)})"
    if test.confirmed is not None:
        sides = [f"{side} {_value(span)} ({_range(span)})" for side, span in test.confirmed.end_to_end.items()]
        sentence += f"; end to end, with the rest of the model {', '.join(sides)}: "
        sentence += "confirmed" if test.confirmed else "not confirmed"
    return sentence + "."


def tests_table(tests: GateTests) -> FoldingTable:
    """Significant gates, one row each."""
    columns = ("receiver", "gate", "groups (edges)", "strongest interaction", "95 %", "gate index", "confirmed")
    table = FoldingTable(*columns, box=box.SIMPLE_HEAD)
    for test in tests.significant[:_MOST_ROWS]:
        names, size = test.strongest_interaction
        groups = ", ".join(f"{name} ({len(edges)})" for name, edges in test.groups.items())
        indices = ", ".join(f"{name} {value:+.2f} {test.group_labels[name]}" for name, value in test.gamma.items())
        confirmed = "" if test.confirmed is None else "yes" if test.confirmed else "no"
        strongest = f"{' x '.join(sorted(names))} {_value(size)}"
        table.add_row(test.receiver, test.label, groups, strongest, _range(size), indices, confirmed)
    return table


def _value(interval: Interval) -> str:
    return f"{interval.value:+.3f}"


def _range(interval: Interval) -> str:
    return f"{interval.low:+.3f} to {interval.high:+.3f}"
