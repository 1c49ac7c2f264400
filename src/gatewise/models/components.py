"""The two kinds of sublayers that engines run: attention (the heads of a layer) and position-wise nodes.

They say how port inputs become node outputs, for all architectures; an adapter only fills in weights, which stay where
they are in the Hugging Face module. Tensors are [head or node, ...rows, example, position, dimension]: any number of
row dimensions, so that many circuits can be run at once. Outputs carry no output bias, which belongs to no edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gatewise.devices import on_device
from gatewise.errors import GatewiseError
from gatewise.models.gradient_rules import norm_scale, norms_are_constant, softmax, with_gradient_of
from gatewise.models.layout import Layout, Rotary

Kind = Literal["q", "k", "v"]
KINDS: tuple[Kind, Kind, Kind] = ("q", "k", "v")
KeysValues = tuple[Tensor, Tensor]  # of the prefix: [kv head, example, column, head dimension] each
OfHeads = Sequence[tuple[Tensor, Tensor]]  # heads, as indices on the CPU, and something of each of them
MAP_NUMBERS = 1 << 20  # of attention scores that are made at a time
_SMALL_MAP = 64 * 64  # scores of a head on an example that are never cut up: prompts of the usual tasks are short


@dataclass(frozen=True, eq=False)
class Norm:
    """Layer norm (`center`) or root-mean-square norm over the last dimension."""

    weight: Tensor
    bias: Tensor | None
    eps: float
    center: bool

    def __call__(self, x: Tensor) -> Tensor:
        if self.center:
            y = F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        else:
            y = F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        if not (norms_are_constant() and y.requires_grad):
            return y
        _, scale = self.standardise(x.detach().to(torch.promote_types(x.dtype, torch.float32)))
        return with_gradient_of(self.share(x, scale.to(x.dtype)), y)

    def standardise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x before weight and bias are applied, and the factor that scaled it. [..., d] and [..., 1]"""
        if self.center:
            x = x - x.mean(dim=-1, keepdim=True)
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.eps)
        return x * scale, scale

    def share(self, x: Tensor, scale: Tensor) -> Tensor:
        """What a summand x of the input brings to the output if the factor is held at `scale`; linear in x."""
        centred = x - x.mean(dim=-1, keepdim=True) if self.center else x
        return centred * scale * self.weight


@dataclass(frozen=True, eq=False)
class JointHeadNorm:
    """A root-mean-square norm over the queries or the keys of all heads of a layer: couples them before they attend.

    Where every query head has keys of its own, the mean is over theirs: the same number if a group's heads agree.
    """

    weight: Tensor  # [head or key head, head dimension]
    eps: float

    def __call__(self, y: Tensor) -> Tensor:
        """y: [head or key head, rows..., head dimension], all of them."""
        weight = self.weight.repeat_interleave(y.shape[0] // self.weight.shape[0], dim=0)
        scale = norm_scale(torch.rsqrt(y.square().mean(dim=(0, -1), keepdim=True) + self.eps))
        return y * scale * weight.reshape(y.shape[0], *[1] * (y.dim() - 2), -1)


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear map per head. Grouped-query attention has fewer key and value heads than query heads."""

    weight: Tensor  # [head, d_model, head dimension]; any strides, a view of the module's weight
    bias: Tensor | None  # [head, head dimension]

    def __call__(self, x: Tensor, heads: Tensor | None = None) -> Tensor:
        """x: [query head or 1 (the same for all), rows..., d_model] -> [query head, rows..., head dimension]."""
        weight, bias = self.weight, self.bias
        if heads is not None:
            weight, bias = weight[heads], None if bias is None else bias[heads]
        groups, count, rows = weight.shape[0], x.shape[0], x.shape[1:-1]
        if count == 1:
            # Not `matmul`: with gradients it takes another kernel, and rounds otherwise than without.
            out = torch.bmm(x.reshape(1, -1, x.shape[-1]).expand(groups, -1, -1), weight)
        else:  # query heads of a group share a weight
            out = torch.bmm(x.reshape(groups, -1, x.shape[-1]), weight)
        if bias is not None:
            out = out + bias[:, None]
        return out.reshape(groups if count == 1 else count, *rows, out.shape[-1])


@dataclass(frozen=True, eq=False)
class Attention:
    """All heads of a layer.

    Engines run a layer (`run`), or some of its heads, some of them with inputs of their own: `project_heads` makes
    their queries, keys or values, `attend` lets them look, `write` turns what they gather into what they add to the
    residual stream. Grouped queries and the shared prefix are dealt with here and nowhere else: a group's keys and
    values, and those cached of the prefix, are the same for all its query heads, yet every query head has its own k and
    v port, so from the projection on there are keys and values for each query head.
    """

    norm: Norm | None
    q: Projection
    k: Projection
    v: Projection
    out: Tensor  # [head, head dimension, d_model]
    bias: Tensor | None  # [d_model], added to the residual stream whatever the circuit
    scale: float
    rotary: Rotary | None = None
    q_norm: Norm | JointHeadNorm | None = None
    k_norm: Norm | JointHeadNorm | None = None
    softcap: float | None = None
    sliding: int | None = None
    joint_norm: Norm | None = None  # applied to the sum of all heads: couples them

    @property
    def n_heads(self) -> int:
        return self.out.shape[0]

    @property
    def projections(self) -> tuple[Projection, Projection, Projection]:
        """Of queries, keys and values."""
        return self.q, self.k, self.v

    @property
    def separable(self) -> bool:
        """Whether a head can be computed without the others: not if a norm over all queries comes before they look."""
        return not isinstance(self.q_norm, JointHeadNorm)

    def project(self, kind: Kind, x: Tensor, layout: Layout, heads: Tensor | None = None) -> Tensor:
        """Queries, keys or values from the inputs of these heads' ports at the last columns of the window.

        x: [head, rows..., example, position, d_model]; x.shape[0] may be 1 if all heads read the same. heads: which
        they are; without, x is of all heads, and if they read the same, keys and values come per group.
        """
        projection: Projection = getattr(self, kind)
        if heads is not None:
            if not self.separable:
                raise GatewiseError(
                    "this model has norms over the queries and keys of all heads of a layer, so no head can be "
                    "computed alone, as ACDC, exact effects and truth tables do. Use EAP, EAP-IG or Edge Pruning."
                )
            heads = heads if kind == "q" else self._groups_of(heads)
        return self.positioned(kind, projection(self.normed(x), heads), layout)

    def project_heads(self, kind: Kind, inputs: OfHeads, layout: Layout, known: OfHeads = ()) -> Tensor:
        """Queries, keys or values of some heads, some with inputs of their own, in order of the heads.

        inputs: heads and what they read, an input each or 1 for all of them, as for `project`; known: heads and the
        values that they have already. No head is in two of these.
        """
        parts = [*known]
        for heads, x in inputs:
            if len(heads) == len(x) == self.n_heads:  # the weights of all heads need not be gathered
                parts.append((heads, self.project(kind, x, layout)))
            elif len(x) == 1 and 2 * len(heads) > self.n_heads:  # cheaper once for each group than for each head
                parts.append((heads, self.per_head(self.project(kind, x, layout))[on_device(heads, x.device)]))
            elif len(heads):
                parts.append((heads, self.project(kind, x, layout, on_device(heads, x.device))))
        if len(parts) == 1:
            return parts[0][1]
        order = torch.cat([heads for heads, _ in parts]).argsort()
        return torch.cat([values for _, values in parts])[on_device(order, self.out.device)]

    def normed(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)

    def positioned(self, kind: Kind, y: Tensor, layout: Layout) -> Tensor:
        """What happens to queries and keys between projection and attention: head norm and rotary embedding."""
        if kind == "v":
            return y
        head_norm = self.q_norm if kind == "q" else self.k_norm
        if head_norm is not None:
            y = head_norm(y)
        return y if self.rotary is None else _rotate(y, layout.rotation(self.rotary), layout)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, prefix: KeysValues | None, heads: Tensor | None = None
    ) -> Tensor:
        """What these heads (default: all) gather. q: [head, rows..., example, query position, head dimension] at the
        last columns; k and v at all columns of the window, per query head; prefix as it is cached. -> like q."""
        queries, window = q.shape[-2], k.shape[-2]
        maps = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2]).numel()
        at_once = queries_at_once(maps, queries, window + (0 if prefix is None else prefix[0].shape[-2]))
        if at_once >= queries:
            return self._gather(q, k, v, layout, prefix, heads)
        parts = []
        for first in range(0, queries, at_once):
            rows = q[..., first : first + at_once, :]
            later = queries - first - rows.shape[-2]  # columns that none of these queries looks at
            seen = [x[..., : window - later, :] for x in (k, v)]
            parts.append(_without_keeping(self._gather, rows, *seen, layout, prefix, heads, later))
        return torch.cat(parts, dim=-2)

    def _gather(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layout: Layout,
        prefix: KeysValues | None,
        heads: Tensor | None,
        later: int = 0,
    ) -> Tensor:
        """`attend` for queries that end `later` columns before the last, with the maps of all of them at once."""
        weights = self.pattern(q, k, layout, prefix, heads, later).to(v.dtype)
        if prefix is None:
            return weights @ v
        border = weights.shape[-1] - v.shape[-2]
        return weights[..., :border] @ self._of_prefix(prefix[1], heads, q.dim()) + weights[..., border:] @ v

    def pattern(
        self,
        q: Tensor,
        k: Tensor,
        layout: Layout,
        prefix: KeysValues | None,
        heads: Tensor | None = None,
        later: int = 0,
    ) -> Tensor:
        """Where the heads look: weights that sum to 1, over the prefix and the window. [..., query position, column]

        later: how many columns come after the last of these queries; their keys are left out.
        """
        scores = q @ k.transpose(-1, -2)
        if prefix is not None:
            earlier = q @ self._of_prefix(prefix[0], heads, q.dim()).transpose(-1, -2)
            scores = torch.cat([earlier.expand(*scores.shape[:-1], -1), scores], dim=-1)
        scores = softcapped(scores * self.scale, self.softcap)
        stop = layout.width - later
        rows, columns = slice(stop - q.shape[-2], stop), slice(stop - scores.shape[-1], stop)
        scores = scores + layout.mask(self.sliding, rows, columns)
        # Half precision sums too few digits of many small weights, so the softmax is taken in float32 at least.
        return softmax(scores, torch.promote_types(scores.dtype, torch.float32))

    def write(self, z: Tensor, heads: Tensor | None = None) -> Tensor:
        """What these heads (default: all; all of them if a norm couples them) add to the residual stream.

        [head, rows..., dimension] -> [head, rows..., d_model]
        """
        return self.joined(self.shares(z, heads))

    def shares(self, z: Tensor, heads: Tensor | None = None) -> Tensor:
        """What each head brings to what the heads write. [head, rows..., dimension] -> [head, rows..., d_model]"""
        weight = self.out if heads is None else self.out[heads]
        return torch.bmm(z.reshape(z.shape[0], -1, z.shape[-1]), weight).reshape(*z.shape[:-1], -1)

    def joined(self, shares: Tensor) -> Tensor:
        """What the heads write out of all their shares: those themselves, or scaled as the norm of their sum is."""
        if self.joint_norm is None:
            return shares
        total = shares.sum(dim=0)
        scale = norm_scale(torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + self.joint_norm.eps))
        return shares * scale * self.joint_norm.weight

    def write_sum(self, z: Tensor) -> Tensor:
        """The sum of what the heads write, without the shares. [head, rows..., dimension] -> [rows..., d_model]"""
        total = z.movedim(0, -2).flatten(-2) @ self.out.flatten(0, 1)
        return total if self.joint_norm is None else self.joint_norm(total)

    def gathered_from(self, into_written: Tensor) -> Tensor:
        """The gradient at what the heads gather, of one at what they write. [..., d_model] -> [head, ..., dimension]"""
        by_head: Tensor = (into_written @ self.out.flatten(0, 1).T).unflatten(-1, (self.n_heads, -1))
        return by_head.movedim(-2, 0)

    def ports(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs of the q, k and v ports out of the sublayer's: three times the heads, as many (merged), or 1."""
        q, k, v = x.split(self.n_heads) if x.shape[0] == 3 * self.n_heads else (x, x, x)
        return q, k, v

    def __call__(self, x: Tensor, layout: Layout, prefix: KeysValues | None = None) -> Tensor:
        """Port inputs [port or 1, rows..., example, window, d_model] -> head outputs [head, rows..., d_model]."""
        return self.run(x, layout, prefix)[0]

    def run(self, x: Tensor, layout: Layout, prefix: KeysValues | None) -> tuple[Tensor, KeysValues]:
        """Head outputs, and the keys and values of the window."""
        q, k, v = (self.project(kind, into, layout) for kind, into in zip(KINDS, self.ports(x), strict=True))
        return self.write(self.attend(q, self.per_head(k), self.per_head(v), layout, prefix)), (k, v)

    def per_head(self, x: Tensor) -> Tensor:
        """Repeat keys or values of a group for each of its query heads."""
        repeats = self.n_heads // x.shape[0]
        return x if repeats == 1 else x.repeat_interleave(repeats, dim=0)

    def _groups_of(self, heads: Tensor) -> Tensor:
        """The key and value head that each of these query heads shares with its group."""
        per_group = self.n_heads // self.k.weight.shape[0]
        return heads if per_group == 1 else heads // per_group

    def _of_prefix(self, x: Tensor, heads: Tensor | None, dimensions: int) -> Tensor:
        """Cached keys or values for each of these heads, with row dimensions between head and example."""
        x = self.per_head(x) if heads is None else x[self._groups_of(heads)]
        return x.reshape(x.shape[0], *[1] * (dimensions - x.dim()), *x.shape[1:])


@dataclass(frozen=True, eq=False)
class Pointwise:
    """Nodes that read and write at one position: an MLP, or a layer of logic gates."""

    function: Callable[[Tensor, Sequence[int]], Tensor]  # [node, rows..., position, d_model], which nodes -> the same
    n_nodes: int = 1
    bias: Tensor | None = None  # [d_model]

    def __call__(self, x: Tensor, nodes: Sequence[int] | None = None) -> Tensor:
        """Outputs of these nodes of the sublayer (all of them, if not said) from their inputs."""
        return self.function(x, range(self.n_nodes) if nodes is None else nodes)


def mlp(function: Callable[[Tensor], Tensor], bias: Tensor | None = None) -> Pointwise:
    """A sublayer of one node."""
    return Pointwise(lambda x, _nodes: function(x), 1, bias)


def is_cut_up(width: int) -> bool:
    """Whether attention maps of prompts of so many tokens may be made in blocks."""
    return width * width > _SMALL_MAP


def queries_at_once(maps: int, queries: int, columns: int) -> int:
    """How many queries' attention scores are made at a time.

    Args:
        maps: Number of attention maps: heads, times rows, times examples.
        queries: Positions that look.
        columns: Positions that they look at.

    Returns:
        All of them for short prompts; else so few that their scores fit `MAP_NUMBERS`, and at least one. It depends on
        sizes alone, so that results can be repeated whatever the memory budget.
    """
    if queries * columns <= _SMALL_MAP:
        return queries
    return max(1, min(queries, MAP_NUMBERS // (maps * columns)))


def _without_keeping(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Call a function; on the way back its inner values are made again, since those of all calls would not fit."""
    if not torch.is_grad_enabled():
        return function(*arguments)
    again: Tensor = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return again


def softcapped(x: Tensor, cap: float | None) -> Tensor:
    return x if cap is None else torch.tanh(x / cap) * cap


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor], layout: Layout) -> Tensor:
    """Apply the rotary embedding at the last columns; dimensions beyond the rotated ones pass through."""
    positions = x.shape[-2]
    cos, sin = (part[:, -positions:] for part in rotation)
    rotated = cos.shape[-1]
    turning, passing = x[..., :rotated], x[..., rotated:]
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, passing), dim=-1) if passing.shape[-1] else turned
