"""What a checkpoint of ACDC keeps: the greedy searches that are done, and how far the one is that is not.

A search saves its state where it begins a sublayer (all heads of a layer, or an MLP). What follows depends on what was
kept so far and on nothing else: the engine's values are computed anew there, interrupted or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gatewise.store.checkpoints import Checkpoint


@dataclass(frozen=True, eq=False)
class Outcome:
    """One greedy search."""

    threshold: float
    kept: Tensor  # [edge] of bool
    effects: Tensor  # [edge], change of D when tried (of removed edges, at most); 0 where no trial was needed
    trials: int  # candidates that needed an evaluation
    canonical: int  # candidates within the band
    divergence: tuple[float, ...]  # D at the end, for each direction


@dataclass(frozen=True, eq=False)
class Progress:
    """One greedy search that has come as far as the beginning of a sublayer."""

    threshold: float
    place: int  # of the sublayer's first port in the order of receivers
    kept: Tensor  # [edge] of bool
    effects: Tensor  # [edge]
    live: tuple[int, ...]  # [sender]
    trials: int
    canonical: int


def save_state(checkpoint: Checkpoint, done: Sequence[Outcome], now: Progress) -> None:
    parts: list[Outcome | Progress] = [*done, now]
    arrays = {f"kept.{i}": one.kept for i, one in enumerate(parts)}
    arrays |= {f"effects.{i}": one.effects for i, one in enumerate(parts)}
    checkpoint.save({"done": [_plain(one) for one in done], "now": _plain(now)}, arrays)


def load_state(checkpoint: Checkpoint) -> tuple[dict[float, Outcome], Progress | None]:
    """The searches that were done, by tau, and the one that was interrupted."""
    saved = checkpoint.load()
    if saved is None:
        return {}, None
    done = [Outcome(**_whole(one, saved.arrays, i)) for i, one in enumerate(saved.state["done"])]
    now = Progress(**_whole(saved.state["now"], saved.arrays, len(done)))
    return {one.threshold: one for one in done}, now


def _plain(one: Outcome | Progress) -> dict[str, Any]:
    return {name: value for name, value in vars(one).items() if name not in ("kept", "effects")}


def _whole(plain: Mapping[str, Any], arrays: Mapping[str, Tensor], i: int) -> dict[str, Any]:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return {**values, "kept": arrays[f"kept.{i}"], "effects": arrays[f"effects.{i}"]}
