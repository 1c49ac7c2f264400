"""Edge attribution: scores of all edges of a batch from a few plain runs, no copy of the residual stream per port.

    score[u -> r] = sum over positions and dimensions of  (corrupted_u - clean_u) . dL / d(input of port r)

L is the pairs' margin. With all edges kept, the ports of a stage read the same residual stream, so that a plain run
with autograd gives all we need: the gradient at every query, key and value *per query head*, before head norm and
rotary embedding. What is left between there and the port is a projection and a norm, whose transposed Jacobian is
written out in `_through_norm`. All scores of a stage are then one matrix product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.engine.runs import Direction, lay_out, prefix_of
from gatewise.models.model import Model
from gatewise.models.parts import Attention, KeysValues, Kind, Norm, Pointwise, Projection
from gatewise.tasks.pairs import Pairs

_KINDS: tuple[Kind, ...] = ("q", "k", "v")


@dataclass(frozen=True, eq=False)
class Reading:
    """Where one stage reads during a run: tensors at which the gradient of L tells that of each port."""

    stage: Attention | Pointwise | None  # None: the logits
    x: Tensor  # the residual stream it reads. [example, window, d]
    points: tuple[
        Tensor, ...
    ]  # attention: q, k and v [head, example, window, dimension]; else the ports [node, ..., d]


Gradients = list[tuple[Reading, tuple[Tensor, ...]]]  # of L at each reading's points


class Attribution:
    """Both sides of one batch of pairs, ready to be attributed."""

    def __init__(self, model: Model, pairs: Pairs) -> None:
        self.model, self.pairs = model, pairs
        self.layout = lay_out(model, pairs, share_prefix=True)
        self.prefix = prefix_of(model, pairs.clean, self.layout)

    def directions(self, directions: Sequence[Direction]) -> dict[Direction, Tensor]:
        """Scores summed over the examples, gradients on the clean side (ns) or the corrupted (dn). [port, sender] each

        The difference is corrupted - clean and L is the same in both directions, so that their sum is twice a trapezoid
        rule: the gradient's mean over both ends of the way, times the way.
        """
        gradients: dict[Direction, Gradients] = {}
        clean, gradients["ns"] = self._side(self.pairs.clean, gradient="ns" in directions)
        corrupted, gradients["dn"] = self._side(self.pairs.corrupted, gradient="dn" in directions)
        difference = _subtract(corrupted, clean)
        del clean, corrupted
        return {direction: self._scores(gradients[direction], difference) for direction in directions}

    def integrated(self, steps: int) -> Tensor:
        """The same with the gradient's mean over `steps` runs on the way from the corrupted to the clean input.

        Run k of m starts from the input embeddings  corrupted + k/m (clean - corrupted),  k = 1 .. m, as in the paper
        on EAP-IG: the clean end counts, the corrupted one does not.
        """
        clean, gradients = self._side(self.pairs.clean, gradient=True)
        corrupted, _ = self._side(self.pairs.corrupted, gradient=False)
        sources = self.model.graph.sender_slices[0]
        first, last = corrupted[sources].sum(dim=0), clean[sources].sum(dim=0)
        difference = _subtract(corrupted, clean)
        del clean, corrupted
        total = self._scores(gradients, difference)  # step m is the clean run
        del gradients
        for step in range(1, steps):
            total += self._scores(self._gradients(torch.lerp(first, last, step / steps), None), difference)
        return total / steps

    def _side(self, tokens: Tensor, *, gradient: bool) -> tuple[Tensor, Gradients]:
        """Outputs of all senders on one side [sender, example, window, d], and the gradients if they are wanted."""
        model, layout = self.model, self.layout
        columns = slice(layout.start, layout.width)
        sources = model.embed(tokens[:, columns].to(model.device), layout.positions()[:, columns])
        outputs = sources.new_empty(len(model.graph.senders), *sources.shape[1:])
        outputs[model.graph.sender_slices[0]] = sources
        start = sources.sum(dim=0)
        if gradient:
            return outputs, self._gradients(start, outputs)
        with torch.no_grad():
            self._run(start, outputs)
        return outputs, []

    def _gradients(self, start: Tensor, outputs: Tensor | None) -> Gradients:
        """Run from these input embeddings and differentiate; fills `outputs` if given."""
        with torch.enable_grad():
            readings = self._run(start.detach().requires_grad_(True), outputs)
            logits = self.model.unembed(readings[-1].points[0][0, :, -1])
            margin = self.pairs.margin(logits).sum()  # the sum: each example's gradient is its own
        points = [point for reading in readings for point in reading.points]
        found = iter(torch.autograd.grad(margin, points, materialize_grads=True))
        kept = [Reading(reading.stage, reading.x.detach(), ()) for reading in readings]  # lets go of the graph
        return [
            (bare, tuple(next(found) for _ in reading.points)) for bare, reading in zip(kept, readings, strict=True)
        ]

    def _run(self, start: Tensor, outputs: Tensor | None) -> list[Reading]:
        """One plain run with all edges, and where its stages read."""
        graph = self.model.graph
        current = start
        residuals = {graph.sender_slices[0].stop: current}  # by the number of senders that have written
        readings = []
        stages = zip(self.model.stages, graph.stages[1:-1], graph.sender_slices[1:-1], self.prefix, strict=True)
        for stage, spec, nodes, prefix in stages:
            x = residuals[spec.reads]
            into = None if outputs is None else outputs[nodes]
            if isinstance(stage, Attention):
                written, points = self._attend(stage, x, prefix, into)
            else:
                written, points = self._apply(stage, x, into)
            readings.append(Reading(stage, x, points))
            current = current + written if stage.bias is None else current + written + stage.bias
            residuals[nodes.stop] = current
        last = current[:, -1:]
        return [*readings, Reading(None, last, (last[None],))]

    def _attend(
        self, stage: Attention, x: Tensor, prefix: KeysValues | None, outputs: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What the heads write together, and their queries, keys and values as projected; fills `outputs` if given."""
        normed = stage.norm(x[None])
        points = tuple(stage.per_head(projection(normed)) for projection in (stage.q, stage.k, stage.v))
        q, k, v = (stage.place(kind, y, self.layout) for kind, y in zip(_KINDS, points, strict=True))
        z = stage.attend(q, k, v, self.layout, stage.prefix_per_head(prefix))
        if outputs is not None:
            outputs[:] = stage.write(z.detach())
        return stage.write_sum(z), points

    def _apply(self, stage: Pointwise, x: Tensor, outputs: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What the nodes write together, and their port inputs; fills `outputs` if given."""
        ports = x.expand(stage.n_nodes, *x.shape)
        out = stage(ports)
        if outputs is not None:
            outputs[:] = out.detach()
        return out.sum(dim=0), (ports,)

    def _scores(self, gradients: Gradients, difference: Tensor) -> Tensor:
        """[port, sender], 0 where there is no edge."""
        graph = self.model.graph
        scores = difference.new_zeros(len(graph.ports), len(graph.senders))
        for spec, ports, (reading, found) in zip(graph.stages[1:], graph.port_slices[1:], gradients, strict=True):
            found = tuple(gradient.to(difference.dtype) for gradient in found)
            into_ports = _into_ports(reading, found, merged=graph.qkv == "merged")
            seen = difference[: spec.reads, :, -into_ports.shape[2] :]  # the logits read at the last position only
            scores[ports, : spec.reads] = into_ports.flatten(1) @ seen.flatten(1).T
        return scores


def _subtract(corrupted: Tensor, clean: Tensor) -> Tensor:
    """corrupted - clean in place of the former, or in float32 if that is finer: scores are accumulated in it."""
    return corrupted.to(torch.promote_types(corrupted.dtype, torch.float32)).sub_(clean)


def _into_ports(reading: Reading, gradients: tuple[Tensor, ...], *, merged: bool) -> Tensor:
    """Gradient at the input of every port of a stage. [port, example, position, d]"""
    stage = reading.stage
    if not isinstance(stage, Attention):
        return gradients[0]
    blocks = _through_norm(stage.norm, (stage.q, stage.k, stage.v), reading.x.to(gradients[0].dtype), gradients)
    if merged:  # a head reads once for all three
        return torch.stack(list(blocks)).sum(dim=0)
    return torch.cat(list(blocks))


def _through_norm(
    norm: Norm, projections: Sequence[Projection], x: Tensor, gradients: Sequence[Tensor]
) -> Iterator[Tensor]:
    """From gradients at projections of the normed x to those at x. [head, example, position, dimension or d]

    With x^ = x (centred) times `scale`, the norm's Jacobian transposed takes g to
    scale (w g - mean(w g) - x^ mean(x^ w g)); a root-mean-square norm has no mean(w g).
    Weight and centring are applied to the projection, which is much smaller than the gradients of all heads.
    """
    standard, scale = norm.standardise(x)
    rows = standard.flatten(0, 1)
    for projection, gradient in zip(projections, gradients, strict=True):
        weight = projection.weight * norm.weight[:, None]  # [head or group of heads, d, dimension]
        if norm.center:
            weight = weight - weight.mean(dim=1, keepdim=True)
        scaled = (gradient * scale).reshape(weight.shape[0], -1, weight.shape[2])
        into_x = torch.bmm(scaled, weight.transpose(1, 2)).reshape(gradient.shape[0], *rows.shape)
        along = torch.einsum("hrd,rd->hr", into_x, rows) / rows.shape[1]
        yield into_x.addcmul_(along[..., None], rows, value=-1).reshape(*gradient.shape[:-1], -1)
