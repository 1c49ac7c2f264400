"""What a checkpoint of ACDC holds: the greedy searches that are done, and how far the current one has come.

A search saves its state where it begins a sublayer (all heads of a layer, or an MLP). What follows depends on the
circuit so far and on nothing else: the engine's values are computed anew there, interrupted or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gatewise.store.checkpoints import Checkpoint

_ARRAYS = ("mask", "effects")


@dataclass(frozen=True, eq=False)
class Outcome:
    """One greedy search that has ended."""

    threshold: float
    mask: Tensor  # [edge] of bool: what is kept
    effects: Tensor  # [edge], change of D when tried (of removed edges, at most); 0 where no trial was needed
    trials: int  # candidates that needed an evaluation
    canonical: int  # candidates within the band
    divergence: tuple[float, ...]  # D at the end, for each direction

    @property
    def edges(self) -> int:
        """Number of edges that are kept."""
        return int(self.mask.sum())


@dataclass(frozen=True, eq=False)
class Progress:
    """One greedy search that has come as far as the beginning of a sublayer."""

    threshold: float
    position: int  # of the sublayer's first port in the order of receivers
    mask: Tensor  # [edge] of bool
    effects: Tensor  # [edge]
    live: tuple[int, ...]  # [sender]
    trials: int
    canonical: int


def save_state(checkpoint: Checkpoint, done: Sequence[Outcome], current: Progress) -> None:
    """Replace the checkpoint's state."""
    arrays: dict[str, Tensor] = {}
    for index, search in enumerate([*done, current]):
        arrays |= {f"{name}.{index}": getattr(search, name) for name in _ARRAYS}
    checkpoint.save({"done": [_plain(outcome) for outcome in done], "now": _plain(current)}, arrays)


def load_state(checkpoint: Checkpoint) -> tuple[dict[float, Outcome], Progress | None]:
    """Return the searches that were done, by threshold, and the one that was interrupted."""
    saved = checkpoint.load()
    if saved is None:
        return {}, None
    done = [Outcome(**_with_arrays(plain, saved.arrays, i)) for i, plain in enumerate(saved.state["done"])]
    current = Progress(**_with_arrays(saved.state["now"], saved.arrays, len(done)))
    return {outcome.threshold: outcome for outcome in done}, current


def _plain(search: Outcome | Progress) -> dict[str, Any]:
    return {name: value for name, value in vars(search).items() if name not in _ARRAYS}


def _with_arrays(plain: Mapping[str, Any], arrays: Mapping[str, Tensor], index: int) -> dict[str, Any]:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return {**values, **{name: arrays[f"{name}.{index}"] for name in _ARRAYS}}
