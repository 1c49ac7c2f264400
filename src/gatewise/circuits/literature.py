"""Circuits of GPT-2 small that the literature describes, and how many of their nodes another circuit has.

They are known by their nodes only, so that a circuit is compared with them by which of those nodes it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError

Roles = Mapping[str, str]  # node -> role, for nodes that have one

GPT2_SMALL = (12, 12)  # layers, heads
# Wang et al. 2022, figure 2: layer.head
_IOI_CLASSES = {
    "previous token": "2.2 4.11",
    "duplicate token": "0.1 0.10 3.0",
    "induction": "5.5 5.8 5.9 6.9",
    "S-inhibition": "7.3 7.9 8.6 8.10",
    "name mover": "9.6 9.9 10.0",
    "backup name mover": "9.0 9.7 10.1 10.2 10.6 10.10 11.2 11.9",
    "negative name mover": "10.7 11.10",
}
PUBLISHED_IOI: Roles = {
    "a{}.h{}".format(*head.split(".")): role for role, heads in _IOI_CLASSES.items() for head in heads.split()
}
# Hanna et al. 2023 ("How does GPT-2 compute greater-than?"): the heads that carry the year YY to the last position, and
# the MLPs that raise the larger years. Later encodings of this circuit (ACDC's) leave out a5.h1 and a8.h8 and add the
# early part, a0.h1, a0.h3, a0.h5 and m0 to m3.
_GT_NODES = ("a5.h1", "a5.h5", "a6.h1", "a6.h9", "a7.h10", "a8.h8", "a8.h11", "a9.h1", "m8", "m9", "m10", "m11")
PUBLISHED_GT: Roles = dict.fromkeys(_GT_NODES, "greater-than")
PUBLISHED: Mapping[str, Roles] = {"ioi-published": PUBLISHED_IOI, "gt-published": PUBLISHED_GT}


@dataclass(frozen=True)
class Recall:
    """Which nodes of a published circuit a circuit has."""

    present: Mapping[str, tuple[str, ...]]  # role -> nodes that the circuit has
    missing: Mapping[str, tuple[str, ...]]
    recall: float  # share of the published nodes that the circuit has
    precision: float | None  # share of the circuit's nodes of the same kinds that are published; None if it has none
    chance: float  # recall of as many nodes drawn at random

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return asdict(self)

    def __repr__(self) -> str:
        count = sum(map(len, self.present.values()))
        of = count + sum(map(len, self.missing.values()))
        return f"<Recall: {count} of {of} published nodes ({self.recall:.0%}; by chance {self.chance:.0%})>"


def compare_with_published(circuit: Circuit, name: str = "ioi-published") -> Recall:
    """Measure how many nodes of a published circuit of GPT-2 small a circuit has.

    Args:
        circuit: A circuit of GPT-2 small.
        name: `ioi-published` (Wang et al. 2022) or `gt-published` (Hanna et al. 2023).

    Returns:
        Which of the published nodes it has, recall, precision, and the recall of as many random nodes.

    Raises:
        GatewiseError: If there is no such circuit, or the circuit is of another model.
    """
    if name not in PUBLISHED:
        raise GatewiseError(f"there is no published circuit {name!r}; there are {', '.join(PUBLISHED)}.")
    roles, graph = PUBLISHED[name], circuit.graph
    if (graph.n_layers, graph.n_heads) != GPT2_SMALL or "input" not in graph.senders:
        raise GatewiseError(
            f"the published circuit {name} is of GPT-2 small, 12 layers x 12 heads; the circuit given is of {graph!r}."
        )
    nodes = set(circuit.nodes)
    with_mlps = any(node.startswith("m") for node in roles)
    alike = [node for node in graph.senders if node.startswith("a") or (with_mlps and node.startswith("m"))]
    compared = nodes & set(alike)
    present: dict[str, tuple[str, ...]] = dict.fromkeys(roles.values(), ())
    missing = dict(present)
    for node, role in roles.items():
        side = present if node in nodes else missing
        side[role] = (*side[role], node)
    hits = len(compared & roles.keys())
    precision = hits / len(compared) if compared else None
    return Recall(present, missing, hits / len(roles), precision, len(compared) / len(alike))
