"""What circuits put out once a few of their edges are gone: the runs behind the measures of gates.

Outputs are last residuals [example, d], which are small; the vocabulary is unembedded a few rows at a time. Edges into
one port are removed with the incremental engine; what that cannot do (edges into several ports at once, models whose
heads are coupled) is run densely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.engine.batches import batches
from gatewise.engine.circuits import check_circuits, dense_mask
from gatewise.engine.dense import DenseEngine
from gatewise.engine.divergence import Divergence
from gatewise.engine.incremental import DEAD, State, all_liveness
from gatewise.engine.runs import BothRuns, Direction, both_runs, check_pairs
from gatewise.errors import GatewiseError
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import kl_divergence, log_probabilities
from gatewise.tasks.pairs import Pairs

Removal = frozenset[int]  # indices of edges
_ROW_BYTES = 1 << 28
_LOGITS = 1 << 24  # how many at a time


def residuals(model: Model, runs: BothRuns, circuits: Sequence[Circuit], direction: Direction = "ns") -> Tensor:
    """Last residuals of circuits on one batch. [circuit, example, d]"""
    engine = DenseEngine(model, runs.intervention(model, direction))
    return torch.stack([engine.residual(dense_mask(model, circuit)) for circuit in circuits])


def residuals_without(
    model: Model, runs: BothRuns, circuit: Circuit, removals: Sequence[Removal], direction: Direction = "ns"
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Last residuals of the circuit without each set of edges, some at a time.

    Yields places in `removals`, their residuals [place, example, d], and that of the whole circuit [example, d] as the
    same engine has it, so that what changes nothing is exactly equal.
    """
    by_port, rest = _by_port(model, removals)
    if by_port:
        yield from _incremental(model, runs, circuit, removals, by_port, direction)
    if rest:
        without = [circuit - Circuit.from_indices(circuit.graph, removals[place]) for place in rest]
        found = residuals(model, runs, [circuit, *without], direction)
        yield rest, found[1:], found[0]


def divergence(model: Model, p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) between the outputs of last residuals [row, example, d], full vocabulary. [row, example]"""
    found = torch.zeros(p.shape[:-1], dtype=torch.float64)
    different = (p != q).flatten(1).any(dim=1).nonzero().flatten()
    for rows in different.split(max(1, _LOGITS // (p.shape[1] * model.vocabulary_size))):
        found[rows.cpu()] = kl_divergence(*(log_probabilities(model.unembed(x[rows])) for x in (p, q))).cpu()
    return found


def kl_changes(
    model: Model,
    pairs: Pairs,
    circuit: Circuit | None,
    removals: Sequence[Removal],
    *,
    memory: int | str | None = None,
    task: str = "removing edges",
) -> Tensor:
    """D(G || H\\removed) - D(G || H) by noising, H the circuit or, if None, the full graph. [removal, example]"""
    start = model.graph.full() if circuit is None else circuit
    _check(model, pairs, start, removals)
    changes = torch.zeros(len(removals), len(pairs), dtype=torch.float64)
    parts = list(batches(model, pairs, memory))
    with progress_bar(task, len(removals) * len(parts)) as bar:
        for first, part in parts:
            runs = both_runs(model, part)
            distance = Divergence(model, runs.clean.logits)
            for places, after, before in residuals_without(model, runs, start, removals):
                values = distance.exact(torch.cat([before[None], after]))
                changes[places, first : first + len(part)] = (values[1:] - values[0]).cpu()
                bar.advance(len(places))
    return changes


def _check(model: Model, pairs: Pairs, circuit: Circuit, removals: Sequence[Removal]) -> None:
    check_circuits(model, [circuit])
    check_pairs(model, pairs)
    absent = {edge for removal in removals for edge in removal if not bool(circuit.mask[edge])}
    if absent:
        raise GatewiseError(
            f"{len(absent)} edges of the gates are not in the circuit they were to be removed from, for example "
            f"{circuit.graph.edges[min(absent)]}. Pass a circuit that has them, such as gates.sound."
        )


def _by_port(model: Model, removals: Sequence[Removal]) -> tuple[dict[int, list[int]], list[int]]:
    """Places of the removals that the incremental engine can do, by port, and of all others."""
    by_port: dict[int, list[int]] = {}
    rest = []
    for place, removal in enumerate(removals):
        ports = set(model.graph.edge_port[list(removal)].tolist())
        if len(ports) == 1 and not model.coupled:
            by_port.setdefault(ports.pop(), []).append(place)
        else:
            rest.append(place)
    return by_port, rest


def _incremental(
    model: Model,
    runs: BothRuns,
    circuit: Circuit,
    removals: Sequence[Removal],
    by_port: dict[int, list[int]],
    direction: Direction,
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    graph, kept = model.graph, model.graph.matrix(circuit.mask)
    live = all_liveness(graph, kept)
    state = State(model, runs.intervention(model, direction), runs.reference(direction).outputs.clone(), kept)
    for port, places in by_port.items():
        node = graph.port_sender[port]
        if node >= 0 and live[node] == DEAD:
            yield places, state.last.expand(len(places), *state.last.shape), state.last
            continue
        plan = None if node < 0 else state.plan(node, live)
        edges = sorted(set[int]().union(*(removals[place] for place in places)))
        carried = state.carried(graph.edge_sender[edges].tolist(), state.positions_read(plan, port))
        columns = 4 if plan is None else 4 * (len(plan.changed) + (len(plan.wide_changed) + 2) * runs.layout.window)
        size = max(1, _ROW_BYTES // (columns * state.last.numel() * state.last.element_size()))
        for start in range(0, len(places), size):
            some = places[start : start + size]
            gone = carried.new_tensor([[edge in removals[place] for edge in edges] for place in some])
            yield some, state.propose(plan, port, -torch.tensordot(gone, carried, dims=1)).residual, state.last
