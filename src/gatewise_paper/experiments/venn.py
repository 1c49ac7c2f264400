"""Venn pictures of Ns and Dn circuits, with areas in proportion to their numbers of edges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gatewise.gate_types import GATE_COLOURS
from gatewise_paper.figures import Figure, legend_below, panels
from gatewise_paper.naming import METHOD_NAMES

Split = Sequence[int]  # edges of the Ns circuit, of the Dn circuit, of both


def lens_area(r: float, s: float, distance: float) -> float:
    """The area that two circles share."""
    if distance >= r + s:
        return 0.0
    if distance <= abs(r - s):
        return math.pi * min(r, s) ** 2
    a = (distance**2 + r**2 - s**2) / (2 * distance)
    b = distance - a
    x, y = (max(-1.0, min(1.0, value)) for value in (a / r, b / s))
    return r**2 * (math.acos(x) - x * math.sqrt(1 - x**2)) + s**2 * (math.acos(y) - y * math.sqrt(1 - y**2))


def circle_distance(r: float, s: float, shared: float) -> float:
    """How far apart the centres are if the circles share an area."""
    low, high = abs(r - s), r + s
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if lens_area(r, s, middle) > shared else (low, middle)
    return (low + high) / 2


def draw_venn(rows: Mapping[str, Sequence[Split]]) -> Figure:
    """A row for each method, a picture for each split."""
    columns = max(map(len, rows.values()))
    drawn, axes = panels(len(rows), columns, width=2.6, height=2.1)
    largest = max(math.sqrt(max(ns, dn) / math.pi) for some in rows.values() for ns, dn, _ in some)
    for line, (method, some) in enumerate(rows.items()):
        for at in axes[line]:
            at.axis("off")
        for at, split in zip(axes[line], some, strict=False):
            _picture(at, split, largest)
            at.set_title(f"{METHOD_NAMES[method]}, Ns {split[0]:,}, Dn {split[1]:,}", fontsize=9)
    from matplotlib.patches import Patch

    names = {"AND": "AND (Ns only)", "ADDER": "ADDER (both)", "OR": "OR (Dn only)"}
    legend_below(drawn, [Patch(color=GATE_COLOURS[kind], alpha=0.55) for kind in names], list(names.values()))
    return drawn


def _picture(at: Any, split: Split, largest: float) -> None:
    from matplotlib.patches import Circle

    in_ns, in_dn, shared = split
    r, s = (math.sqrt(count / math.pi) for count in (in_ns, in_dn))
    distance = circle_distance(r, s, shared)
    left, right = -distance / 2, distance / 2
    ns, dn = Circle((left, 0), r), Circle((right, 0), s)
    for circle, colour in ((ns, GATE_COLOURS["AND"]), (dn, GATE_COLOURS["OR"])):
        circle.set(facecolor=colour, alpha=0.55, edgecolor="none")
        at.add_patch(circle)
    for colour in ("white", GATE_COLOURS["ADDER"]):  # the lens: white over both colours, then its own
        lens = Circle((right, 0), s, facecolor=colour, alpha=1.0 if colour == "white" else 0.55, edgecolor="none")
        at.add_patch(lens)
        lens.set_clip_path(Circle((left, 0), r, transform=at.transData))
    for centre, radius in ((left, r), (right, s)):
        at.add_patch(Circle((centre, 0), radius, fill=False, edgecolor="black", linewidth=0.8))
    pad = 0.1 * largest  # single parts can be too narrow for their numbers: those stand beside them
    if in_ns > shared:
        at.text(left - r - pad, 0, f"{in_ns - shared:,}", ha="right", va="center", color=GATE_COLOURS["AND"])
    if in_dn > shared:
        at.text(right + s + pad, 0, f"{in_dn - shared:,}", ha="left", va="center", color=GATE_COLOURS["OR"])
    if shared:
        middle = (max(left - r, right - s) + min(left + r, right + s)) / 2
        at.text(middle, 0, f"{shared:,}", ha="center", va="center")
    reach = 2.15 * largest
    at.set_xlim(-reach, reach)
    at.set_ylim(-1.1 * largest, 1.1 * largest)
    at.set_aspect("equal")
