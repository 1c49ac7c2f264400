"""What a discovery method is: one small frozen config, one function from a problem to findings.

A fourth method is one file that defines a `Method`, and one line in `gatewise.methods.registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from gatewise.engine.runs import Direction
from gatewise.models.model import Model
from gatewise.store.checkpoints import Checkpoint
from gatewise.tasks.pairs import Pairs

SearchDirection = Literal["ns", "dn", "ns+dn"]


@dataclass(frozen=True, eq=False)
class Problem:
    """What is asked of a method. Exactly one of `sizes` and `threshold` is given."""

    model: Model
    pairs: Pairs
    direction: SearchDirection
    sizes: tuple[int, ...] = ()  # circuits of exactly these many edges
    threshold: float | None = None  # in the method's own unit
    seed: int = 0
    memory: int | str | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)  # where a long search keeps its state, if anywhere

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions to run: one, or both."""
        both: tuple[Direction, ...] = ("ns", "dn")
        return tuple(d for d in both if d in self.direction.split("+"))


@dataclass(frozen=True, eq=False)
class Finding:
    """One circuit a method found, before it gets its provenance."""

    mask: Tensor  # [edge] of bool
    scores: Tensor  # [edge], higher means more important; what they are is the method's to document
    notes: Mapping[str, Any] = field(default_factory=dict)  # plain data: counts, corrections, correlations


@dataclass(frozen=True)
class Method:
    """A way of finding circuits."""

    name: str
    summary: str  # one line for `gatewise methods`
    config: type[Any]  # a frozen dataclass; its fields are the method's parameters
    search: Callable[[Problem, Any], Sequence[Finding]]  # one finding per size, or one for the threshold
    directed: bool = True  # False: the method has no direction, and gates cannot be split from it
    threshold_meaning: str = ""  # unit of `threshold`


def top_edges(scores: Tensor, size: int) -> Tensor:
    """Mask of exactly `size` edges with the largest scores; of equal ones, the first in order. [edge] of bool"""
    order = torch.argsort(scores, descending=True, stable=True)
    mask = torch.zeros(scores.shape, dtype=torch.bool)
    mask[order[:size].cpu()] = True
    return mask
