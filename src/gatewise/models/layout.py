"""Where the tokens of a batch stand: everything attention needs to know besides its inputs.

Rows are left-padded, so the answer position is the last column. Columns before `start` are the *shared prefix*: the
two sides of every pair agree there, so all activations do, in every circuit. Engines work on the *window*, the columns
from `start` on, and take the keys and values of the prefix from a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_KEPT_MASK = 1 << 20  # numbers of a mask that is kept
Rotary = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # (tensor of the wanted dtype, positions) -> cos, sin


@dataclass(frozen=True, eq=False)
class Layout:
    """Positions and attention masks of a left-padded batch."""

    lengths: Tensor  # [example]
    width: int
    start: int  # first column of the window
    dtype: torch.dtype
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def window(self) -> int:
        """Columns in the window."""
        return self.width - self.start

    @property
    def padding(self) -> Tensor:
        """Columns of padding before each row. [example]"""
        return self.width - self.lengths

    def positions(self) -> Tensor:
        """Position of every column as the model counts; 0 in the padding. [example, column]"""
        columns = torch.arange(self.width, device=self.lengths.device)
        return (columns - self.padding[:, None]).clamp(min=0)

    def real(self) -> Tensor:
        """Which columns of the window hold a token. [example, window]"""
        columns = torch.arange(self.start, self.width, device=self.lengths.device)
        return columns >= self.padding[:, None]

    def mask(self, sliding: int | None, rows: slice, columns: slice) -> Tensor:
        """What is added to attention scores: 0 where a row may look, -inf elsewhere. [example, row, column]

        Rows and columns are columns of the batch. A column of padding looks at itself only, so that it stays finite;
        nobody looks at it. Masks of short prompts are kept whole; of long ones, each block of rows is made anew.
        """
        if len(self.lengths) * self.width**2 > _KEPT_MASK:
            return self._mask(sliding, rows, columns)
        key = ("mask", sliding)
        if key not in self._cache:
            self._cache[key] = self._mask(sliding, slice(0, self.width), slice(0, self.width))
        cached: Tensor = self._cache[key]
        return cached[:, rows, columns]

    def _mask(self, sliding: int | None, rows: slice, columns: slice) -> Tensor:
        every = torch.arange(self.width, device=self.lengths.device, dtype=torch.int32)
        looking, seen = every[rows, None], every[None, columns]
        allowed = seen <= looking
        if sliding:
            allowed = allowed & (seen > looking - sliding)
        allowed = allowed & (seen >= self.padding[:, None])[:, None, :]
        allowed = allowed | (seen == looking)  # a softmax over nothing but -inf would be NaN
        mask = torch.zeros(allowed.shape, dtype=self.dtype, device=allowed.device)
        return mask.masked_fill_(~allowed, -torch.inf)

    def rotation(self, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the rotary embedding at every column. [example, column, rotated dimension]"""
        key = ("rotation", id(rotary))
        if key not in self._cache:
            like = torch.empty(0, dtype=self.dtype, device=self.lengths.device)
            self._cache[key] = rotary(like, self.positions())
        cached: tuple[Tensor, Tensor] = self._cache[key]
        return cached
