"""Incompleteness: D(C\\K || G\\K) over subsets K of a circuit.

K is what a few nodes of the circuit do in it: all edges of C that touch one of 2 to 5 of its nodes (`logits`, in which
every path ends, is never drawn). Low is good: whatever is taken away, circuit and model break alike. Everything is by
noising with patching, KL over the whole vocabulary at the last position, mean over examples.

*What a deviation is over*: `over_subsets` is the deviation of single values over the drawn K of one circuit, and says
how much one draw tells; `over_draws` that of the mean of n values over repeated draws of n, for the same circuit;
`over_circuits` that of such means over circuits (discovery seeds), each with its own draw. The paper does not say what
its deviations are over; five seeds with one draw each would be the last, which mixes what the first two tell apart.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine.forward.sparse import SparseEngine
from gatewise.engine.setting import Data, Setting
from gatewise.errors import GatewiseError
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import kl_divergence, log_probabilities

SAMPLES = (5, 10, 20, 30)  # numbers of K in the paper
NODES = (2, 5)  # fewest and most nodes of a K
_OUTPUT = "logits"


@dataclass(frozen=True)
class Subset:
    """One K: the nodes, and the edges of the circuit that touch them."""

    nodes: tuple[str, ...]
    edges: Circuit


@dataclass(frozen=True, eq=False)
class Incompleteness:
    """D(C\\K || G\\K) for several K of one circuit."""

    subsets: tuple[Subset, ...]
    values: Tensor  # [subset], mean over examples

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def over_subsets(self) -> float:
        """Standard deviation over the drawn K."""
        return _deviation(self.values)

    def of_first(self, count: int) -> float:
        """The mean over the first K only: what fewer samples would have said."""
        return float(self.values[:count].mean())

    @property
    def worst(self) -> tuple[Subset, float]:
        """The K under which circuit and model differ most."""
        place = int(self.values.argmax())
        return self.subsets[place], float(self.values[place])

    def __repr__(self) -> str:
        worst, value = self.worst
        return (
            f"<Incompleteness {self.mean:.4g} ± {self.over_subsets:.2g} (deviation over {len(self.subsets)} K); "
            f"worst {value:.4g} without {', '.join(worst.nodes)}>"
        )


@dataclass(frozen=True)
class SampledColumn:
    """One column of the paper's table: n sampled K."""

    samples: int
    mean: float  # over circuits, of means over K
    over_subsets: float  # mean over circuits
    over_draws: float  # mean over circuits
    over_circuits: float  # NaN for one circuit


def sample_subset(circuit: Circuit, rng: random.Random, nodes: tuple[int, int] = NODES) -> Subset:
    """A number of nodes, drawn uniformly, of the circuit's, drawn uniformly, with their edges within it."""
    present = [node for node in circuit.nodes if node != _OUTPUT]
    if len(present) < nodes[0]:
        raise GatewiseError(f"a K has at least {nodes[0]} nodes; the circuit has {len(present)} besides {_OUTPUT}.")
    chosen = rng.sample(present, rng.randint(nodes[0], min(nodes[1], len(present))))
    return _subset(circuit, chosen)


def incompleteness(
    model: Model,
    data: Data,
    circuit: Circuit,
    *,
    samples: int = 30,
    nodes: tuple[int, int] = NODES,
    seed: int = 0,
    compute: Compute | None = None,
) -> Incompleteness:
    """D(C\\K || G\\K) over sampled K."""
    if samples < 1 or not 1 <= nodes[0] <= nodes[1]:
        raise GatewiseError(f"expected samples >= 1 and nodes as (fewest, most), got {samples} and {nodes}.")
    rng = random.Random(f"incompleteness/{seed}")
    subsets = tuple(sample_subset(circuit, rng, nodes) for _ in range(samples))
    return Incompleteness(subsets, subset_divergence(model, data, circuit, [k.edges for k in subsets], compute=compute))


def subset_divergence(
    model: Model,
    data: Data,
    circuit: Circuit,
    subsets: Sequence[Circuit],
    *,
    compute: Compute | None = None,
) -> Tensor:
    """D(C\\K || G\\K) for each K, mean over examples. [subset]"""
    setting = Setting.of(model, data, compute=compute)
    model = setting.model
    setting.check_circuits([circuit, *subsets])
    full = model.graph.full()
    total = torch.zeros(len(subsets), dtype=torch.float64)
    batches = setting.batches()
    with progress_bar("incompleteness", len(subsets) * len(batches)) as bar:
        for batch in batches:
            engine = SparseEngine(model, setting.intervention(batch))
            for place, subset in enumerate(subsets):
                p, q = (log_probabilities(engine.logits(c - subset)) for c in (circuit, full))
                total[place] += float(kl_divergence(p, q).sum())
                bar.advance()
    return total / len(setting)


def sampled_columns(found: Tensor, samples: Sequence[int] = SAMPLES) -> list[SampledColumn]:
    """What the first n of all K say, for each n. found: [circuit, draw, K]"""
    columns = []
    for count in samples:
        values = found[:, :, :count]
        means = values.mean(dim=-1)  # [circuit, draw]
        columns.append(
            SampledColumn(
                count,
                float(means.mean()),
                sum(_deviation(one.flatten()) for one in values) / len(values),
                sum(_deviation(one) for one in means) / len(means),
                _deviation(means[:, 0]),
            )
        )
    return columns


def _subset(circuit: Circuit, nodes: Sequence[str]) -> Subset:
    graph, chosen = circuit.graph, set(nodes)
    sends = torch.tensor([sender in chosen for sender in graph.senders])[graph.edge_sender]
    reads = torch.tensor([node in chosen for node in graph.port_node])[graph.edge_port]
    return Subset(tuple(nodes), circuit & Circuit(graph, sends | reads))


def _deviation(values: Tensor) -> float:
    return float(values.std()) if len(values) > 1 else float("nan")
