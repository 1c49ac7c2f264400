"""The sparse engine: a circuit by what differs from no edges and from all edges.

Circuits people look at have few edges, or lack few. So a port's input is either that without edges plus what its few
kept edges carry, or the whole stream less what its few removed edges carry. Ports with nothing of their own share their
input, and so queries, keys and values; nodes that read nothing new, or that nothing reads, are not run at all, and the
first sublayers are not if they are those of the circuit before. The dense engine is the slow twin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.devices import on_device
from gatewise.engine.patching.propagation import LAST, WIDE, all_liveness, differing_senders
from gatewise.engine.runs.activations import Intervention
from gatewise.models.components import KINDS, Attention, Kind
from gatewise.models.model import Model

_PRODUCT = 8  # adding what one edge carries takes as long as that many entries of a product of all ports and senders


@dataclass(frozen=True, eq=False)
class _Reads:
    """What the ports of a sublayer read."""

    index: int
    base: Tensor  # without any edge [example, window, d]
    stream: Tensor  # with all edges
    senders: Tensor  # which differ from the other run
    weights: Tensor  # [port of the sublayer, sender]: 1 is added to the base, -1 taken from the stream
    many: Tensor  # [port of the sublayer] of bool: whether its weights are for the stream


@dataclass(frozen=True, eq=False)
class _Done:
    """What was run for a circuit, beside the outputs in the engine's buffer."""

    in_circuit: Tensor  # [port, sender] of bool
    live: Tensor  # [sender]
    totals: dict[int, Tensor]  # the sum of what differs, by the number of senders that have written


class SparseEngine:
    """Runs circuits on one prepared batch."""

    def __init__(self, model: Model, intervention: Intervention) -> None:
        self.model, self.on = model, intervention
        shape = (len(model.graph.senders), *intervention.sources.shape[1:])
        self._delta = intervention.sources.new_zeros(shape)  # current - other of every sender that differs
        self._without_edges: dict[tuple[int, Kind], Tensor] = {}  # queries, keys and values of all heads
        self._before: _Done | None = None

    def logits(self, circuit: Circuit) -> Tensor:
        """Logits of the circuit at the last position. [example, vocabulary]"""
        return self.logits_of([circuit])[0]

    def logits_of(self, circuits: Sequence[Circuit]) -> Tensor:
        """The same of many circuits, unembedded in one product. [circuit, example, vocabulary]"""
        return self.model.unembed(torch.stack([self.residual(circuit) for circuit in circuits]))

    @torch.no_grad()
    def residual(self, circuit: Circuit) -> Tensor:
        """The residual that is unembedded at the last position. [example, d]

        Of circuits one after the other, those with equal edges into the first sublayers share the runs of these.
        """
        model, on, graph = self.model, self.on, self.model.graph
        sources = graph.sender_slices[0]
        in_circuit = graph.matrix(circuit.mask.cpu())
        liveness = all_liveness(model, in_circuit)
        live, differs = torch.tensor(liveness), differing_senders(model, in_circuit, liveness, on.is_run)
        # Forgotten until this run is through: an error on the way leaves the buffer half another circuit's.
        shared, before, self._before = self._shared(in_circuit, live), self._before, None
        torch.sub(on.sources, on.other[sources], out=self._delta[sources])
        total = self._delta[on_device(differs[sources].nonzero().flatten(), self._delta.device)].sum(dim=0)
        totals = {sources.stop: total}  # by the number of senders that have written
        for index in range(len(model.sublayers)):
            nodes, reads = graph.sender_slices[index + 1], graph.sublayers[index + 1].reads
            if before is not None and index < shared:
                total = before.totals[nodes.stop]
            elif bool(differs[nodes].any()):
                where = live[nodes] * differs[nodes]
                total = total + self._run(self._reads(index, in_circuit, differs, totals[reads]), where)
            totals[nodes.stop] = total
        self._before = _Done(in_circuit, live, totals)
        at_logits = self._reads(len(model.sublayers), in_circuit, differs, total)
        return self._inputs(at_logits, torch.tensor([0]), 1)[0, :, 0]

    def _shared(self, in_circuit: Tensor, live: Tensor) -> int:
        """How many first sublayers read the same edges and matter at the same positions as in the circuit before."""
        graph, before = self.model.graph, self._before
        if before is None:
            return 0
        for index, (ports, nodes) in enumerate(zip(graph.port_slices, graph.sender_slices, strict=True)):
            same = torch.equal(in_circuit[ports], before.in_circuit[ports])
            if not same or not torch.equal(live[nodes], before.live[nodes]):
                return max(0, index - 1)  # the sources are no sublayer that is run
        return len(self.model.sublayers)

    def _reads(self, index: int, in_circuit: Tensor, differs: Tensor, total: Tensor) -> _Reads:
        sublayer, base = self.model.graph.sublayers[index + 1], self.on.base[index]
        senders = differs[: sublayer.reads].nonzero().flatten()
        rows = in_circuit[self.model.graph.port_slices[index + 1]][:, senders].to(torch.int8)
        many = rows.sum(dim=1) * 2 > len(senders)
        return _Reads(index, base, base + total, senders, rows - many[:, None].to(torch.int8), many)

    def _inputs(self, reads: _Reads, ports: Tensor, columns: int) -> Tensor:
        """Inputs of these ports of a sublayer at the last columns. [port, example, column, d]"""
        base, stream = reads.base[:, -columns:], reads.stream[:, -columns:]
        if not len(ports):
            return base.new_empty(0, *base.shape)
        weights = reads.weights[ports]
        starts = [stream if many else base for many in reads.many[ports].tolist()]
        used = weights.any(dim=0).nonzero().flatten()
        if int(weights.count_nonzero()) * _PRODUCT < len(weights) * len(used):
            return self._added(starts, weights, reads.senders)
        x = torch.stack(starts)
        if not len(used):
            return x
        if columns == self.on.layout.window and len(used) * 3 > int(reads.senders[-1]) + 1:  # no need to gather them
            weights = weights.new_zeros(len(ports), int(reads.senders[-1]) + 1).index_copy_(1, reads.senders, weights)
            carried = self._delta[: weights.shape[1]]
        else:
            weights = weights[:, used]
            carried = self._delta[:, :, -columns:][on_device(reads.senders[used], x.device)]
        x.view(len(x), -1).addmm_(
            on_device(weights, x.device, x.dtype), carried.flatten(1)
        )  # in place of what was stacked: no copy of it
        return x

    def _added(self, starts: list[Tensor], weights: Tensor, senders: Tensor) -> Tensor:
        """What few edges carry, added one by one to what each port starts from. [port, example, column, d]"""
        x = starts[0].new_empty(len(starts), *starts[0].shape)
        carried: list[list[tuple[int, int]]] = [[] for _ in starts]
        for row, column in weights.nonzero().tolist():
            carried[row].append((int(senders[column]), int(weights[row, column])))
        for into, start, edges in zip(x, starts, carried, strict=True):
            if not edges:
                into.copy_(start)
            for sender, sign in edges:
                torch.add(start, self._delta[sender][:, -start.shape[1] :], alpha=sign, out=into)
                start = into
        return x

    def _run(self, reads: _Reads, where: Tensor) -> Tensor:
        """Run the nodes of a sublayer where they matter, into `_delta`; return its sum. [example, window, d]"""
        part, first = self.model.sublayers[reads.index], self.model.graph.sender_slices[reads.index + 1].start
        total = torch.zeros_like(reads.base)
        for liveness, columns in ((LAST, 1), (WIDE, self.on.layout.window)):
            chosen = (where == liveness).nonzero().flatten()
            if not len(chosen):
                continue
            if isinstance(part, Attention):
                out = self._heads(part, reads, chosen, columns)
            else:
                out = part(self._inputs(reads, chosen, columns), chosen.tolist())
            for at, senders in _consecutive((chosen + first).tolist()):
                delta = self._delta[senders]
                torch.sub(out[at], self.on.other[senders, :, -columns:], out=delta[:, :, -columns:])
                if columns < self.on.layout.window:
                    delta[:, :, :-columns].zero_()  # what an earlier circuit left there
                total[:, -columns:].add_(delta[:, :, -columns:].sum(dim=0))
        return total

    def _heads(self, part: Attention, reads: _Reads, heads: Tensor, columns: int) -> Tensor:
        """What these heads write at the last columns. [head, example, column, d]"""
        layout, prefix = self.on.layout, self.on.prefix[reads.index]
        if not part.separable:  # all heads differ together
            x = self._inputs(reads, torch.arange(len(reads.many)), layout.window)
            return part(x, layout, prefix)[:, :, -columns:]
        widths: dict[Kind, int] = {"q": columns, "k": layout.window, "v": layout.window}
        own = self._own_inputs(part, reads, heads, widths)
        q, k, v = (self._projected(part, reads, heads, kind, widths[kind], own[kind]) for kind in KINDS)
        chosen = None if len(heads) == part.n_heads else on_device(heads, self._delta.device)
        return part.write(part.attend(q, k, v, layout, prefix, chosen), chosen)

    def _ports(self, part: Attention, heads: Tensor, kind: Kind) -> Tensor:
        """Which of the sublayer's ports queries, keys or values of these heads come from."""
        return heads if self.model.graph.qkv == "merged" else heads + part.n_heads * KINDS.index(kind)

    def _own_inputs(
        self, part: Attention, reads: _Reads, heads: Tensor, widths: Mapping[Kind, int]
    ) -> dict[Kind, Tensor]:
        """Inputs of the ports of these heads that have something of their own; those of one width are mixed at once."""
        own: dict[Kind, Tensor] = {}
        for kind in KINDS:
            ports = self._ports(part, heads, kind)
            own[kind] = ports[reads.weights[ports].any(dim=1)]
        if self.model.graph.qkv == "merged":
            x = self._inputs(reads, own["k"], widths["k"])
            return {kind: x[:, :, -width:] for kind, width in widths.items()}
        inputs: dict[Kind, Tensor] = {}
        for width in set(widths.values()):
            alike = [kind for kind in KINDS if widths[kind] == width]
            x = self._inputs(reads, torch.cat([own[kind] for kind in alike]), width)
            inputs.update(zip(alike, x.split([len(own[kind]) for kind in alike]), strict=True))
        return inputs

    def _projected(self, part: Attention, reads: _Reads, heads: Tensor, kind: Kind, columns: int, x: Tensor) -> Tensor:
        """Queries, keys or values of these heads at the last columns. [head, example, column, dimension]

        x: inputs of the ports that have something of their own.
        """
        ports, key = self._ports(part, heads, kind), (reads.index, kind)
        own, many = reads.weights[ports].any(dim=1), reads.many[ports]
        inputs = [(heads[own], x), (heads[many & ~own], reads.stream[None, :, -columns:])]
        bare = heads[~many & ~own]  # read no edge: the same in every circuit on this batch
        if not len(bare):
            return part.project_heads(kind, inputs, self.on.layout)
        if key not in self._without_edges:
            self._without_edges[key] = part.per_head(part.project(kind, reads.base[None], self.on.layout))
        values = self._without_edges[key][on_device(bare, self._delta.device)][:, :, -columns:]
        return part.project_heads(kind, inputs, self.on.layout, [(bare, values)])


def _consecutive(senders: Sequence[int]) -> list[tuple[slice, slice]]:
    """Runs of senders that follow each other: where they stand in the list, and which they are."""
    runs: list[tuple[slice, slice]] = []
    for at, sender in enumerate(senders):
        if runs and runs[-1][1].stop == sender:
            rows, run = runs.pop()
            runs.append((slice(rows.start, at + 1), slice(run.start, sender + 1)))
        else:
            runs.append((slice(at, at + 1), slice(sender, sender + 1)))
    return runs
