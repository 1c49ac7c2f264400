"""Limits of numbers that users give: seeds and counts, checked before the work."""

from __future__ import annotations

from gatewise.errors import GatewiseError
from gatewise.files import shown

MOST_SEED = 1 << 40  # a seed is multiplied by a million, and generators take 64 bits
MOST_EXAMPLES = 1_000_000
MOST_RANDOM_CIRCUITS = 10_000


def check_seed(seed: object) -> None:
    """Refuse a seed that is no whole number, or too large for what is made of it."""
    if isinstance(seed, bool) or not isinstance(seed, int) or abs(seed) > MOST_SEED:
        raise GatewiseError(f"seed is a whole number of at most {MOST_SEED:,} in size, got {shown(seed)}.")


def check_count(name: str, value: object, least: int, most: int) -> None:
    """Refuse a number of things that is no whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise GatewiseError(f"{name} is a whole number from {least:,} to {most:,}, got {shown(value)}.")
