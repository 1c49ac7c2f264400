"""How often methods find the right edges and rules give them the right labels, on models whose gates are known.

Every method searches every random synthetic model under Ns, Dn and Ns+Dn. *Found* are the edges of ns | dn. Rules label
them: by set difference, plain and repaired; `steady`, for learned rankings, plain where two seeds agree; `tested`,
truth tables within the found circuit; `tested in G`, tables in the full graph. An edge that a rule leaves without a
label counts as wrong. Beside the methods stand two alternatives that the paper rejects for their cost, the union over
search orders (ACDC under several seeds) and trying all combinations of every receiver's senders; and what EAP found,
completed by what appears when parts of it are switched.

Thresholds are one share of the total effect for all: an edge counts if it moves the logit difference by at least
`share` of the way between the two runs. KL is quadratic near its reference, so tau and the sparsity penalty are share^2
of the KL between the two runs, and a learned ranking is cut where its KL is as much. Intervals are bootstrap intervals
over models.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.engine.patching.edge_ablation import measure_removals
from gatewise.engine.running import last_logits
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_TYPES, GateType
from gatewise.gates.backups import add_backups
from gatewise.gates.labels import label_gates
from gatewise.gates.testing.pair_tables import labels_by_test, test_edge_pairs
from gatewise.methods.base import Method, SearchDirection
from gatewise.methods.discovery import discover
from gatewise.methods.ranking.method import Ranking
from gatewise.methods.registry import find_method
from gatewise.models.synthetic.random_circuits import SyntheticModel, random_logic_model
from gatewise.progress import progress_bar
from gatewise.statistics import Interval, ratio_interval
from gatewise_paper.truth.ranking_cut import smallest_within

METHODS = ("eap", "acdc", "edge-pruning", "ranking")
BASELINES = ("orders", "exhaustive", "completed")
DIRECTIONS: tuple[SearchDirection, ...] = ("ns", "dn", "ns+dn")
UNION = "found"  # ns | dn: what is labelled
ORDERS = 8  # search orders whose union is taken
_MOST_SENDERS = 16  # of which all combinations are tried
PRUNING_STEPS = 1_000  # of Edge Pruning: at so low a sparsity penalty, its default leaves two edges for one
Labels = Mapping[str, str | None]  # by edge


@dataclass(frozen=True)
class Study:
    """Which models, and what counts as an edge."""

    models: int = 100
    nested: bool = False
    noise: float = 0.0
    fan_in: tuple[int, int] = (2, 5)
    share: float = 0.01  # of the total effect that an edge has to carry
    seed: int = 0  # of the first model
    sources: int = 8
    layers: int = 2
    types: tuple[GateType, ...] = GATE_TYPES  # of the gates that are drawn

    def __post_init__(self) -> None:
        if self.models < 1 or not 0 < self.share < 1:
            raise GatewiseError(f"expected models >= 1 and 0 < share < 1, got {self.models} and {self.share}.")

    def synthetic(self) -> Iterable[SyntheticModel]:
        names = ("nested", "noise", "fan_in", "sources", "layers", "types")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        for seed in range(self.seed, self.seed + self.models):
            yield random_logic_model(seed, dtype=torch.float64, **options)  # share^2 is near the rounding of float32


@dataclass(frozen=True, eq=False)
class Trial:
    """What one method found in one model."""

    synthetic: SyntheticModel
    circuits: Mapping[str, Circuit]  # by direction; UNION is what was labelled
    labels: Mapping[str, Labels]  # by rule
    seconds: float


@dataclass(frozen=True)
class SearchRow:
    """What a method finds under one direction."""

    method: str
    direction: str
    precision: Interval | None  # found edges that are true
    recall: Interval | None  # true edges that are found
    recall_by_type: Mapping[GateType, Interval | None]


@dataclass(frozen=True)
class LabelRow:
    """How often a rule's labels of the found true edges are right."""

    method: str
    rule: str
    accuracy: Interval | None
    by_type: Mapping[GateType, Interval | None]
    by_fan_in: Mapping[int, Interval | None]
    false_gates: Interval | None  # found edges, true or not, that are labelled AND or OR and are not
    mistakes: Mapping[str, int]  # "truth as label" -> edges


@dataclass(frozen=True)
class StudyResult:
    """What the benchmark gives."""

    study: Study
    searches: list[SearchRow] = field(default_factory=list)
    labels: list[LabelRow] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # per model, by method


def benchmark(study: Study, methods: Sequence[str] = METHODS, baselines: Sequence[str] = BASELINES) -> StudyResult:
    """Run methods and baselines on all models.

    Args:
        study: Which models, and what counts as an edge.
        methods: Methods, of METHODS.
        baselines: Alternatives, of BASELINES.

    Returns:
        Precision and recall of the searches, and how often labels are right.

    Raises:
        GatewiseError: If a method or baseline is not known.
    """
    for names, known in ((methods, METHODS), (baselines, BASELINES)):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise GatewiseError(f"the truth benchmark has {', '.join(known)}; got {unknown[0]!r}.")
    measured = StudyResult(study)
    for name in (*methods, *baselines):
        trials = []
        with progress_bar(f"truth: {name}", study.models) as bar:
            for seed, synthetic in enumerate(study.synthetic(), study.seed):
                trials.append(trial(synthetic, name, study.share, seed))
                bar.advance()
        measured.searches.extend(_search_row(name, key, trials) for key in trials[0].circuits)
        measured.labels.extend(_label_row(name, rule, trials) for rule in trials[0].labels)
        measured.seconds[name] = sum(tried.seconds for tried in trials) / len(trials)
    return measured


def trial(synthetic: SyntheticModel, name: str, share: float, seed: int) -> Trial:
    """Run one method or baseline on one model."""
    started = time.perf_counter()
    if name == "orders":
        circuits, labels = _search_orders(synthetic, share, seed)
    elif name == "exhaustive":
        circuits, labels = _exhaustive(synthetic, share)
    elif name == "completed":
        circuits, labels = _completed(synthetic, share, seed), {}
    else:
        circuits, labels = _by_method(synthetic, name, share, seed)
    return Trial(synthetic, circuits, labels, time.perf_counter() - started)


def thresholds(
    synthetic: SyntheticModel, method: str, direction: SearchDirection, share: float
) -> tuple[Method, float]:
    """The method and its threshold with which an edge counts if it carries `share` of the total effect."""
    parameters = {"steps": PRUNING_STEPS} if method == "edge-pruning" else {}
    bound = find_method(method).with_parameters(parameters)
    return bound.threshold_for(Setting(synthetic.model, synthetic.pairs), direction, share)


def _find(synthetic: SyntheticModel, method: str, direction: SearchDirection, share: float, seed: int) -> Circuit:
    if method == "ranking":
        return smallest_within(Setting(synthetic.model, synthetic.pairs), Ranking(), direction, share, seed)
    bound, threshold = thresholds(synthetic, method, direction, share)
    return discover(synthetic.model, synthetic.pairs, bound, direction, threshold=threshold, seed=seed)


def _by_method(
    synthetic: SyntheticModel, method: str, share: float, seed: int
) -> tuple[dict[str, Circuit], dict[str, Labels]]:
    circuits: dict[str, Circuit] = {d: _find(synthetic, method, d, share, seed) for d in DIRECTIONS}
    union = circuits[UNION] = circuits["ns"] | circuits["dn"]
    labels: dict[str, Labels] = {}
    for rule in ("plain", "repaired"):
        gates = label_gates(circuits["ns"], circuits["dn"], rule=rule)
        labels[rule] = {edge: gates.label(edge) for edge in union}
    if method == "ranking":
        other: dict[str, Circuit] = {d: _find(synthetic, method, d, share, seed + 1) for d in ("ns", "dn")}
        steady = label_gates(circuits["ns"], circuits["dn"], other_seeds=[(other["ns"], other["dn"])])
        labels["steady"] = {edge: steady.label(edge) for edge in union}
    model, pairs = synthetic.model, synthetic.pairs
    labels["tested"] = labels_by_test(test_edge_pairs(model, pairs, union))
    everywhere = test_edge_pairs(model, pairs, model.graph.full(), of=union)
    labels["tested in G"] = labels_by_test(everywhere)
    return circuits, labels


def _search_orders(synthetic: SyntheticModel, share: float, seed: int) -> tuple[dict[str, Circuit], dict[str, Labels]]:
    """ACDC under several orders of senders. An edge that some order removes and another keeps can be replaced.

    Kept by all orders of Ns but not of Dn is AND; the other way round, OR; kept by all orders of both, ADDER.
    """
    seeds = range(seed * ORDERS, (seed + 1) * ORDERS)
    always, ever = {}, {}
    for direction in ("ns", "dn"):
        masks = torch.stack([_find(synthetic, "acdc", direction, share, order).mask for order in seeds])
        graph = synthetic.model.graph
        always[direction], ever[direction] = Circuit(graph, masks.all(dim=0)), Circuit(graph, masks.any(dim=0))
    both = ever["ns"] | ever["dn"]
    kinds = {
        "ADDER": always["ns"] & always["dn"],
        "AND": always["ns"] - always["dn"],
        "OR": always["dn"] - always["ns"],
    }
    labels = {edge: next((kind for kind, edges in kinds.items() if edge in edges), None) for edge in both}
    return {"ns": ever["ns"], "dn": ever["dn"], UNION: both}, {"orders": labels}


def _completed(synthetic: SyntheticModel, share: float, seed: int) -> dict[str, Circuit]:
    """What EAP finds in either direction, with the edges whose score appears when nodes and gates of it go."""
    union = _find(synthetic, "eap", "ns", share, seed) | _find(synthetic, "eap", "dn", share, seed)
    return {UNION: add_backups(synthetic.model, synthetic.pairs, union, share=share)}


def _exhaustive(synthetic: SyntheticModel, share: float) -> tuple[dict[str, Circuit], dict[str, Labels]]:
    """All combinations of every port's senders, all other edges kept: what the metric says of each edge and pair."""
    graph = synthetic.model.graph
    whole = float(synthetic.pairs.logit_diff(last_logits(synthetic.model, synthetic.pairs)).mean())
    carrying: list[int] = []  # edges that matter
    labels: dict[str, str | None] = {}
    for port in range(len(graph.ports)):
        edges = graph.edge_index[port][graph.edge_index[port] >= 0].tolist()
        logit_diffs = logit_diffs_of_combinations(synthetic, edges)
        effects = [_differences(logit_diffs, [i]).abs().amax() for i in range(len(edges))]
        useful = [i for i, effect in enumerate(effects) if float(effect) >= share * abs(whole)]
        carrying += [edges[i] for i in useful]
        for i in useful:
            votes = [_pair_label(logit_diffs, i, j) for j in useful if j != i]
            labels[graph.edges[edges[i]]] = max(votes)[1] if votes else None
    return {UNION: graph.circuit(carrying)}, {"exhaustive": labels}


def logit_diffs_of_combinations(synthetic: SyntheticModel, edges: Sequence[int]) -> Tensor:
    """The mean logit difference for every set of kept edges, all into one port. [kept (0 or 1) for each edge...]"""
    if len(edges) > _MOST_SENDERS:
        raise GatewiseError(f"a port has {len(edges)} senders; all combinations are tried up to {_MOST_SENDERS}.")
    combinations = itertools.product((False, True), repeat=len(edges))
    removals = [frozenset(edge for edge, stays in zip(edges, row, strict=True) if not stays) for row in combinations]
    full = synthetic.model.graph.full()
    setting = Setting(synthetic.model, synthetic.pairs)
    values = measure_removals(setting, full, removals, lambda bench: [bench.logit_diff])[0]
    return values.mean(dim=-1).reshape([2] * len(edges))


def _differences(logit_diffs: Tensor, edges: Sequence[int]) -> Tensor:
    """What keeping an edge gains; for two edges, how much more both gain than each: for all states of the others."""
    for dimension in sorted(edges, reverse=True):  # selecting removes a dimension, and leaves those before it
        logit_diffs = logit_diffs.select(dimension, 1) - logit_diffs.select(dimension, 0)
    return logit_diffs


def _pair_label(logit_diffs: Tensor, i: int, j: int) -> tuple[float, GateType]:
    """The label of a pair in the combination of all other edges in which the two interact most, and how much they do.

    The pair's effect is the largest gain of either edge; an interaction of less than half of it is none.
    """
    effect = min(float(_differences(logit_diffs, [edge]).abs().amax()) for edge in (i, j))
    together = _differences(logit_diffs, [i, j]).flatten()
    interaction = float(together[together.abs().argmax()])
    if abs(interaction) < 0.5 * effect:
        return effect, "ADDER"
    return abs(interaction), "AND" if interaction > 0 else "OR"


def _share(hits: Sequence[int], totals: Sequence[int]) -> Interval | None:
    """A share pooled over models, one count for each, with its bootstrap interval; None without anything to count."""
    return ratio_interval(hits, totals) if sum(totals) else None


def _search_row(method: str, direction: str, trials: Sequence[Trial]) -> SearchRow:
    circuits = [tried.circuits[direction] for tried in trials]

    def recall(*kinds: GateType) -> Interval | None:
        true = [[edge for edge, kind in tried.synthetic.truth.items() if kind in kinds] for tried in trials]
        hits = [sum(edge in circuit for edge in edges) for edges, circuit in zip(true, circuits, strict=True)]
        return _share(hits, [len(edges) for edges in true])

    hits = [len(circuit & tried.synthetic.circuit) for tried, circuit in zip(trials, circuits, strict=True)]
    precision = _share(hits, [len(circuit) for circuit in circuits])
    return SearchRow(method, direction, precision, recall(*GATE_TYPES), {kind: recall(kind) for kind in GATE_TYPES})


def _label_row(method: str, rule: str, trials: Sequence[Trial]) -> LabelRow:
    labelled = [_labelled(tried, rule) for tried in trials]

    def accuracy(chosen: Callable[[_Labelled], bool]) -> Interval | None:
        rows = [[edge.kind == edge.label for edge in of_trial if chosen(edge)] for of_trial in labelled]
        return _share([sum(right) for right in rows], list(map(len, rows)))

    everything = [edge for of_trial in labelled for edge in of_trial]
    mistakes = Counter(f"{edge.kind} as {edge.label}" for edge in everything if edge.kind != edge.label)
    by_type = {kind: accuracy(lambda edge, kind=kind: edge.kind == kind) for kind in GATE_TYPES}  # type: ignore[misc]
    by_fan_in = {
        fan_in: accuracy(lambda edge, fan_in=fan_in: edge.fan_in == fan_in)  # type: ignore[misc]
        for fan_in in sorted({edge.fan_in for edge in everything})
    }
    false_gates = _share([_false_gates(t, rule) for t in trials], [len(t.circuits[UNION]) for t in trials])
    return LabelRow(
        method, rule, accuracy(lambda _: True), by_type, by_fan_in, false_gates, dict(mistakes.most_common())
    )


def _false_gates(tried: Trial, rule: str) -> int:
    """Count found edges, those that do not matter among them, that are labelled AND or OR and are not."""
    labels, truth = tried.labels[rule], tried.synthetic.truth
    joined = [edge for edge in tried.circuits[UNION] if labels.get(edge) in ("AND", "OR")]
    return sum(labels[edge] != truth.get(edge) for edge in joined)


class _Labelled(NamedTuple):
    """A true edge that was found."""

    kind: GateType
    fan_in: int  # of its gate
    label: str | None


def _labelled(tried: Trial, rule: str) -> list[_Labelled]:
    """Every true edge that was found."""
    circuit, labels = tried.circuits[UNION], tried.labels[rule]
    fan_in = {gate.node: len(gate.senders) for gate in tried.synthetic.gates}
    return [
        _Labelled(kind, fan_in[edge.partition("->")[2]], labels.get(edge))
        for edge, kind in tried.synthetic.truth.items()
        if edge in circuit
    ]
