"""Drawings of gates as small graphs, nodes coloured by function: single cases, and the whole circuit of each type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gatewise.circuits.literature import Roles
from gatewise.gate_types import GATE_COLOURS, GATE_TYPES, GateType
from gatewise.gates.labels import Gate, Gates
from gatewise_paper.figures import Axes, Figure, panels
from gatewise_paper.head_roles import ROLES

ROLE_COLOURS = {
    "previous token": "#56B4E9",
    "duplicate token": "#E69F00",
    "induction": "#F0E442",
    "S-inhibition": "#F08A4B",
    "name mover": "#35B88F",
    "backup name mover": "#B7E3CF",
    "negative name mover": "#DFA3C4",
}
_NO_ROLE, _MLP = "#FFFFFF", "#D9D9D9"
_SENDERS, _EDGES = 5, 40  # drawn at most: of one gate, of one type

Place = Mapping[str, tuple[float, float]]
Arrow = tuple[str, str]  # sender, receiver


def cases_figure(gates: Gates, roles: Roles) -> Callable[[], Figure]:
    """For each type one gate, and one of its senders' own gates below it."""

    def draw() -> Figure:
        figure, axes = panels(1, 3, width=3.6, height=3.0)
        for at, kind in zip(axes[0], GATE_TYPES, strict=True):
            _prepare(at, f"{kind} gate")
            case = _case(gates, kind, roles)
            if case is None:
                at.text(0.5, 0.5, "no gate of two edges", ha="center", va="center", transform=at.transAxes)
                continue
            _draw_case(at, *case, kind, roles)
        _legend(figure, roles)
        return figure

    return draw


def circuit_figure(gates: Gates, roles: Roles) -> Callable[[], Figure]:
    """Layers from left to right; for each type its strongest edges."""

    def draw() -> Figure:
        layers = gates.graph.n_layers
        figure, axes = panels(3, 1, width=max(8.0, 0.42 * (layers + 2)), height=2.9)
        for (at,), kind in zip(axes, GATE_TYPES, strict=True):
            arrows = _strongest(gates, kind, [edge for g in _wide(gates, kind) for edge in g.edges])[:_EDGES]
            count = len(gates.by_type[kind])
            _prepare(at, f"{kind}: {len(arrows)} of {count} edges")
            pairs = [_ends(edge) for edge in arrows]
            place = _by_layer(gates, pairs)
            _draw_arrows(at, pairs, place, kind)
            _draw_nodes(at, place, roles, size=6.5)
            at.set_xlim(-1.5, layers + 0.8)
            at.set_xticks([*range(layers), layers + 0.2], [*map(str, range(layers)), "logits"])
            at.tick_params(length=0)
            heights = [y for _, y in place.values()] or [0.0]
            at.set_ylim(min(heights) - 1, max(heights) + 1)
        axes[-1][0].set_xlabel("layer")
        _legend(figure, roles)
        return figure

    return draw


def _wide(gates: Gates, kind: GateType) -> list[Gate]:
    return [gate for gate in gates if gate.type == kind and len(gate.edges) > 1]


def _strongest(gates: Gates, kind: GateType, edges: Sequence[str]) -> list[str]:
    """Edges by the score of the direction that found them; by name where there are no scores."""
    circuit = gates.dn if kind == "OR" else gates.ns
    if circuit.scores is None:
        return sorted(edges)
    strength = circuit.scores.abs()
    return sorted(edges, key=lambda edge: (-float(strength[gates.graph.index(edge)]), edge))


def _case(gates: Gates, kind: GateType, roles: Roles) -> tuple[str, list[str], str | None, list[str]] | None:
    """A receiver, its senders, and one of these with senders of its own. Gates of known functions come first."""
    wide = _wide(gates, kind)
    if not wide:
        return None
    by_node: dict[str, list[Gate]] = {}
    for gate in wide:
        by_node.setdefault(_node(gate.receiver), []).append(gate)

    def senders(gate: Gate) -> list[str]:
        ordered = [_ends(edge)[0] for edge in _strongest(gates, kind, gate.edges)]
        return sorted(ordered, key=lambda node: node not in roles)[:_SENDERS]

    def worth(gate: Gate) -> tuple[int, int, int, int]:
        known = sum(node in roles for node in senders(gate))
        deeper = any(node in by_node for node in senders(gate))
        return int(_node(gate.receiver) in roles) + known, int(deeper), -len(gate.edges), -wide.index(gate)

    best = max(wide, key=worth)
    upper = senders(best)
    below = next((node for node in upper if node in by_node), None)
    lower = senders(max(by_node[below], key=worth)) if below is not None else []
    return best.receiver, upper, below, lower


def _draw_case(
    at: Axes, receiver: str, upper: list[str], below: str | None, lower: list[str], kind: GateType, roles: Roles
) -> None:
    top, middle, bottom = 2.0, 1.0, 0.0
    lower = [node for node in lower if node not in upper]
    place: dict[str, tuple[float, float]] = {receiver: (0.0, top)}
    for nodes, height in ((upper, middle), (lower, bottom)):
        for i, node in enumerate(nodes):
            place[node] = (i - (len(nodes) - 1) / 2, height)
    arrows = [(node, receiver) for node in upper] + [(node, below) for node in lower if below is not None]
    _draw_arrows(at, arrows, place, kind, width=1.2, alpha=0.9, bend=0.0)
    _draw_nodes(at, place, roles, size=9)
    at.set_xlim(-2.7, 2.7)
    at.set_ylim(-0.4, 2.4)


def _by_layer(gates: Gates, arrows: Sequence[Arrow]) -> dict[str, tuple[float, float]]:
    """x by layer; the nodes of a layer one above the other, heads and then the MLP."""
    graph = gates.graph
    layer = dict(zip(graph.senders, graph.sender_layer, strict=True)) | {"logits": graph.n_layers}
    present = {node for arrow in arrows for node in arrow}
    place = {}
    for column in sorted({layer[node] for node in present}):
        nodes = [node for node in graph.nodes if node in present and layer[node] == column]
        for i, node in enumerate(nodes):
            shift = {"m": 0.45, "l": 0.2}.get(node[0], 0.0)
            place[node] = (column + shift, (i - (len(nodes) - 1) / 2) + 0.3 * (column % 2))
    return place


def _draw_arrows(
    at: Axes,
    arrows: Sequence[Arrow],
    place: Place,
    kind: GateType,
    width: float = 0.8,
    alpha: float = 0.55,
    bend: float = 0.08,
) -> None:
    for sender, receiver in dict.fromkeys(arrows):
        at.annotate(
            "",
            xy=place[receiver],
            xytext=place[sender],
            zorder=1,
            arrowprops={
                "arrowstyle": "-|>",
                "color": GATE_COLOURS[kind],
                "linewidth": width,
                "alpha": alpha,
                "shrinkA": 6,
                "shrinkB": 9,
                "mutation_scale": 8,
                "connectionstyle": f"arc3,rad={bend}",
            },
        )


def _draw_nodes(at: Axes, place: Place, roles: Roles, size: float) -> None:
    for node, (x, y) in place.items():
        colour = _MLP if node.startswith("m") else ROLE_COLOURS.get(roles.get(_node(node), ""), _NO_ROLE)
        box = {"boxstyle": "round,pad=0.25", "facecolor": colour, "edgecolor": "#555555", "linewidth": 0.7}
        at.text(x, y, _short(node), ha="center", va="center", fontsize=size, zorder=3, bbox=box)


def _prepare(at: Axes, title: str) -> None:
    at.set_title(title)
    at.grid(visible=False)
    at.set_xticks([])
    at.set_yticks([])
    for side in ("left", "bottom"):
        at.spines[side].set_visible(False)


def _legend(figure: Figure, roles: Roles) -> None:
    from matplotlib.patches import Patch

    shown = [role for role in ROLES if role in set(roles.values())]
    entries = [(role, ROLE_COLOURS[role]) for role in shown] + [("other head", _NO_ROLE), ("MLP", _MLP)]
    handles = [Patch(facecolor=colour, edgecolor="#555555", linewidth=0.7, label=name) for name, colour in entries]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)))


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
