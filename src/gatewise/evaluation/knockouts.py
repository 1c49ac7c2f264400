"""What is left without some nodes or edges, and the older measures: incompleteness and minimality.

*Incompleteness* is D(C\\K || G\\K) over subsets K of the circuit, *minimality* what every single edge is worth in it.

K is what a few nodes of the circuit do in it: all edges of C that touch one of 2 to 5 of its nodes (`logits`, in which
every path ends, is never drawn). Low is good: whatever is taken away, circuit and model break alike. Everything is by
noising with interchange, KL over the whole vocabulary at the last position, mean over examples.

*What a deviation is over*: `over_subsets` is the deviation of single values over the drawn K of one circuit, and says
how much one draw tells; `over_draws` that of the mean of n values over repeated draws of n, for the same circuit;
`over_circuits` that of such means over circuits (discovery seeds), each with its own draw. The paper does not say what
its deviations are over; five seeds with one draw each would be the last, which mixes what the first two tell apart.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.engine.effects import Effects, edge_effects
from gatewise.engine.runs import Ablation
from gatewise.engine.setting import Memory, Setting
from gatewise.engine.sparse import SparseEngine
from gatewise.errors import GatewiseError
from gatewise.evaluation.evaluations import Behaviour, evaluate, share_between
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import kl_divergence, log_probabilities
from gatewise.tasks.catalogue import Task
from gatewise.tasks.pairs import Pairs

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


@dataclass(frozen=True, repr=False)
class KnockOut:
    """What is left of a model without some of its edges, beside the whole model and the empty circuit."""

    names: tuple[str, ...]  # nodes and edges as they were given
    edges: Circuit  # what was removed
    left: Behaviour
    full: Behaviour
    empty: Behaviour

    @property
    def margin_left(self) -> float:
        """Share of the way from the empty circuit (0) to the whole model (1), by margin."""
        return share_between(self.empty.margin, self.left.margin, self.full.margin)

    def __repr__(self) -> str:
        without = ", ".join(self.names[:4]) + (f" and {len(self.names) - 4} more" if len(self.names) > 4 else "")
        return (
            f"<Without {without} ({len(self.edges):,} edges): margin {self.left.margin.mean:.2f} of "
            f"{self.full.margin.mean:.2f} (empty circuit {self.empty.margin.mean:.2f}), right over wrong "
            f"{self.left.accuracy.mean:.0%} of {self.full.accuracy.mean:.0%}, KL to the model {self.left.kl_from_full}>"
        )


def knock_out(
    model: Model | Setting,
    pairs: Pairs | Task | None = None,
    what: Circuit | str | Iterable[str] = (),
    *,
    ablation: Ablation | None = None,
    memory: Memory = None,
) -> KnockOut:
    """Remove nodes ("a5.h9", "m3") or edges ("a5.h9->m8"), or a circuit, and say what the model still does.

    A node is removed with all edges that it sends. Of a task, the held-out pairs are taken. `ablation` is what removed
    edges carry, as for `discover`.
    """
    setting = Setting.of(model, pairs, "test", ablation=ablation, memory=memory)
    names: tuple[str, ...] = ("a circuit",)
    if isinstance(what, Circuit):
        removed = what
    else:
        names = (what,) if isinstance(what, str) else tuple(what)
        removed = setting.graph.circuit([edge for name in names for edge in _sent(setting.graph, name)])
    found = evaluate(setting, circuits=removed, random_circuits=0)
    return KnockOut(names, removed, found.complement, found.full, found.empty)


def _sent(graph: Graph, name: str) -> list[int]:
    """The edges that a name means: itself, or all that a node sends."""
    if "->" in name:
        return [graph.index(name)]
    sender = graph.find_sender(name)
    if sender is None:
        raise GatewiseError(
            f"there is no node {name!r} that sends anything in {graph!r}; write nodes as {graph.senders[1]!r} and "
            f"edges as {graph.edges[0]!r}."
        )
    return (graph.edge_sender == sender).nonzero().flatten().tolist()


def sample_subset(circuit: Circuit, rng: random.Random, nodes: tuple[int, int] = NODES) -> Subset:
    """A number of nodes, drawn uniformly, of the circuit's, drawn uniformly, with their edges within it."""
    present = [node for node in circuit.nodes if node != _OUTPUT]
    if len(present) < nodes[0]:
        raise GatewiseError(f"a K has at least {nodes[0]} nodes; the circuit has {len(present)} besides {_OUTPUT}.")
    chosen = rng.sample(present, rng.randint(nodes[0], min(nodes[1], len(present))))
    return _subset(circuit, chosen)


def incompleteness(
    model: Model | Setting,
    pairs: Pairs | None,
    circuit: Circuit,
    *,
    samples: int = 30,
    nodes: tuple[int, int] = NODES,
    seed: int = 0,
    memory: Memory = None,
) -> Incompleteness:
    """D(C\\K || G\\K) over sampled K."""
    if samples < 1 or not 1 <= nodes[0] <= nodes[1]:
        raise GatewiseError(f"expected samples >= 1 and nodes as (fewest, most), got {samples} and {nodes}.")
    rng = random.Random(f"incompleteness/{seed}")
    subsets = tuple(sample_subset(circuit, rng, nodes) for _ in range(samples))
    return Incompleteness(subsets, subset_divergence(model, pairs, circuit, [k.edges for k in subsets], memory=memory))


def adversarial_subset(
    model: Model | Setting,
    pairs: Pairs | None,
    circuit: Circuit,
    *,
    nodes: int = NODES[1],
    candidates: int | None = None,
    seed: int = 0,
    memory: Memory = None,
) -> Incompleteness:
    """The K that a greedy search finds: node by node the one that raises D(C\\K || G\\K) most, up to `nodes`.

    `candidates`: try only this many nodes per step, drawn by the seed. The subsets are the steps; take `worst` of them,
    since a further node may also lower the divergence.
    """
    rng = random.Random(f"adversarial/{seed}")
    setting = Setting.of(model, pairs, memory=memory)
    chosen: list[str] = []
    subsets, values = [], []
    for _ in range(nodes):
        open_nodes = [node for node in circuit.nodes if node != _OUTPUT and node not in chosen]
        if not open_nodes:
            break
        tried = open_nodes if candidates is None else rng.sample(open_nodes, min(candidates, len(open_nodes)))
        options = [_subset(circuit, [*chosen, node]) for node in tried]
        found = subset_divergence(setting, None, circuit, [option.edges for option in options])
        best = int(found.argmax())
        chosen.append(tried[best])
        subsets.append(options[best])
        values.append(float(found[best]))
    if not subsets:
        raise GatewiseError("the circuit has no node to remove; it is empty, or nodes is less than 1.")
    return Incompleteness(tuple(subsets), torch.tensor(values, dtype=torch.float64))


def subset_divergence(
    model: Model | Setting,
    pairs: Pairs | None,
    circuit: Circuit,
    subsets: Sequence[Circuit],
    *,
    memory: Memory = None,
) -> Tensor:
    """D(C\\K || G\\K) for each K, mean over examples. [subset]"""
    setting = Setting.of(model, pairs, memory=memory)
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


def incompleteness_table(
    model: Model | Setting,
    pairs: Pairs | None,
    circuits: Sequence[Circuit],
    *,
    samples: Sequence[int] = SAMPLES,
    draws: int = 5,
    seed: int = 0,
    memory: Memory = None,
) -> list[SampledColumn]:
    """The paper's comparison for circuits of several discovery seeds: n sampled K each, drawn `draws` times."""
    if not circuits or draws < 1 or not samples or min(samples) < 1:
        raise GatewiseError("the table needs circuits, draws >= 1 and samples such as (5, 10, 20, 30).")
    setting, most = Setting.of(model, pairs, memory=memory), max(samples)
    values_of = [
        incompleteness(setting, None, circuit, samples=most * draws, seed=seed * 1_000 + i).values
        for i, circuit in enumerate(circuits)
    ]
    return sampled_columns(torch.stack([values.reshape(draws, most) for values in values_of]), samples)


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


def minimality(model: Model, pairs: Pairs, circuit: Circuit, *, memory: int | str | None = None) -> Effects:
    """For every edge of the circuit, D(G || C without it) - D(G || C): an edge near 0 is one the circuit does not need.

    One at a time: each edge of an OR gate is unneeded while the others are there.
    """
    return edge_effects(model, pairs, circuit=circuit, memory=memory)


def unneeded(effects: Effects, tolerance: float = 0.0) -> Circuit:
    """Edges whose removal raises the KL by no more than this."""
    places = (effects.kl <= tolerance).nonzero().flatten().tolist()
    return effects.graph.circuit([effects.edges[place] for place in places])


def _subset(circuit: Circuit, nodes: Sequence[str]) -> Subset:
    graph, chosen = circuit.graph, set(nodes)
    sends = torch.tensor([sender in chosen for sender in graph.senders])[graph.edge_sender]
    reads = torch.tensor([node in chosen for node in graph.port_node])[graph.edge_port]
    return Subset(tuple(nodes), circuit & Circuit(graph, sends | reads))


def _deviation(values: Tensor) -> float:
    return float(values.std()) if len(values) > 1 else float("nan")
