"""Edge attribution: scores of all edges of a batch from a few plain runs, no copy of the residual stream per port.

    score[u -> r] = sum over positions and dimensions of  (corrupted_u - clean_u) . dL / d(input of port r)

L is the setting's metric, by default the pairs' margin. With all edges kept, the ports of a stage read the same
residual stream, so that a plain run with autograd gives all we need: the gradient at every query, key and value *per
query head*, before head norm and rotary embedding. What is left between there and the port is a projection and a norm,
whose transposed Jacobian is applied in `_gather` and `_spell_out`. All scores of a stage are then one matrix product.
Scores are linear in the gradients, so that those of several runs (EAP-IG) are summed while they are small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.engine.metrics import Distance
from gatewise.engine.runs import Direction, lay_out, prefix_of
from gatewise.engine.setting import Batch, Setting
from gatewise.engine.stream import walk
from gatewise.models.parts import KINDS, Attention, KeysValues, Pointwise

_RUNS_AT_ONCE = 8  # whose gradients are held together: saves time, costs a residual stream per attention stage and run


@dataclass(frozen=True, eq=False)
class _Reading:
    """Where one stage reads during a run: the points at which the gradient of L tells that of each port."""

    stage: Attention | Pointwise | None  # None: the logits
    x: Tensor  # the residual stream it reads. [example, window, d]
    points: tuple[Tensor, ...]  # q, k and v [head, example, window, dimension]; or the ports [node, example, window, d]


@dataclass(frozen=True, eq=False)
class StageGradient:
    """The gradient at a stage's ports, of one run or summed over several, before it is spelt out.

    Pointwise stages: as it is. Attention: what goes back through the projections, and for each run what the norm takes
    away from it, a multiple of the standardised residual stream. That is tens of times smaller than the ports' own.
    """

    direct: tuple[Tensor, ...]  # like a reading's points
    along: tuple[Tensor, ...] = ()  # for each run: [q, k and v ports, example, window, 1]
    standard: tuple[Tensor, ...] = ()  # for each run: [example, window, d]

    def __add__(self, other: StageGradient) -> StageGradient:
        direct = tuple(a + b for a, b in zip(self.direct, other.direct, strict=True))
        return StageGradient(direct, self.along + other.along, self.standard + other.standard)


class Attribution:
    """Both sides of one batch of a setting, ready to be attributed."""

    def __init__(self, setting: Setting, batch: Batch) -> None:
        self.setting, self.batch = setting, batch
        self.model, self.pairs = setting.model, batch.pairs
        self.layout = lay_out(self.model, self.pairs, share_prefix=setting.ablation == "interchange")
        self.prefix = prefix_of(self.model, self.pairs.clean, self.layout)

    def directions(self, directions: Sequence[Direction]) -> dict[Direction, Tensor]:
        """Scores summed over the examples, gradients on the clean side (ns) or the corrupted (dn). [port, sender] each

        The difference is corrupted - clean and L is the same in both directions, so that their sum is twice a trapezoid
        rule: the gradient's mean over both ends of the way, times the way.
        """
        gradients: dict[Direction, list[StageGradient]] = {}
        metric = self._metric()
        clean, gradients["ns"] = self._side(self.pairs.clean, metric if "ns" in directions else None)
        if self.setting.ablation == "interchange":
            corrupted, gradients["dn"] = self._side(self.pairs.corrupted, metric if "dn" in directions else None)
        else:
            corrupted = self.setting.runs(self.batch, keep=False).corrupted.outputs.clone()
        difference = _subtract(corrupted, clean)
        del clean, corrupted
        return {direction: self._scores(gradients[direction], difference) for direction in directions}

    def integrated(self, steps: int) -> Tensor:
        """The same with the gradient's mean over `steps` runs on the way from the corrupted to the clean input.

        Run k of m starts from the input embeddings  corrupted + k/m (clean - corrupted),  k = 1 .. m, as in the paper
        on EAP-IG: the clean end counts, the corrupted one does not.
        """
        metric = self._metric()
        clean, gradients = self._side(self.pairs.clean, metric)
        corrupted, _ = self._side(self.pairs.corrupted, None)
        sources = self.model.graph.sender_slices[0]
        first, last = corrupted[sources].sum(dim=0), clean[sources].sum(dim=0)
        difference = _subtract(corrupted, clean)
        del clean, corrupted
        total = difference.new_zeros(len(self.model.graph.ports), len(self.model.graph.senders))
        for step in range(1, steps):  # step m is the clean run
            if step % _RUNS_AT_ONCE == 0:
                total += self._scores(gradients, difference)
                gradients = []
            found = self._gradients(torch.lerp(first, last, step / steps), None, metric)
            gradients = [a + b for a, b in zip(gradients, found, strict=True)] if gradients else found
        return (total + self._scores(gradients, difference)) / steps

    def _metric(self) -> Distance:
        """What is differentiated: one number per example from logits. KL is that from the clean run."""
        if self.setting.metric is not None and self.setting.metric.function is None:
            return self.setting.metric.distance(self.setting.runs(self.batch, keep=False).clean.logits, self.pairs)
        return lambda logits: self.setting.value.value(logits, self.pairs)

    def _side(self, tokens: Tensor, metric: Distance | None) -> tuple[Tensor, list[StageGradient]]:
        """Outputs of all senders on one side [sender, example, window, d], and a given metric's gradients."""
        model, layout = self.model, self.layout
        columns = slice(layout.start, layout.width)
        sources = model.embed(tokens[:, columns].to(model.device), layout.positions()[:, columns])
        outputs = sources.new_empty(len(model.graph.senders), *sources.shape[1:])
        outputs[model.graph.sender_slices[0]] = sources
        start = sources.sum(dim=0)
        if metric is not None:
            return outputs, self._gradients(start, outputs, metric)
        with torch.no_grad():
            self._run(start, outputs)
        return outputs, []

    def _gradients(self, start: Tensor, outputs: Tensor | None, metric: Distance) -> list[StageGradient]:
        """Run from these input embeddings and differentiate; fills `outputs` if given."""
        with torch.enable_grad():
            readings = self._run(start.detach().requires_grad_(True), outputs)
            logits = self.model.unembed(readings[-1].points[0][0, :, -1])
            total = metric(logits).sum()  # the sum: each example's gradient is its own
        points = [point for reading in readings for point in reading.points]
        found = iter(torch.autograd.grad(total, points, materialize_grads=True))
        with torch.no_grad():
            return [_gather(reading, [next(found) for _ in reading.points]) for reading in readings]

    def _run(self, start: Tensor, outputs: Tensor | None) -> list[_Reading]:
        """One plain run with all edges, and where its stages read."""
        nodes = self.model.graph.sender_slices
        readings: list[_Reading] = []

        def write(index: int, x: Tensor) -> Tensor:
            stage = self.model.stages[index]
            into = None if outputs is None else outputs[nodes[index + 1]]
            if isinstance(stage, Attention):
                written, points = self._attend(stage, x, self.prefix[index], into)
            else:
                written, points = self._apply(stage, x, into)
            readings.append(_Reading(stage, x, points))
            return written

        last = walk(self.model, start, write)[-1][:, -1:]
        return [*readings, _Reading(None, last, (last[None],))]

    def _attend(
        self, stage: Attention, x: Tensor, prefix: KeysValues | None, outputs: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What the heads write together, and their queries, keys and values as projected; fills `outputs` if given."""
        normed = stage.normed(x[None])
        points = tuple(stage.per_head(projection(normed)) for projection in (stage.q, stage.k, stage.v))
        q, k, v = (stage.place(kind, y, self.layout) for kind, y in zip(KINDS, points, strict=True))
        z = stage.attend(q, k, v, self.layout, stage.prefix_per_head(prefix))
        if outputs is not None:
            stage.write_into(outputs, z)
        return stage.write_sum(z), points

    def _apply(self, stage: Pointwise, x: Tensor, outputs: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What the nodes write together, and their port inputs; fills `outputs` if given."""
        ports = x.expand(stage.n_nodes, *x.shape)
        out = stage(ports)
        if outputs is not None:
            outputs[:] = out.detach()
        return out.sum(dim=0), (ports,)

    def _scores(self, gradients: list[StageGradient], difference: Tensor) -> Tensor:
        """[port, sender], 0 where there is no edge."""
        graph = self.model.graph
        scores = difference.new_zeros(len(graph.ports), len(graph.senders))
        heads = max((stage.n_heads for stage in self.model.stages if isinstance(stage, Attention)), default=0)
        buffer = difference.new_empty(3 * heads, *difference.shape[1:])  # one for all stages: fresh memory is slow
        stages = zip((*self.model.stages, None), graph.stages[1:], graph.port_slices[1:], gradients, strict=True)
        for stage, spec, ports, gradient in stages:
            into_ports = gradient.direct[0]
            if isinstance(stage, Attention):
                _spell_out(stage, gradient, buffer)
                into_ports = buffer if graph.qkv == "split" else buffer.unflatten(0, (3, heads)).sum(dim=0)
            seen = difference[: spec.reads, :, -into_ports.shape[2] :]  # the logits read at the last position only
            scores[ports, : spec.reads] = into_ports.flatten(1) @ seen.flatten(1).T
        return scores


def _subtract(corrupted: Tensor, clean: Tensor) -> Tensor:
    """corrupted - clean, in place of the former unless float32 is finer: scores are accumulated in its type."""
    return corrupted.to(_fine(corrupted.dtype)).sub_(clean)


def _fine(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _gather(reading: _Reading, gradients: Sequence[Tensor]) -> StageGradient:
    """Take gradients at a reading's points through the norm, but not yet through the projections.

    With x^ = x (centred) times `scale`, the norm's Jacobian transposed takes g to
    scale (w g - mean(w g) - x^ mean(x^ w g));  a root-mean-square norm has no mean(w g).
    Here g = W dq, so that the last mean is dq . (W^T w x^) / d: the query without its constant part, times dq.
    """
    fine = _fine(reading.x.dtype)
    gradients = [gradient.to(fine) for gradient in gradients]
    stage = reading.stage
    if not isinstance(stage, Attention):
        return StageGradient(tuple(gradients))
    if stage.norm is None:
        return StageGradient(tuple(gradients))
    standard, scale = stage.norm.standardise(reading.x.to(fine))
    zero = torch.zeros_like(reading.x[:1, :1]) if stage.norm.bias is None else stage.norm.bias.expand(1, 1, -1)
    direct, along = [], []
    for projection, point, gradient in zip((stage.q, stage.k, stage.v), reading.points, gradients, strict=True):
        direct.append(gradient * scale)
        constant = stage.per_head(projection(zero[None]))
        along.append(((point - constant) * direct[-1]).sum(dim=-1, keepdim=True) / standard.shape[-1])
    return StageGradient(tuple(direct), (torch.cat(along),), (standard,))


def _spell_out(stage: Attention, gradient: StageGradient, out: Tensor) -> None:
    """The gradient at every port of attention, all q, all k, all v. out: [port, example, window, d]

    The norm's weight and mean (see `_gather`) are applied to the projections, which are smaller than `out`.
    """
    blocks = out.split(stage.n_heads)
    for projection, direct, block in zip((stage.q, stage.k, stage.v), gradient.direct, blocks, strict=True):
        weight = projection.weight.to(out.dtype)
        if stage.norm is not None:
            weight = weight * stage.norm.weight.to(out.dtype)[:, None]
            if stage.norm.center:
                weight = weight - weight.mean(dim=1, keepdim=True)
        groups, d, size = weight.shape  # query heads of a group share a weight
        torch.bmm(direct.reshape(groups, -1, size), weight.transpose(1, 2), out=block.view(groups, -1, d))
    for along, standard in zip(gradient.along, gradient.standard, strict=True):
        out.addcmul_(along, standard, value=-1)
