"""Parts of several tasks' circuits: edges that all share, edges of one alone; each confirmed by ablation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.statistics import percentile_interval

if TYPE_CHECKING:
    from gatewise.validity.matrix import Share

LEAST_DIFFERENCE = 0.05  # of what the empty circuit destroys


@dataclass(frozen=True, eq=False, repr=False)
class Part:
    """Edges that circuits share, or that a task has alone.

    Attributes:
        name: `shared`, or `own TASK`.
        circuit: The edges.
        destroyed: By column, what their removal destroys on held-out pairs.
        by_chance: The same for other, random edges between the same layers.
        confirmed: Shared: removal destroys every task more than random edges do. Own: it destroys its task more than
            random edges do, and more than every other task. Differences count if their 95 % interval lies above
            5 points: less is too little to matter.
    """

    name: str
    circuit: Circuit
    destroyed: Mapping[str, float]
    by_chance: Mapping[str, float]
    confirmed: bool

    @classmethod
    def of(
        cls,
        name: str,
        circuit: Circuit,
        cells: Mapping[str, Mapping[str, Share]],
        tasks: Sequence[str],
        columns: Sequence[str],
    ) -> Part:
        """Judge a part by what its removal did.

        Args:
            name: `shared`, or `own TASK`.
            circuit: The edges.
            cells: Of the part and of `layers NAME`, random edges between the same layers, by column.
            tasks: Names of the tasks.
            columns: All columns.

        Returns:
            The part.
        """
        part, random = cells[name], cells[f"layers {name}"]
        ours = tasks if name == "shared" else [name.removeprefix("own ")]
        confirmed = all(clearly_above(part[task].draws, random[task].draws) for task in ours)
        if name != "shared":
            others = [task for task in tasks if task not in ours]
            confirmed = confirmed and all(clearly_above(part[ours[0]].draws, part[other].draws) for other in others)
        destroyed, by_chance = ({c: cell[c].destroyed.value for c in columns} for cell in (part, random))
        return cls(name, circuit, destroyed, by_chance, confirmed)

    @property
    def sentence(self) -> str:
        """One line with the numbers."""
        listed = ", ".join(f"{value:.0%} of {column}" for column, value in self.destroyed.items())
        verdict = "confirmed" if self.confirmed else "not confirmed"
        return f"{self.name}: {len(self.circuit):,} edges, {verdict} by ablation; without them {listed} is destroyed"

    def to_json(self) -> dict[str, Any]:
        """Make plain data of it.

        Returns:
            The edges by name, and the numbers.
        """
        return {
            "name": self.name,
            "edges": self.circuit.edges,
            "destroyed": dict(self.destroyed),
            "by_chance": dict(self.by_chance),
            "confirmed": self.confirmed,
        }


def clearly_above(draws: Tensor, others: Tensor) -> bool:
    """Tell whether a share is larger than another by more than is too little to matter.

    Args:
        draws: Of the share, over resamples. [resample]
        others: Of the other. [resample]

    Returns:
        True if the 95 % interval of the difference lies above 5 points.
    """
    low, _ = percentile_interval(draws - others)
    return bool(low > LEAST_DIFFERENCE)


def shared_part(circuits: Sequence[Circuit]) -> Circuit:
    """Return the edges that are in all circuits.

    Args:
        circuits: Of one graph.

    Returns:
        Their intersection.
    """
    common = circuits[0]
    for circuit in circuits[1:]:
        common = common & circuit
    return common


def own_part(task: str, circuits: Mapping[str, Circuit]) -> Circuit:
    """Return the edges of one task's circuit that are in no other.

    Args:
        task: Its name.
        circuits: Of all tasks.

    Returns:
        What is left of it.
    """
    own = circuits[task]
    for name, circuit in circuits.items():
        own = own if name == task else own - circuit
    return own


def matched_circuit(circuit: Circuit, seed: int = 0, *, others: bool = False) -> Circuit:
    """Draw a random circuit with as many edges between every two layers as another one has.

    Args:
        circuit: The other one.
        seed: The same seed draws the same edges.
        others: Whether to draw from edges that are not in it; where two layers have too few of these, all of them.

    Returns:
        A circuit of the same size, or smaller if there were too few others.
    """
    graph = circuit.graph
    group = _layers_of_edges(graph)
    order = torch.randperm(graph.n_edges, generator=torch.Generator().manual_seed(seed))
    if others:
        order = order[~circuit.mask[order]]
    order = order[torch.argsort(group[order], stable=True)]  # random within each group
    count = int(group.max()) + 1
    wanted = torch.bincount(group[circuit.mask], minlength=count)
    sizes = torch.bincount(group[order], minlength=count)
    rank = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[group[order]]
    return Circuit.from_indices(graph, order[rank < wanted[group[order]]].tolist())


def _layers_of_edges(graph: Graph) -> Tensor:
    """A number for the pair of layers, or sublayers, that each edge joins. [edge]"""
    sender, port = torch.zeros(len(graph.senders), dtype=torch.long), torch.zeros(len(graph.ports), dtype=torch.long)
    for number, rows in enumerate(graph.sender_slices):
        sender[rows] = number
    for number, rows in enumerate(graph.port_slices):
        port[rows] = number
    return sender[graph.edge_sender] * (len(graph.port_slices) + 1) + port[graph.edge_port]
