"""The incremental engine: the exact effect of removing a few edges, by recomputing only what changes.

A `State` holds, for one batch and one direction, the value of every node under a circuit H. To ask what removing edges
into ports of one node does: change those ports' inputs, recompute the node from them alone (a new q needs no new k and
v), and push the *difference* of the node's output along kept edges only (`propagation`). Many alternatives (rows) are
evaluated at once. A proposal that is accepted becomes the new state.

Where a norm over the sum of a layer's heads couples them, what they write is computed anew for all from their shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gatewise.devices import rows_of
from gatewise.engine.patching.propagation import (
    DEAD,
    WIDE,
    Reading,
    Route,
    Step,
    all_liveness,
    feeds_keys_or_values,
    find_route,
    kinds_of,
    step_of,
)
from gatewise.engine.runs.activations import Intervention
from gatewise.engine.runs.batches import ROW_BYTES
from gatewise.engine.runs.residual_stream import walk
from gatewise.models.components import KINDS, Attention, Pointwise
from gatewise.models.model import Model

HeadValue = Literal["q", "k", "v", "share"]  # the share of coupled heads only
_CACHED = 1 << 19  # numbers of a head's inputs that are normed and projected at a time: they stay in the cache


@dataclass(eq=False)
class Proposal:
    """What would change: one row for each alternative."""

    route: Route | None  # None: the port is that of the logits
    changes: Mapping[int, Tensor]  # port -> [row, example, position, d], of its input
    last: Tensor  # [changed sender, row, example, 1, d], change of outputs at the last position
    wide: Tensor  # [wide changed sender, row, example, window, d]
    residual: Tensor  # [row, example, d], the last residual
    heads: list[dict[HeadValue, Tensor]] = field(default_factory=list)  # new values of the node's, then of each step's

    def mixed(self, reading: Reading, rows: slice = slice(None)) -> Tensor:
        """Changes of the inputs of a reading's ports. [port, row, example, position, d]"""
        changes = (self.wide if reading.wide else self.last)[: reading.mix.shape[1], rows]
        return (reading.mix @ changes.flatten(1)).reshape(len(reading.ports), *changes.shape[1:])


class State:
    """Values of all nodes under a circuit, on one batch, in one direction."""

    def __init__(
        self,
        model: Model,
        intervention: Intervention,
        reference: Tensor,
        in_circuit: Tensor,
        row_bytes: int = ROW_BYTES,
    ) -> None:
        """reference: outputs of all senders on the reference side; in_circuit: [port, sender] of bool on the CPU. Both
        are copied: a state shares nothing that changes. row_bytes: what the rows of a proposal may take."""
        graph = model.graph
        self.model, self.on, self.graph, self._row_bytes = model, intervention, graph, row_bytes
        self.outputs = reference.clone()  # [sender, example, window, d]
        self.in_circuit = graph.edge_index >= 0  # [port, sender]
        self.inputs: dict[int, Tensor] = {}  # port -> [example, window, d], where it is not the sublayer's shared input
        self.shared = self._shared_inputs()
        self.heads: list[dict[HeadValue, Tensor]] = [self._project_all(i) for i in range(len(model.sublayers))]
        self.last = self.shared[-1][:, -1].clone()  # [example, d]
        if not torch.equal(in_circuit, self.in_circuit):
            self.rebuild(in_circuit, all_liveness(model, in_circuit))

    def _shared_inputs(self) -> list[Tensor]:
        """Inputs of each sublayer, and of the logits, with all edges kept."""
        pairs = [(self.outputs[nodes], self.on.other[nodes]) for nodes in self.graph.sender_slices]
        carried = ((now - other).sum(dim=0) for now, other in pairs)  # sublayer by sublayer, as the walk asks for it
        read = walk(self.model, next(carried), lambda _index, _x: next(carried), biases=False)
        return [base + x for base, x in zip(self.on.base, read, strict=True)]

    def _project_all(self, index: int) -> dict[HeadValue, Tensor]:
        sublayer = self.model.sublayers[index]
        if not isinstance(sublayer, Attention):
            return {}
        x = self.shared[index][None]
        q, k, v = (sublayer.per_head(sublayer.project(kind, x, self.on.layout)) for kind in KINDS)
        values: dict[HeadValue, Tensor] = {"q": q, "k": k, "v": v}
        if sublayer.joint_norm is not None:
            values["share"] = sublayer.shares(sublayer.attend(q, k, v, self.on.layout, self.on.prefix[index]))
        return values

    def carried(self, senders: Sequence[int], positions: int) -> Tensor:
        """What keeping an edge from each sender adds to a port's input at the last positions. [sender, ..., d]"""
        rows = rows_of(senders, self.outputs.device)
        return self.outputs[:, :, -positions:][rows] - self.on.other[:, :, -positions:][rows]

    def removed(self, senders: Sequence[int], positions: int) -> Tensor:
        """Change of a port's input if the edges from the first, the first two, ... of these senders go."""
        outputs, other = self.outputs[:, :, -positions:], self.on.other[:, :, -positions:]
        changes = outputs.new_empty(len(senders), *outputs.shape[1:])
        for row, sender in enumerate(senders):  # one by one: `carried(senders).cumsum` would gather copies of both
            torch.sub(other[sender], outputs[sender], out=changes[row])
            if row:
                changes[row].add_(changes[row - 1])
        return changes

    def port_input(self, port: int) -> Tensor:
        """[example, window, d]; at nodes that live at the last position only, just that column is kept up."""
        return self.inputs[port] if port in self.inputs else self.shared[self.graph.sublayer_of_port[port] - 1]

    def route(self, node: int, live: Sequence[int]) -> Route:
        """How a change of this node reaches the logits. live: liveness of all senders from this one on."""
        return find_route(self.model, self.in_circuit, node, live)

    def positions_read(self, route: Route | None, port: int) -> int:
        """How many of the last positions a port's input matters at."""
        wide = route is not None and (route.start.wide or feeds_keys_or_values(self.graph, port))
        return self.on.layout.window if wide else 1

    def rows_at_once(self, route: Route | None) -> int:
        """How many rows of a proposal fit the memory meant for them."""
        window = self.on.layout.window
        columns = 1 if route is None else len(route.changed) + (len(route.wide_changed) + 2) * window
        return max(1, self._row_bytes // (4 * columns * self.last.numel() * self.last.element_size()))

    @torch.no_grad()
    def propose(self, route: Route | None, changes: Mapping[int, Tensor]) -> Proposal:
        """Change the inputs of ports of the route's node, row by row. changes: port -> [row, example, position, d]

        Positions: as many as `positions_read` says. No route: the port is that of the logits.
        """
        change = next(iter(changes.values()))
        if route is None:
            return Proposal(None, changes, change, change, self.last + change[:, :, -1])
        rows, examples, window, width = *change.shape[:2], self.on.layout.window, change.shape[-1]
        last = change.new_empty(len(route.changed), rows, examples, 1, width)
        wide = change.new_empty(len(route.wide_changed), rows, examples, window, width)
        proposal = Proposal(route, changes, last, wide, last)
        first, first_wide = 0, 0
        for step in (route.start, *route.steps):
            out, heads = self._start(step, changes) if step is route.start else self._step(step, proposal)
            proposal.heads.append(heads)
            # The difference, not the output: sums along kept edges need no other node's, and small changes keep their
            # digits, which the difference of two large sums would lose.
            change = out - self.outputs[:, :, -self._positions(step) :][step.written_rows][:, None]
            last[first : first + len(change)] = change[..., -1:, :]
            first += len(change)
            if step.wide:
                wide[first_wide : first_wide + len(change)] = change
                first_wide += len(change)
        proposal.residual = self.last + torch.tensordot(route.into_logits, last[:, :, :, 0], dims=1)
        return proposal

    def _start(self, step: Step, changes: Mapping[int, Tensor]) -> tuple[Tensor, dict[HeadValue, Tensor]]:
        """New outputs of what a route's start writes [node, row, example, position, d], and of its head."""
        sublayer = self.model.sublayers[step.sublayer]
        new: dict[HeadValue, Tensor] = {}
        for port, change in changes.items():
            now = self.port_input(port)[:, -change.shape[2] :]
            if isinstance(sublayer, Pointwise):
                return sublayer((now + change)[None], step.locals), new  # has one port
            for kind in kinds_of(self.graph, port):
                columns = self._positions(step) if kind == "q" else change.shape[2]
                before = now[:, -columns:]
                rows = change[..., -columns:, :].split(max(1, _CACHED // before.numel()))
                parts = [sublayer.project(kind, (before + row)[None], self.on.layout, step.heads) for row in rows]
                new[kind] = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        return self._written(step, new), new

    def _step(self, step: Step, proposal: Proposal) -> tuple[Tensor, dict[HeadValue, Tensor]]:
        """New outputs of what a step writes [node, row, example, position, d], and of its heads."""
        sublayer = self.model.sublayers[step.sublayer]
        new: dict[HeadValue, Tensor] = {}
        for reading in step.readings:
            mixed = proposal.mixed(reading)
            now = torch.stack([self.port_input(port)[:, -mixed.shape[3] :] for port in reading.ports])
            x = mixed.add_(now[:, None])
            if isinstance(sublayer, Pointwise):
                return sublayer(x, step.locals), new
            assert reading.kind is not None
            y = sublayer.project(reading.kind, x, self.on.layout, step.heads[reading.rows])
            if len(reading.ports) < len(step.nodes):  # the change reaches other ports of the other heads
                y = _among(self.heads[step.sublayer][reading.kind][step.heads], reading.rows, y)
            new[reading.kind] = y
        return self._written(step, new), new

    def _positions(self, step: Step) -> int:
        """At how many of the last positions a step's nodes are computed."""
        return self.on.layout.window if step.wide else 1

    def _written(self, step: Step, new: dict[HeadValue, Tensor]) -> Tensor:
        """What heads, and those coupled with them, write: with new queries, keys or values where given.

        [head, row, example, position, d]; shares are added to what is new.
        """
        sublayer, known, heads = self.model.sublayers[step.sublayer], self.heads[step.sublayer], step.heads
        assert isinstance(sublayer, Attention)
        q = new["q"] if "q" in new else known["q"][heads][:, None, :, -self._positions(step) :]
        k, v = (new[kind] if kind in new else known[kind][heads][:, None] for kind in KINDS[1:])
        gathered = sublayer.attend(q, k, v, self.on.layout, self.on.prefix[step.sublayer], heads)
        shares = sublayer.shares(gathered, heads)
        if sublayer.joint_norm is None:
            return shares
        new["share"] = shares
        return sublayer.joined(_among(known["share"], heads, shares))

    def accept(self, proposal: Proposal, row: int, removed: Mapping[int, Sequence[int]]) -> None:
        """Make one row of a proposal the new state. removed: the senders whose edges into each port are gone with it"""
        for port, senders in removed.items():
            self.in_circuit[port, senders] = False
        self.last = proposal.residual[row].clone()
        route = proposal.route
        if route is None:
            return
        for port, change in proposal.changes.items():
            self._add_input(port, change[row])
        for step, heads in zip((route.start, *route.steps), proposal.heads, strict=True):
            for reading in step.readings:
                if reading.kind in ("q", "v") and self.graph.qkv == "merged":
                    continue  # a merged port is read three times, and changed once
                mixed = proposal.mixed(reading, slice(row, row + 1))
                for port, change in zip(reading.ports, mixed[:, 0], strict=True):
                    self._add_input(port, change)
            self._take_heads(step, heads, row)
        for i, node in enumerate(route.wide_changed):
            self.outputs[node] += proposal.wide[i, row]
        for i, node in enumerate(route.changed):
            if node not in route.wide_changed:
                self.outputs[node][:, -1:] += proposal.last[i, row]

    def _add_input(self, port: int, change: Tensor) -> None:
        if port not in self.inputs:  # it still shares its sublayer's input with ports that do not change
            self.inputs[port] = self.port_input(port).clone()
        self.inputs[port][:, -change.shape[1] :] += change

    def _take_heads(self, step: Step, new: Mapping[HeadValue, Tensor], row: int) -> None:
        for name, values in new.items():
            target = self.heads[step.sublayer][name]
            for i, head in enumerate(step.locals):
                target[head][:, -values.shape[-2] :] = values[i, row]

    @torch.no_grad()
    def rebuild(self, in_circuit: Tensor, live: Sequence[int], first_sublayer: int = 1) -> None:
        """Recompute live nodes from `first_sublayer` on out of these edges, which ends the drift of many small sums."""
        self.in_circuit.copy_(in_circuit)
        for nodes in self.graph.sender_slices[first_sublayer:]:
            for node in range(nodes.start, nodes.stop):
                if live[node] != DEAD:
                    self._rebuild_node(node, step_of(self.model, [node], live[node] == WIDE))
        self.last = self._from_edges(len(self.graph.ports) - 1, 1)[:, -1]

    def _from_edges(self, port: int, positions: int) -> Tensor:
        """The input of a port at the last positions. [example, position, d]"""
        into = self.on.base[self.graph.sublayer_of_port[port] - 1][:, -positions:].clone()
        for sender in self.in_circuit[port].nonzero().flatten().tolist():
            into += self.outputs[sender][:, -positions:]
            into -= self.on.other[sender][:, -positions:]
        return into

    def _rebuild_node(self, node: int, step: Step) -> None:
        sublayer, positions = self.model.sublayers[step.sublayer], self._positions(step)
        new: dict[HeadValue, Tensor] = {}
        for port in self.graph.ports_of(node):
            wide = feeds_keys_or_values(self.graph, port)
            into = self._from_edges(port, self.on.layout.window if wide else positions)
            self.inputs[port] = into
            if isinstance(sublayer, Pointwise):
                self.outputs[node][:, -positions:] = sublayer(into[None], step.locals)[0]
                return
            for kind in kinds_of(self.graph, port):
                x = into[:, -positions:] if kind == "q" else into
                new[kind] = sublayer.project(kind, x[None, None], self.on.layout, step.heads)
        self.outputs[step.written_rows, :, -positions:] = self._written(step, new)[:, 0]
        self._take_heads(step, new, 0)


def _among(known: Tensor, heads: Tensor, values: Tensor) -> Tensor:
    """Put values of these heads [head, row, example, position, d] among those known [head, example, position, d]."""
    whole = known[:, None, :, -values.shape[-2] :].expand(-1, *values.shape[1:]).clone()
    whole[heads] = values
    return whole
