"""Edge attribution: scores of all edges of a batch from a few plain runs, no copy of the residual stream per port.

    score[u -> r] = sum over positions and dimensions of  (corrupted_u - clean_u) . dL / d(input of port r)

L is a loss: minus the setting's metric, by default the pairs' logit difference; or KL from the clean run. So a positive
score means that the edge's clean content helps. With all edges kept, the ports of a sublayer read the
same residual stream, so that a plain run suffices, gone back through sublayer by sublayer. What it tells at a sublayer
of attention is the gradient at every query, key and value *per query head*, before head norm and rotary embedding. What
is left between there and the port is a projection and a norm, whose transposed Jacobian is applied in `_gather` and
`_spell_out`. All scores of a sublayer are then one matrix product; and the ports' gradients sum up to the stream's,
which saves going back through the projections once more. Scores are linear in the gradients, so that those of several
runs (EAP-IG) are summed while they are small. On request examples are not summed over: as many operations, and a matrix
of scores for each example.

A gradient rule (models/gradient_rules.py) may say another gradient where the model is not linear. Runs stay what they
are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gatewise.engine.metrics import Distance
from gatewise.engine.runs.activations import Direction, lay_out, prefix_of
from gatewise.engine.runs.residual_stream import walk
from gatewise.engine.setting import Batch, Setting
from gatewise.models.components import KINDS, Attention, KeysValues, Pointwise, Projection
from gatewise.models.gradient_rules import PLAIN, GradientRule, gradient_rule
from gatewise.models.model import Model

Wrote = Callable[[slice, Tensor], None]  # which senders, their outputs at the last columns [sender, example, column, d]
# Runs whose gradients are held together: saves time, costs a residual stream per attention sublayer and run.
_RUNS_AT_ONCE = 8


@dataclass(frozen=True, eq=False)
class _Reading:
    """What one sublayer did during a run, with what it takes to go back through it."""

    x: Tensor  # the residual stream it reads. [example, window, d]
    points: tuple[Tensor, ...]  # q, k and v [head, example, window, dimension]; or the ports [node, example, window, d]
    out: Tensor  # what the heads gather, or what they write if a norm couples that; or what the nodes write


@dataclass(frozen=True, eq=False)
class _Run:
    """A plain run with all edges."""

    readings: list[_Reading]  # of all sublayers
    last: Tensor  # the residual that is unembedded. [example, 1, d]


@dataclass(frozen=True, eq=False)
class SublayerGradient:
    """The gradient at a sublayer's ports, of one run or summed over several, before it is spelt out.

    Pointwise sublayers: as it is. Attention: what goes back through the projections, and for each run what the norm
    takes away from it, a multiple of the standardised residual stream. That is tens of times smaller than the ports'
    own.
    """

    direct: tuple[Tensor, ...]  # like a reading's points
    along: tuple[Tensor, ...] = ()  # for each run: [q, k and v ports, example, window, 1]
    standard: tuple[Tensor, ...] = ()  # for each run: [example, window, d]

    def __add__(self, other: SublayerGradient) -> SublayerGradient:
        direct = tuple(a + b for a, b in zip(self.direct, other.direct, strict=True))
        return SublayerGradient(direct, self.along + other.along, self.standard + other.standard)


class Attribution:
    """Both sides of one batch of a setting, ready to be attributed by gradients of a rule.

    per_example: scores of every example, [example, port, sender], in the place of their sum over examples.
    """

    def __init__(
        self, setting: Setting, batch: Batch, rule: GradientRule = PLAIN, *, per_example: bool = False
    ) -> None:
        self.setting, self.batch, self.rule, self.per_example = setting, batch, rule, per_example
        self.model, self.pairs = setting.model, batch.pairs
        self.layout = lay_out(self.model, self.pairs, share_prefix=setting.ablation == "patching")
        self.prefix = prefix_of(self.model, self.pairs.clean, self.layout)
        self._sublayers = (*self.model.sublayers, None)  # the logits are the last
        self._columns = _columns(self.model, self.layout.window)
        shape = (len(self.model.graph.senders), len(self.pairs), self.layout.window, self.model.d_model)
        fine = torch.promote_types(self.model.dtype, torch.float32)  # scores sum up many small products
        self._difference = torch.empty(shape, dtype=fine, device=self.model.device)

    def directions(self, directions: Sequence[Direction]) -> dict[Direction, Tensor]:
        """Scores summed over the examples, gradients on the clean side (ns) or the corrupted (dn). [port, sender] each

        The difference is corrupted - clean and L is the same in both directions, so that their sum is twice a trapezoid
        rule: the gradient's mean over both ends of the way, times the way.
        """
        metric, runs = self._metric(), self._both_sides(directions)
        buffer = self._buffer()
        return {direction: self._scores(runs.pop(direction), metric, buffer) for direction in directions}

    def integrated(self, steps: int) -> Tensor:
        """The same with the gradient's mean over `steps` runs on the way from the corrupted to the clean input.

        Run k of m starts from the input embeddings  corrupted + k/m (clean - corrupted),  k = 1 .. m, as in the paper
        on EAP-IG: the clean end counts, the corrupted one does not.
        """
        metric, runs = self._metric(), self._both_sides(("ns",))
        buffer = self._buffer()
        total = self._scores(runs.pop("ns"), metric, buffer)  # step m is the clean run
        first, last = (self._embed(tokens).sum(dim=0) for tokens in (self.pairs.corrupted, self.pairs.clean))
        for begin in range(1, steps, _RUNS_AT_ONCE):
            sums: list[SublayerGradient] = []
            for step in range(begin, min(begin + _RUNS_AT_ONCE, steps)):
                gradients = self._gradients(self._run(torch.lerp(first, last, step / steps)), metric)
                sums = [a + b for a, b in zip(sums, gradients, strict=True)] if sums else gradients
            for index, gradient in enumerate(sums):
                self._score(total, index, self._spell_out(index, gradient, buffer))
        return total / steps

    def along_path(self, steps: int) -> Tensor:
        """The path integral: every run's gradient times the way from the run before it, not times the whole way.

        Where nodes do not change in proportion to the input, that is another number than `integrated`. With many steps,
        scores of all edges into the logits sum up to the metric's difference between the runs, as those from the input
        do; by a rule other than plain neither does.
        """
        metric = self._metric()
        first, last = (self._embed(tokens) for tokens in (self.pairs.corrupted, self.pairs.clean))
        before, difference, buffer = torch.zeros_like(self._difference), self._difference, self._buffer()

        def step_on(nodes: slice, out: Tensor) -> None:
            columns = slice(before.shape[2] - out.shape[2], None)
            torch.sub(before[nodes, :, columns], out, out=difference[nodes, :, columns])
            before[nodes, :, columns] = out

        self._from(first, step_on, graph=False)
        total = self._scores(self._from(torch.lerp(first, last, 1 / steps), step_on), metric, buffer)
        for step in range(2, steps + 1):
            total += self._scores(self._from(torch.lerp(first, last, step / steps), step_on), metric, buffer)
        return total

    def _metric(self) -> Distance:
        """The loss that is differentiated: one number per example from logits. KL is that from the clean run."""
        if self.setting.metric is not None and self.setting.metric.function is None:
            return self.setting.metric.distance(self.setting.runs(self.batch, keep=False).clean.logits, self.pairs)
        return lambda logits: -self.setting.value.value(logits, self.pairs)

    def _both_sides(self, directions: Sequence[Direction]) -> dict[Direction, _Run]:
        """Fill the difference, corrupted - clean of all senders; the runs of the sides that are gone back through."""
        # Never both sides' outputs at once: the corrupted side is written into the buffer, the clean side taken away.
        difference, runs = self._difference, {}

        def fill(nodes: slice, out: Tensor) -> None:
            difference[nodes, :, -out.shape[2] :] = out

        def take_away(nodes: slice, out: Tensor) -> None:
            difference[nodes, :, -out.shape[2] :] -= out

        if self.setting.ablation == "patching":
            runs["dn"] = self._side(self.pairs.corrupted, fill, graph="dn" in directions)
        else:
            difference.copy_(self.setting.runs(self.batch, keep=False).corrupted.outputs)
        runs["ns"] = self._side(self.pairs.clean, take_away, graph="ns" in directions)
        return {direction: runs[direction] for direction in directions}

    def _side(self, tokens: Tensor, wrote: Wrote, *, graph: bool) -> _Run:
        return self._from(self._embed(tokens), wrote, graph=graph)

    def _from(self, sources: Tensor, wrote: Wrote, *, graph: bool = True) -> _Run:
        """A run from what the sources write, which are senders, too."""
        wrote(self.model.graph.sender_slices[0], sources)
        return self._run(sources.sum(dim=0), wrote, graph=graph)

    def _embed(self, tokens: Tensor) -> Tensor:
        columns = slice(self.layout.start, self.layout.width)
        return self.model.embed(tokens[:, columns].to(self.model.device), self.layout.positions()[:, columns])

    @torch.no_grad()
    def _run(self, start: Tensor, wrote: Wrote | None = None, *, graph: bool = True) -> _Run:
        """One plain run with all edges from these input embeddings. graph: whether it will be gone back through"""
        nodes = self.model.graph.sender_slices
        readings: list[_Reading] = []

        def write(index: int, x: Tensor) -> Tensor:
            sublayer, columns = self.model.sublayers[index], self._columns[index]
            with torch.set_grad_enabled(graph), gradient_rule(self.rule):
                if isinstance(sublayer, Attention):
                    reading, out = self._attend(sublayer, x, self.prefix[index], columns)
                else:
                    reading, out = self._apply(sublayer, x[:, -columns:])
            if graph:
                readings.append(reading)
            if wrote is not None:
                wrote(nodes[index + 1], out)
            return F.pad(out.sum(dim=0), (0, 0, x.shape[1] - columns, 0))  # 0 at columns that nothing reads

        return _Run(readings, walk(self.model, start, write)[-1][:, -1:])

    def _attend(
        self, sublayer: Attention, x: Tensor, prefix: KeysValues | None, columns: int
    ) -> tuple[_Reading, Tensor]:
        """What the heads write at the last columns. [head, example, column, d]"""
        normed = sublayer.normed(x[None])
        # Leaves for each query head, though those of a group have the same keys and values: every head has a k and a v
        # port of its own, and so a gradient of its own.
        points = tuple(_leaf(sublayer.per_head(projection(normed))) for projection in sublayer.projections)
        q, k, v = (sublayer.positioned(kind, y, self.layout) for kind, y in zip(KINDS, points, strict=True))
        z = sublayer.attend(q[:, :, -columns:], k, v, self.layout, prefix)
        # Without a norm over the sum, what heads write is linear in z: autograd may end there, before d_model.
        out = z if sublayer.joint_norm is None else sublayer.write_sum(z)
        return _Reading(x, points, out), sublayer.write(z.detach())

    def _apply(self, sublayer: Pointwise, x: Tensor) -> tuple[_Reading, Tensor]:
        """What the nodes write. [node, example, column, d]"""
        ports = _leaf(x.expand(sublayer.n_nodes, *x.shape))
        out = sublayer(ports)
        return _Reading(x, (ports,), out), out.detach()

    def _scores(self, run: _Run, metric: Distance, buffer: Tensor) -> Tensor:
        """Of the gradients of one run. [port, sender] or [example, port, sender], 0 where there is no edge"""
        graph = self.model.graph
        examples = (len(self.pairs),) if self.per_example else ()
        scores = self._difference.new_zeros(*examples, len(graph.ports), len(graph.senders))

        def through(index: int, gradient: SublayerGradient) -> Tensor:
            into_ports = self._spell_out(index, gradient, buffer)
            self._score(scores, index, into_ports)
            return into_ports.sum(dim=0)

        self._go_back(run, metric, through)
        return scores

    def _gradients(self, run: _Run, metric: Distance) -> list[SublayerGradient]:
        """Of one run at all sublayers and the logits, not spelt out."""
        gradients: list[SublayerGradient] = []

        def through(index: int, gradient: SublayerGradient) -> Tensor:
            gradients.append(gradient)
            return _through_all(self._sublayers[index], gradient)

        self._go_back(run, metric, through)
        return gradients[::-1]

    @torch.no_grad()
    def _go_back(self, run: _Run, metric: Distance, through: Callable[[int, SublayerGradient], Tensor]) -> None:
        """Go back through a run from the metric's sum, which frees it: each example's gradient is its own.

        through: what becomes of a sublayer's gradient at its ports (the logits are the last sublayer); gives the
        gradient at the stream that they read.
        """
        specs, nodes = self.model.graph.sublayers[1:], self.model.graph.sender_slices
        with torch.enable_grad(), gradient_rule(self.rule):
            last = _leaf(run.last)
            (into_last,) = torch.autograd.grad(metric(self.model.unembed(last[:, 0])).sum(), last)
        gradient = SublayerGradient((into_last[None].to(self._difference),))
        current = through(len(self.model.sublayers), gradient)
        # What sublayers bring to the gradient at the stream they read, by the number of senders that had written. It
        # waits until those are reached: heads and MLP of a parallel layer read a stream from before both wrote.
        waiting: dict[int, Tensor] = {}
        for index in reversed(range(len(self.model.sublayers))):
            joining = waiting.pop(nodes[index + 1].stop, None)
            current = current if joining is None else _plus(current, joining)
            into_stream = current[:, -self._columns[index] :]
            gradient = _gather(self.model.sublayers[index], run.readings.pop(), into_stream, self.rule)
            into_x, reads = through(index, gradient), specs[index].reads
            waiting[reads] = _plus(into_x, waiting[reads]) if reads in waiting else into_x

    def _buffer(self) -> Tensor:
        """For the gradients at the ports of any sublayer of attention: fresh memory is slow."""
        heads = [sublayer.n_heads for sublayer in self.model.sublayers if isinstance(sublayer, Attention)]
        return self._difference.new_empty(3 * max(heads, default=0), *self._difference.shape[1:])

    def _spell_out(self, index: int, gradient: SublayerGradient, buffer: Tensor) -> Tensor:
        """The gradient at every port of a sublayer. [port, example, column, d]; of attention in the buffer"""
        sublayer = self._sublayers[index]
        if not isinstance(sublayer, Attention):
            return gradient.direct[0]
        blocks = buffer.split(sublayer.n_heads)  # all q, all k, all v
        for projection, direct, block in zip(sublayer.projections, gradient.direct, blocks, strict=True):
            weight = _with_norm(sublayer, projection, buffer.dtype)
            groups, d, size = weight.shape  # query heads of a group share a weight
            torch.bmm(direct.reshape(groups, -1, size), weight.transpose(1, 2), out=block.view(groups, -1, d))
        for along, standard in zip(gradient.along, gradient.standard, strict=True):
            buffer.addcmul_(along, standard, value=-1)
        return buffer if self.model.graph.qkv == "split" else buffer.unflatten(0, (3, sublayer.n_heads)).sum(dim=0)

    def _score(self, scores: Tensor, index: int, into_ports: Tensor) -> None:
        """Add a sublayer's scores."""
        graph = self.model.graph
        reads = graph.sublayers[index + 1].reads
        seen = self._difference[:reads, :, -into_ports.shape[2] :]
        if self.per_example:  # one product per example: views, no copies
            products = into_ports.flatten(2).movedim(1, 0) @ seen.flatten(2).movedim(1, 0).transpose(1, 2)
        else:
            products = into_ports.flatten(1) @ seen.flatten(1).T
        scores[..., graph.port_slices[index + 1], :reads] += products


def _columns(model: Model, window: int) -> list[int]:
    """At how many last columns each sublayer matters: one if no attention reads it, since the logits do there only."""
    specs = zip(model.sublayers, model.graph.sublayers[1:-1], strict=True)
    read = max((spec.reads for sublayer, spec in specs if isinstance(sublayer, Attention)), default=0)
    return [window if nodes.start < read else 1 for nodes in model.graph.sender_slices[1:-1]]


def _leaf(x: Tensor) -> Tensor:
    """Where gradients end, if they are taken."""
    return x.detach().requires_grad_(torch.is_grad_enabled())


def _plus(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two that end with the same column, in place of the wider. [example, column, d]"""
    wide, narrow = (a, b) if a.shape[1] >= b.shape[1] else (b, a)
    wide[:, -narrow.shape[1] :] += narrow
    return wide


def _gather(
    sublayer: Attention | Pointwise, reading: _Reading, into_stream: Tensor, rule: GradientRule
) -> SublayerGradient:
    """Take the gradient at the stream through a sublayer and the norm before it, but not yet through the projections.

    With x^ = x (centred) times `scale`, the norm's Jacobian transposed takes g to
    scale (w g - mean(w g) - x^ mean(x^ w g));  a root-mean-square norm has no mean(w g).
    Here g = W dq, so that the last mean is dq . (W^T w x^) / d: the query without its constant part, times dq. Where a
    rule takes the scale for a constant, the term of x^ is not there.
    """
    fine, into = into_stream.dtype, into_stream.to(reading.out.dtype)
    if not isinstance(sublayer, Attention):
        return SublayerGradient(tuple(g.to(fine) for g in _autograd(reading, into.expand_as(reading.out))))
    if sublayer.joint_norm is None:
        into = sublayer.gathered_from(into)
    gradients = [gradient.to(fine) for gradient in _autograd(reading, into)]
    if rule.attention_share != 1:
        gradients = [share * gradient for share, gradient in zip(rule.qkv_shares, gradients, strict=True)]
    if sublayer.norm is None:
        return SublayerGradient(tuple(gradients))
    standard, scale = sublayer.norm.standardise(reading.x.to(fine))
    if rule.constant_norms:
        return SublayerGradient(tuple(gradient * scale for gradient in gradients))
    zero = torch.zeros_like(reading.x[:1, :1]) if sublayer.norm.bias is None else sublayer.norm.bias.expand(1, 1, -1)
    direct, along = [], []
    for projection, point, gradient in zip(sublayer.projections, reading.points, gradients, strict=True):
        direct.append(gradient * scale)
        constant = sublayer.per_head(projection(zero[None]))  # of the biases of norm and projection
        along.append(((point - constant) * direct[-1]).sum(dim=-1, keepdim=True) / standard.shape[-1])
    return SublayerGradient(tuple(direct), (torch.cat(along),), (standard,))


def _autograd(reading: _Reading, into_out: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(reading.out, reading.points, into_out, materialize_grads=True)


def _through_all(sublayer: Attention | Pointwise | None, gradient: SublayerGradient) -> Tensor:
    """The sum of the gradients at a sublayer's ports, of one run. [example, column, d]"""
    if not isinstance(sublayer, Attention):
        return gradient.direct[0].sum(dim=0)
    parts = []
    for projection, direct in zip(sublayer.projections, gradient.direct, strict=True):
        weight = _with_norm(sublayer, projection, direct.dtype)
        grouped = direct.unflatten(0, (len(weight), -1)).sum(dim=1)  # query heads of a group share a weight
        parts.append(grouped.movedim(0, -2).flatten(-2) @ weight.transpose(1, 2).flatten(0, 1))
    total: Tensor = parts[0] + parts[1] + parts[2]
    for along, standard in zip(gradient.along, gradient.standard, strict=True):
        total.addcmul_(along.sum(dim=0), standard, value=-1)
    return total


def _with_norm(sublayer: Attention, projection: Projection, dtype: torch.dtype) -> Tensor:
    """A projection's weight with the norm's weight and mean (see `_gather`) applied: it is smaller than gradients."""
    weight = projection.weight.to(dtype)
    if sublayer.norm is not None:
        weight = weight * sublayer.norm.weight.to(dtype)[:, None]
        if sublayer.norm.center:
            weight = weight - weight.mean(dim=1, keepdim=True)
    return weight
