"""Patching one node: what it puts out when some of its edges carry clean outputs and the others corrupted ones.

`NodePatching` holds both runs of a batch under a circuit H (default: the whole model). Any set of edges into any ports
of one node can be clean: only that node is computed, for many sets (rows) at once. What it puts out is valued along

    gbar = mean over the two runs of  d logit difference / d(output of the node)

per example and position, so that a value is what the node's change is worth on the logit difference to first order,
whatever the two runs agree on. For `logits` the value is the logit difference itself. Within H, outputs and gradients
are those of H's runs: the clean one has H's edges clean, the corrupted one none; edges outside H never move.

Where a norm couples the heads of a layer (Gemma), a head's change changes what its siblings write. A value then counts
all writes of the layer, with the siblings' own inputs all on one side, row by row as the caller says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import LOGITS as LOGITS
from gatewise.devices import fetched, on_device, rows_of, widest_float
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.metrics import residual_values
from gatewise.engine.patching.propagation import kinds_of
from gatewise.engine.running import dense_mask
from gatewise.engine.runs.activations import BothRuns, Run, bases
from gatewise.engine.runs.residual_stream import walk
from gatewise.engine.setting import Batch, Setting, SideName
from gatewise.models.components import KINDS, Attention, Kind
from gatewise.models.model import Model

Side = SideName
_SIDES: tuple[Side, ...] = ("corrupted", "clean")  # so that False and True, whether siblings are clean, select one


class NodePatching:
    """Both runs of one batch, and every node's output under any choice of its clean edges."""

    def __init__(self, setting: Setting, batch: Batch, circuit: Circuit | None = None) -> None:
        model = setting.model
        self.model, self.graph, self._row_bytes = model, model.graph, setting.row_bytes
        self.runs = setting.runs(batch, keep=False)
        self.layout = self.runs.layout
        self.logit_diff = residual_values(model, batch.pairs, setting.value)
        self.in_circuit = (self.graph.edge_index >= 0) if circuit is None else self.graph.matrix(circuit.mask)
        self.base = bases(model, self.runs.corrupted.outputs)
        if circuit is None:
            # All nodes of a sublayer write to one stream and share its gradient: a row for each sublayer is enough.
            clean, gradients = self.runs.clean.outputs, _whole_gradients(model, self.runs, self.logit_diff)
            self._gradient_row: Sequence[int] = self.graph.sublayer_of_sender
        else:
            clean, gradients = _circuit_gradients(model, self.runs, circuit, self.logit_diff)
            self._gradient_row = range(len(self.graph.senders))
        self.gradients = gradients  # [side, sublayer (whole model) or sender (circuit), example, window, d]
        self._mean_gradients = gradients.mean(dim=0)
        self.delta = clean - self.runs.corrupted.outputs  # [sender, example, window, d]
        self.whole = [self.delta[: sublayer.reads].sum(dim=0) for sublayer in self.graph.sublayers[1:]]
        last = torch.tensordot(self.in_circuit[-1].to(self.delta), self.delta[:, :, -1], dims=1)
        both = torch.stack([last, torch.zeros_like(last)])
        self.logit_diffs = self.logit_diff(self.base[-1][:, -1] + both)  # [clean and corrupted run, example]
        self._gathered: dict[int, Tensor] = {}

    @property
    def total_effect(self) -> Tensor:
        """Logit difference of the clean run less that of the corrupted: what effects are normalised by. [example]"""
        return self.logit_diffs[0] - self.logit_diffs[1]

    @cached_property
    def summed_effect(self) -> float:
        """The total effect, summed over examples."""
        return float(self.total_effect.sum())

    def _sublayer(self, node: int) -> int:
        return len(self.graph.sublayers) - 1 if node == LOGITS else self.graph.sublayer_of_sender[node]

    def gradient(self, sender: int, side: int | None = None) -> Tensor:
        """Of the logit difference at a sender's output: mean of the two runs, or of one. [example, window, d]"""
        row = self._gradient_row[sender]
        return self._mean_gradients[row] if side is None else self.gradients[side, row]

    @torch.no_grad()
    def values(self, node: int, clean: Tensor, siblings: Tensor) -> Tensor:
        """What each choice of clean edges is worth above that of none. [row, example]

        clean: [row, port of the node, sender] of bool; siblings: [row] of bool, whether coupled heads are clean.
        """
        none = torch.zeros_like(clean[:1])
        clean, siblings = torch.cat([none, clean]), torch.cat([torch.zeros_like(siblings[:1]), siblings])
        # Tables of groups repeat most rows, and siblings that are not coupled tell no rows apart: run each row once.
        coupled = node != LOGITS and len(self.model.siblings(node)) > 1
        rows = torch.cat([clean.flatten(1), siblings[:, None] & coupled], dim=1)
        rows, which = rows.unique(dim=0, return_inverse=True)
        clean, siblings = rows[:, :-1].reshape(-1, *clean.shape[1:]), rows[:, -1]
        if node == LOGITS:
            values = self.logit_diff(self._inputs(self._sublayer(node), clean[:, 0], last=True)[:, :, -1])
        else:
            parts = self._in_parts(node, clean, siblings)
            values = torch.cat([self._along_gradient(node, self.outputs(node, *part)) for part in parts])
        values = values[on_device(which, values.device)]
        return values[1:] - values[0]

    def _along_gradient(self, node: int, outputs: Tensor) -> Tensor:
        """[writer, row, example, window, d] -> [row, example] in the widest floats of the device"""
        gradient = torch.stack([self.gradient(writer) for writer in self.model.siblings(node)])
        return (outputs * gradient[:, None]).sum(dim=(0, -1, -2), dtype=widest_float(outputs.device))

    def worth(self, node: int, inputs: Sequence[Tensor], siblings: Tensor) -> Tensor:
        """What the node puts out from the inputs of its ports [row, example, window, d] each. -> [row, example]

        Values count from nothing at all, not from what no clean edge gives.
        """
        if node == LOGITS:
            return self.logit_diff(inputs[0][:, :, -1])
        rows = torch.arange(len(siblings), device=self.delta.device)
        return self._along_gradient(node, self._from_inputs(node, [(x, rows) for x in inputs], siblings))

    def slopes(self, node: int, clean: Tensor, siblings: Tensor, senders: Sequence[int]) -> Tensor:
        """What each edge is worth to first order where these edges are clean, summed over examples.

        -> [row, port of the node, sender]; edges outside the circuit have one, too.
        """
        delta = self.delta[rows_of(senders, self.delta.device)]
        slopes = []
        for part in self._in_parts(node, clean, siblings):
            with torch.enable_grad():
                inputs = [self._inputs(self._sublayer(node), part[0][:, i]) for i in range(clean.shape[1])]
                inputs = [x.detach().requires_grad_(True) for x in inputs]
                total = self.worth(node, inputs, part[1]).sum()
            gradients = torch.stack(torch.autograd.grad(total, inputs), dim=1)  # [row, port, example, window, d]
            slopes.append(gradients.flatten(2) @ delta.flatten(1).T)
        return torch.cat(slopes).cpu().double()

    def parts(self) -> tuple[Tensor, Tensor]:
        """Where the difference of every edge's Ns and Dn score arises, summed over examples. [part, port, sender]

            s_ns - s_dn  =  delta . (J - J~)^T gbar  [in the receiver]  +  delta . Jbar^T (g - g~)  [downstream]

        J and J~ are the receiver's Jacobians on the clean and the corrupted run, g and g~ the gradients at its output,
        bars their means. The second tensor has s_ns and s_dn themselves. Positive: being clean helps.
        """
        shape = (2, len(self.graph.ports), len(self.graph.senders))
        arising, scores = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
        sublayers, by_sublayer = range(1, len(self.graph.sublayers)), []
        for index in sublayers:
            pulled = self._pulled_back(index)  # [run of J, run of g, port, example, window, d]
            delta = self.delta[: self.graph.sublayers[index].reads, :, -pulled.shape[-2] :].flatten(1)
            by_sublayer.append(pulled.flatten(3) @ delta.T)
        for index, worth in zip(sublayers, fetched(by_sublayer), strict=True):
            ports, reads = self.graph.port_slices[index], self.graph.sublayers[index].reads
            worth = worth.double() * self.in_circuit[ports, :reads]
            arising[0, ports, :reads] = (worth[0] - worth[1]).mean(dim=0)
            arising[1, ports, :reads] = (worth[:, 0] - worth[:, 1]).mean(dim=0)
            scores[:, ports, :reads] = torch.stack([worth[0, 0], worth[1, 1]])
        return arising, scores

    def _pulled_back(self, index: int) -> Tensor:
        """Gradients at the outputs of a sublayer's nodes on each run, taken to its ports on each run."""
        inputs = [self.port_inputs(index, side) for side in reversed(_SIDES)]  # clean first, as in `gradients`
        if index == len(self.graph.sublayers) - 1:  # no output whose gradient could differ: all is local
            slopes = torch.stack([self._slope_of_logit_diff(x[:, :, -1:]) for x in inputs])
            return torch.stack([slopes, slopes], dim=1)
        nodes, ports = self.graph.sender_slices[index], self.graph.port_slices[index]
        writers = range(nodes.start, nodes.stop)
        into_writers = [torch.stack([self.gradient(writer, run) for writer in writers]) for run in (0, 1)]
        pulled = []
        for shared in inputs:
            # A leaf for each port, though all read the same: each needs a gradient of its own.
            x = shared.expand(ports.stop - ports.start, *shared.shape[1:]).detach().clone().requires_grad_(True)
            with torch.enable_grad():
                out = self.model.run_sublayer(index - 1, x, self.layout, self.runs.prefix[index - 1])
            by_run = [torch.autograd.grad(out, x, into, retain_graph=True)[0] for into in into_writers]
            pulled.append(torch.stack(by_run))
        return torch.stack(pulled)

    def _slope_of_logit_diff(self, x: Tensor) -> Tensor:
        """The gradient of the logit difference at the input of `logits`. [1, example, 1, d]"""
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            total = self.logit_diff(x[0, :, -1]).sum()
        return torch.autograd.grad(total, x)[0]

    @torch.no_grad()
    def logit_diffs_with(self, node: int, outputs: Tensor, side: Side) -> Tensor:
        """Logit differences of the whole model on one side, with what a node writes replaced. [row, example]

        outputs: [writer, row, example, window, d], as `outputs` gives them.
        """
        graph, run = self.graph, self.runs.clean if side == "clean" else self.runs.corrupted
        inputs, first = bases(self.model, run.outputs), self._sublayer(node) - 1
        nothing = outputs.new_zeros(())

        def write(index: int, change: Tensor) -> Tensor:
            """The change of what a sublayer writes together."""
            if index == first:
                written = rows_of(self.model.siblings(node), outputs.device)
                return outputs.sum(dim=0) - run.outputs[written].sum(dim=0)
            if graph.sublayers[index + 1].reads <= node:
                return nothing
            before = run.outputs[graph.sender_slices[index + 1]].sum(dim=0)
            return self._run_plainly(index, inputs[index] + change).sum(dim=0) - before

        change = walk(self.model, nothing, write, biases=False)[-1]
        return self.logit_diff(inputs[-1][:, -1] + change[:, :, -1])

    @torch.no_grad()
    def run_with(self, outputs: Mapping[int, Tensor]) -> Tensor:
        """What all senders put out on the clean side of the whole model where some put out what is given.

        outputs: [example, window, d] by sender -> [sender, example, window, d]
        """
        graph, written = self.graph, self.runs.clean.outputs.clone()
        first = min((self._sublayer(sender) for sender in outputs), default=len(graph.sublayers))

        def write(index: int, x: Tensor) -> Tensor:
            nodes = graph.sender_slices[index + 1]
            if index + 1 >= first:
                written[nodes] = self._run_plainly(index, x)
                for sender in range(nodes.start, nodes.stop):
                    if sender in outputs:
                        written[sender] = outputs[sender]
            return written[nodes].sum(dim=0)

        walk(self.model, written[graph.sender_slices[0]].sum(dim=0), write)
        return written

    def _run_plainly(self, index: int, x: Tensor) -> Tensor:
        """What a sublayer's nodes write if all their ports read x. [node, row..., example, window, d]"""
        return self.model.run_sublayer(index, x[None], self.layout, self.runs.prefix[index])

    @torch.no_grad()
    def outputs(self, node: int, clean: Tensor, siblings: Tensor) -> Tensor:
        """What the node, or its whole layer if a norm couples that, writes. [writer, row, example, window, d]"""
        index = self._sublayer(node)
        inputs = []
        for port in range(clean.shape[1]):
            rows, which = clean[:, port].unique(dim=0, return_inverse=True)
            inputs.append((self._inputs(index, rows), on_device(which, self.delta.device)))
        return self._from_inputs(node, inputs, siblings)

    def _from_inputs(self, node: int, inputs: Sequence[tuple[Tensor, Tensor]], siblings: Tensor) -> Tensor:
        """The same from the different inputs of each port [input, example, window, d], and which of them rows have."""
        index = self._sublayer(node)
        local, sublayer = node - self.graph.sender_slices[index].start, self.model.sublayers[index - 1]
        if not isinstance(sublayer, Attention):
            x, which = inputs[0]
            return sublayer(x[None], [local])[:, which]
        head = on_device(torch.tensor([local]), self.delta.device)
        projected: dict[Kind, Tensor] = {}
        for port, (x, which) in zip(self.graph.ports_of(node), inputs, strict=True):
            for kind in kinds_of(self.graph, port):
                projected[kind] = sublayer.project(kind, x[None], self.layout, head)[:, which]
        q, k, v = (projected[kind] for kind in KINDS)
        gathered = sublayer.attend(q, k, v, self.layout, self.runs.prefix[index - 1], head)
        if sublayer.joint_norm is None:
            return sublayer.write(gathered, head)
        others = self._both_sides(index, sublayer)[:, on_device(siblings.long(), self.delta.device)]
        return sublayer.write(torch.cat([others[:local], gathered, others[local + 1 :]]))

    def port_inputs(self, index: int, side: Side) -> Tensor:
        """Inputs of all ports of a sublayer on one side. [port or 1 (all read the same), example, window, d]"""
        base = self.base[index - 1][None]
        if side == "corrupted":
            return base
        spec, ports = self.graph.sublayers[index], self.graph.port_slices[index]
        in_circuit = self.in_circuit[ports, : spec.reads]
        if bool(in_circuit.all()):
            return base + self.whole[index - 1]
        moved: Tensor = torch.tensordot(in_circuit.to(self.delta), self.delta[: spec.reads], dims=1)
        return base + moved

    def _inputs(self, index: int, clean: Tensor, *, last: bool = False) -> Tensor:
        """Input of a port of a sublayer for each row of clean senders [row, sender]. -> [row, example, window, d]

        Of senders that always move together, the largest set is all senders minus the others.
        """
        # Gates compare a few groups of edges among hundreds of senders: most of these move together, and a row in which
        # they are clean is the whole less what is not. So only the others are read.
        columns = slice(-1, None) if last else slice(None)
        delta, whole = self.delta[:, :, columns], self.whole[index - 1][:, columns]
        clean = clean[:, : self.graph.sublayers[index].reads]
        patterns, which = clean.T.unique(dim=0, return_inverse=True)
        largest = which.bincount().argmax()
        starts_whole = patterns[largest]  # [row]
        weights = clean.int() - starts_whole.int()[:, None]  # 1 is added to nothing, -1 taken from the whole
        others = weights.any(dim=0).nonzero().flatten()
        signs = on_device(weights[:, others], delta.device, delta.dtype)
        moved: Tensor = torch.tensordot(signs, delta[rows_of(others.tolist(), delta.device)], dims=1)
        if bool(starts_whole.any()):
            moved += on_device(starts_whole, delta.device, delta.dtype)[:, None, None, None] * whole
        return self.base[index - 1][:, columns] + moved

    def _in_parts(self, node: int, clean: Tensor, siblings: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Rows in parts that fit the memory of a few copies of the residual stream."""
        writers = 0 if node == LOGITS else len(self.model.siblings(node))
        copies = 2 + len(self.graph.ports_of(node)) + writers
        size = max(1, self._row_bytes // (copies * self.whole[0].numel() * self.whole[0].element_size()))
        return list(zip(clean.split(size), siblings.split(size), strict=True))

    def _both_sides(self, index: int, sublayer: Attention) -> Tensor:
        """What all heads of a sublayer gather, corrupted and clean. [head, side, example, window, dimension]"""
        if index not in self._gathered:
            gathered = []
            for side in _SIDES:
                into = zip(KINDS, sublayer.ports(self.port_inputs(index, side)), strict=True)
                q, k, v = (sublayer.per_head(sublayer.project(kind, x, self.layout)) for kind, x in into)
                gathered.append(sublayer.attend(q, k, v, self.layout, self.runs.prefix[index - 1]))
            self._gathered[index] = torch.stack(gathered, dim=1)
        return self._gathered[index]


class PatchedBatches:
    """The receivers of all pairs, batch by batch, kept for the next round if all of them fit half of the budget."""

    def __init__(self, setting: Setting, circuit: Circuit | None = None) -> None:
        self.setting, self.model, self.circuit = setting, setting.model, circuit
        self._fits = 2 * setting.needed_bytes(len(setting), gradient=True) <= setting.memory
        self._cached: dict[int, NodePatching] = {}  # by the first example of their batch

    def __iter__(self) -> Iterator[NodePatching]:
        for batch in self.setting.batches(gradient=True):
            receivers = self._cached.get(batch.first) or NodePatching(self.setting, batch, self.circuit)
            if self._fits:
                self._cached[batch.first] = receivers
            yield receivers


def _whole_gradients(model: Model, runs: BothRuns, logit_diff: Callable[[Tensor], Tensor]) -> Tensor:
    """Gradients on both plain runs after each sublayer, which are those at all its nodes. [side, sublayer, ...]"""
    return torch.stack([_sublayer_gradients(model, runs, run, logit_diff) for run in (runs.clean, runs.corrupted)])


def _sublayer_gradients(model: Model, runs: BothRuns, run: Run, logit_diff: Callable[[Tensor], Tensor]) -> Tensor:
    written = [run.outputs[model.graph.sender_slices[0]].sum(dim=0).requires_grad_(True)]

    def write(index: int, x: Tensor) -> Tensor:
        written.append(model.run_sublayer(index, x[None], runs.layout, runs.prefix[index]).sum(dim=0))
        return written[-1]

    with torch.enable_grad():
        last = walk(model, written[0], write)[-1]
        total = logit_diff(last[:, -1]).sum()  # the sum: each example's gradient is its own
    return torch.stack(torch.autograd.grad(total, written, materialize_grads=True))


def _circuit_gradients(
    model: Model, runs: BothRuns, circuit: Circuit, logit_diff: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Outputs of the circuit's clean run, and gradients at all senders along its edges on both runs."""
    mask, on = dense_mask(model, circuit), runs.intervention(model, "ns")
    # With corrupted sources every edge carries nothing new: the corrupted run, gone back through along the circuit.
    silent = replace(on, sources=on.other[model.graph.sender_slices[0]])
    engines = (DenseEngine(model, on), DenseEngine(model, silent))
    (outputs, clean), (_, corrupted) = (
        engine.at_senders(mask, lambda last: logit_diff(last).sum()) for engine in engines
    )
    return outputs, torch.stack([clean, corrupted])
