"""How much circuits of one graph overlap: Hamming distance and Jaccard index of every two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError


@dataclass(frozen=True, eq=False)
class Overlap:
    """Overlap of every two of several circuits.

    Attributes:
        circuits: The circuits that were compared.
        hamming: Number of edges that exactly one of the two has. [pair of circuits]
        jaccard: Shared edges as a share of all edges of either; 1 if both are empty. [pair of circuits]
    """

    circuits: tuple[Circuit, ...]
    hamming: Tensor
    jaccard: Tensor

    @property
    def mean_jaccard(self) -> float:
        """Mean over all pairs of circuits."""
        return float(self.jaccard.mean())

    def __repr__(self) -> str:
        return (
            f"<Overlap of {len(self.circuits)} circuits: mean Hamming distance {float(self.hamming.mean()):.1f}, "
            f"mean Jaccard {self.mean_jaccard:.3f}>"
        )


def overlap(circuits: Sequence[Circuit]) -> Overlap:
    """Compare circuits of one graph, every one with every other.

    Args:
        circuits: At least two circuits.

    Returns:
        Their Hamming distances and Jaccard indices, in the order (0, 1), (0, 2), ..., (1, 2), ...

    Raises:
        GatewiseError: If there are fewer than two circuits, or circuits of different graphs.
    """
    if len(circuits) < 2:
        raise GatewiseError(f"overlap compares at least two circuits, got {len(circuits)}.")
    if any(circuit.graph != circuits[0].graph for circuit in circuits):
        raise GatewiseError("overlap compares circuits of one graph; these belong to different graphs.")
    masks = torch.stack([circuit.mask for circuit in circuits]).double()
    firsts, seconds = torch.triu_indices(len(masks), len(masks), 1)
    shared = (masks @ masks.T)[firsts, seconds]
    sizes = masks.sum(dim=1)
    either = sizes[firsts] + sizes[seconds] - shared
    jaccard = torch.where(either > 0, shared / either.clamp(min=1), 1.0)
    return Overlap(tuple(circuits), either - shared, jaccard)
