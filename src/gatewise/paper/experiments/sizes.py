"""Which sizes experiments take that look at one or a few, where the paper names none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise.errors import GatewiseError

if TYPE_CHECKING:
    from gatewise.paper.lab import Lab


def middle_size(lab: Lab) -> int:
    """The middle one of the (at most six) largest sizes that all methods have: of the paper's, 1,000."""
    sizes = lab.common_sizes[-6:]
    if not sizes:
        raise GatewiseError("the methods have no size in common; give sizes that all of them have, with --sizes.")
    return sizes[len(sizes) // 2]


def small_size(lab: Lab) -> int:
    """The second smallest that all methods have (the smallest of two), where circuits may not yet be saturated."""
    sizes = lab.common_sizes
    return sizes[1] if len(sizes) > 2 else min(sizes, default=middle_size(lab))
