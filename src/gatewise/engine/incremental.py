"""The incremental engine: the exact effect of removing a few edges, by recomputing only what changes.

A `State` holds, for one batch and one direction, the value of every node under a circuit H. To ask what removing edges
into one port does: change that port's input, recompute its node from that port alone (a new q needs no new k and v),
and push the *difference* of the node's output along kept edges only. Nodes with no kept path to the logits are dead and
cost nothing; nodes whose output is read at the last position only are computed there only. Many alternatives (rows) are
evaluated at once. A proposal that is accepted becomes the new state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.engine.runs import Intervention
from gatewise.errors import GatewiseError
from gatewise.models.model import Model
from gatewise.models.parts import Attention, KeysValues, Pointwise

Kind = Literal["q", "k", "v"]
_CACHED = 1 << 19  # numbers of a head's inputs that are normed and projected at a time: they stay in the cache
DEAD, LAST, WIDE = 0, 1, 2  # whether a node matters: not at all, at the last position, at all positions of the window


def kinds_of(graph: Graph, port: int) -> tuple[Kind, ...]:
    """What of a head a port feeds; empty for other nodes."""
    name = graph.ports[port]
    if name.endswith(">"):
        return (name[-2],)  # type: ignore[return-value]
    return ("q", "k", "v") if graph.stages[graph.stage_of_port[port]].kind == "attention" else ()


def liveness(graph: Graph, kept: Tensor, node: int, known: Sequence[int]) -> int:
    """Where a sender's output is needed, given that of all later nodes. kept: [port, sender] of bool."""
    need = DEAD
    for port in kept[:, node].nonzero().flatten().tolist():
        if port == len(graph.ports) - 1:
            need = max(need, LAST)
            continue
        reader = known[graph.port_sender[port]]
        kinds = kinds_of(graph, port)
        if reader != DEAD and ("k" in kinds or "v" in kinds):
            return WIDE
        need = max(need, reader)
    return need


def all_liveness(graph: Graph, kept: Tensor) -> list[int]:
    """Liveness of every sender."""
    found = [DEAD] * len(graph.senders)
    for node in reversed(range(len(found))):
        found[node] = liveness(graph, kept, node, found)
    return found


@dataclass(frozen=True, eq=False)
class _Reading:
    """Ports of one kind that a change reaches, and which changed senders they read."""

    kind: Kind | None
    ports: list[int]
    rows: Tensor  # which of the step's nodes they belong to
    mix: Tensor  # [port, changed sender so far] of 0 and 1, over all changed senders or over the wide ones

    def mixed(self, proposal: Proposal, wide: bool) -> Tensor:
        """Changes of the ports' inputs. [port, row, example, position, d]"""
        buffer = proposal.wide if wide or self.kind in ("k", "v") else proposal.last
        changes = buffer[: self.mix.shape[1]]
        return (self.mix @ changes.flatten(1)).reshape(len(self.ports), *changes.shape[1:])


@dataclass(frozen=True, eq=False)
class _Step:
    """Nodes of one stage and one liveness that a change reaches."""

    stage: int  # index in model.stages
    nodes: list[int]  # sender indices
    locals: list[int]  # indices within the stage
    heads: Tensor
    wide: bool
    readings: list[_Reading]


@dataclass(frozen=True, eq=False)
class Plan:
    """The way of a change of one node to the logits along kept edges."""

    node: int
    stage: int
    local: int
    wide: bool
    steps: list[_Step]
    changed: list[int]  # the node, then all nodes of the steps
    wide_changed: list[int]
    into_logits: Tensor  # [changed sender] of 0 and 1

    @property
    def read_by_logits(self) -> list[int]:
        """The changed senders that the logits read."""
        return [sender for sender, read in zip(self.changed, self.into_logits.tolist(), strict=True) if read]


@dataclass(eq=False)
class Proposal:
    """What would change: one row for each alternative."""

    plan: Plan | None  # None: the port is that of the logits
    port: int
    change: Tensor  # [row, example, position, d] of the port's input
    last: Tensor  # [changed sender, row, example, 1, d], change of outputs at the last position
    wide: Tensor  # [wide changed sender, row, example, window, d]
    residual: Tensor  # [row, example, d], the last residual
    projected: list[dict[Kind, Tensor]] = field(default_factory=list)  # of the node, then of each step


class State:
    """Values of all nodes under a circuit, on one batch, in one direction."""

    def __init__(self, model: Model, intervention: Intervention, reference: Tensor, kept: Tensor) -> None:
        """reference: outputs of all senders on the reference side, changed in place from now on; kept: the circuit as
        [port, sender] of bool on the CPU, which the caller changes and the state only reads."""
        if model.coupled:
            raise GatewiseError(
                f"{model.name} has a norm over the sum of each layer's heads, so one head's change changes its "
                f"siblings; the incremental engine (ACDC, exact effects, truth tables) does not do that. "
                f"Use EAP or Edge Pruning."
            )
        graph = model.graph
        self.model, self.on, self.graph = model, intervention, graph
        self.outputs, self.kept = reference, kept  # [sender, example, window, d]; [port, sender]
        self.inputs: dict[int, Tensor] = {}  # port -> [example, window, d], where it is not the stage's shared input
        self.shared = self._shared_inputs()
        self.heads: list[dict[Kind, Tensor]] = [self._project_all(i) for i in range(len(model.stages))]
        self.last = self.shared[-1][:, -1].clone()  # [example, d]
        if not torch.equal(kept, graph.edge_index >= 0):
            self.rebuild(all_liveness(graph, kept))

    def _shared_inputs(self) -> list[Tensor]:
        """Inputs of each stage, and of the logits, with all edges kept."""
        graph, on = self.graph, self.on
        carried = (self.outputs[graph.sender_slices[0]] - on.other[graph.sender_slices[0]]).sum(dim=0)
        by_count = {graph.sender_slices[0].stop: carried}  # by the number of senders that have written
        for nodes in graph.sender_slices[1:-1]:
            carried = carried + (self.outputs[nodes] - on.other[nodes]).sum(dim=0)
            by_count[nodes.stop] = carried
        return [on.base[i] + by_count[stage.reads] for i, stage in enumerate(graph.stages[1:])]

    def _project_all(self, index: int) -> dict[Kind, Tensor]:
        stage = self.model.stages[index]
        if not isinstance(stage, Attention):
            return {}
        x = self.shared[index][None]
        kinds: tuple[Kind, ...] = ("q", "k", "v")
        return {kind: stage.per_head(stage.project(kind, x, self.on.layout)) for kind in kinds}

    def carried(self, senders: Sequence[int], positions: int) -> Tensor:
        """What keeping an edge from each sender adds to a port's input at the last positions. [sender, ..., d]"""
        return self.outputs[:, :, -positions:][senders] - self.on.other[:, :, -positions:][senders]

    def removed(self, senders: Sequence[int], positions: int) -> Tensor:
        """Change of a port's input if the edges from the first, the first two, ... of these senders go."""
        outputs, other = self.outputs[:, :, -positions:], self.on.other[:, :, -positions:]
        found = outputs.new_empty(len(senders), *outputs.shape[1:])
        for row, sender in enumerate(senders):
            torch.sub(other[sender], outputs[sender], out=found[row])
            if row:
                found[row] += found[row - 1]
        return found

    def port_input(self, port: int) -> Tensor:
        """[example, window, d]; at nodes that live at the last position only, just that column is kept up."""
        found = self.inputs.get(port)
        return self.shared[self.graph.stage_of_port[port] - 1] if found is None else found

    def positions_read(self, plan: Plan | None, port: int) -> int:
        """How many of the last positions a port's input matters at."""
        if plan is None:
            return 1
        kinds = kinds_of(self.graph, port)
        return self.on.layout.window if plan.wide or "k" in kinds or "v" in kinds else 1

    def plan(self, node: int, live: Sequence[int]) -> Plan:
        """How a change of this node reaches the logits. live: liveness of all senders from this one on."""
        graph, device = self.graph, self.outputs.device
        changed, wide_changed = [node], [node] if live[node] == WIDE else []
        steps = []
        for index in range(graph.stage_of_sender[node], len(graph.stages) - 1):
            spec = graph.stages[index]
            if spec.reads <= node:
                continue
            found = self._steps(index, changed, wide_changed, live)
            steps += found
            for step in found:
                changed += step.nodes
                wide_changed += step.nodes if step.wide else []
        into_logits = self.kept[-1, changed].to(device, self.outputs.dtype)
        stage = graph.stage_of_sender[node]
        local = node - graph.sender_slices[stage].start
        return Plan(node, stage - 1, local, live[node] == WIDE, steps, changed, wide_changed, into_logits)

    def _steps(self, index: int, changed: list[int], wide_changed: list[int], live: Sequence[int]) -> list[_Step]:
        """The nodes of a stage that read a changed sender, those of each liveness together."""
        graph, kept = self.graph, self.kept
        ports, first = graph.port_slices[index], graph.sender_slices[index].start
        reached = kept[ports][:, changed].any(dim=1).nonzero().flatten() + ports.start
        by_node: dict[int, list[int]] = {}
        for port in reached.tolist():
            if live[graph.port_sender[port]] != DEAD:
                by_node.setdefault(graph.port_sender[port], []).append(port)
        steps = []
        for wide in (False, True):
            nodes = sorted(node for node in by_node if (live[node] == WIDE) == wide)
            if not nodes:
                continue
            readings = self._readings(nodes, by_node, wide, changed, wide_changed)
            heads = torch.tensor([node - first for node in nodes], device=self.outputs.device)
            steps.append(_Step(index - 1, nodes, heads.tolist(), heads, wide, readings))
        return steps

    def _readings(
        self, nodes: list[int], by_node: dict[int, list[int]], wide: bool, changed: list[int], wide_changed: list[int]
    ) -> list[_Reading]:
        graph, device, dtype = self.graph, self.outputs.device, self.outputs.dtype
        groups: dict[Kind | None, list[tuple[int, int]]] = {}
        for row, node in enumerate(nodes):
            for port in by_node[node]:
                for kind in kinds_of(graph, port) or (None,):
                    groups.setdefault(kind, []).append((port, row))
        readings = []
        for kind, members in groups.items():
            senders = wide_changed if wide or kind in ("k", "v") else changed
            chosen = [port for port, _ in members]
            mix = self.kept[chosen][:, senders].to(device, dtype)
            rows = torch.tensor([row for _, row in members], device=device)
            readings.append(_Reading(kind, chosen, rows, mix))
        return readings

    @torch.no_grad()
    def propose(self, plan: Plan | None, port: int, change: Tensor) -> Proposal:
        """Change the input of a port of the plan's node by each row. change: [row, example, position, d]

        Positions: as many as `positions_read` says. No plan: the port is that of the logits.
        """
        rows, examples, window = change.shape[0], change.shape[1], self.on.layout.window
        if plan is None:
            return Proposal(None, port, change, change, change, self.last + change[:, :, -1])
        width = self.outputs.shape[-1]
        last = change.new_empty(len(plan.changed), rows, examples, 1, width)
        wide = change.new_empty(len(plan.wide_changed), rows, examples, window, width)
        proposal = Proposal(plan, port, change, last, wide, last)
        out, projected = self._changed_node(plan, port, change)
        proposal.projected.append(projected)
        counts = _place(proposal, out[None], [0, 0], plan.wide)
        for step in plan.steps:
            out, projected = self._changed_step(step, proposal)
            proposal.projected.append(projected)
            counts = _place(proposal, out, counts, step.wide)
        proposal.residual = self.last + torch.tensordot(plan.into_logits, last[:, :, :, 0], dims=1)
        return proposal

    def _changed_node(self, plan: Plan, port: int, change: Tensor) -> tuple[Tensor, dict[Kind, Tensor]]:
        """Change of the plan's own node. [row, example, position, d]"""
        stage = self.model.stages[plan.stage]
        positions = self.on.layout.window if plan.wide else 1
        now = self.port_input(port)[:, -change.shape[2] :]
        before = self.outputs[plan.node][:, -positions:]
        if isinstance(stage, Pointwise):
            return stage((now + change)[None, ..., -positions:, :], [plan.local])[0] - before, {}
        head = torch.tensor([plan.local], device=change.device)
        new: dict[Kind, Tensor] = {}
        for kind in kinds_of(self.graph, port):
            columns = positions if kind == "q" else change.shape[2]
            parts = change[..., -columns:, :].split(max(1, _CACHED // now[:, -columns:].numel()))
            found = [stage.project(kind, (now[:, -columns:] + x)[None], self.on.layout, head) for x in parts]
            new[kind] = torch.cat(found, dim=1) if len(found) > 1 else found[0]
        out = self._attend(stage, plan.stage, head, positions, new)
        return out[0] - before, new

    def _changed_step(self, step: _Step, proposal: Proposal) -> tuple[Tensor, dict[Kind, Tensor]]:
        """Changes of a step's nodes. [node, row, example, position, d]"""
        stage = self.model.stages[step.stage]
        positions = self.on.layout.window if step.wide else 1
        before = self.outputs[step.nodes][:, None, :, -positions:]
        new: dict[Kind, Tensor] = {}
        for reading in step.readings:
            mixed = reading.mixed(proposal, step.wide)
            now = torch.stack([self.port_input(port)[:, -mixed.shape[3] :] for port in reading.ports])
            x = mixed.add_(now[:, None])
            if isinstance(stage, Pointwise):
                return stage(x, step.locals) - before, {}
            assert reading.kind is not None
            y = stage.project(reading.kind, x, self.on.layout, step.heads[reading.rows])
            if len(reading.ports) < len(step.nodes):
                whole = self.heads[step.stage][reading.kind][step.heads][:, None, :, -y.shape[-2] :]
                whole = whole.expand(-1, *y.shape[1:]).clone()
                whole[reading.rows] = y
                y = whole
            new[reading.kind] = y
        assert isinstance(stage, Attention)
        return self._attend(stage, step.stage, step.heads, positions, new) - before, new

    def _attend(self, stage: Attention, index: int, heads: Tensor, positions: int, new: dict[Kind, Tensor]) -> Tensor:
        """Outputs of heads, with new queries, keys or values where given. [head, row, example, position, d]"""
        current = self.heads[index]
        q = new["q"] if "q" in new else current["q"][heads][:, None, :, -positions:]
        k, v = (new[kind] if kind in new else current[kind][heads][:, None] for kind in ("k", "v"))
        prefix: KeysValues | None = self.on.prefix[index]
        if prefix is not None:
            groups = heads // (stage.n_heads // stage.n_groups)
            prefix = (prefix[0][groups], prefix[1][groups])
        return stage.write(stage.attend(q, k, v, self.on.layout, prefix), heads)

    def accept(self, proposal: Proposal, row: int) -> None:
        """Make one row of a proposal the new state. The caller updates `kept`."""
        self.last = proposal.residual[row].clone()
        plan = proposal.plan
        if plan is None:
            return
        chosen = replace(proposal, last=proposal.last[:, row : row + 1], wide=proposal.wide[:, row : row + 1])
        self._add_input(proposal.port, proposal.change[row])
        self._take_heads(plan.stage, [plan.local], proposal.projected[0], row)
        for step, projected in zip(plan.steps, proposal.projected[1:], strict=True):
            for reading in step.readings:
                if reading.kind in ("q", "v") and self.graph.qkv == "merged":
                    continue  # a merged port is read three times, and changed once
                for port, change in zip(reading.ports, reading.mixed(chosen, step.wide)[:, 0], strict=True):
                    self._add_input(port, change)
            self._take_heads(step.stage, step.locals, projected, row)
        for i, node in enumerate(plan.wide_changed):
            self.outputs[node] += proposal.wide[i, row]
        narrow = set(plan.changed) - set(plan.wide_changed)
        for i, node in enumerate(plan.changed):
            if node in narrow:
                self.outputs[node][:, -1:] += proposal.last[i, row]

    def _add_input(self, port: int, change: Tensor) -> None:
        if port not in self.inputs:
            self.inputs[port] = self.port_input(port).clone()
        self.inputs[port][:, -change.shape[1] :] += change

    def _take_heads(self, index: int, locals_: list[int], projected: dict[Kind, Tensor], row: int) -> None:
        for kind, values in projected.items():
            target = self.heads[index][kind]
            for i, head in enumerate(locals_):
                target[head][:, -values.shape[-2] :] = values[i, row]

    @torch.no_grad()
    def rebuild(self, live: Sequence[int], first_stage: int = 1) -> None:
        """Recompute live nodes from `first_stage` on out of the kept edges, which ends the drift of many small sums."""
        graph = self.graph
        for index in range(first_stage, len(graph.stages) - 1):
            spec, nodes, stage = graph.stages[index], graph.sender_slices[index], self.model.stages[index - 1]
            for local, node in enumerate(range(nodes.start, nodes.stop)):
                if live[node] != DEAD:
                    self._rebuild_node(index, spec.reads, local, node, stage, live[node] == WIDE)
        self.last = self._from_kept(len(graph.ports) - 1, len(graph.stages) - 1, len(graph.senders), 1)[:, -1]

    def _from_kept(self, port: int, stage: int, reads: int, positions: int) -> Tensor:
        """The input of a port at the last positions. [example, position, d]"""
        found = self.on.base[stage - 1][:, -positions:].clone()
        for sender in self.kept[port, :reads].nonzero().flatten().tolist():
            found += self.outputs[sender][:, -positions:]
            found -= self.on.other[sender][:, -positions:]
        return found

    def _rebuild_node(
        self, index: int, reads: int, local: int, node: int, stage: Attention | Pointwise, wide: bool
    ) -> None:
        ports, window = self.graph.ports_of_sender[node], self.on.layout.window
        positions = window if wide else 1
        head = torch.tensor([local], device=self.outputs.device)
        new: dict[Kind, Tensor] = {}
        for port in ports:
            kinds = kinds_of(self.graph, port)
            into = self._from_kept(port, index, reads, window if "k" in kinds or "v" in kinds else positions)
            self.inputs[port] = into
            if isinstance(stage, Pointwise):
                self.outputs[node][:, -positions:] = stage(into[None], [local])[0]
                return
            for kind in kinds:
                x = into[:, -positions:] if kind == "q" else into
                new[kind] = stage.project(kind, x[None, None], self.on.layout, head)
                self.heads[index - 1][kind][local][:, -x.shape[1] :] = new[kind][0, 0]
        assert isinstance(stage, Attention)
        self.outputs[node][:, -positions:] = self._attend(stage, index - 1, head, positions, new)[0, 0]


def _place(proposal: Proposal, out: Tensor, counts: list[int], wide: bool) -> list[int]:
    """Note changes of outputs in the proposal's buffers; return how many are noted now."""
    count = out.shape[0]
    proposal.last[counts[0] : counts[0] + count] = out[..., -1:, :]
    if wide:
        proposal.wide[counts[1] : counts[1] + count] = out
    return [counts[0] + count, counts[1] + (count if wide else 0)]
