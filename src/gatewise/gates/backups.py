"""Who stands in for whom: nodes and edges that matter only once another node is switched.

A node is switched by removing all its edges, a gate by removing all edges into a port but one. Scores of all edges
are then the gradient of the logit difference in that run. One that *appears* belongs to a backup: an OR whose members
have different receivers; one that falls only hangs on what was switched (series). Neither noising nor denoising of the
whole model sees a gate behind one of the other type, (A1 and A2) or A3; with A3 switched, noising does. So circuits are
completed by what appears when parts of them go.

Backups are judged by exact removal of both nodes, and again with the scale of the final norm held at that of the full
run: removing anything rescales the rest there, which alone looks like self-repair.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.compute import Compute
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.metrics import residual_values
from gatewise.engine.running import dense_mask
from gatewise.engine.runs.activations import Direction
from gatewise.engine.setting import Data, Setting
from gatewise.errors import GatewiseError
from gatewise.gates.testing.gate_test import setting_of
from gatewise.models.components import Norm
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import Interval, ratio_interval
from gatewise.tasks.pairs import Pairs

_Switch = tuple[int, int]  # a port and the only sender it keeps; or -1 and a node
_DIRECTIONS: tuple[Direction, ...] = ("ns", "dn")
MOST_STAND_INS = 5  # for each node, by how much of their score appears
_STEP = 0.01
_ROUNDS = 3  # of completion: what was added may itself hide something


@dataclass(frozen=True)
class Backup:
    """A node that may stand in for another. Shares of the logit difference; positive interplay: both lose more than the
    sum."""

    node: str
    stand_in: str
    appears: float  # growth of the backup's estimated worth once the node is gone
    alone: float  # exact: what removing the node takes
    other: float  # what removing the backup takes
    both: float
    interplay: Interval  # both - alone - other
    frozen: Interval  # the same with the final norm's scale held

    @property
    def significant(self) -> bool:
        """Whether it is one with and without the final norm's own repair."""
        return self.interplay.low > 0 and self.frozen.low > 0


def find_backups(
    model: Model,
    data: Data,
    nodes: Sequence[str],
    *,
    most: int = MOST_STAND_INS,
    compute: Compute | None = None,
) -> list[Backup]:
    """For each node the nodes whose score appears most when it is removed, judged by removing both."""
    setting = setting_of(model, data, compute=compute)
    chosen = [_sender(setting.graph, name) for name in nodes]
    scores = _node_scores(setting, [None, *chosen])
    total = abs(float(scores[0].abs().sum())) or 1.0
    found = []
    for node, row in zip(chosen, scores[1:], strict=True):
        grown = row.abs() - scores[0].abs()
        grown[node] = -torch.inf
        for stand_in in grown.topk(min(most, len(grown) - 1)).indices.tolist():
            if float(grown[stand_in]) > 1e-9 * total:
                found.append((node, stand_in, float(grown[stand_in])))
    return _judged(setting, found) if found else []


def add_backups(
    model: Model,
    data: Data,
    circuit: Circuit,
    *,
    nodes: Sequence[str] | None = None,
    share: float = 0.01,
    most: int | None = None,
    compute: Compute | None = None,
) -> Circuit:
    """The circuit with the edges whose score appears when nodes and gates of it are switched, in either direction.

    nodes: those that are switched, with the ports they have in the circuit; without them, all of the circuit. share: of
    the logit difference between the runs that a score has to have; most: edges to add at most, the strongest first.
    Costs two gradients of the whole model for each node and each edge that is switched.
    """
    setting = Setting.of(model, data, compute=compute)
    setting.check_circuits([circuit])
    setting.check_direction("dn")
    graph = setting.graph
    if not 0 < share < 1:
        raise GatewiseError(f"share is a normalised effect between 0 and 1, got {share}.")
    chosen = None if nodes is None else {graph.senders[_sender(graph, node)] for node in nodes}
    mask, strength = circuit.mask.clone(), torch.zeros(graph.n_edges, dtype=torch.float64)
    done: set[_Switch] = set()
    for _ in range(_ROUNDS):
        switches = _switches(Circuit(graph, mask), chosen) - done
        if not switches:
            break
        done |= switches
        strength = torch.maximum(strength, _appearing(setting, sorted(switches)))
        appeared = ((strength >= share) & ~circuit.mask).nonzero().flatten()
        added = appeared[strength[appeared].argsort(descending=True, stable=True)[:most]]
        mask = circuit.mask.clone()
        mask[added] = True
    completed = Circuit(graph, mask, circuit.scores, circuit.provenance)
    return completed.with_provenance(completed=len(completed) - len(circuit))


def _switches(circuit: Circuit, nodes: set[str] | None) -> set[_Switch]:
    """Every node of the circuit; and of every port with several edges, all but one."""
    graph, kept = circuit.graph, circuit.graph.matrix(circuit.mask)
    senders = [node for node in range(len(graph.senders)) if bool(kept[:, node].any())]
    found: set[_Switch] = {(-1, node) for node in senders if nodes is None or graph.senders[node] in nodes}
    for port in range(len(graph.ports)):
        if int(kept[port].sum()) > 1 and (nodes is None or graph.port_node[port] in nodes):
            found |= {(port, sender) for sender in kept[port].nonzero().flatten().tolist()}
    return found


def _switched(model: Model, switch: _Switch) -> Tensor:
    """The edges that are left. [port, sender]"""
    port, sender = switch
    if port < 0:
        return _without(model, [sender])
    mask = _without(model, [])
    mask[port] = 0
    mask[port, sender] = 1
    return mask


def _appearing(setting: Setting, switches: Sequence[_Switch]) -> Tensor:
    """The largest |score| of every edge over switches and directions, as a normalised effect. [edge]"""
    model = setting.model
    sums = torch.zeros(len(_DIRECTIONS), len(switches), model.graph.n_edges, dtype=torch.float64)
    total = 0.0
    with progress_bar("switching gates", len(switches) * len(_DIRECTIONS)) as bar:
        for bench in _benches(setting):
            total += float(bench.difference.sum())
            for direction, place in itertools.product(range(len(_DIRECTIONS)), range(len(switches))):
                scores = bench.scores(direction, _switched(model, switches[place]))
                sums[direction, place] += model.graph.vector(scores)
                bar.advance()
    return (sums.abs() / abs(total)).amax(dim=(0, 1))


def _node_scores(setting: Setting, switched: Sequence[int | None]) -> Tensor:
    """What each sender is worth to first order by noising, with each node switched. [switched, sender]"""
    model = setting.model
    found = torch.zeros(len(switched), len(model.graph.senders), dtype=torch.float64)
    total = 0.0
    for bench in _benches(setting):
        total += float(bench.difference.sum())
        for place, node in enumerate(switched):
            found[place] += bench.scores(0, _without(model, [] if node is None else [node])).sum(dim=0)
    return found / total


def _judged(setting: Setting, found: Sequence[tuple[int, int, float]]) -> list[Backup]:
    """Exact logit differences without the node, without its backup, without both."""
    model, graph = setting.model, setting.graph
    sets = sorted({(node,) for one in found for node in one[:2]} | {tuple(sorted(one[:2])) for one in found})
    lost: list[Tensor] = []  # of each batch: [final norm free or frozen, set, example]
    differences = []
    for bench in _benches(setting):
        engine = bench.engines[0]
        whole = engine.residual(_without(model, []))
        gone = torch.stack([engine.residual(_without(model, nodes)) for nodes in sets])
        logit_diffs = (bench.logit_diff, residual_values(_frozen(model, whole), bench.pairs, setting.value))
        lost.append(torch.stack([logit_diff(whole) - logit_diff(gone) for logit_diff in logit_diffs]).cpu())
        differences.append(bench.difference)
    losses, total = torch.cat(lost, dim=-1), torch.cat(differences)
    place = {nodes: i for i, nodes in enumerate(sets)}
    results = []
    for node, stand_in, appears in found:
        alone, other, both = (
            losses[:, place[nodes]] for nodes in ((node,), (stand_in,), tuple(sorted((node, stand_in))))
        )
        free, frozen = (ratio_interval(row.tolist(), total.tolist()) for row in both - alone - other)
        without, without_other, without_both = (float(row[0].sum() / total.sum()) for row in (alone, other, both))
        names = (graph.senders[node], graph.senders[stand_in])
        results.append(Backup(*names, appears, without, without_other, without_both, free, frozen))
    return sorted(results, key=lambda one: -one.frozen.value)


@dataclass(frozen=True, eq=False)
class _Bench:
    """One batch: engines of both directions, its logit difference, and the logit difference's difference between the
    runs."""

    pairs: Pairs
    engines: tuple[DenseEngine, ...]
    logit_diff: Callable[[Tensor], Tensor]
    difference: Tensor  # [example]

    def scores(self, direction: int, mask: Tensor) -> Tensor:
        """What keeping each edge is worth to first order in a run without some of them. [port, sender]

        Slopes are taken a small step on the way to the other run: a gate that another one held is left at its kink.
        """
        gradient = self.engines[direction].mask_gradient((1 - _STEP) * mask, lambda last: self.logit_diff(last).sum())
        return (gradient.cpu() * mask.cpu()).double()


def _benches(setting: Setting) -> Iterator[_Bench]:
    model = setting.model
    for batch in setting.batches(gradient=True):
        runs = setting.runs(batch)
        values = [setting.value.value(run.logits, batch.pairs).double().cpu() for run in (runs.clean, runs.corrupted)]
        engines = tuple(DenseEngine(model, runs.intervention(model, one)) for one in _DIRECTIONS)
        yield _Bench(batch.pairs, engines, residual_values(model, batch.pairs, setting.value), values[0] - values[1])


def _frozen(model: Model, reference: Tensor) -> Model:
    """The model with the final norm's scale held at that of reference residuals [example, d]."""
    norm = model.final_norm
    if not isinstance(norm, Norm):
        return model
    scale = norm.standardise(reference)[1]

    def held(x: Tensor) -> Tensor:
        scaled = norm.share(x, scale)
        return scaled if norm.bias is None else scaled + norm.bias

    return replace(model, final_norm=held)


def _without(model: Model, nodes: Sequence[int]) -> Tensor:
    """All edges but those that these nodes send. [port, sender]"""
    mask = dense_mask(model, model.graph.full())
    mask[:, list(nodes)] = 0
    return mask


def _sender(graph: Graph, name: str) -> int:
    found = graph.find_sender(name)
    if found is None:
        raise GatewiseError(f"there is no node {name!r} that writes in {graph!r}.")
    return found
