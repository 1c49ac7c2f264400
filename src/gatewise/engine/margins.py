"""The margin of last residuals, unembedding only the answers where that is enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import linear

from gatewise.models.model import Model
from gatewise.models.parts import softcapped
from gatewise.tasks.pairs import Pairs


def margin_of(model: Model, pairs: Pairs) -> Callable[[Tensor], Tensor]:
    """A function from last residuals [..., example, d] to margins [..., example] in float64."""
    if pairs.margin_kind == "probability":  # needs the whole vocabulary
        return lambda residual: pairs.margin(model.unembed(residual)).double()
    words = torch.unique(torch.cat([pairs.right.flatten(), pairs.wrong.flatten()]))
    words = words[words >= 0]
    place = torch.full((model.vocabulary_size,), -1)
    place[words] = torch.arange(len(words))
    among = replace(
        pairs,
        right=torch.where(pairs.right >= 0, place[pairs.right], pairs.right),
        wrong=torch.where(pairs.wrong >= 0, place[pairs.wrong], pairs.wrong),
    )
    rows = model.head[words.to(model.device)]
    return lambda residual: among.margin(softcapped(linear(model.final_norm(residual), rows), model.softcap)).double()
