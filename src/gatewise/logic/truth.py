"""Gates by test: for two edges i, j into one port, what keeping none, either or both of them does.

effect(S) = m(S kept) - m(none kept), for S in {i, j, both}, with m measured at the receiver (its output projected on
clean - corrupted: 1 is the clean output, 0 the corrupted one), on the margin, and as KL. Two contexts: the receiver's
other circuit edges all kept, and all removed, since an OR of three or more shows only in the second and an AND of three
or more only in the first. The label comes from the *interplay* of the two edges,

    t = (effect(both) - effect(i) - effect(j)) / max(|effect(i)|, |effect(j)|, |effect(both)|)

which is 1 for an AND, 0 for an ADDER and -1 for an OR. KL never decides: it is quadratic near the reference, so a
perfect adder keeps 75 % of its KL effect with one edge and would look like an OR.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gatewise.circuit import Circuit
from gatewise.engine.batches import batches
from gatewise.engine.circuits import check_circuits
from gatewise.engine.divergence import Divergence
from gatewise.engine.incremental import DEAD, Plan, State, all_liveness
from gatewise.engine.margins import margin_of
from gatewise.engine.runs import both_runs, check_pairs
from gatewise.graph import Graph
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.tasks.pairs import Pairs

Context = Literal["kept", "removed"]
TestedLabel = Literal["AND", "OR", "ADDER", "XOR-like", "inhibiting", "none"]
MEASURES = ("receiver", "margin", "kl")
_ROW_BYTES = 1 << 28
_RESAMPLES = 200
_CONFIDENCE = 0.95
_KL_ERROR = 1e-3  # nats that KL, which never decides, may be too small by


@dataclass(frozen=True, eq=False)
class TruthTable:
    """Effects of two edges into one port in one context, and what they look like."""

    receiver: str
    edges: tuple[str, str]
    context: Context
    effects: Tensor  # [measure, which (i, j, both), example]
    interplay: float  # t at the receiver
    interval: tuple[float, float]  # of t, over examples
    label: TestedLabel  # at the receiver
    margin_label: TestedLabel  # on the margin

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
    model: Model,
    pairs: Pairs,
    circuit: Circuit,
    *,
    of: Circuit | None = None,
    smallest: float = 0.01,
    memory: int | str | None = None,
) -> list[TruthTable]:
    """Test all pairs of edges of `of` (default: of the circuit) that go into one port, within the circuit.

    smallest: effects at the receiver below this share of its clean - corrupted difference count as none.
    """
    check_circuits(model, [circuit, *([] if of is None else [of])])
    check_pairs(model, pairs)
    graph = model.graph
    ports = _ports(graph, circuit, circuit if of is None else circuit & of)
    kept = graph.matrix(circuit.mask)
    live = all_liveness(graph, kept)
    parts = list(batches(model, pairs, memory))
    found: dict[int, list[Tensor]] = defaultdict(list)  # port -> [measure, row, example] of each batch
    with progress_bar("truth tables", len(ports) * len(parts)) as bar:
        for _, part in parts:
            runs = both_runs(model, part)
            state = State(model, runs.intervention(model, "ns"), runs.clean.outputs.clone(), kept)
            target = runs.clean.outputs - runs.corrupted.outputs
            distance = Divergence(model, runs.clean.logits)
            for port, senders in ports.items():
                node = graph.port_sender[port]
                if node < 0 or live[node] != DEAD:
                    plan = None if node < 0 else state.plan(node, live)
                    found[port].append(_measure(state, part, distance, target, plan, port, senders))
                bar.advance()
    tables: list[TruthTable] = []
    for port, measured in found.items():
        tables += _tables(graph, port, ports[port], torch.cat(measured, dim=-1), smallest)
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


def _pair_rows(tested: int, pair: int, i: int, j: int, context: Context) -> tuple[int, int, int, int]:
    """Rows that keep none, i, j and both of a pair."""
    block = 1 + tested + tested * (tested - 1) // 2
    if context == "kept":
        return 1 + tested + pair, 1 + j, 1 + i, 0
    return block, block + 1 + i, block + 1 + j, block + 1 + tested + pair


def _measure(
    state: State,
    pairs: Pairs,
    distance: Divergence,
    target: Tensor,
    plan: Plan | None,
    port: int,
    senders: tuple[list[int], list[int]],
) -> Tensor:
    """All measures of all rows on one batch. [measure, row, example]"""
    model, order = state.model, [*senders[0], *senders[1]]
    keep = _keep_rows(len(senders[0]), len(senders[1])).to(state.outputs)
    carried = state.carried(order, state.positions_read(plan, port))
    columns = 4 if plan is None else 4 * (len(plan.changed) + (len(plan.wide_changed) + 2) * state.on.layout.window)
    size = max(1, _ROW_BYTES // (columns * len(pairs) * model.d_model * state.outputs.element_size()))
    margins = margin_of(model, pairs)
    found = []
    for rows in keep.split(size):
        change = -torch.tensordot(1 - rows, carried, dims=1)
        proposal = state.propose(plan, port, change)
        margin = margins(proposal.residual)
        at_receiver = margin if plan is None else _projection(state, plan, proposal.last, proposal.wide, target)
        kl, _ = distance.estimate(proposal.residual, _KL_ERROR)
        found.append(torch.stack([at_receiver, margin, kl]).cpu())
    return torch.cat(found, dim=1)


def _projection(state: State, plan: Plan, last: Tensor, wide: Tensor, target: Tensor) -> Tensor:
    """The receiver's output along clean - corrupted: 0 is corrupted, 1 is clean. [row, example]"""
    positions = state.on.layout.window if plan.wide else 1
    change = wide[0] if plan.wide else last[0]
    direction = target[plan.node][:, -positions:].double()
    now = state.carried([plan.node], positions)[0].double() + change.double()
    length = direction.square().sum(dim=(-1, -2)).clamp(min=1e-300)
    return (now * direction).sum(dim=(-1, -2)) / length


def _tables(
    graph: Graph, port: int, senders: tuple[list[int], list[int]], measured: Tensor, smallest: float
) -> list[TruthTable]:
    tested, receiver = senders[0], graph.ports[port]
    firsts, seconds = torch.triu_indices(len(tested), len(tested), 1).tolist()
    contexts: tuple[Context, ...] = ("kept", "removed")
    whole = float(measured[1].mean(dim=-1).abs().max()) if port == len(graph.ports) - 1 else 1.0
    tables = []
    for pair, (i, j) in enumerate(zip(firsts, seconds, strict=True)):
        edges = tuple(f"{graph.senders[tested[k]]}->{receiver}" for k in (i, j))
        for context in contexts:
            none, *kept = _pair_rows(len(tested), pair, i, j, context)
            effects = measured[:, kept] - measured[:, none : none + 1]
            effects[2] *= -1  # KL falls where an edge helps; an effect is what keeping it gains
            largest = float(measured[1].mean(dim=-1).abs().max())
            tables.append(
                TruthTable(
                    receiver,
                    edges,  # type: ignore[arg-type]
                    context,
                    effects,
                    _interplay(effects[0].mean(dim=-1)),
                    _interval(effects[0]),
                    _label(effects[0].mean(dim=-1), smallest * whole),
                    _label(effects[1].mean(dim=-1), smallest * largest),
                )
            )
    return tables


def _interplay(effects: Tensor) -> float:
    i, j, both = effects.tolist()
    largest = max(abs(i), abs(j), abs(both))
    return (both - i - j) / largest if largest > 0 else 0.0


def _interval(effects: Tensor) -> tuple[float, float]:
    """Bootstrap interval of t over examples. effects: [which, example]"""
    count = effects.shape[1]
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, count, (_RESAMPLES, count), generator=generator)
    means = effects[:, drawn].mean(dim=-1)  # [which, resample]
    largest = means.abs().amax(dim=0).clamp(min=1e-300)
    values = ((means[2] - means[0] - means[1]) / largest).sort().values
    cut = int(_RESAMPLES * (1 - _CONFIDENCE) / 2)
    return float(values[cut]), float(values[-1 - cut])


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
