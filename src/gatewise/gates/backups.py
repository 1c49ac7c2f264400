"""Backups (self-repair): nodes and edges that matter only once another node is removed.

A node is removed by ablating all edges that it sends. A gate into a port is disabled by ablating all of its edges but
one. The scores of all edges are then the gradient of the logit difference in that run, as EAP's are in the whole model.
A score that *grows* belongs to a backup: an OR whose members have different receivers. One that falls only depends on
what was removed (series). Neither noising nor denoising of the whole model sees a gate behind one of the other type,
(A1 and A2) or A3; with A3 removed, noising does. So `add_backups` adds to a circuit what appears when parts of it go.

`find_backups` judges candidates by exact removal of both nodes, and again with the scale of the final norm held at that
of the full run: removing anything rescales the rest there, which alone looks like self-repair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

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
from gatewise.gates.testing.measurement import gate_setting
from gatewise.models.components import Norm
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import Interval, ratio_interval
from gatewise.tasks.pairs import Pairs

DIRECTIONS: tuple[Direction, ...] = ("ns", "dn")
MOST_BACKUPS = 5  # for each node, by how much their scores grow
_STEP = 0.01  # on the way to the other run at which slopes are taken
_ROUNDS = 3  # of adding backups: what was added may itself hide something
_ROUNDING = 1e-9  # of all scores: growth that is none


@dataclass(frozen=True, repr=False)
class Backup:
    """A node that may back up another one, in normalised effects."""

    node: str
    backup: str
    score_growth: float  # of the backup's |score| once the node is removed
    loss: float  # exact: lost if the node is removed
    backup_loss: float  # if the backup is
    joint_loss: float  # if both are
    self_repair: Interval  # joint_loss - loss - backup_loss: positive if either makes up for the other
    frozen_self_repair: Interval  # the same with the final norm's scale held

    @property
    def significant(self) -> bool:
        """Whether there is self-repair with and without what the final norm does."""
        return self.self_repair.low > 0 and self.frozen_self_repair.low > 0

    @property
    def verdict(self) -> str:
        """What it means, in a few words."""
        if self.significant:
            return "backs it up"
        if self.self_repair.low > 0:
            return "backs it up only through the final norm"
        return "no sign of self-repair" if self.self_repair.high > 0 else "both are needed, or share a way"

    def __repr__(self) -> str:
        repair = self.frozen_self_repair
        return (
            f"<{self.backup} for {self.node}: {self.verdict}; lost without {self.node} {self.loss:.3f}, without "
            f"{self.backup} {self.backup_loss:.3f}, without both {self.joint_loss:.3f}, {repair.value:+.3f} "
            f"({repair.low:+.3f} to {repair.high:+.3f}) beyond the sum with the final norm held>"
        )


def find_backups(
    model: Model,
    data: Data,
    nodes: str | Sequence[str],
    backups: str | Sequence[str] | None = None,
    *,
    most: int = MOST_BACKUPS,
    compute: Compute | None = None,
) -> list[Backup]:
    """Find for each node the nodes whose scores grow most when it is removed, and judge them by removing both.

    Args:
        model: The model.
        data: Pairs, at least 8 of them, or a task, of which the held-out pairs are used.
        nodes: Names of nodes that write, such as "a9.h6".
        backups: Nodes to judge as their backups, whether their scores grow or not; by default those that grow most.
        most: Number of backups that are judged for each node, if none are named.
        compute: Where to run.

    Returns:
        Pairs of nodes, the strongest self-repair first.

    Raises:
        GatewiseError: No such node, or too few pairs.
    """
    setting = gate_setting(model, data, compute=compute)
    senders = [_sender_index(setting.graph, name) for name in _listed(nodes)]
    named = None if backups is None else [_sender_index(setting.graph, name) for name in _listed(backups)]
    removed = [None, *(_Disabled(-1, sender) for sender in senders)]
    scores = setting.graph.matrix(_edge_scores(setting, removed, ["ns"])[0]).sum(dim=1)  # [removed, sender]
    whole = scores[0].abs()
    candidates = []
    for node, row in zip(senders, scores[1:], strict=True):
        growth = row.abs() - whole
        growth[node] = -torch.inf
        if named is not None:
            candidates += [(node, backup, float(growth[backup])) for backup in named if backup != node]
            continue
        for backup in growth.topk(min(most, len(growth) - 1)).indices.tolist():
            if float(growth[backup]) > _ROUNDING * (float(whole.sum()) or 1.0):
                candidates.append((node, backup, float(growth[backup])))
    return _judge(setting, candidates) if candidates else []


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


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
    """Add to a circuit the edges whose scores appear when its nodes and gates are disabled, in either direction.

    Costs two gradients of the whole model for each node, and for each edge into a port with several.

    Args:
        model: The model.
        data: Pairs, or a task, of which the train pairs are used.
        circuit: The circuit.
        nodes: Those to disable, with the ports they have in the circuit. By default all of the circuit.
        share: Normalised effect that a score has to have.
        most: Number of edges to add at most, the strongest first.
        compute: Where to run.

    Returns:
        The larger circuit; its provenance says how many edges were added (`completed`).

    Raises:
        GatewiseError: No such node, a circuit of another model, or a share that is none.
    """
    setting = Setting.of(model, data, "train", compute=compute)
    setting.check_circuits([circuit])
    setting.check_direction("dn")
    graph = setting.graph
    if not 0 < share < 1:
        raise GatewiseError(f"share is a normalised effect between 0 and 1, got {share}.")
    chosen = None if nodes is None else {_sender_index(graph, node) for node in nodes}
    mask, strength = circuit.mask.clone(), torch.zeros(graph.n_edges, dtype=torch.float64)
    done: set[_Disabled] = set()
    for _ in range(_ROUNDS):
        disabled = _parts_of(Circuit(graph, mask), chosen) - done
        if not disabled:
            break
        done |= disabled
        strength = torch.maximum(strength, _edge_scores(setting, sorted(disabled)).abs().amax(dim=(0, 1)))
        appeared = ((strength >= share) & ~circuit.mask).nonzero().flatten()
        added = appeared[strength[appeared].argsort(descending=True, stable=True)[:most]]
        mask = circuit.mask.clone()
        mask[added] = True
    completed = Circuit(graph, mask, circuit.scores, circuit.provenance)
    return completed.with_provenance(completed=len(completed) - len(circuit))


class _Disabled(NamedTuple):
    """A node that is removed; or a port that keeps the edge of one sender only, so that its gate is disabled."""

    port: int  # -1 for a node
    sender: int

    def remaining(self, model: Model) -> Tensor:
        """The edges that are left of the whole model. [port, sender]"""
        if self.port < 0:
            return _without(model, [self.sender])
        mask = _without(model, [])
        mask[self.port] = 0
        mask[self.port, self.sender] = 1
        return mask


def _parts_of(circuit: Circuit, nodes: set[int] | None) -> set[_Disabled]:
    """What can be disabled in a circuit: its nodes, and each of several edges into a port as the only one left."""
    graph, edges = circuit.graph, circuit.graph.matrix(circuit.mask)
    senders = edges.any(dim=0).nonzero().flatten().tolist()
    parts = {_Disabled(-1, sender) for sender in senders if nodes is None or sender in nodes}
    for port, node in enumerate(graph.port_sender):
        if int(edges[port].sum()) > 1 and (nodes is None or node in nodes):
            parts |= {_Disabled(port, sender) for sender in edges[port].nonzero().flatten().tolist()}
    return parts


def _edge_scores(
    setting: Setting, disabled: Sequence[_Disabled | None], directions: Sequence[Direction] = DIRECTIONS
) -> Tensor:
    """Normalised effect of every edge to first order, with each of these disabled. [direction, disabled, edge]"""
    graph, total = setting.graph, 0.0
    scores = torch.zeros(len(directions), len(disabled), graph.n_edges, dtype=torch.float64)
    with progress_bar("disabling gates", len(disabled) * len(directions)) as bar:
        for batch in _batches(setting):
            total += float(batch.total_effect.sum())
            for row, direction in enumerate(directions):
                for column, part in enumerate(disabled):
                    mask = _without(setting.model, []) if part is None else part.remaining(setting.model)
                    scores[row, column] += graph.vector(batch.scores(direction, mask))
                    bar.advance()
    return scores / total


def _judge(setting: Setting, candidates: Sequence[tuple[int, int, float]]) -> list[Backup]:
    """Measure what is lost without the node, without its backup and without both. Candidates: both, and the growth."""
    model, names = setting.model, setting.graph.senders
    removed: dict[frozenset[int], int] = {}  # nodes that are removed together -> row of the losses
    for node, backup, _ in candidates:
        for nodes in ({node}, {backup}, {node, backup}):
            removed.setdefault(frozenset(nodes), len(removed))
    parts, totals = [], []
    for batch in _batches(setting):
        engine = batch.engines["ns"]
        whole = engine.residual(_without(model, []))
        ablated = torch.stack([engine.residual(_without(model, sorted(nodes))) for nodes in removed])
        frozen = residual_values(_with_frozen_norm(model, whole), batch.pairs, setting.value)
        parts.append(torch.stack([metric(whole) - metric(ablated) for metric in (batch.metric, frozen)]).cpu())
        totals.append(batch.total_effect)
    losses, total = torch.cat(parts, dim=-1), torch.cat(totals)  # [final norm free or frozen, removed, example]
    backups = []
    for node, backup, growth in candidates:
        rows = [removed[frozenset(nodes)] for nodes in ({node}, {backup}, {node, backup})]
        alone, other, both = losses[:, rows].unbind(1)
        repair, frozen_repair = (ratio_interval(row.tolist(), total.tolist()) for row in both - alone - other)
        loss, backup_loss, joint_loss = (float(row[0].sum() / total.sum()) for row in (alone, other, both))
        scores = (growth, loss, backup_loss, joint_loss)
        backups.append(Backup(names[node], names[backup], *scores, repair, frozen_repair))
    return sorted(backups, key=lambda entry: -entry.frozen_self_repair.value)


@dataclass(frozen=True, eq=False)
class _Batch:
    """Pairs with engines of both directions."""

    pairs: Pairs
    engines: Mapping[Direction, DenseEngine]
    metric: Callable[[Tensor], Tensor]  # the logit difference of residuals
    total_effect: Tensor  # [example], clean minus corrupted logit difference

    def scores(self, direction: Direction, mask: Tensor) -> Tensor:
        """What keeping each edge does to first order in a run without some of them. [port, sender]"""
        # Slopes are taken a small step on the way to the other run: a gate that another one held is left at its kink,
        # where a ReLU has no slope of its own.
        gradient = self.engines[direction].mask_gradient((1 - _STEP) * mask, lambda last: self.metric(last).sum())
        return (gradient.cpu() * mask.cpu()).double()


def _batches(setting: Setting) -> Iterator[_Batch]:
    model = setting.model
    for batch in setting.batches(gradient=True):
        runs = setting.runs(batch)
        clean, corrupted = (
            setting.value.value(run.logits, batch.pairs).cpu().double() for run in (runs.clean, runs.corrupted)
        )
        engines = {direction: DenseEngine(model, runs.intervention(model, direction)) for direction in DIRECTIONS}
        yield _Batch(batch.pairs, engines, residual_values(model, batch.pairs, setting.value), clean - corrupted)


def _with_frozen_norm(model: Model, reference: Tensor) -> Model:
    """The model with the final norm's scale held at that of reference residuals [example, d]."""
    norm = model.final_norm
    if not isinstance(norm, Norm):
        return model
    scale = norm.standardise(reference)[1]

    def frozen(x: Tensor) -> Tensor:
        scaled = norm.share(x, scale)
        return scaled if norm.bias is None else scaled + norm.bias

    return replace(model, final_norm=frozen)


def _without(model: Model, nodes: Sequence[int]) -> Tensor:
    """All edges but those that these nodes send. [port, sender]"""
    mask = dense_mask(model, model.graph.full())
    mask[:, list(nodes)] = 0
    return mask


def _sender_index(graph: Graph, name: str) -> int:
    sender = graph.find_sender(name)
    if sender is None:
        raise GatewiseError(f"there is no node {name!r} that writes in {graph!r}.")
    return sender
