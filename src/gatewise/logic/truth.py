"""Gates by test: for two edges i, j into one port, what keeping none, either or both of them does.

effect(S) = m(S kept) - m(none kept), for S in {i, j, both}, with m measured at the receiver (its output projected on
clean - corrupted: 1 is the clean output, 0 the corrupted one), on the margin, and as KL. Two contexts: the receiver's
other circuit edges all kept, and all removed, since an OR of three or more shows only in the second and an AND of three
or more only in the first. The label comes from the *interplay* of the two edges,

    t = (effect(both) - effect(i) - effect(j)) / max(|effect(i)|, |effect(j)|, |effect(both)|)

which is 1 for an AND, 0 for an ADDER and -1 for an OR. KL never decides: it is quadratic near the reference, so a
perfect adder keeps 75 % of its KL effect with one edge and would look like an OR.

What it costs: pairs of a port share the rows that keep none or one of its edges, so n edges take 2 (1 + n + n (n-1)/2)
rows. At the receiver only its own node is computed; margin and KL need everything that follows, some 20 times as much
in SmolLM2-135M. Labels need the receiver only.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.engine.removals import Bench, benches
from gatewise.engine.runs import Ablation
from gatewise.engine.setting import AnyMetric, Memory, Setting
from gatewise.errors import GatewiseError
from gatewise.gate_types import TestedLabel
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import middle_part, resampling_weights
from gatewise.tasks.pairs import Pairs

TableContext = Literal["kept", "removed"]
TableMeasure = Literal["receiver", "margin", "kl"]
MEASURES: tuple[TableMeasure, ...] = ("receiver", "margin", "kl")
_RESAMPLES = 200
_CONFIDENCE = 0.95
_KL_ERROR = 1e-3  # nats that KL, which never decides, may be too small by


@dataclass(frozen=True, eq=False)
class TruthTable:
    """Effects of two edges into one port in one context, and what they look like."""

    receiver: str
    edges: tuple[str, str]
    context: TableContext
    effects: Tensor  # [measure, which (i, j, both), example], of the measures that were asked for
    interplay: float  # t at the receiver
    interval: tuple[float, float]  # of t, over examples
    label: TestedLabel  # at the receiver
    margin_label: TestedLabel | None  # on the margin, if that was measured

    @property
    def size(self) -> float:
        """The largest of the three mean effects at the receiver."""
        return float(self.effects[0].mean(dim=-1).abs().max())

    @property
    def confident(self) -> bool:
        """Whether the whole interval means the same label."""
        return _region(self.interval[0]) == _region(self.interval[1])

    def __repr__(self) -> str:
        i, j, both = self.effects[0].mean(dim=-1).tolist()
        pair = " , ".join(edge.partition("->")[0] for edge in self.edges)
        return (
            f"<{self.receiver} <- {pair}, others {self.context}: {i:.2f} {j:.2f} -> {both:.2f} {self.label} "
            f"(t {self.interplay:+.2f}, {self.interval[0]:+.2f} to {self.interval[1]:+.2f})>"
        )


def truth_tables(
    model: Model | Setting,
    pairs: Pairs | None,
    circuit: Circuit,
    *,
    of: Circuit | None = None,
    measures: Sequence[TableMeasure] = MEASURES,
    smallest: float = 0.01,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    memory: Memory = None,
) -> list[TruthTable]:
    """Test all pairs of edges of `of` (default: of the circuit) that go into one port, within the circuit.

    measures: `receiver` alone is enough for labels, and far cheaper; `receiver` and `margin`; or all three.
    smallest: effects at the receiver below this share of its clean - corrupted difference count as none.
    ablation: what removed edges carry, as for `discover`. metric: what stands in the place of the margin.
    """
    wanted = tuple(measures)
    if not wanted or wanted != MEASURES[: len(wanted)]:
        raise GatewiseError(f"measures are the first one, two or all of {', '.join(MEASURES)}; got {measures!r}.")
    setting = Setting.of(model, pairs, ablation=ablation, metric=metric, memory=memory)
    setting.check_circuits([circuit, *([] if of is None else [of])])
    graph = setting.graph
    ports = _ports(graph, circuit, circuit if of is None else circuit & of)
    found: dict[int, list[Tensor]] = defaultdict(list)  # port -> [measure, row, example] of each batch
    with progress_bar("truth tables", len(ports) * len(setting)) as bar:
        for examples, bench in benches(setting, circuit):
            for port, senders in ports.items():
                if bench.matters(port):
                    found[port].append(_measure(bench, port, senders, wanted))
                bar.advance(examples.stop - examples.start)
    tables: list[TruthTable] = []
    for port, measured in found.items():
        tables += _tables(graph, port, ports[port][0], torch.cat(measured, dim=-1), smallest)
    return tables


def labels_by_test(tables: Sequence[TruthTable]) -> dict[str, TestedLabel]:
    """One label per edge: each pair votes with what it shows about *both* its edges.

    That is |effect(both) - effect(i) - effect(j)| for an interaction, and the smaller of the two effects for an ADDER.
    A strong edge beside a stray one always looks like an ADDER; such pairs hardly count.
    """
    votes: dict[str, dict[TestedLabel, float]] = defaultdict(lambda: defaultdict(float))
    for table in tables:
        i, j, both = table.effects[0].mean(dim=-1).tolist()
        weight = min(abs(i), abs(j)) if table.label == "ADDER" else abs(both - i - j)
        for edge in table.edges:
            votes[edge][table.label] += 0.0 if table.label == "none" else weight
    return {edge: max(sorted(found), key=found.__getitem__) for edge, found in votes.items()}


def _ports(graph: Graph, circuit: Circuit, chosen: Circuit) -> dict[int, tuple[list[int], list[int]]]:
    """port -> (senders to test, the circuit's other senders), for ports with at least two to test."""
    to_test, everything = (graph.matrix(c.mask) for c in (chosen, circuit))
    found = {}
    for port in range(len(graph.ports)):
        senders = to_test[port].nonzero().flatten().tolist()
        if len(senders) >= 2:
            found[port] = (senders, (everything[port] & ~to_test[port]).nonzero().flatten().tolist())
    return found


def _keep_rows(tested: int, others: int) -> Tensor:
    """Which of a port's edges each row keeps: [row, tested + others] of 0 and 1.

    All; all but one; all but two; then none; only one; only two. `_pair_rows` knows the order.
    """
    count = tested + others
    firsts, seconds = torch.triu_indices(tested, tested, 1)
    one, two = torch.eye(tested), torch.zeros(len(firsts), tested)
    two[torch.arange(len(firsts)), firsts] = 1
    two[torch.arange(len(firsts)), seconds] = 1
    chosen = torch.nn.functional.pad(torch.cat([torch.zeros(1, tested), one, two]), (0, others))
    rest = torch.ones(1, count)
    return torch.cat([rest - chosen, chosen])


def _pair_rows(tested: int, pair: int, i: int, j: int, context: TableContext) -> tuple[int, int, int, int]:
    """Rows that keep none, i, j and both of a pair."""
    block = 1 + tested + tested * (tested - 1) // 2
    if context == "kept":
        return 1 + tested + pair, 1 + j, 1 + i, 0
    return block, block + 1 + i, block + 1 + j, block + 1 + tested + pair


def _measure(bench: Bench, port: int, senders: tuple[list[int], list[int]], measures: Sequence[TableMeasure]) -> Tensor:
    """The measures of all rows on one batch. [measure, row, example]"""
    edges = bench.graph.edge_index[port][[*senders[0], *senders[1]]]
    keep = _keep_rows(len(senders[0]), len(senders[1]))
    removals = [frozenset(edges[row == 0].tolist()) for row in keep]
    found = []
    for _, proposal in bench.proposals((port,), removals, alone=tuple(measures) == ("receiver",)):
        values = [bench.margin(proposal.residual)] if proposal.route is None or "margin" in measures else []
        if proposal.route is not None:
            values.insert(0, _projection(bench, proposal.route.node, proposal.output))
        elif "margin" in measures:
            values *= 2  # what the logits put out is the margin
        if "kl" in measures:
            values.append(bench.distance.estimate(proposal.residual, _KL_ERROR)[0])
        found.append(torch.stack(values).cpu())
    return torch.cat(found, dim=1)


def _projection(bench: Bench, node: int, change: Tensor) -> Tensor:
    """A node's output along reference - other: 0 is the other run's, 1 the reference's. [row, example]"""
    positions = change.shape[-2]
    now = bench.state.carried([node], positions)[0]
    real = bench.state.on.layout.real()[:, -positions:, None]  # at padding too, constants differ from the reference
    direction = (bench.reference.outputs[node] - bench.state.on.other[node])[:, -positions:] * real
    along = [(x * direction).sum(dim=(-1, -2), dtype=torch.float64) for x in (now, change, direction)]
    return (along[0] + along[1]) / along[2].clamp(min=1e-300)


def _tables(graph: Graph, port: int, tested: list[int], measured: Tensor, smallest: float) -> list[TruthTable]:
    """The tables of one port, in both contexts. measured: [measure, row, example]"""
    receiver, count = graph.ports[port], len(tested)
    pairs = list(itertools.combinations(range(count), 2))
    contexts: tuple[TableContext, ...] = ("kept", "removed")
    which = [(pair, i, j, context) for pair, (i, j) in enumerate(pairs) for context in contexts]
    rows = torch.tensor([_pair_rows(count, *one) for one in which])  # [table, (none, i, j, both)]
    values = measured[:, rows]
    effects = values[:, :, 1:] - values[:, :, :1]  # [measure, table, which, example]
    effects[2:] *= -1  # KL falls where an edge helps; an effect is what keeping it gains
    means = effects.mean(dim=-1)
    intervals = _intervals(effects[0])
    wholes = measured.mean(dim=-1).abs().amax(dim=-1).tolist()
    whole = wholes[0] if port == len(graph.ports) - 1 else 1.0  # a projection is a share already
    tables = []
    for row, (_, i, j, context) in enumerate(which):
        tables.append(
            TruthTable(
                receiver,
                (f"{graph.senders[tested[i]]}->{receiver}", f"{graph.senders[tested[j]]}->{receiver}"),
                context,
                effects[:, row],
                _interplay(means[0, row]),
                intervals[row],
                _label(means[0, row], smallest * whole),
                _label(means[1, row], smallest * wholes[1]) if len(means) > 1 else None,
            )
        )
    return tables


def _interplay(effects: Tensor) -> float:
    i, j, both = effects.tolist()
    largest = max(abs(i), abs(j), abs(both))
    return (both - i - j) / largest if largest > 0 else 0.0


def _intervals(effects: Tensor) -> list[tuple[float, float]]:
    """Bootstrap intervals of t over examples. effects: [table, which, example]"""
    means = effects @ resampling_weights(effects.shape[-1], _RESAMPLES).to(effects)  # [table, which, resample]
    largest = means.abs().amax(dim=1).clamp(min=1e-300)
    low, high = middle_part((means[:, 2] - means[:, 0] - means[:, 1]) / largest, _CONFIDENCE)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _region(t: float) -> TestedLabel:
    return "AND" if t > 0.5 else "OR" if t < -0.5 else "ADDER"


def _label(effects: Tensor, smallest: float) -> TestedLabel:
    """What three mean effects look like."""
    i, j, both = effects.tolist()
    largest = max(abs(i), abs(j), abs(both))
    if largest <= smallest:
        return "none"
    if min(abs(i), abs(j)) > 0.5 * largest and i * j > 0 and abs(both) < 0.5 * min(abs(i), abs(j)):
        return "XOR-like"
    if min(i, j) < -0.25 * largest and max(i, j) > 0.25 * largest:
        return "inhibiting"
    return _region((both - i - j) / largest * (1 if both >= 0 else -1))
