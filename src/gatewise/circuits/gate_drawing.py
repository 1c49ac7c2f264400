"""A figure of one gate: its groups of edges, the receiver, and the effect of every set of clean groups.

Groups stand at the left with their senders, coloured by how each acts; at the right is the table, a filled dot for a
clean group, bars in normalised effects with their intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatewise.circuits.drawing import check_can_draw, save_figure
from gatewise.gate_types import GATE_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PLAIN = "#555555"  # of groups that act in an undecided way, and of labels without a colour
_SENDERS = 6  # named in a group
_GROUP, _NODE = (1.75, 0.30), (0.95, 0.46)  # inches: width, and height of a title or of the box
_LINE, _ROW, _GAP, _MARGIN = 0.15, 0.21, 0.16, 0.2  # inches: of a sender, of a table row, between groups, outside
_BARS = 1.9  # inches


@dataclass(frozen=True)
class DrawnGate:
    """What a figure of a gate shows; sets are frozensets of group names."""

    receiver: str
    label: str
    groups: Mapping[str, tuple[str, ...]]  # edges; none for the rest of the receiver's
    acts: Mapping[str, str]  # how each group acts
    effects: Mapping[frozenset[str], tuple[float, float, float]]  # value, low, high; normalised


def draw_gate(gate: DrawnGate, path: str | Path, *, title: str | None = None) -> Path:
    """Draw a gate to a file, whose suffix decides the format; returns the path."""
    path = Path(path)
    check_can_draw(path)
    return save_figure(lambda: _figure(gate, title), path)


def _figure(gate: DrawnGate, title: str | None) -> Figure:
    from matplotlib.figure import Figure

    texts = {name: _senders(edges) for name, edges in gate.groups.items()}
    heights = {name: _GROUP[1] + _LINE * len(lines) for name, lines in texts.items()}
    groups = sum(heights.values()) + _GAP * (len(heights) - 1)
    table = _ROW * (len(gate.effects) + 2)
    top = 0.28 if title else 0.0
    height = max(groups, table) + 2 * _MARGIN + top
    table_at = _MARGIN + _GROUP[0] + 0.75 + _NODE[0] + 0.35
    width = table_at + 0.26 * len(gate.groups) + _BARS + 0.75
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.axis("off")
    middle = (height - top) / 2
    receiver = _MARGIN + _GROUP[0] + 0.75
    colour = GATE_COLOURS.get(gate.label, _PLAIN)
    _box(axes, receiver, middle - _NODE[1] / 2, _NODE, "#FFFFFF", colour, 1.6)
    axes.text(receiver + _NODE[0] / 2, middle + 0.07, gate.receiver, fontsize=8.5, ha="center", va="center")
    below = (receiver + _NODE[0] / 2, middle - 0.11)
    axes.text(*below, gate.label, fontsize=7, color=colour, ha="center", va="center", weight="bold")
    y = middle + groups / 2
    for i, (name, lines) in enumerate(texts.items()):
        _draw_group(axes, gate, name, lines, y, heights[name])
        arrives = middle + (0.5 - (i + 0.5) / len(texts)) * 0.6 * _NODE[1]
        _draw_edge(axes, gate, name, y - heights[name] / 2, (receiver, arrives))
        y -= heights[name] + _GAP
    _draw_table(axes, gate, table_at, middle + table / 2)
    if title:
        axes.text(_MARGIN, height - 0.2, title, fontsize=8, va="center")
    return figure


def _senders(edges: tuple[str, ...]) -> list[str]:
    """Lines about a group's edges: its senders, or how many there are."""
    if not edges:
        return ["all its other edges"]
    ports = sorted({edge.partition("->")[2].partition("<")[2].strip("<>") for edge in edges} - {""})
    into = f" into {', '.join(ports)}" if ports else ""
    names = [edge.partition("->")[0] for edge in edges]
    if len(names) > _SENDERS:
        return [f"{len(names):,} edges{into}"]
    return [f"{names[0]}{into}", *names[1:]] if len(ports) < 2 else [edge.replace("->", " to ") for edge in edges]


def _draw_group(axes: Axes, gate: DrawnGate, name: str, lines: list[str], top: float, height: float) -> None:
    colour = GATE_COLOURS.get(gate.acts[name], _PLAIN)
    _box(axes, _MARGIN, top - height, (_GROUP[0], height), "#FAFAF8", colour, 1.0)
    axes.text(_MARGIN + 0.09, top - 0.15, name, fontsize=8.5, va="center", weight="bold")
    right = (_MARGIN + _GROUP[0] - 0.09, top - 0.15)
    axes.text(*right, gate.acts[name], fontsize=7, color=colour, ha="right", va="center", weight="bold")
    for i, line in enumerate(lines):
        axes.text(_MARGIN + 0.09, top - 0.25 - _LINE * (i + 0.4), line, fontsize=6.5, color="#444444", va="center")


def _draw_edge(axes: Axes, gate: DrawnGate, name: str, y: float, end: tuple[float, float]) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    start = (_MARGIN + _GROUP[0], y)
    bend = 0.5 * (end[0] - start[0])
    points = [start, (start[0] + bend, y), (end[0] - bend, end[1]), end]
    curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
    patch = PathPatch(curve, facecolor="none", edgecolor=GATE_COLOURS.get(gate.acts[name], _PLAIN), linewidth=1.8)
    patch.set_gid(f"{name}->{gate.receiver}")
    axes.add_patch(patch)


def _draw_table(axes: Axes, gate: DrawnGate, left: float, top: float) -> None:
    names = list(gate.groups)
    rows = [(frozenset[str](), (0.0, 0.0, 0.0)), *gate.effects.items()]
    rows.sort(key=lambda row: len(row[0]))
    bars = left + 0.26 * len(names) + 0.08
    ends = [value for _, interval in rows for value in interval]
    low, high = min(0.0, *ends), max(0.0, *ends)
    scale = _BARS / ((high - low) or 1.0)
    zero = bars - low * scale
    for column, name in enumerate(names):
        axes.text(left + 0.26 * column + 0.1, top - 0.1, name, fontsize=7, ha="center", va="center", color="#555555")
    axes.text(bars, top - 0.1, "normalised effect", fontsize=7, va="center", color="#555555")
    axes.plot([zero, zero], [top - _ROW, top - _ROW * (len(rows) + 1)], color="#CCCCCC", linewidth=0.7, zorder=0)
    for i, (members, (value, least, most)) in enumerate(rows):
        y = top - _ROW * (i + 1.5)
        for column, name in enumerate(names):
            face, edge = ("#222222", "#222222") if name in members else ("#FFFFFF", "#AAAAAA")
            dot: dict[str, Any] = {
                "markersize": 5,
                "markerfacecolor": face,
                "markeredgecolor": edge,
                "markeredgewidth": 0.7,
            }
            axes.plot(left + 0.26 * column + 0.1, y, "o", **dot)
        axes.barh(y, value * scale, height=0.11, left=zero, color="#8EA0E8")
        axes.plot([zero + least * scale, zero + most * scale], [y, y], color="#222222", linewidth=0.9)
        axes.text(bars + _BARS + 0.1, y, f"{value:.2f}", fontsize=7, va="center")


def _box(axes: Axes, x: float, y: float, size: tuple[float, float], face: str, edge: str, width: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch((x, y), *size, boxstyle=shape, facecolor=face, edgecolor=edge, linewidth=width))
