"""Dividing a user's pairs into a part to search on and a part to test on, so that no prompt is known to both.

Two pairs are linked if the clean prompt of one occurs in the other; a corrupted prompt alone may serve both halves.
Linked pairs stay together. Where nearly all are linked (every country is the corrupted prompt of another), the group
is cut, and pairs whose two prompts come to lie in different halves are left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gatewise.errors import GatewiseError
from gatewise.tasks.example import TokenExample

Split = Literal["prompts", "rows"]
SPLITS: tuple[Split, ...] = ("prompts", "rows")  # of `rows`, prompts may occur in both halves


@dataclass(frozen=True)
class Halves:
    """Pairs to search on, pairs to test on, and how many are in neither half because they join the two."""

    train: list[TokenExample]
    test: list[TokenExample]
    joining: int = 0


def divide(source: str, pairs: Sequence[TokenExample], sizes: tuple[int, int], seed: int, split: str) -> Halves:
    """Shuffle pairs and divide them, in the proportion of the sizes if there are fewer; by their own column if given.

    Args:
        source: Named in errors.
        pairs: All pairs.
        sizes: The most pairs to search on and to test on.
        seed: Of the order.
        split: Whether no prompt may be in both halves (`prompts`), or any (`rows`).

    Returns:
        The two halves.

    Raises:
        GatewiseError: There are none to search on or to test on.
    """
    order = random.Random(f"file/{seed}").sample(pairs, len(pairs))
    if any(pair.text.split for pair in order):
        named = {half: [pair for pair in order if pair.text.split == half] for half in ("train", "test")}
        if not all(named.values()):
            missing = next(half for half, chosen in named.items() if not chosen)
            raise GatewiseError(f"{source}: no pair has split={missing}. Write train or test into every row.")
        return Halves(named["train"][: sizes[0]], named["test"][: sizes[1]])
    if split == "rows":
        size = _share(len(order), sizes)
        halves = Halves(order[:size], order[size:][: sizes[1]])
    else:
        halves = _by_prompts(order, sizes)
    if not halves.train or not halves.test:
        raise GatewiseError(
            f"{source}: {len(pairs)} pairs leave none to test on whose prompts are not in train as well. Add pairs "
            f"with other prompts (at least two in all); or say which pairs to test on, by a column split with train or "
            f"test, or by test= (--test FILE); or let prompts be in both halves: {source}:split=rows."
        )
    return halves


def _by_prompts(order: Sequence[TokenExample], sizes: tuple[int, int]) -> Halves:
    groups = _linked(order)
    while True:
        count = sum(map(len, groups))
        size = _share(count, sizes)
        train, test = _distribute(groups, size)
        fair = 2 * len(train) >= size and 2 * len(test) >= min(sizes[1], count - size)
        parts = None if fair else _cut(max(groups, key=len))
        if parts is None:
            return Halves(train, test[: sizes[1]], len(order) - count)
        groups.remove(max(groups, key=len))
        groups += parts


def _share(count: int, sizes: tuple[int, int]) -> int:
    """How many of so many pairs are to search on."""
    return sizes[0] if count >= sum(sizes) else max(1, count * sizes[0] // sum(sizes))


def _distribute(groups: Iterable[list[TokenExample]], size: int) -> tuple[list[TokenExample], list[TokenExample]]:
    """Give groups to train while they fit, and the others to test."""
    train: list[TokenExample] = []
    test: list[TokenExample] = []
    for group in groups:
        (train if len(train) + len(group) <= size else test).extend(group)
    return train, test


def _linked(pairs: Iterable[TokenExample]) -> list[list[TokenExample]]:
    """Groups of linked pairs, in the order of their first pair."""
    pairs = list(pairs)
    neighbours = _neighbours(pairs)
    group_of: dict[str, int] = {}
    for number, prompt in enumerate(neighbours):
        for reached in _reachable(prompt, neighbours) if prompt not in group_of else ():
            group_of[reached] = number
    groups: dict[int, list[TokenExample]] = {}
    for pair in pairs:
        groups.setdefault(group_of[pair.text.clean], []).append(pair)
    return list(groups.values())


def _cut(group: Sequence[TokenExample]) -> list[list[TokenExample]] | None:
    """Two parts of a group without a prompt in common, from one end of it to the other; None if that leaves nothing."""
    neighbours = _neighbours(group)
    near: set[str] = set()
    for prompt in _reachable(group[0].text.clean, neighbours):
        if 2 * sum(pair.text.clean in near for pair in group) >= len(group):
            break
        near.add(prompt)
    parts: list[list[TokenExample]] = [[], []]
    for pair in group:
        sides = {prompt in near for prompt in (pair.text.clean, pair.text.corrupted) if prompt in neighbours}
        if len(sides) == 1:
            parts[0 if sides.pop() else 1].append(pair)
    return parts if all(parts) else None


def _neighbours(pairs: Iterable[TokenExample]) -> dict[str, list[str]]:
    """For each clean prompt, the other clean prompts that share a pair with it."""
    pairs = list(pairs)
    neighbours: dict[str, list[str]] = {pair.text.clean: [] for pair in pairs}
    for pair in pairs:
        if pair.text.corrupted in neighbours:
            neighbours[pair.text.clean].append(pair.text.corrupted)
            neighbours[pair.text.corrupted].append(pair.text.clean)
    return neighbours


def _reachable(start: str, neighbours: dict[str, list[str]]) -> list[str]:
    """All prompts that hang together with one, the nearest first."""
    reached = {start: None}
    for prompt in (queue := [start]):
        for other in neighbours[prompt]:
            if other not in reached:
                reached[other] = None
                queue.append(other)
    return list(reached)
