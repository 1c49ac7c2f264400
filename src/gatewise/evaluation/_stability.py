"""How much circuits change with the seed: Hamming distance, Jaccard, how often each edge is found, a consensus.

A seed redraws the pairs and the method's own randomness; `stability` varies each alone and both together, so that the
two causes are told apart. The Hamming distance of two circuits is the number of edges that exactly one of them has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError

Find = Callable[[int, int], Circuit]  # (seed of the data, seed of the method) -> circuit


@dataclass(frozen=True, eq=False)
class Overlap:
    """How circuits of one graph overlap. Means and deviations are over pairs of circuits."""

    circuits: tuple[Circuit, ...]
    hamming: Tensor  # [pair of circuits], edges in which they differ
    jaccard: Tensor  # [pair of circuits], shared edges as a share of all edges of either; 1 if both are empty
    frequency: Tensor  # [edge], share of the circuits that have it

    @property
    def mean_hamming(self) -> float:
        return float(self.hamming.mean())

    @property
    def mean_jaccard(self) -> float:
        return float(self.jaccard.mean())

    @property
    def hamming_deviation(self) -> float:
        """Over pairs of circuits, which are not independent: k circuits make k (k - 1) / 2 pairs."""
        return float(self.hamming.std()) if len(self.hamming) > 1 else 0.0

    def consensus(self, share: float = 0.5) -> Circuit:
        """Edges that at least this share of the circuits have."""
        if not 0 < share <= 1:
            raise GatewiseError(f"a consensus needs a share above 0 and up to 1, got {share}.")
        needed = share * len(self.circuits) - 1e-9
        graph = self.circuits[0].graph
        return Circuit(graph, self.frequency * len(self.circuits) >= needed, self.frequency)

    def __repr__(self) -> str:
        everywhere, anywhere = len(self.consensus(1.0)), int((self.frequency > 0).sum())
        return (
            f"<Overlap of {len(self.circuits)} circuits: Hamming {self.mean_hamming:.1f} ± "
            f"{self.hamming_deviation:.1f}, Jaccard {self.mean_jaccard:.3f}; {everywhere:,} edges in all, "
            f"{anywhere:,} in any>"
        )


@dataclass(frozen=True, eq=False)
class Stability:
    """Overlap when only the data, only the method's randomness, or both are redrawn."""

    data: Overlap
    method: Overlap
    both: Overlap

    def __repr__(self) -> str:
        parts = {"data": self.data, "method": self.method, "both": self.both}
        shown = ", ".join(f"{name} {one.mean_hamming:.1f}" for name, one in parts.items())
        return f"<Stability over {len(self.both.circuits)} seeds, mean Hamming distance by redrawing {shown}>"


def overlap(circuits: Sequence[Circuit]) -> Overlap:
    """Compare circuits, every one with every other."""
    if len(circuits) < 2:
        raise GatewiseError(f"stability compares at least two circuits, got {len(circuits)}.")
    if any(circuit.graph != circuits[0].graph for circuit in circuits):
        raise GatewiseError("stability compares circuits of one graph; these belong to different graphs.")
    masks = torch.stack([circuit.mask for circuit in circuits]).double()
    firsts, seconds = torch.triu_indices(len(masks), len(masks), 1)
    shared = (masks @ masks.T)[firsts, seconds]
    sizes = masks.sum(dim=1)
    either = sizes[firsts] + sizes[seconds] - shared
    jaccard = torch.where(either > 0, shared / either.clamp(min=1), 1.0)
    return Overlap(tuple(circuits), either - shared, jaccard, masks.mean(dim=0))


def stability(find: Find, seeds: Sequence[int] = range(5)) -> Stability:
    """Search with redrawn data, with a redrawn method, and with both; the first seed is the one that stays fixed.

    `find(data_seed, method_seed)` makes the pairs and searches. The circuit of the first seed is found once.
    """
    if len(set(seeds)) < 2:
        raise GatewiseError(f"stability needs at least two different seeds, got {list(seeds)}.")
    first, others = seeds[0], list(seeds[1:])
    start = find(first, first)
    return Stability(
        data=overlap([start, *(find(seed, first) for seed in others)]),
        method=overlap([start, *(find(first, seed) for seed in others)]),
        both=overlap([start, *(find(seed, seed) for seed in others)]),
    )
