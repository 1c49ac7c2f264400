"""Drawings of gates as small graphs, nodes coloured by function: single cases, and the whole circuit of each type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gatewise.circuits.literature import Roles
from gatewise.gate_types import GATE_COLOURS, GATE_TYPES, GateType
from gatewise.gates.labels import Gate, Gates
from gatewise_paper.figures import Axes, Figure, legend_below, panels
from gatewise_paper.head_roles import ROLES

_COLOURS = {
    "previous token": "#56B4E9",
    "duplicate token": "#E69F00",
    "induction": "#F0E442",
    "S-inhibition": "#F08A4B",
    "name mover": "#35B88F",
    "backup name mover": "#B7E3CF",
    "negative name mover": "#DFA3C4",
}
_OTHER, _MLP = "#FFFFFF", "#D9D9D9"
_SENDERS, _EDGES = 5, 40  # drawn at most: of one gate, of one type

Positions = Mapping[str, tuple[float, float]]  # of nodes
Arrow = tuple[str, str]  # sender, receiver


def cases_figure(gates: Gates, roles: Roles) -> Callable[[], Figure]:
    """For each type one gate, and one of its senders' own gates below it."""

    def draw() -> Figure:
        figure, grid = panels(1, 3, width=3.6, height=3.0)
        for axes, kind in zip(grid[0], GATE_TYPES, strict=True):
            _prepare(axes, f"{kind} gate")
            if _wide(gates, kind):
                _draw_case(axes, gates, kind, roles)
            else:
                axes.text(0.5, 0.5, "no gate of two edges", ha="center", va="center", transform=axes.transAxes)
        _legend(figure, roles)
        return figure

    return draw


def circuit_figure(gates: Gates, roles: Roles) -> Callable[[], Figure]:
    """Layers from left to right; for each type its strongest edges."""

    def draw() -> Figure:
        layers = gates.graph.n_layers
        figure, grid = panels(3, 1, width=max(8.0, 0.42 * (layers + 2)), height=2.9)
        for (axes,), kind in zip(grid, GATE_TYPES, strict=True):
            edges = _strongest(gates, kind, [edge for gate in _wide(gates, kind) for edge in gate.edges])[:_EDGES]
            arrows = [_ends(edge) for edge in edges]
            positions = _by_layer(gates, arrows)
            _prepare(axes, f"{kind}: {len(edges)} of {len(gates.by_type[kind])} edges")
            _draw_arrows(axes, arrows, positions, kind)
            _draw_nodes(axes, positions, roles, size=6.5)
            axes.set_xlim(-1.5, layers + 0.8)
            axes.set_xticks([*range(layers), layers + 0.2], [*map(str, range(layers)), "logits"])
            axes.tick_params(length=0)
            heights = [y for _, y in positions.values()] or [0.0]
            axes.set_ylim(min(heights) - 1, max(heights) + 1)
        grid[-1][0].set_xlabel("layer")
        _legend(figure, roles)
        return figure

    return draw


def _wide(gates: Gates, kind: GateType) -> list[Gate]:
    return [gate for gate in gates if gate.type == kind and len(gate.edges) > 1]


def _strongest(gates: Gates, kind: GateType, edges: Sequence[str]) -> list[str]:
    """Edges by the score of the direction that found them; by name where there are no scores."""
    scores = (gates.dn if kind == "OR" else gates.ns).scores
    if scores is None:
        return sorted(edges)
    strength = scores.abs()
    return sorted(edges, key=lambda edge: (-float(strength[gates.graph.index(edge)]), edge))


def _draw_case(axes: Axes, gates: Gates, kind: GateType, roles: Roles) -> None:
    """A receiver, its senders, and one of these with senders of its own. Gates of known functions come first."""
    wide = _wide(gates, kind)
    by_node: dict[str, list[Gate]] = {}
    for gate in wide:
        by_node.setdefault(_node(gate.receiver), []).append(gate)

    def senders(gate: Gate) -> list[str]:
        ordered = [_ends(edge)[0] for edge in _strongest(gates, kind, gate.edges)]
        return sorted(ordered, key=lambda node: node not in roles)[:_SENDERS]

    def interest(gate: Gate) -> tuple[int, bool, int, int]:
        known = sum(node in roles for node in (_node(gate.receiver), *senders(gate)))
        return known, any(node in by_node for node in senders(gate)), -len(gate.edges), -wide.index(gate)

    top = max(wide, key=interest)
    upper = senders(top)
    below = next((node for node in upper if node in by_node), None)
    lower = [] if below is None else [n for n in senders(max(by_node[below], key=interest)) if n not in upper]
    positions: dict[str, tuple[float, float]] = {top.receiver: (0.0, 2.0)}
    for nodes, height in ((upper, 1.0), (lower, 0.0)):
        for i, node in enumerate(nodes):
            positions[node] = (i - (len(nodes) - 1) / 2, height)
    arrows = [(node, top.receiver) for node in upper] + [(node, below) for node in lower if below is not None]
    _draw_arrows(axes, arrows, positions, kind, width=1.2, alpha=0.9, bend=0.0)
    _draw_nodes(axes, positions, roles, size=9)
    axes.set_xlim(-2.7, 2.7)
    axes.set_ylim(-0.4, 2.4)


def _by_layer(gates: Gates, arrows: Sequence[Arrow]) -> dict[str, tuple[float, float]]:
    """x by layer; the nodes of a layer one above the other, heads and then the MLP."""
    graph = gates.graph
    layer = dict(zip(graph.senders, graph.sender_layer, strict=True)) | {"logits": graph.n_layers}
    present = {node for arrow in arrows for node in arrow}
    positions = {}
    for column in sorted({layer[node] for node in present}):
        nodes = [node for node in graph.nodes if node in present and layer[node] == column]
        for i, node in enumerate(nodes):
            shift = {"m": 0.45, "l": 0.2}.get(node[0], 0.0)
            positions[node] = (column + shift, (i - (len(nodes) - 1) / 2) + 0.3 * (column % 2))
    return positions


def _draw_arrows(
    axes: Axes,
    arrows: Sequence[Arrow],
    positions: Positions,
    kind: GateType,
    width: float = 0.8,
    alpha: float = 0.55,
    bend: float = 0.08,
) -> None:
    look = {"arrowstyle": "-|>", "color": GATE_COLOURS[kind], "linewidth": width, "alpha": alpha}
    shape = {"shrinkA": 6, "shrinkB": 9, "mutation_scale": 8, "connectionstyle": f"arc3,rad={bend}"}
    for sender, receiver in dict.fromkeys(arrows):
        arrow = {**look, **shape}
        axes.annotate("", xy=positions[receiver], xytext=positions[sender], zorder=1, arrowprops=arrow)


def _draw_nodes(axes: Axes, positions: Positions, roles: Roles, size: float) -> None:
    for node, (x, y) in positions.items():
        colour = _MLP if node.startswith("m") else _COLOURS.get(roles.get(_node(node), ""), _OTHER)
        box = {"boxstyle": "round,pad=0.25", "facecolor": colour, "edgecolor": "#555555", "linewidth": 0.7}
        axes.text(x, y, _short(node), ha="center", va="center", fontsize=size, zorder=3, bbox=box)


def _prepare(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _legend(figure: Figure, roles: Roles) -> None:
    from matplotlib.patches import Patch

    colours = {role: _COLOURS[role] for role in ROLES if role in set(roles.values())}
    colours |= {"other head": _OTHER, "MLP": _MLP}
    handles = [Patch(facecolor=colour, edgecolor="#555555", linewidth=0.7) for colour in colours.values()]
    legend_below(figure, handles, list(colours), columns=5)


def _ends(edge: str) -> Arrow:
    sender, _, port = edge.partition("->")
    return sender, _node(port)


def _node(port: str) -> str:
    return port.partition("<")[0]


def _short(name: str) -> str:
    """a5.h9<q> as 5.9 q, the way the paper writes heads."""
    node, _, kind = name.partition("<")
    text = node[1:].replace("h", "") if node.startswith("a") else node
    return f"{text} {kind[:-1]}" if kind else text
