"""Candidates: the groups of edges that a gate is tested with, read from text or masks, checked against the graph."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.engine.patching.node_patching import LOGITS
from gatewise.errors import GatewiseError
from gatewise.gates.testing.harsanyi import bits_of

Rest = Literal["corrupted", "clean", "group"]  # what the receiver's other edges carry; or they are one more operand
Groups = Mapping[str, str | Sequence[str]]  # name -> an edge, a port, or several of them
REST = "rest"  # its name as an operand
MOST_GROUPS = 4


@dataclass(frozen=True, eq=False)
class Candidate:
    """A gate that may be there: a receiver, and disjoint groups of edges into it."""

    receiver: str
    node: int  # sender index; LOGITS for the logits
    groups: Mapping[str, tuple[str, ...]]  # name -> edges
    masks: Tensor  # [group and then the rest, port of the node, sender] of bool
    rest: Rest = "corrupted"

    def clean_edges(self, sets: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Edges that are clean in each set of groups and rest, and whether the rest is in it.

        Args:
            sets: As bits, the rest as the last of them; without them, all sets.

        Returns:
            [set, port of the node, sender] of bool, and [set] of bool.
        """
        members = bits_of(range(1 << len(self.masks)) if sets is None else sets, len(self.masks))
        return (members[:, :, None, None] & self.masks).any(dim=1), members[:, -1]


def read_candidate(
    graph: Graph, receiver: str, groups: Groups, rest: Rest, circuit: Circuit | None = None
) -> Candidate:
    """Read what the user typed, or say in one line what is wrong with it."""
    if rest not in get_args(Rest):
        raise GatewiseError(f"rest is 'corrupted', 'clean' or 'group', got {rest!r}.")
    fewest = 1 if rest == "group" else 2
    if not fewest <= len(groups) <= MOST_GROUPS:
        raise GatewiseError(f"a gate has {fewest} to {MOST_GROUPS} groups of edges, got {len(groups)}.")
    if rest == "group" and REST in groups:
        raise GatewiseError(f"{REST!r} is the name of the other edges as a group; name the group otherwise.")
    return replace(read_groups(graph, receiver, groups, circuit), rest=rest)


def read_groups(graph: Graph, receiver: str, groups: Groups, circuit: Circuit | None = None) -> Candidate:
    """Read any number of disjoint groups of edges into one node."""
    node = find_node(graph, receiver)
    ports, edges = graph.ports_of(node), edges_into(graph, node, circuit)
    masks = {name: _group_mask(graph, ports, edges, name, members) for name, members in groups.items()}
    for (name, mask), (other_name, other) in itertools.combinations(masks.items(), 2):
        if bool((mask & other).any()):
            shared = _edge_names(graph, ports, mask & other)[0]
            raise GatewiseError(f"groups {name!r} and {other_name!r} share {shared}; groups are disjoint.")
    return candidate_of_masks(graph, node, masks, circuit)


def candidate_of_masks(
    graph: Graph, node: int, groups: Mapping[str, Tensor], circuit: Circuit | None = None
) -> Candidate:
    """Make a candidate of groups given as [port of the node, sender] of bool; the node's other edges are the rest."""
    edges = edges_into(graph, node, circuit)
    masks = torch.stack([*groups.values(), edges])
    masks[-1] &= ~masks[:-1].any(dim=0)
    names = {group: _edge_names(graph, graph.ports_of(node), mask) for group, mask in groups.items()}
    return Candidate("logits" if node == LOGITS else graph.senders[node], node, names, masks)


def edges_into(graph: Graph, node: int, circuit: Circuit | None = None) -> Tensor:
    """Edges into a node, of the circuit or all of them. [port of the node, sender] of bool"""
    edges = graph.edge_index >= 0 if circuit is None else graph.matrix(circuit.mask)
    return edges[list(graph.ports_of(node))]


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


def _group_mask(graph: Graph, ports: Sequence[int], edges: Tensor, group: str, members: str | Sequence[str]) -> Tensor:
    """The edges of a group. [port of the node, sender] of bool"""
    receiver = graph.port_node[ports[0]]
    mask = torch.zeros_like(edges)
    for member in [members] if isinstance(members, str) else members:
        if "->" not in member:
            mask[_port(graph, receiver, ports, member)] = True
            continue
        for edge in graph.indices(member):
            port, sender = int(graph.edge_port[edge]), int(graph.edge_sender[edge])
            if port not in ports:
                raise GatewiseError(
                    f"group {group!r} has {member!r}, which goes into {graph.port_node[port]}, not into {receiver}; "
                    f"all edges of a gate have one receiver."
                )
            if not bool(edges[ports.index(port), sender]):
                raise GatewiseError(f"group {group!r} has {member!r}, which is not in the circuit.")
            mask[ports.index(port), sender] = True
    mask &= edges
    if not bool(mask.any()):
        raise GatewiseError(f"group {group!r} of {receiver} has no edges; leave it out, or name some.")
    return mask


def _port(graph: Graph, receiver: str, ports: Sequence[int], name: str) -> int:
    """Index of a port among the receiver's."""
    port = graph.find_port(receiver + name if name.startswith("<") else name)
    if port not in ports:
        known = ", ".join(graph.ports[port] for port in ports)
        raise GatewiseError(f"{name!r} is neither an edge (sender->port) nor a port of {receiver}: {known}.")
    return ports.index(port)


def _edge_names(graph: Graph, ports: Sequence[int], mask: Tensor) -> tuple[str, ...]:
    return tuple(f"{graph.senders[sender]}->{graph.ports[ports[port]]}" for port, sender in mask.nonzero().tolist())
