"""Which gate is asked about: what a user typed, or masks, as edges of one receiver; or one line about what is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.engine.patching.node_patching import LOGITS
from gatewise.errors import GatewiseError

Rest = Literal["corrupted", "clean", "group"]
Groups = Mapping[str, str | Sequence[str]]
REST = "rest"  # its name as a group
MOST_GROUPS = 4


@dataclass(frozen=True, eq=False)
class Candidate:
    """A receiver and the groups whose interaction is asked about, by indices."""

    receiver: str
    node: int  # LOGITS for the logits
    groups: Mapping[str, tuple[str, ...]]
    rest: Rest
    masks: Tensor  # [group and then the rest, port of the node, sender] of bool

    def rows(self, sets: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Clean edges of sets of groups, and whether the rest is among them. [set, port, sender], [set]"""
        chosen = torch.tensor([[bits >> i & 1 for i in range(len(self.masks))] for bits in sets], dtype=torch.bool)
        return (chosen[:, :, None, None] & self.masks).any(dim=1), chosen[:, -1]


def read_gate(graph: Graph, receiver: str, groups: Groups, rest: Rest, circuit: Circuit | None = None) -> Candidate:
    """What the user typed, as indices; or one line about what is wrong with it."""
    if rest not in ("corrupted", "clean", "group"):
        raise GatewiseError(f"rest is 'corrupted', 'clean' or 'group', got {rest!r}.")
    fewest = 1 if rest == "group" else 2
    if not fewest <= len(groups) <= MOST_GROUPS:
        raise GatewiseError(f"a gate has {fewest} to {MOST_GROUPS} groups of edges, got {len(groups)}.")
    if rest == "group" and REST in groups:
        raise GatewiseError(f"{REST!r} is the name of the other edges as a group; name the group otherwise.")
    return replace(read_groups(graph, receiver, groups, circuit), rest=rest)


def read_groups(graph: Graph, receiver: str, groups: Groups, circuit: Circuit | None = None) -> Candidate:
    """Any number of disjoint groups of edges into one node."""
    node = find_node(graph, receiver)
    ports, kept = _into(graph, node, circuit)
    masks = {group: _group_mask(graph, node, ports, kept, group, members) for group, members in groups.items()}
    _check_disjoint(graph, ports, masks)
    return gate_of_masks(graph, node, masks, circuit)


def gate_of_masks(graph: Graph, node: int, groups: Mapping[str, Tensor], circuit: Circuit | None = None) -> Candidate:
    """Groups given as [port of the node, sender] of bool each; what is left of the node's edges is the rest."""
    ports, kept = _into(graph, node, circuit)
    masks = torch.stack(list(groups.values())) if groups else kept.new_zeros(0, *kept.shape)
    spelled = {group: _edges(graph, ports, mask) for group, mask in groups.items()}
    everything = torch.cat([masks, kept[None] & ~masks.any(dim=0)])
    return Candidate(_node_name(graph, node), node, spelled, "corrupted", everything)


def _into(graph: Graph, node: int, circuit: Circuit | None) -> tuple[tuple[int, ...], Tensor]:
    """Ports of a node, and their edges in the circuit. [port of the node, sender] of bool"""
    ports = graph.ports_of(node)
    kept = graph.edge_index >= 0 if circuit is None else graph.matrix(circuit.mask)
    return ports, kept[list(ports)]


def _node_name(graph: Graph, node: int) -> str:
    return "logits" if node == LOGITS else graph.senders[node]


def find_node(graph: Graph, name: str) -> int:
    """Sender index of a node that reads, LOGITS for the logits."""
    if name.strip() == "logits":
        return LOGITS
    node = graph.find_sender(name)
    if node is None or not graph.ports_of_sender[node]:
        raise GatewiseError(
            f"there is no receiver {name!r} in {graph!r}; a receiver is a node that reads, such as "
            f"{graph.senders[-1]!r} or 'logits'."
        )
    return node


def _group_mask(
    graph: Graph, node: int, ports: Sequence[int], kept: Tensor, group: str, members: str | Sequence[str]
) -> Tensor:
    """The edges of a group. [port of the node, sender] of bool"""
    receiver = _node_name(graph, node)
    mask = torch.zeros_like(kept)
    for member in [members] if isinstance(members, str) else members:
        if "->" not in member:
            mask[_port(graph, receiver, ports, member)] = True
            continue
        edge = graph.index(member)
        port, sender = int(graph.edge_port[edge]), int(graph.edge_sender[edge])
        if port not in ports:
            raise GatewiseError(
                f"group {group!r} has {member!r}, which goes into {graph.port_node[port]}, not into {receiver}; all "
                f"edges of a gate have one receiver."
            )
        if not bool(kept[ports.index(port), sender]):
            raise GatewiseError(f"group {group!r} has {member!r}, which is not in the circuit.")
        mask[ports.index(port), sender] = True
    mask &= kept
    if not bool(mask.any()):
        raise GatewiseError(f"group {group!r} of {receiver} has no edges; leave it out, or name some.")
    return mask


def _port(graph: Graph, receiver: str, ports: Sequence[int], name: str) -> int:
    """Place of a port among the receiver's."""
    found = graph.find_port(receiver + name if name.startswith("<") else name)
    if found not in ports:
        known = ", ".join(graph.ports[port] for port in ports)
        raise GatewiseError(f"{name!r} is neither an edge (sender->port) nor a port of {receiver}: {known}.")
    return ports.index(found)


def _check_disjoint(graph: Graph, ports: Sequence[int], masks: Mapping[str, Tensor]) -> None:
    for (one, first), (other, second) in itertools.combinations(masks.items(), 2):
        if bool((first & second).any()):
            edge = _edges(graph, ports, first & second)[0]
            raise GatewiseError(f"groups {one!r} and {other!r} share {edge}; groups are disjoint.")


def _edges(graph: Graph, ports: Sequence[int], mask: Tensor) -> tuple[str, ...]:
    return tuple(f"{graph.senders[sender]}->{graph.ports[ports[place]]}" for place, sender in mask.nonzero().tolist())
