"""Ablating sets of edges, each set into one node, and measuring the change: what `exact_effects` is made of.

`edge_ablations` makes an `EdgeAblation` for each batch: the circuit in one direction, its logit differences and its
distance from the reference. It answers with last residuals, which are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import LOGITS, Graph
from gatewise.devices import on_device
from gatewise.engine.metrics import residual_values
from gatewise.engine.patching.incremental import State
from gatewise.engine.patching.kl_screening import Divergence
from gatewise.engine.patching.propagation import DEAD, Route, all_liveness, differing_senders
from gatewise.engine.runs.activations import Direction
from gatewise.engine.setting import Batch, Setting
from gatewise.errors import GatewiseError
from gatewise.progress import progress_bar

Removal = frozenset[int]  # indices of edges
NOTHING: Removal = frozenset()
ResidualMeasure = Callable[[Tensor], Tensor]  # of last residuals [row, example, d] -> [row, example]


class EdgeAblation:
    """A circuit on one batch, in one direction, from which edges can be removed."""

    def __init__(self, setting: Setting, batch: Batch, circuit: Circuit, direction: Direction = "ns") -> None:
        model, runs = setting.model, setting.runs(batch)
        in_circuit = model.graph.matrix(circuit.mask)
        self.model, self.graph, self.pairs, self.metric = model, model.graph, batch.pairs, setting.value
        self.reference = runs.reference(direction)
        on = runs.intervention(model, direction)
        self.state = State(model, on, self.reference.outputs, in_circuit, setting.row_bytes)
        self.live = all_liveness(model, in_circuit)
        self._differs = differing_senders(model, in_circuit, self.live, not runs.ablated)
        self.is_silent = not bool((in_circuit[-1] & self._differs).any())  # no edge of it changes the logits

    @cached_property
    def distance(self) -> Divergence:
        """From the reference's output."""
        return Divergence(self.model, self.reference.logits)

    @cached_property
    def logit_diff(self) -> ResidualMeasure:
        """The pairs' logit difference, or the setting's metric in its place."""
        return residual_values(self.model, self.pairs, self.metric)

    def _changes(self, route: Route | None, ports: Sequence[int], removals: Sequence[Removal]) -> dict[int, Tensor]:
        """Changes of the ports' inputs, a row for each set of edges."""
        edges = torch.tensor(sorted(set[int]().union(*removals)), dtype=torch.long)
        column = {edge: i for i, edge in enumerate(edges.tolist())}
        gone = torch.zeros(len(removals), len(edges))
        for row, removal in enumerate(removals):
            gone[row, [column[edge] for edge in removal]] = 1
        changes = {}
        for port in ports:
            into_port = self.graph.edge_port[edges] == port
            senders = self.graph.edge_sender[edges[into_port]].tolist()
            carried = self.state.carried(senders, self.state.positions_read(route, port))
            changes[port] = -torch.tensordot(
                on_device(gone[:, into_port], carried.device, carried.dtype), carried, dims=1
            )
        return changes

    def residuals(self, removals: Sequence[Removal]) -> Iterator[tuple[list[int], Tensor]]:
        """Last residuals of the circuit without each set of edges, some at a time.

        Yields indices of `removals` and their residuals [removal, example, d]; what changes nothing has exactly `last`.
        """
        for indices, changed in self.changed_residuals(removals):
            yield indices, self.state.last.expand(len(indices), -1, -1) if changed is None else changed

    def changed_residuals(self, removals: Sequence[Removal]) -> Iterator[tuple[list[int], Tensor | None]]:
        """The same, but None in place of residuals that cannot change."""
        for ports, indices in _by_ports(self.graph, removals).items():
            moving = [index for index in indices if self._changes_logits(ports, removals[index])]
            same = sorted(set(indices).difference(moving))
            if same:
                yield same, None
            if not moving:
                continue
            node = self.graph.port_sender[ports[0]]
            route = None if node == LOGITS else self.state.route(node, self.live)
            size = self.state.rows_at_once(route)
            for start in range(0, len(moving), size):
                rows = moving[start : start + size]
                changes = self._changes(route, ports, [removals[index] for index in rows])
                yield rows, self.state.propose(route, changes).residual

    def _changes_logits(self, ports: Sequence[int], removal: Removal) -> bool:
        """True if patching these edges can change the logits: their node matters, and one carries something else."""
        if not ports:
            return False
        node = self.graph.port_sender[ports[0]]
        matters = node == LOGITS or self.live[node] != DEAD
        return matters and any(self._differs[self.graph.edge_sender[edge]] for edge in removal)


def _by_ports(graph: Graph, removals: Sequence[Removal]) -> dict[tuple[int, ...], list[int]]:
    """Indices of the removals, by the ports that their edges go into."""
    port_of, groups = graph.edge_port.tolist(), dict[tuple[int, ...], list[int]]()
    for index, removal in enumerate(removals):
        ports = tuple(sorted({port_of[edge] for edge in removal}))
        if len({graph.port_sender[port] for port in ports}) > 1:
            raise GatewiseError(
                f"edges to be removed together go into one node, got {', '.join(graph.ports[p] for p in ports)}. "
                f"To remove edges of several receivers, run the circuit without them."
            )
        groups.setdefault(ports, []).append(index)
    return groups


def edge_ablations(
    setting: Setting, circuit: Circuit, direction: Direction = "ns"
) -> Iterator[tuple[slice, EdgeAblation]]:
    """The circuit on each batch, with the examples that the batch is about."""
    setting.check_direction(direction)
    setting.check_circuits([circuit])
    return ((batch.rows, EdgeAblation(setting, batch, circuit, direction)) for batch in setting.batches())


def measure_removals(
    setting: Setting,
    circuit: Circuit,
    removals: Sequence[Removal],
    measures: Callable[[EdgeAblation], Sequence[ResidualMeasure]],
    direction: Direction = "ns",
    *,
    task: str = "removing edges",
) -> Tensor:
    """Measures of the circuit without each set of edges. [measure, removal, example]

    Sets that change nothing, such as the empty one, have exactly the circuit's own values.
    """
    ablations = edge_ablations(setting, circuit, direction)
    _check_present(circuit, removals)
    batches = []
    with progress_bar(task, len(removals) * len(setting)) as bar:
        for _, ablation in ablations:
            batches.append(measure_ablation(ablation, removals, measures(ablation), bar.advance))
    return torch.cat(batches, dim=-1)


def _check_present(circuit: Circuit, removals: Sequence[Removal]) -> None:
    absent = {edge for removal in removals for edge in removal if not bool(circuit.mask[edge])}
    if absent:
        raise GatewiseError(
            f"{len(absent)} of the edges are not in the circuit they were to be removed from, for example "
            f"{circuit.graph.edges[min(absent)]}. Leave them out, or pass a circuit that has them."
        )


def measure_ablation(
    ablation: EdgeAblation,
    removals: Sequence[Removal],
    measures: Sequence[ResidualMeasure],
    advance: Callable[[int], None] = lambda _: None,
) -> Tensor:
    """The same for one batch; `advance` is told of removals times examples as they are done."""
    last = ablation.state.last
    whole = torch.stack([measure(last[None]) for measure in measures])
    order: list[int] = []
    parts = [whole[:, :0]]
    for indices, residual in ablation.changed_residuals(removals):
        order += indices
        if residual is None:
            parts.append(whole.expand(-1, len(indices), -1))
        else:
            values = torch.stack([measure(residual) for measure in measures])
            # Measured in another batch, the same residual may round otherwise: what did not move keeps its value.
            moved = (residual != last).flatten(1).any(dim=1)
            parts.append(torch.where(moved[:, None], values, whole))
        advance(len(indices) * len(ablation.pairs))
    # Fetched once for all: an accelerator is not kept waiting.
    return torch.cat(parts, dim=1).cpu().double()[:, torch.tensor(order).argsort()]


def kl_changes(
    setting: Setting, circuit: Circuit | None, removals: Sequence[Removal], *, task: str = "removing edges"
) -> Tensor:
    """D(G || H\\removed) - D(G || H) by noising, H the circuit or, if None, the full graph. [removal, example]"""
    start = setting.graph.full() if circuit is None else circuit
    rows = [NOTHING, *removals]
    distances = measure_removals(setting, start, rows, lambda ablation: [ablation.distance.exact], task=task)
    return distances[0, 1:] - distances[0, 0]
