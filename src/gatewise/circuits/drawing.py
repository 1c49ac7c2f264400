"""Static figures of circuits for papers: SVG, PDF or PNG, drawn with matplotlib (the extra `figures`), no graphviz.

Layers go up from `input` to `logits`; a head keeps its column, and the MLPs have one of their own. Only nodes of the
circuit are drawn. Edges are coloured by gate type and as wide as the square root of their |score|.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatewise.circuits.circuit import Circuit, Labelled
from gatewise.errors import GatewiseError
from gatewise.files import write_atomically
from gatewise.gate_types import GATE_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gatewise.circuits.graph import Graph

SUFFIXES = (".svg", ".pdf", ".png")
_PLAIN = "#555555"  # edges without a gate type
_FILLS = {"attention": "#FFFFFF", "pointwise": "#F3F0E6", "source": "#ECECEC", "output": "#ECECEC"}
_COLUMN, _MARGIN = 0.66, 0.42  # inches
_BOX = (0.50, 0.20)  # inches
_TALLEST = 10.5  # inches that many layers are squeezed into, as far as labels allow
_ROW_RANGE = (0.36, 0.75)  # inches between layers
_WIDTHS = (0.35, 2.8)  # points
_PORT_SHIFT = {"<q>": -0.16, "<k>": 0.0, "<v>": 0.16}  # inches, along the lower side of a head
_DPI = 200


def draw(what: Circuit | Labelled, path: str | Path, *, max_edges: int = 300, title: str | None = None) -> Path:
    """Draw a circuit to a file.

    Args:
        what: A circuit; a labelled one, such as `gates.labelled`, is drawn with its gate types' colours.
        path: Of the file, whose suffix decides the format: .svg, .pdf or .png.
        max_edges: Of a larger circuit only the strongest edges by |score| are drawn, and the figure says so.
        title: Below the figure; by default none.

    Returns:
        The path of the file.

    Raises:
        GatewiseError: If the format is unknown, matplotlib is not installed, or a circuit without scores is larger than
            `max_edges`, so that there are no strongest.
    """
    path = Path(path)
    check_can_draw(path)
    if max_edges < 1:
        raise GatewiseError(f"max_edges is a whole number of at least 1, got {max_edges}.")
    circuit, kinds = (what.circuit, what.kinds) if isinstance(what, Labelled) else (what, {})
    return save_figure(lambda: _figure(_strands(circuit, kinds, max_edges), circuit.graph, title), path)


def save_figure(make: Callable[[], Figure], path: Path) -> Path:
    """Make a figure and write it in the suffix's format. Text stays text; the same figure gives the same file."""
    import matplotlib

    fonts = {"svg.fonttype": "none", "pdf.fonttype": 42, "font.family": "sans-serif"}
    # A fixed salt and no dates: else every file would differ.
    settings: dict[Any, Any] = {**fonts, "svg.hashsalt": "gatewise"}
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    kind, stream = path.suffix.lower()[1:], io.BytesIO()
    with matplotlib.rc_context(settings):
        make().savefig(stream, format=kind, dpi=_DPI, metadata=dates[kind])
    write_atomically(path, stream.getvalue())
    return path


def check_can_draw(path: Path) -> None:
    """Refuse an unknown suffix, and a missing matplotlib, before the work."""
    if path.suffix.lower() not in SUFFIXES:
        raise GatewiseError(f"a figure ends in {', '.join(SUFFIXES)}; got {path.name!r}.")
    require_matplotlib()


def require_matplotlib() -> None:
    """Raise an error if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise GatewiseError(
            'figures need matplotlib, which is not installed; install it with pip install "gatewise[figures]".'
        ) from error


@dataclass(frozen=True)
class _Strand:
    """An edge to draw."""

    sender: str
    port: str
    kind: str  # a gate type; "" for an edge without
    strength: float  # 0 to 1


@dataclass(frozen=True)
class _Drawing:
    strands: tuple[_Strand, ...]  # weakest first
    total: int  # edges of the circuit, drawn or not
    scored: bool


def _strands(circuit: Circuit, kinds: Mapping[int, str], max_edges: int) -> _Drawing:
    """The edges to draw, with their gate type and strength."""
    graph, indices = circuit.graph, circuit.indices
    scores = None if circuit.scores is None else circuit.scores.double().abs()
    if len(indices) > max_edges:
        if scores is None:
            raise GatewiseError(
                f"the circuit has {len(indices):,} edges and no scores to choose the {max_edges:,} strongest by. "
                f"Draw a smaller one, or give max_edges={len(indices)}."
            )
        indices = sorted(indices, key=lambda i: -float(scores[i]))[:max_edges]
    strongest = 0.0 if scores is None or not indices else max(float(scores[i]) for i in indices)
    strands = []
    for i in indices:
        strength = 0.3 if scores is None or strongest == 0 else (float(scores[i]) / strongest) ** 0.5
        sender, port = graph.senders[int(graph.edge_sender[i])], graph.ports[int(graph.edge_port[i])]
        strands.append(_Strand(sender, port, kinds.get(i, ""), strength))
    return _Drawing(tuple(sorted(strands, key=lambda strand: strand.strength)), len(circuit), scores is not None)


@dataclass(frozen=True)
class _Layout:
    """Where nodes stand, in inches, and how large the figure is."""

    centre: dict[str, tuple[float, float]]  # of a node's box
    kind: dict[str, str]
    rank: dict[str, int]  # row from below; nodes of neighbouring rows have nothing between them
    rows: tuple[tuple[str, float], ...]  # label of a layer, height
    width: float
    height: float
    left: float  # where the columns begin
    gap: float  # between layers

    @property
    def transformer(self) -> bool:
        return "attention" in self.kind.values()

    def is_bar(self, node: str) -> bool:
        """`input` and `logits` of a transformer span the whole width, so that edges need not meet in one point."""
        return self.transformer and node in ("input", "logits")

    def is_outer(self, node: str) -> bool:
        """MLPs of a transformer have the column at the right, with free space beside it."""
        return self.transformer and self.kind[node] == "pointwise"


def _layout(graph: Graph, drawing: _Drawing) -> _Layout:
    present = {strand.sender for strand in drawing.strands} | {_node(strand.port) for strand in drawing.strands}
    present |= {"logits", "input"}
    sublayers = []
    for sublayer in graph.sublayers:
        nodes = [node for node in (sublayer.nodes or ("logits",)) if node in present]
        sublayers += [(sublayer, nodes)] if nodes else []
    transformer = any(sublayer.kind == "attention" for sublayer, _ in sublayers)
    heads = sorted({_head(node) for sublayer, nodes in sublayers if sublayer.kind == "attention" for node in nodes})
    mlps = transformer and any(sublayer.kind == "pointwise" for sublayer, _ in sublayers)
    columns = max(3, len(heads) + mlps) if transformer else max(len(nodes) for _, nodes in sublayers)
    left, right = _MARGIN, _MARGIN + columns * _COLUMN
    layers = sorted({sublayer.layer for sublayer, _ in sublayers})
    gap = min(_ROW_RANGE[1], max(_ROW_RANGE[0], _TALLEST / len(layers)))
    centre: dict[str, tuple[float, float]] = {}
    for sublayer, nodes in sublayers:
        y = _MARGIN + layers.index(sublayer.layer) * gap
        if transformer and sublayer.kind == "pointwise":
            y += 0.5 * gap  # MLPs read the heads of their layer
        elif transformer and sublayer.kind == "output":
            y += 0.16  # so that the last MLP does not touch logits
        for index, node in enumerate(nodes):
            if sublayer.kind == "attention":
                column = heads.index(_head(node)) + 0.5
            elif transformer and sublayer.kind == "pointwise":
                column = columns - 0.5
            else:
                column = columns / 2 + index - (len(nodes) - 1) / 2
            centre[node] = (left + column * _COLUMN, y)
    heights = sorted({y for _, y in centre.values()})
    rows = [(str(layer), _MARGIN + i * gap) for i, layer in enumerate(layers) if transformer and layer < graph.n_layers]
    return _Layout(
        centre=centre,
        kind={node: sublayer.kind for sublayer, nodes in sublayers for node in nodes},
        rank={node: heights.index(y) for node, (_, y) in centre.items()},
        rows=tuple(row for row in rows if row[0] != "-1"),
        width=right + (0.75 if mlps else _MARGIN),
        height=heights[-1] + 0.45,
        left=left,
        gap=gap,
    )


def _head(node: str) -> int:
    return int(node.partition(".h")[2])


def _figure(drawing: _Drawing, graph: Graph, title: str | None) -> Figure:
    from matplotlib.figure import Figure

    layout = _layout(graph, drawing)
    figure = Figure(figsize=(layout.width, layout.height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, layout.width)
    axes.set_ylim(0, layout.height)
    axes.axis("off")
    for label, y in layout.rows:
        axes.axhline(y, color="#F0F0F0", linewidth=0.6, zorder=0)
        axes.text(_MARGIN - 0.15, y, label, fontsize=6, color="#999999", ha="right", va="center")
    opacity = min(0.95, max(0.35, 60 / max(1, len(drawing.strands)) + 0.3))
    for strand in drawing.strands:
        _draw_edge(axes, layout, strand, opacity)
    ports: dict[str, set[str]] = {}
    for strand in drawing.strands:
        ports.setdefault(_node(strand.port), set()).add(strand.port)
    for node in layout.centre:
        _draw_node(axes, layout, node, ports.get(node, set()))
    _legend(axes, layout, drawing, title)
    return figure


def _node(port: str) -> str:
    return port.partition("<")[0]


def _draw_edge(axes: Axes, layout: _Layout, strand: _Strand, opacity: float) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    points = _course(layout, strand.sender, strand.port)
    codes = [Curve.MOVETO] + [Curve.CURVE4] * (len(points) - 1)
    width = _WIDTHS[0] + (_WIDTHS[1] - _WIDTHS[0]) * strand.strength
    colour = GATE_COLOURS.get(strand.kind, _PLAIN)
    curve = PathPatch(Curve(points, codes), facecolor="none", edgecolor=colour, linewidth=width, alpha=opacity)
    curve.set_capstyle("butt")
    curve.set_gid(f"{strand.sender}->{strand.port}")
    axes.add_patch(curve)


def _course(layout: _Layout, sender: str, port: str) -> list[tuple[float, float]]:
    """Points of a curve of cubic pieces, from the upper side of the sender to the port, around the boxes between."""
    receiver = _node(port)
    (x0, y0), (x1, y1) = layout.centre[sender], layout.centre[receiver]
    x1 += _PORT_SHIFT.get(port[len(receiver) :], 0.0)
    y0, y1 = y0 + _BOX[1] / 2, y1 - _BOX[1] / 2
    bend = 0.8 * layout.gap  # height within which an edge changes its column
    if layout.is_bar(sender) and layout.is_bar(receiver):
        x = layout.left - 0.05
        return _cubic((x, y0), (x, y1))
    if layout.is_bar(receiver):  # beside the sender's column, then straight up
        lane = x0 + _lane(layout, sender)
        turn = min(y0 + bend, y1)
        return _cubic((x0, y0), (lane, turn)) + _cubic((lane, turn), (lane, y1))[1:]
    if layout.is_bar(sender):
        column = layout.centre[receiver][0]
        lane = column - 0.5 * _COLUMN + 0.3 * (x1 - column)
        turn = max(y1 - bend, y0)
        return _cubic((lane, y0), (lane, turn)) + _cubic((lane, turn), (x1, y1))[1:]
    if layout.centre[receiver][0] == x0 and any(x == x0 and y0 < y < y1 for x, y in layout.centre.values()):
        side = 0.5 * _COLUMN
        if layout.is_outer(sender):
            side = 0.3 + min(0.35, 0.03 * (layout.rank[receiver] - layout.rank[sender]))
        reach = side / 0.75  # a cubic comes to three quarters of its control points
        return [(x0, y0), (x0 + reach, y0 + 0.3 * (y1 - y0)), (x0 + reach, y1 - 0.3 * (y1 - y0)), (x1, y1)]
    return _cubic((x0, y0), (x1, y1))


def _cubic(start: tuple[float, float], end: tuple[float, float]) -> list[tuple[float, float]]:
    """Leaves and arrives upright."""
    pull = 0.4 * (end[1] - start[1])
    return [start, (start[0], start[1] + pull), (end[0], end[1] - pull), end]


def _lane(layout: _Layout, sender: str) -> float:
    """How far beside its column an edge to `logits` goes up; later senders nearer, so that lanes do not cross."""
    top = max(layout.rank.values())
    share = (top - layout.rank[sender]) / top
    return (0.3 + 0.35 * share) if layout.is_outer(sender) else (0.28 + 0.1 * share)


def _draw_node(axes: Axes, layout: _Layout, node: str, ports: set[str]) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = layout.centre[node]
    width, height = _BOX
    if layout.is_bar(node):
        width = layout.width - layout.left
        x = layout.left - 0.1 + width / 2
    corner = (x - width / 2, y - height / 2)
    shape = "round,pad=0,rounding_size=0.04"
    fill = _FILLS[layout.kind[node]]
    look: dict[str, Any] = {"facecolor": fill, "edgecolor": "#333333", "linewidth": 0.6, "zorder": 3}
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=shape, **look))
    letters = sorted(port[len(node) :] for port in ports if port != node)
    axes.text(x, y + (0.03 if letters else 0), node, fontsize=6.5, ha="center", va="center", zorder=4)
    for letter in letters:
        below = (x + _PORT_SHIFT[letter], y - height / 2 + 0.015)
        axes.text(*below, letter[1], fontsize=4.5, color="#555555", ha="center", va="bottom", zorder=4)


def _legend(axes: Axes, layout: _Layout, drawing: _Drawing, title: str | None) -> None:
    from matplotlib.lines import Line2D

    counts = {kind: sum(strand.kind == kind for strand in drawing.strands) for kind in (*GATE_COLOURS, "")}
    plain = "no label" if any(counts[kind] for kind in GATE_COLOURS) else "edge"
    handles = [
        Line2D([], [], color=GATE_COLOURS.get(kind, _PLAIN), linewidth=2, label=f"{kind or plain} ({count})")
        for kind, count in counts.items()
        if count
    ]
    if handles:
        axes.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(layout.left / layout.width, 1), ncols=len(handles),
            fontsize=6.5, frameon=False, handlelength=1.4, columnspacing=1.2, borderaxespad=0.4,
        )  # fmt: skip
    shown = len(drawing.strands)
    note = f"{drawing.total:,} edges"
    note = note if shown == drawing.total else f"the strongest {shown:,} of {note}"
    note += ", width by |score|" if drawing.scored else ""
    note += ", set-difference labels" if any(strand.kind for strand in drawing.strands) else ""  # which are no test
    axes.text(layout.width - 0.1, 0.08, note, fontsize=6, color="#777777", ha="right", va="bottom")
    if title:
        axes.text(layout.left - 0.1, 0.08, title, fontsize=7, ha="left", va="bottom")
