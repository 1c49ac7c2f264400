"""Incompleteness: D(C\\K || G\\K) over subsets K of a circuit.

K is what a few nodes of the circuit do in it: all edges of C that touch one of 2 to 5 of its nodes (`logits`, in which
every path ends, is never drawn). Low is good: whatever is taken away, circuit and model break alike. Everything is by
noising with patching, KL over the whole vocabulary at the last position, mean over examples.

*What a standard deviation is over*: `over_subsets` is that of single values over the drawn K of one circuit, and says
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
_NODES = (2, 5)  # fewest and most nodes of a K
_OUTPUT = "logits"


@dataclass(frozen=True)
class SampledColumn:
    """One column of the paper's table: n sampled K."""

    samples: int
    mean: float  # over circuits, of means over K
    over_subsets: float  # mean over circuits
    over_draws: float  # mean over circuits
    over_circuits: float  # NaN for one circuit


def sample_subset(circuit: Circuit, rng: random.Random) -> Circuit:
    """A number of nodes, drawn uniformly, of the circuit's, drawn uniformly: their edges within it."""
    graph, (fewest, most) = circuit.graph, _NODES
    present = [node for node in circuit.nodes if node != _OUTPUT]
    if len(present) < fewest:
        raise GatewiseError(f"a K has at least {fewest} nodes; the circuit has {len(present)} besides {_OUTPUT}.")
    chosen = set(rng.sample(present, rng.randint(fewest, min(most, len(present)))))
    sends = torch.tensor([sender in chosen for sender in graph.senders])[graph.edge_sender]
    reads = torch.tensor([node in chosen for node in graph.port_node])[graph.edge_port]
    return circuit & Circuit(graph, sends | reads)


def incompleteness(
    model: Model, data: Data, circuit: Circuit, *, samples: int = 30, seed: int = 0, compute: Compute | None = None
) -> Tensor:
    """Measure D(C\\K || G\\K) over sampled K.

    Args:
        model: The model.
        data: Pairs, a task or a setting to measure on.
        circuit: C.
        samples: How many K.
        seed: Of the draw.
        compute: Where to run.

    Returns:
        A value for each K, a mean over examples. [subset]

    Raises:
        GatewiseError: If there are no samples, or the circuit has too few nodes.
    """
    if samples < 1:
        raise GatewiseError(f"expected samples >= 1, got {samples}.")
    rng = random.Random(f"incompleteness/{seed}")
    subsets = [sample_subset(circuit, rng) for _ in range(samples)]
    return subset_divergence(Setting.of(model, data, compute=compute), circuit, subsets)


def subset_divergence(setting: Setting, circuit: Circuit, subsets: Sequence[Circuit]) -> Tensor:
    """D(C\\K || G\\K) for each K, mean over examples. [subset]"""
    setting.check_circuits([circuit, *subsets])
    full = setting.graph.full()
    total = torch.zeros(len(subsets), dtype=torch.float64)
    batches = setting.batches()
    with progress_bar("incompleteness", len(subsets) * len(batches)) as bar:
        for batch in batches:
            engine = SparseEngine(setting.model, setting.intervention(batch))
            for row, subset in enumerate(subsets):
                p, q = (log_probabilities(engine.logits(c - subset)) for c in (circuit, full))
                total[row] += float(kl_divergence(p, q).sum())
                bar.advance()
    return total / len(setting)


def sampled_columns(values: Tensor, samples: Sequence[int] = SAMPLES) -> list[SampledColumn]:
    """What the first n of all K say, for each n. values: [circuit, draw, K]"""
    columns = []
    for count in samples:
        first = values[:, :, :count]
        means = first.mean(dim=-1)  # [circuit, draw]
        columns.append(
            SampledColumn(
                count,
                float(means.mean()),
                sum(_deviation(drawn.flatten()) for drawn in first) / len(first),
                sum(_deviation(drawn) for drawn in means) / len(means),
                _deviation(means[:, 0]),
            )
        )
    return columns


def _deviation(values: Tensor) -> float:
    return float(values.std()) if len(values) > 1 else float("nan")
