"""KL(reference || circuit) of many last residuals, with the whole vocabulary unembedded only where that decides.

D = sum p_ref log p_ref - e . y + log Z(y), where y is the normed residual, e = sum p_ref w the reference's mean row of
the unembedding, and Z the partition sum. Only Z needs the vocabulary. Around a centre whose logits are known, the words
that hold nearly all probability are unembedded exactly; the sum over the others (the tail, of share t) is bounded on
both sides, by Jensen and by Hoeffding:  Z_T(centre + x) in Z_T(centre) exp(m . x) [1, exp(r^2 |x|^2 / 2)],  with m the
tail's mean row and r the largest distance of a row from the mean row. So every value comes with a bound on its error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.models.model import Model

_TAIL = 0.02  # share of probability left to the tail, at most
_SMALLEST_VOCABULARY = 4096  # below, everything is unembedded
_ROWS = 1 << 24  # logits at a time


@dataclass(frozen=True, eq=False)
class _Centre:
    """A point whose full logits are known. Rows by example."""

    point: Tensor  # [example, d]
    words: Tensor  # [example, word, d], unembedding of the most probable words
    log_tail: Tensor  # [example], log of the tail's partition sum
    tail_mean: Tensor  # [example, d]


class Divergence:
    """Distance of last residuals from the reference's output, on one batch."""

    def __init__(self, model: Model, reference_logits: Tensor) -> None:
        self.model = model
        log_p = reference_logits.double().log_softmax(dim=-1)
        p = log_p.exp()
        self._entropy = (p * log_p).sum(dim=-1)  # [example]
        self._mean_row = (p.to(model.head.dtype) @ model.head).double()  # [example, d]
        self._log_p, self._p = log_p, p
        self._screens = model.softcap is None and model.vocabulary_size >= _SMALLEST_VOCABULARY
        self._centre: _Centre | None = None
        if self._screens:
            mean = model.head.mean(dim=0)
            self._radius = float((model.head - mean).norm(dim=1).max())

    def exact(self, residual: Tensor) -> Tensor:
        """D of last residuals [..., example, d] -> [..., example], in float64."""
        flat = residual.reshape(-1, *residual.shape[-2:])
        size = max(1, _ROWS // (flat.shape[1] * self.model.vocabulary_size))
        found = [self._exact(part) for part in flat.split(size)]
        return torch.cat(found).reshape(residual.shape[:-1])

    def _exact(self, residual: Tensor) -> Tensor:
        logits = self.model.unembed(residual)
        if self.model.softcap is not None or not self._screens:
            log_q = logits.double().log_softmax(dim=-1)
            return self._entropy - (self._p * log_q).sum(dim=-1)
        y = self.model.final_norm(residual).double()
        return self._entropy - (self._mean_row * y).sum(dim=-1) + logits.double().logsumexp(dim=-1)

    def centre_on(self, residual: Tensor) -> None:
        """Take a residual [example, d] as the point to expand around."""
        if not self._screens:
            return
        point = self.model.final_norm(residual)
        logits = (point @ self.model.head.T).double()
        log_z = logits.logsumexp(dim=-1, keepdim=True)
        sorted_p, order = (logits - log_z).exp().sort(dim=-1, descending=True)
        needed = (sorted_p.cumsum(dim=-1) < 1 - _TAIL).sum(dim=-1).max()
        count = min(1 << int(needed).bit_length(), self.model.vocabulary_size // 4)
        chosen = order[:, :count]
        p = (logits - log_z).exp().scatter(-1, chosen, 0.0)
        share = p.sum(dim=-1).clamp(min=1e-300)
        tail_mean = ((p / share[:, None]).to(point.dtype) @ self.model.head).double()
        log_tail = share.log() + log_z[:, 0]
        self._centre = _Centre(point.double(), self.model.head[chosen], log_tail, tail_mean)

    def estimate(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """D of last residuals [row, example, d], and a bound on how much larger it may be. [row, example] each"""
        if self._centre is None:
            exact = self.exact(residual)
            return exact, torch.zeros_like(exact)
        centre = self._centre
        y = self.model.final_norm(residual)
        step = y.double() - centre.point
        top = torch.einsum("red,ewd->rew", y, centre.words).double().logsumexp(dim=-1)
        tail = centre.log_tail + (centre.tail_mean * step).sum(dim=-1)
        log_z = torch.logaddexp(top, tail)
        spread = (0.5 * (self._radius * step.norm(dim=-1)) ** 2).clamp(max=50.0)
        bound = torch.log1p((tail - log_z).exp() * torch.expm1(spread))
        return self._entropy - (self._mean_row * y.double()).sum(dim=-1) + log_z, bound
