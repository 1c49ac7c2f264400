"""Where a change can go: which nodes matter under a circuit, and the route of a node's change to the logits.

Nodes without a kept path to the logits are dead; nodes whose output is read at the last position only live there. Both
follow from the circuit alone, so that a route is made once for many changes. Heads that a norm over their sum couples
(Gemma) live and change together: each one's share scales what all of them write.

A circuit is given as `in_circuit`: [port, sender] of bool, on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.graph import LOGITS, Graph
from gatewise.devices import on_device, rows_of
from gatewise.models.components import KINDS, Kind
from gatewise.models.model import Model

DEAD, LAST, WIDE = 0, 1, 2  # whether a node matters: not at all, at the last position, at all positions of the window


def kinds_of(graph: Graph, port: int) -> tuple[Kind, ...]:
    """What of a head a port feeds; empty for other nodes."""
    name = graph.ports[port]
    if name.endswith(">"):
        return (name[-2],)  # type: ignore[return-value]
    return KINDS if graph.sublayers[graph.sublayer_of_port[port]].kind == "attention" else ()


def feeds_keys_or_values(graph: Graph, port: int) -> bool:
    """Whether a port matters at all positions as soon as its node does anywhere: a query looks at all before it."""
    kinds = kinds_of(graph, port)
    return "k" in kinds or "v" in kinds


def _needed_by(graph: Graph, port: int, reader: int) -> int:
    """Where what a port reads is needed, if its node is needed at `reader`."""
    return WIDE if reader != DEAD and feeds_keys_or_values(graph, port) else reader


def liveness(model: Model, in_circuit: Tensor, node: int, known: Sequence[int]) -> int:
    """Where a sender is needed, given where all of later sublayers are."""
    graph, need = model.graph, DEAD
    for port in in_circuit[:, model.siblings(node)].any(dim=1).nonzero().flatten().tolist():
        reader = graph.port_sender[port]
        need = max(need, LAST if reader == LOGITS else _needed_by(graph, port, known[reader]))
    return need


def all_liveness(model: Model, in_circuit: Tensor) -> list[int]:
    """Liveness of every sender."""
    graph = model.graph
    live = torch.full((len(graph.senders),), DEAD, dtype=torch.int8)
    needs = torch.full((len(graph.ports),), LAST, dtype=torch.int8)  # where each port reads, from the logits back
    for index in reversed(range(len(graph.sublayers) - 1)):
        nodes, ports = graph.sender_slices[index], graph.port_slices[index]
        later = slice(ports.stop, None)
        live[nodes] = (in_circuit[later, nodes] * needs[later, None]).amax(dim=0)
        if len(model.siblings(nodes.start)) > 1:
            live[nodes] = live[nodes].max()
        for port in range(ports.start, ports.stop):
            needs[port] = _needed_by(graph, port, int(live[graph.port_sender[port]]))
    return [int(need) for need in live]


def differing_senders(model: Model, in_circuit: Tensor, live: Sequence[int], is_run: bool) -> Tensor:
    """Which of the senders that matter can differ from what removed edges carry. [sender] of bool

    Only sources differ by themselves. A node that no path of kept edges joins to one reads what it does without any
    edge, and so puts out what it did in the other run. An ablation's constants are no run: there, all nodes differ.
    """
    graph, differs = model.graph, torch.tensor(live) != DEAD
    for index in range(1, len(graph.sublayers) - 1) if is_run else ():
        nodes, ports, reads = graph.sender_slices[index], graph.port_slices[index], graph.sublayers[index].reads
        reached = (in_circuit[ports, :reads] & differs[:reads]).any(dim=1)
        reached = reached.reshape(-1, nodes.stop - nodes.start).any(dim=0)  # of any port of the node
        differs[nodes] &= reached.any() if len(model.siblings(nodes.start)) > 1 else reached
    return differs


@dataclass(frozen=True, eq=False)
class Reading:
    """Ports of one kind that a change reaches, and which changed senders they read."""

    kind: Kind | None
    ports: list[int]
    rows: Tensor  # which of the step's nodes they belong to
    wide: bool  # whether they read all positions of the window
    mix: Tensor  # [port, changed sender so far] of 0 and 1; if it is wide, of the wide changed senders


@dataclass(frozen=True, eq=False)
class Step:
    """Nodes of one sublayer and one liveness that a change reaches."""

    sublayer: int  # index in model.sublayers
    nodes: list[int]  # sender indices
    written: list[int]  # the nodes whose outputs change with theirs: the same, or all heads of a coupled layer
    written_rows: slice | Tensor  # the same, as what selects them
    locals: list[int]  # indices within the sublayer
    heads: Tensor  # the same
    wide: bool
    readings: Sequence[Reading]  # none for the node that a route starts from


@dataclass(frozen=True, eq=False)
class Route:
    """The way of a change of one node to the logits along kept edges."""

    start: Step
    steps: list[Step]
    changed: list[int]  # what the start writes, then what each step does
    wide_changed: list[int]  # of those, what is written at all positions
    into_logits: Tensor  # [changed sender] of 0 and 1
    read_by_logits: list[int]  # the changed senders that the logits read


def find_route(model: Model, in_circuit: Tensor, node: int, live: Sequence[int]) -> Route:
    """How a change of this node reaches the logits. live: liveness of all senders from this one on."""
    graph = model.graph
    start = step_of(model, [node], live[node] == WIDE)
    changed, wide_changed = [*start.written], [*start.written] if start.wide else []
    route_steps = []
    for index in range(start.sublayer + 1, len(graph.sublayers) - 1):
        if graph.sublayers[index].reads <= node:  # its own sublayer, and the MLP beside heads of a parallel layer
            continue
        steps = _steps(model, in_circuit, index, changed, wide_changed, live)
        route_steps += steps
        # Only after all steps of the sublayer are made: its nodes read nothing of each other.
        for step in steps:
            changed += step.written
            wide_changed += step.written if step.wide else []
    into_logits = on_device(in_circuit[-1, changed], model.device, model.head.dtype)
    read_by_logits = [sender for sender in changed if in_circuit[-1, sender]]
    return Route(start, route_steps, changed, wide_changed, into_logits, read_by_logits)


def step_of(model: Model, nodes: list[int], wide: bool, readings: Sequence[Reading] = ()) -> Step:
    """A step of these nodes of one sublayer."""
    index, together = model.graph.sublayer_of_sender[nodes[0]], model.siblings(nodes[0])
    written = [*together] if len(together) > 1 else nodes
    locals_ = [node - model.graph.sender_slices[index].start for node in nodes]
    heads, rows = on_device(torch.tensor(locals_), model.device), rows_of(written, model.device)
    return Step(index - 1, nodes, written, rows, locals_, heads, wide, readings)


def _steps(
    model: Model, in_circuit: Tensor, index: int, changed: list[int], wide_changed: list[int], live: Sequence[int]
) -> list[Step]:
    """The nodes of a sublayer that read a changed sender, those of each liveness together."""
    graph, ports = model.graph, model.graph.port_slices[index]
    reached = in_circuit[ports][:, changed].any(dim=1).nonzero().flatten() + ports.start
    by_node: dict[int, list[int]] = {}
    for port in reached.tolist():
        if live[graph.port_sender[port]] != DEAD:
            by_node.setdefault(graph.port_sender[port], []).append(port)
    steps = []
    for wide in (False, True):
        nodes = sorted(node for node in by_node if (live[node] == WIDE) == wide)
        if nodes:
            readings = _readings(model, in_circuit, [by_node[node] for node in nodes], wide, changed, wide_changed)
            steps.append(step_of(model, nodes, wide, readings))
    return steps


def _readings(
    model: Model, in_circuit: Tensor, ports_of: list[list[int]], wide: bool, changed: list[int], wide_changed: list[int]
) -> list[Reading]:
    """What the ports of a step's nodes read. ports_of: the reached ports of each node"""
    groups: dict[Kind | None, list[tuple[int, int]]] = {}
    for row, ports in enumerate(ports_of):
        for port in ports:
            for kind in kinds_of(model.graph, port) or (None,):
                groups.setdefault(kind, []).append((port, row))
    readings = []
    for kind, members in groups.items():
        # Keys and values are read at all positions, for one query at the last too. What they read is then wide as well
        # (`liveness`), so no change that reaches them is missing among the wide ones.
        everywhere = wide or kind in ("k", "v")
        ports = [port for port, _ in members]
        mix = in_circuit[ports][:, wide_changed if everywhere else changed]
        mix = on_device(mix, model.device, model.head.dtype)
        rows = on_device(torch.tensor([row for _, row in members]), model.device)
        readings.append(Reading(kind, ports, rows, everywhere, mix))
    return readings
