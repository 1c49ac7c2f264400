"""Exact effects: what removing one edge really does, from the full graph or from a circuit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.engine.batches import batches
from gatewise.engine.circuits import check_circuits
from gatewise.engine.divergence import Divergence
from gatewise.engine.incremental import DEAD, State, all_liveness
from gatewise.engine.margins import margin_of
from gatewise.engine.runs import Direction, both_runs, check_choice, check_pairs
from gatewise.errors import GatewiseError
from gatewise.models.model import Model
from gatewise.notebook import card, strongest
from gatewise.progress import progress_bar
from gatewise.tasks.pairs import Pairs

_ROW_BYTES = 1 << 28  # of buffers for the edges of one port


@dataclass(frozen=True, eq=False)
class Effects:
    """Changes that removing single edges causes, as means over examples."""

    graph: Graph
    edges: tuple[int, ...]  # indices in graph.edges
    kl: Tensor  # [edge], change of KL(reference || circuit)
    margin: Tensor  # [edge], change of the margin

    def __repr__(self) -> str:
        order = self.kl.abs().argsort(descending=True)[:3].tolist()
        shown = ", ".join(f"{self.graph.edges[self.edges[i]]} {float(self.kl[i]):+.4g}" for i in order)
        return f"<Effects of {len(self.edges):,} edges on KL; strongest {shown}>"

    def _repr_html_(self) -> str:
        best = strongest(self.kl)
        rows = [(self.graph.edges[self.edges[i]], f"{self.kl[i]:+.4g}", f"{self.margin[i]:+.4g}") for i in best]
        return card("Effects", f"of removing {len(self.edges):,} edges, one at a time", ("edge", "KL", "margin"), rows)


def edge_effects(
    model: Model,
    pairs: Pairs,
    edges: Iterable[str] | Iterable[int] | None = None,
    direction: Direction = "ns",
    *,
    circuit: Circuit | None = None,
    memory: int | str | None = None,
) -> Effects:
    """The true change of KL and margin for removing each edge alone. Default: all edges of the circuit or graph."""
    check_choice(direction, "interchange")
    check_pairs(model, pairs)
    graph = model.graph
    start = graph.full() if circuit is None else circuit
    check_circuits(model, [start])
    chosen = start.indices if edges is None else [e if isinstance(e, int) else graph.index(e) for e in edges]
    absent = [index for index in chosen if not bool(start.mask[index])]
    if absent:
        raise GatewiseError(
            f"{len(absent)} of the edges are not in the circuit they were to be removed from, for example "
            f"{graph.edges[absent[0]]}. Leave them out, or pass the circuit that has them."
        )
    kept = graph.matrix(start.mask)
    live = all_liveness(graph, kept)
    totals = torch.zeros(2, len(chosen), dtype=torch.float64)
    parts = list(batches(model, pairs, memory))
    with progress_bar("exact effects", len(chosen) * len(parts)) as bar:
        for _, part in parts:
            runs = both_runs(model, part)
            reference = runs.reference(direction)
            state = State(model, runs.intervention(model, direction), reference.outputs.clone(), kept)
            distance = Divergence(model, reference.logits)
            before = torch.stack([distance.exact(state.last[None])[0], margin_of(model, part)(state.last)])
            for port, members in _by_port(graph, chosen).items():
                node = graph.port_sender[port]
                if node < 0 or live[node] != DEAD:
                    _add_port(state, part, distance, before, port, live, chosen, members, totals)
                bar.advance(len(members))
    totals /= len(pairs)
    return Effects(graph, tuple(chosen), totals[0], totals[1])


def _by_port(graph: Graph, edges: Sequence[int]) -> dict[int, list[int]]:
    """Places in `edges`, grouped by the port the edge goes into."""
    groups: dict[int, list[int]] = {}
    for place, edge in enumerate(edges):
        groups.setdefault(int(graph.edge_port[edge]), []).append(place)
    return groups


def _add_port(
    state: State,
    pairs: Pairs,
    distance: Divergence,
    before: Tensor,
    port: int,
    live: Sequence[int],
    edges: Sequence[int],
    members: list[int],
    totals: Tensor,
) -> None:
    """Add the changes of this batch's examples for the edges into one port."""
    graph, model = state.graph, state.model
    node = graph.port_sender[port]
    plan = None if node < 0 else state.plan(node, live)
    columns = 1 if plan is None else len(plan.changed) + len(plan.wide_changed) * state.on.layout.window
    row = 4 * columns * len(pairs) * model.d_model * state.outputs.element_size()
    for some in torch.tensor(members).split(max(1, _ROW_BYTES // row)):
        senders = [int(graph.edge_sender[edges[place]]) for place in some.tolist()]
        proposal = state.propose(plan, port, -state.carried(senders, state.positions_read(plan, port)))
        kl = distance.exact(proposal.residual)
        margin = margin_of(model, pairs)(proposal.residual)
        totals[:, some] += (torch.stack([kl, margin]) - before[:, None]).sum(dim=-1).cpu()
