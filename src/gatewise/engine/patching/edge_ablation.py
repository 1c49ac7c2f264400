"""Removing sets of edges from a circuit, each set within one receiver node: what every question about a few edges asks.

`benches` makes a `Bench` for each batch: the circuit in one direction, its logit differences and its distance from the
reference. A bench answers with last residuals, which are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.engine.metrics import residual_values
from gatewise.engine.patching.incremental import Proposal, State
from gatewise.engine.patching.kl_screening import Divergence
from gatewise.engine.patching.propagation import DEAD, Route, all_liveness, all_moves
from gatewise.engine.runs.activations import Direction
from gatewise.engine.setting import Batch, Setting
from gatewise.errors import GatewiseError
from gatewise.progress import progress_bar

Removal = frozenset[int]  # indices of edges
NOTHING: Removal = frozenset()
ResidualMeasure = Callable[[Tensor], Tensor]  # of last residuals [row, example, d] -> [row, example]


class Bench:
    """A circuit on one batch, in one direction, from which edges can be removed."""

    def __init__(self, setting: Setting, batch: Batch, circuit: Circuit, direction: Direction = "ns") -> None:
        model, runs = setting.model, setting.runs(batch)
        kept = model.graph.matrix(circuit.mask)
        self.model, self.graph, self.pairs, self.metric = model, model.graph, batch.pairs, setting.value
        self.reference = runs.reference(direction)
        self.state = State(model, runs.intervention(model, direction), self.reference.outputs, kept)
        self.live = all_liveness(model, kept)
        matters = torch.tensor(self.live) != DEAD
        self._moves = all_moves(model, kept, matters) if not runs.ablated else matters
        self.is_silent = not bool((kept[-1] & self._moves).any())  # no edge of it changes the logits

    @cached_property
    def distance(self) -> Divergence:
        """From the reference's output."""
        return Divergence(self.model, self.reference.logits)

    @cached_property
    def logit_diff(self) -> ResidualMeasure:
        """The pairs' logit difference, or the setting's metric in its place."""
        return residual_values(self.model, self.pairs, self.metric)

    def matters(self, port: int) -> bool:
        """Whether anything that a port reads can change the logits."""
        node = self.graph.port_sender[port]
        return node < 0 or self.live[node] != DEAD

    def proposals(self, ports: Sequence[int], removals: Sequence[Removal]) -> Iterator[tuple[slice, Proposal]]:
        """The circuit without each set of edges, all into these ports of one node that matters; some at a time.

        Yields which of the sets, and their proposal.
        """
        state, node = self.state, self.graph.port_sender[ports[0]]
        route = None if node < 0 else state.route(node, self.live)
        size = state.rows_at_once(route)
        for start in range(0, len(removals), size):
            some = slice(start, start + size)
            yield some, state.propose(route, self._changes(route, ports, removals[some]))

    def _changes(self, route: Route | None, ports: Sequence[int], removals: Sequence[Removal]) -> dict[int, Tensor]:
        """Changes of the ports' inputs, a row for each set of edges."""
        edges = torch.tensor(sorted(set[int]().union(*removals)), dtype=torch.long)
        column = {edge: i for i, edge in enumerate(edges.tolist())}
        gone = torch.zeros(len(removals), len(edges))
        for row, removal in enumerate(removals):
            gone[row, [column[edge] for edge in removal]] = 1
        changes = {}
        for port in ports:
            mine = self.graph.edge_port[edges] == port
            senders = self.graph.edge_sender[edges[mine]].tolist()
            carried = self.state.carried(senders, self.state.positions_read(route, port))
            changes[port] = -torch.tensordot(gone[:, mine].to(carried), carried, dims=1)
        return changes

    def residuals(self, removals: Sequence[Removal]) -> Iterator[tuple[list[int], Tensor]]:
        """Last residuals of the circuit without each set of edges, some at a time.

        Yields places in `removals` and their residuals [place, example, d]; what changes nothing has exactly `last`.
        """
        for ports, places in _by_ports(self.graph, removals).items():
            alive = bool(ports) and self.matters(ports[0])
            moving = [place for place in places if alive and self._carries(removals[place])]
            for some, proposal in self.proposals(ports, [removals[place] for place in moving]) if moving else ():
                yield moving[some], proposal.residual
            same = sorted(set(places).difference(moving))
            if same:
                yield same, self.state.last.expand(len(same), *self.state.last.shape)

    def _carries(self, removal: Removal) -> bool:
        """Whether what any of the edges carries differs from what comes without it."""
        return any(self._moves[self.graph.edge_sender[edge]] for edge in removal)


def _by_ports(graph: Graph, removals: Sequence[Removal]) -> dict[tuple[int, ...], list[int]]:
    """Places of the removals, by the ports that their edges go into."""
    port_of, groups = graph.edge_port.tolist(), dict[tuple[int, ...], list[int]]()
    for place, removal in enumerate(removals):
        ports = tuple(sorted({port_of[edge] for edge in removal}))
        if len({graph.port_sender[port] for port in ports}) > 1:
            raise GatewiseError(
                f"edges to be removed together go into one node, got {', '.join(graph.ports[p] for p in ports)}. "
                f"To remove edges of several receivers, run the circuit without them."
            )
        groups.setdefault(ports, []).append(place)
    return groups


def benches(setting: Setting, circuit: Circuit, direction: Direction = "ns") -> Iterator[tuple[slice, Bench]]:
    """A bench for each batch, with the examples that it is about."""
    setting.check_direction(direction)
    setting.check_circuits([circuit])
    return (
        (slice(batch.first, batch.first + len(batch.pairs)), Bench(setting, batch, circuit, direction))
        for batch in setting.batches()
    )


def measure_removals(
    setting: Setting,
    circuit: Circuit,
    removals: Sequence[Removal],
    measures: Callable[[Bench], Sequence[ResidualMeasure]],
    direction: Direction = "ns",
    *,
    task: str = "removing edges",
) -> Tensor:
    """Measures of the circuit without each set of edges. [measure, removal, example]

    Sets that change nothing, such as the empty one, have exactly the circuit's own values.
    """
    found, parts = [], benches(setting, circuit, direction)
    absent = {edge for removal in removals for edge in removal if not bool(circuit.mask[edge])}
    if absent:
        raise GatewiseError(
            f"{len(absent)} of the edges are not in the circuit they were to be removed from, for example "
            f"{circuit.graph.edges[min(absent)]}. Leave them out, or pass a circuit that has them."
        )
    with progress_bar(task, len(removals) * len(setting)) as bar:
        for examples, bench in parts:
            chosen, last = measures(bench), bench.state.last
            whole = torch.stack([measure(last[None]) for measure in chosen]).cpu()
            values = whole.repeat(1, len(removals), 1)
            for places, residual in bench.residuals(removals):
                moved = (residual != last).flatten(1).any(dim=1).nonzero().flatten()
                if len(moved):
                    rows = torch.tensor(places)[moved.cpu()]
                    values[:, rows] = torch.stack([measure(residual[moved]) for measure in chosen]).cpu()
                bar.advance(len(places) * (examples.stop - examples.start))
            found.append(values)
    return torch.cat(found, dim=-1)


def kl_changes(
    setting: Setting, circuit: Circuit | None, removals: Sequence[Removal], *, task: str = "removing edges"
) -> Tensor:
    """D(G || H\\removed) - D(G || H) by noising, H the circuit or, if None, the full graph. [removal, example]"""
    start = setting.graph.full() if circuit is None else circuit
    rows = [NOTHING, *removals]
    found = measure_removals(setting, start, rows, lambda bench: [bench.distance.exact], task=task)
    return found[0, 1:] - found[0, 0]
