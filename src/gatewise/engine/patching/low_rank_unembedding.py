"""Unembedding of residuals that differ only in what a few heads write: exact, at a fraction of the price.

The final norm subtracts the mean (layer norm only), divides by one number and applies weight g and bias b, so

    logits(x) = s(x) W g (x - mean x) + W b

If x = x0 + Q' c, with Q the directions that those heads can write (64 for each head), then W g x is known from that of
x0 and from W g Q', both computed once: each x costs as many products per token of the vocabulary as there are
directions, not d. Only the scale s(x) is computed anew from all of x.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.devices import widened
from gatewise.models.components import Attention, Norm
from gatewise.models.model import Model

_WIDEST = 0.25  # share of d that the directions may have; beyond, the whole unembedding costs hardly more
_EXPONENT = 40  # what an exponent costs, in products: for choosing only
_REMEMBERED = 2  # bases; each is as large as the unembedding times its share of d
_MOST_MOVES = 16  # of known logits from basis to basis; each adds a little rounding
_ROUNDING = 32  # times the precision of the dtype: how far outside the directions rounding takes a residual


@dataclass(frozen=True, eq=False)
class UnembeddingBasis:
    """The directions that a few heads write in, and what each of them does to the logits."""

    norm: Norm
    directions: Tensor  # [direction, d], orthonormal
    rows: Tensor  # [vocabulary, direction + 2]; the last two for the norm's bias and for a shift of all logits

    def coordinates(self, offset: Tensor, size: Tensor) -> Tensor | None:
        """c of offsets [..., d], or None if one lies outside. size: of the residuals whose difference they are."""
        within = offset @ self.directions.T
        # Checked, not believed: what is outside would be missing in the logits, and nothing else would tell.
        outside = torch.addmm(offset.flatten(0, -2), within.flatten(0, -2), self.directions, alpha=-1).norm(dim=-1)
        allowed = _ROUNDING * torch.finfo(offset.dtype).eps * size.flatten()
        return within if bool((outside <= allowed).all()) else None


@dataclass(frozen=True, eq=False)
class KnownLogits:
    """A residual of each example whose logits are known, without the norm's scale and bias."""

    basis: UnembeddingBasis
    residual: Tensor  # [example, d]
    logits: Tensor  # [vocabulary, example]

    moves: int = 0  # since all logits were computed

    @classmethod
    def at(cls, residual: Tensor, basis: UnembeddingBasis, head: Tensor) -> KnownLogits:
        weighted = _centred(residual, basis.norm) * basis.norm.weight
        return cls(basis, residual.clone(), head @ weighted.T.contiguous())

    def moved(self, residual: Tensor, basis: UnembeddingBasis) -> KnownLogits | None:
        """The same for another basis, at a residual within the present one; None if it is not, or after many moves."""
        within = self.basis.coordinates(residual - self.residual, residual.norm(dim=-1))
        if within is None or self.moves >= _MOST_MOVES:
            return None
        rows = self.basis.rows[:, : within.shape[-1]]
        return KnownLogits(basis, residual.clone(), torch.addmm(self.logits, rows, within.T), self.moves + 1)


class UnembeddingBases:
    """The bases of a model, made when asked for."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._known: OrderedDict[tuple[int, ...], UnembeddingBasis] = OrderedDict()

    def of(self, senders: Sequence[int], residuals: int, examples: int) -> UnembeddingBasis | None:
        """The basis of these senders' outputs, if all are heads, and if that saves time.

        residuals: how many will be asked about, about; examples: in each.
        """
        key = tuple(sorted(senders))
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        norm, written = self._model.final_norm, self._written(key)
        if written is None or not isinstance(norm, Norm):
            return None
        width, directions, rows = self._model.d_model, len(written), residuals * examples
        # Products per token: to make the rows and the first logits, then for each residual; against all of each.
        if width * (directions + examples) + rows * (directions + _EXPONENT) > rows * (width + _EXPONENT):
            return None
        basis = self._known[key] = self._make(written, norm)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return basis

    def _written(self, senders: Sequence[int]) -> Tensor | None:
        """What these heads can write, [direction, d]; None if others are among them, or if it is too much."""
        model, graph = self._model, self._model.graph
        if model.softcap is not None or model.head.dtype not in (torch.float32, torch.float64):
            return None
        parts = []
        for sender in senders:
            index = graph.sublayer_of_sender[sender]
            sublayer = model.sublayers[index - 1] if index else None
            if not isinstance(sublayer, Attention) or sublayer.joint_norm is not None:
                return None
            parts.append(sublayer.out[sender - graph.sender_slices[index].start])
        fits = 0 < sum(len(part) for part in parts) <= _WIDEST * model.d_model
        return torch.cat(parts) if fits else None

    def _make(self, written: Tensor, norm: Norm) -> UnembeddingBasis:
        head = self._model.head
        # In float64, so that the directions are orthonormal to the last bit of the model's own dtype.
        directions = torch.linalg.qr(widened(written).T).Q.T.to(written.dtype).contiguous()
        bias = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
        rows = head.new_empty(len(head), len(directions) + 2)
        torch.mm(head, torch.cat([_centred(directions, norm) * norm.weight, bias[None]]).T, out=rows[:, :-1])
        rows[:, -1] = 1.0
        return UnembeddingBasis(norm, directions, rows)


def _centred(x: Tensor, norm: Norm) -> Tensor:
    return x - x.mean(dim=-1, keepdim=True) if norm.center else x
