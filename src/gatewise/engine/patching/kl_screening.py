"""KL(reference || circuit) of many last residuals, with the whole vocabulary unembedded only where that decides.

D = sum p_ref log p_ref - e . y + log Z(y), where y is the normed residual, e = sum p_ref w the reference's mean row of
the unembedding, and Z the partition sum. Only Z needs the vocabulary. Of a chain of residuals, each near the one
before, a few are unembedded wholly: the *anchors*. For the others, the tokens that hold nearly all probability are
unembedded exactly, and what the rest (the tail) sums to, a step x away from an anchor, is known on both sides, by
Jensen and by Bennett, with m the tail's mean row, V(x) its variance of w . x, and r the largest |w - m|:

    Z_tail(anchor + x)  in  Z_tail(anchor) exp(m . x) [1, 1 + V(x) f(r |x|)],   f(t) = (exp t - 1 - t) / t^2

V is bounded through the covariance of all rows of the unembedding, times the largest probability in the tail over that
of a uniform distribution. So every value comes with a bound on its error. Where steps are too large for that, all rows
are unembedded, a block of tokens at a time; where only a few heads' outputs change, only what those write is
(`low_rank_unembedding`).

Distances are float64 whatever the model's dtype: a search compares differences of 1e-5 nats of values that may be
large. Logits and their exponents keep the model's own, which is what makes this fast.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from gatewise.devices import widened, widest_float
from gatewise.engine.metrics import unembedded_in_parts
from gatewise.engine.patching.low_rank_unembedding import KnownLogits, UnembeddingBasis
from gatewise.models.model import Model
from gatewise.statistics import kl_divergence, log_probabilities

_CUTOFF = 1.0  # tokens of more than this times a uniform probability are unembedded exactly
_MOST_TOKEN_BYTES = 1 << 28  # of the rows of tokens that are unembedded exactly
_GROWN = 10.0  # the tokens are chosen again when the tail's largest probability has grown by this factor
_SMALLEST_VOCABULARY = 4096  # below, everything is unembedded
_SHORT = 2  # so few residuals are unembedded wholly
_LOOSE = 0.1  # share of rows that may have wider bounds than wanted
_ANCHOR_PRICE = 2  # in residuals unembedded wholly: an anchor needs its tail's mean row as well
_ENOUGH = 64  # residuals for which it pays to choose tokens, and to compute the unembedding's moments
_SAMPLE = 512  # tokens, to see how large the steps of a chain are
_ROUNDS, _NEW_ANCHORS, _MOST_ANCHORS = 4, 4, 12  # of adding anchors to a chain; at a time; remembered
_LOGITS = 1 << 25  # how many at a time
_BLOCK, _LEAST_TOKENS, _MOST_TOKENS = 1 << 18, 512, 1024  # logits, tokens, summed at a time: they stay in the cache
_TINY = 1e-300  # of a tail's partition sum, whose logarithm is taken
_ROUNDING = 1.01  # bounds are widened by this, for sums in the model's own precision


def screening_bytes(model: Model, examples: int) -> int:
    """Estimate what the rows of tokens that are unembedded exactly take at most, for so many examples."""
    if model.vocabulary_size < _SMALLEST_VOCABULARY:
        return 0
    return min(_MOST_TOKEN_BYTES, examples * model.head.nbytes)


@dataclass(frozen=True, eq=False)
class _Tokens:
    """The tokens that are unembedded exactly. Rows by example."""

    rows: Tensor  # [example, token, d], of the unembedding
    tail: Tensor  # [example, vocabulary], 0 where a token is chosen, and 1
    peak: float  # the largest probability left to the tail when chosen


@dataclass(frozen=True, eq=False)
class _Anchors:
    """Points whose full logits are known."""

    points: Tensor  # [anchor, example, d]
    log_tail: Tensor  # [anchor, example], log of the tail's partition sum
    tail_mean: Tensor  # [anchor, example, d]
    ratio: Tensor  # [anchor, example], the tail's largest probability (of the tail's total) over that of a uniform one
    share: Tensor  # [anchor, example], of the tail

    def joined(self, newer: _Anchors) -> _Anchors:
        """The newest anchors of both."""
        parts = (torch.cat([getattr(self, f.name), getattr(newer, f.name)])[-_MOST_ANCHORS:] for f in fields(self))
        return _Anchors(*parts)


@dataclass(frozen=True, eq=False)
class _Near:
    """Residuals seen from their nearest anchors. [row, example] each"""

    log_tail: Tensor  # log of the tail's partition sum, at least
    excess: Tensor  # the share by which it may be larger
    share: Tensor  # the tail's share at the anchor

    def loose(self, wanted: float) -> list[int]:
        """Rows whose bound is likely to be wider than wanted."""
        return ((self.share * self.excess).mean(dim=-1) > wanted).nonzero().flatten().tolist()


class Divergence:
    """Distance of last residuals from the reference's output, on one batch."""

    def __init__(self, model: Model, reference_logits: Tensor) -> None:
        self.model = model
        log_p = widened(reference_logits).log_softmax(dim=-1)
        p = log_p.exp()
        self._entropy = (p * log_p).sum(dim=-1)  # [example]
        self.screens = model.softcap is None and model.vocabulary_size >= _SMALLEST_VOCABULARY
        self._anchors: _Anchors | None = None
        self._tokens: _Tokens  # chosen with the first anchors
        self._residuals = _ENOUGH  # to be asked about, about
        self._known: KnownLogits | None = None
        if self.screens:
            self._mean_row = widened(p.to(model.head.dtype) @ model.head)  # [example, d]
            self._sample = model.head[:: max(1, model.vocabulary_size // _SAMPLE)].contiguous()
        else:
            self._p = p

    def restart(self, residuals: int) -> None:
        """Forget all that was learnt from earlier residuals. residuals: how many will be asked about, about."""
        self._anchors, self._known, self._residuals = None, None, residuals

    def exact(self, residual: Tensor) -> Tensor:
        """D of last residuals [..., example, d] -> [..., example], in float64."""
        if self.screens:
            return self._whole(residual.reshape(-1, *residual.shape[-2:])).reshape(residual.shape[:-1])
        return unembedded_in_parts(
            self.model, residual, lambda logits: self._entropy - (self._p * logits.log_softmax(dim=-1)).sum(dim=-1)
        )

    def _whole(self, residual: Tensor) -> Tensor:
        """`exact` of [row, example, d], with logits of a few tokens at a time."""
        y = self.model.final_norm(residual)
        shift = self._reference_logit(y)
        flat, below = y.flatten(0, 1), shift.flatten().to(y.dtype)
        total = torch.zeros_like(below, dtype=widest_float(y.device))
        for rows in self.model.head.split(_tokens_at_once(len(flat))):
            total += F.linear(flat, rows).sub_(below[:, None]).exp_().sum(dim=1)
        return self._checked(residual, total.reshape(shift.shape), shift)

    def _low_rank(self, residual: Tensor, basis: UnembeddingBasis, start: Tensor) -> Tensor | None:
        """`exact` of [row, example, d] that differ from start within a basis only; None if they do not."""
        size, known, within = residual.norm(dim=-1), self._known, None
        if known is not None and known.basis is basis:
            within = basis.coordinates(residual - known.residual, size)
        if known is None or within is None:
            known = (known and known.moved(start, basis)) or KnownLogits.at(start, basis, self.model.head)
            within = basis.coordinates(residual - start, size)
        self._known = known
        if within is None:
            return None
        shift = self._reference_logit(self.model.final_norm(residual))
        scale = basis.norm.standardise(residual)[1]  # [row, example, 1]
        below = shift[..., None].to(residual.dtype)
        # One product gives what the directions add, the norm's bias (times 1) and the shift of all logits (-below).
        flat = torch.cat([within * scale, torch.ones_like(below), -below], dim=-1).flatten(0, 1).T.contiguous()
        total, tokens = torch.zeros_like(shift), _tokens_at_once(flat.shape[1])
        for rows, logits_before in zip(basis.rows.split(tokens), known.logits.split(tokens), strict=True):
            logits = (rows @ flat).reshape(-1, *shift.shape)
            total += logits.addcmul_(scale[..., 0], logits_before[:, None]).exp_().sum(dim=0)
        return self._checked(residual, total, shift)

    def _reference_logit(self, y: Tensor) -> Tensor:
        """Mean logits under the reference's distribution. [row, example, d] -> [row, example]

        log Z is at least as large, and larger by the distance from the reference plus its entropy: no sum of exponents
        that are taken relative to it is too small for its precision, and none too large but for a distance of 70 nats.
        """
        return (self._mean_row * widened(y)).sum(dim=-1)

    def _checked(self, residual: Tensor, total: Tensor, shift: Tensor) -> Tensor:
        """D from sums of exponents relative to `shift`; where they were too large, from all logits at once."""
        # The shift was rounded to the model's dtype before it was subtracted: what is added again is the rounded one.
        used = widened(shift.to(residual.dtype))
        distance = self._entropy - shift + total.log() + used
        for row in (~torch.isfinite(distance)).any(dim=-1).nonzero().flatten().tolist():
            distance[row] = self._entropy - shift[row] + _log_sum_exp(self.model.unembed(residual[row]))
        return distance

    def estimate(
        self, residual: Tensor, wanted: float, basis: UnembeddingBasis | None = None, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """D of a chain of last residuals [row, example, d], and a bound on how much larger it may be. [row, example]

        wanted: what the bounds should stay below, as a mean over examples. It decides how many anchors are made.
        basis: what the residuals are believed to differ from start [example, d] in; if they do, no bound is needed.
        """
        if self.screens and basis is not None:
            exact = self._low_rank(residual, basis, residual[0] if start is None else start)
            if exact is not None:
                return exact, torch.zeros_like(exact)
        if not self.screens or not self._anchors_pay(residual, wanted):
            exact = self.exact(residual)
            return exact, torch.zeros_like(exact)
        y = self.model.final_norm(residual)
        anchors = self._anchors or self._add_anchors(residual[len(residual) // 2 :][:1])
        near = self._near(y, anchors)
        loose = near.loose(wanted)
        for _ in range(_ROUNDS):
            middles = _middles(loose)
            # Unembedding the loose rows wholly, as below, is cheaper than anchors that serve few of them.
            if len(loose) <= max(_LOOSE * len(y), _ANCHOR_PRICE * len(middles)):
                break
            near = self._near(y, self._add_anchors(residual[middles]))
            loose = near.loose(wanted)
        value, bound = self._value_and_bound(y, near)
        if len(loose) > _LOOSE * len(y):
            value[loose], bound[loose] = self.exact(residual[loose]), 0.0
        return value, bound

    def _anchors_pay(self, residual: Tensor, wanted: float) -> bool:
        """Whether anchors save time: on long chains of small steps, if tokens are not chosen for a few of them only."""
        if len(residual) <= _SHORT or self._residuals < _ENOUGH:
            return False
        # Steps are small if an anchor serves so many rows of the chain that it is worth its price.
        y = self.model.final_norm(residual)
        variance = F.linear(y[1:] - y[:-1], self._sample).var(dim=-1).mean(dim=-1)
        return float(variance.median()) <= wanted

    def _near(self, y: Tensor, anchors: _Anchors) -> _Near:
        """Where normed residuals [row, example, d] stand to the nearest anchors."""
        distance = torch.cdist(y.transpose(0, 1), anchors.points.transpose(0, 1).to(y.dtype))
        at = (distance.argmin(dim=-1).T, torch.arange(y.shape[1], device=y.device))  # for each row and example
        step = widened(y) - anchors.points[at]
        tail_mean = anchors.tail_mean[at]
        middle, largest, covariance = self.model.head_moments
        # r, the largest |w - m|: at most that from the mean of all rows, and from there to m.
        radius = largest + (tail_mean - middle).norm(dim=-1)
        narrow = step.to(y.dtype)
        variance = _ROUNDING * ((narrow @ covariance) * narrow).sum(dim=-1)
        excess = anchors.ratio[at] * variance * _bennett(radius * step.norm(dim=-1))
        return _Near(anchors.log_tail[at] + (tail_mean * step).sum(dim=-1), excess, anchors.share[at])

    def _value_and_bound(self, y: Tensor, near: _Near) -> tuple[Tensor, Tensor]:
        top = _log_sum_exp(torch.bmm(y.transpose(0, 1), self._tokens.rows.transpose(1, 2))).T
        log_z = torch.logaddexp(top, near.log_tail)
        bound = torch.log1p((near.log_tail - log_z).exp() * near.excess)
        return self._entropy - self._reference_logit(y) + log_z, bound

    def _add_anchors(self, residual: Tensor) -> _Anchors:
        """Unembed these residuals wholly; choose the tokens again if they have become a bad choice."""
        if self._anchors is not None:
            new = self._anchors_for(residual)
            if not self._outgrown(new):
                self._anchors = self._anchors.joined(new)
                return self._anchors
        self._tokens = self._choose_tokens(self.model.unembed(residual[-1]).softmax(dim=-1))
        self._anchors = self._anchors_for(residual)
        return self._anchors

    def _choose_tokens(self, p: Tensor) -> _Tokens:
        """The most probable tokens of each example. p: [example, vocabulary]"""
        head, size = self.model.head, self.model.vocabulary_size
        wanted = int((p > _CUTOFF / size).sum(dim=-1).max())
        most = _MOST_TOKEN_BYTES // (len(p) * head.shape[1] * head.element_size())
        top = p.topk(max(1, min(wanted, most, size // 4)) + 1, dim=-1)  # the last one is the tail's largest
        chosen = top.indices[:, :-1]
        tail = torch.ones_like(p).scatter_(-1, chosen, 0.0)
        return _Tokens(head[chosen], tail, float(top.values[:, -1].max()))

    def _anchors_for(self, residual: Tensor) -> _Anchors:
        """Anchors at residuals [row, example, d]: sums over the tail, a few tokens at a time."""
        y = self.model.final_norm(residual)
        below = self._reference_logit(y).to(y.dtype)
        total, tail, largest, mean = self._tail(y, below)
        if not bool(torch.isfinite(total).all()):  # logits far above the reference's
            below = self.model.unembed(residual).amax(dim=-1)
            total, tail, largest, mean = self._tail(y, below)
        tail = tail.clamp(min=_TINY)
        ratio = widened(largest) * self.model.vocabulary_size / tail
        return _Anchors(widened(y), tail.log() + widened(below), widened(mean) / tail[..., None], ratio, tail / total)

    def _tail(self, y: Tensor, below: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of exponents of all logits, relative to `below`: their sum, and the tail's sum, largest and sum of rows."""
        shape, flat, below = below.shape, y.flatten(0, 1), below.flatten()[:, None]
        total, tail = torch.zeros(2, len(flat), dtype=widest_float(y.device), device=y.device)
        largest, mean = torch.zeros_like(flat[:, 0]), torch.zeros_like(flat)
        tokens = _tokens_at_once(len(flat))
        for rows, inside in zip(self.model.head.split(tokens), self._tokens.tail.split(tokens, dim=1), strict=True):
            parts = F.linear(flat, rows).sub_(below).exp_()
            total += parts.sum(dim=1)
            parts.reshape(*shape, -1).mul_(inside)  # a view: leaves the tail in `parts`
            tail += parts.sum(dim=1)
            torch.maximum(largest, parts.amax(dim=1), out=largest)
            mean.addmm_(parts, rows)
        return total.reshape(shape), tail.reshape(shape), largest.reshape(shape), mean.reshape(y.shape)

    def _outgrown(self, anchors: _Anchors) -> bool:
        largest = float((anchors.ratio * anchors.share).max()) / self.model.vocabulary_size
        return largest > _GROWN * max(self._tokens.peak, _CUTOFF / self.model.vocabulary_size)


def divergence_between(model: Model, p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) between the outputs of last residuals [row, example, d], full vocabulary. [row, example]"""
    divergence = torch.zeros(p.shape[:-1], dtype=torch.float64)  # exactly 0 where nothing differs
    different = (p != q).flatten(1).any(dim=1).nonzero().flatten()
    for rows in different.split(max(1, _LOGITS // (p.shape[1] * model.vocabulary_size))):
        divergence[rows.cpu()] = kl_divergence(*(log_probabilities(model.unembed(x[rows])) for x in (p, q))).cpu()
    return divergence


def _tokens_at_once(rows: int) -> int:
    return min(max(_BLOCK // rows, _LEAST_TOKENS), _MOST_TOKENS)


def _middles(rows: list[int]) -> list[int]:
    """The middle of each run of consecutive rows, of the longest runs."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][-1] + 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    longest = sorted(runs, key=len, reverse=True)[:_NEW_ANCHORS]
    return sorted(run[len(run) // 2] for run in longest)


def _log_sum_exp(logits: Tensor) -> Tensor:
    """Over the last dimension, as float64."""
    largest = logits.amax(dim=-1, keepdim=True)
    return widened((logits - largest).exp_().sum(dim=-1)).log() + largest[..., 0]


def _bennett(t: Tensor) -> Tensor:
    """(exp t - 1 - t) / t^2, at least 1/2, its limit at 0."""
    t = t.clamp(min=1e-2, max=100.0)  # rises with t, so raising t only widens a bound
    return (torch.expm1(t) - t) / t.square()
