"""How good circuits are: faithful, complete, sparse, accurate, against the full graph and random circuits.

By noising, with patching unless another ablation is asked for: C is the circuit on the clean run, G\\C its complement.
Faithfulness is KL(G || C), low is good. Completeness is KL(G\\C || G), high is good: without the circuit nothing of the
task is left.

Faithfulness has a second side. By denoising, the circuit carries corrupted content while everything else stays clean,
and the output is compared with the corrupted run: what is far from it there leaves something outside that still does
the task. A logically complete circuit is close on both sides, so the smaller share counts for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, overload

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute, current_compute
from gatewise.devices import widened
from gatewise.display import frame
from gatewise.engine.forward.sparse import SparseEngine
from gatewise.engine.runs.activations import Ablation, Direction
from gatewise.engine.setting import AnyMetric, Batch, Data, Setting
from gatewise.errors import GatewiseError
from gatewise.evaluation.evaluation_table import as_html, as_text
from gatewise.evaluation.task_check import Ability
from gatewise.limits import MOST_RANDOM_CIRCUITS, check_count
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import Interval, Measure, Reference, ratio_interval
from gatewise.workers import WorkerPool, threads

VERSION = 2  # raise it when the measures of a circuit change: it is part of the key of what is stored
_FEWEST_PIECES = 16  # of an evaluation that workers share


@dataclass(frozen=True)
class Behaviour:
    """What one set of edges does with the pairs.

    Attributes:
        kl_from_full: KL(G || this). By denoising, G is the model on the corrupted prompts.
        kl_to_full: KL(this || G).
        accuracy: Pairwise accuracy: share of examples where the correct answer leads the incorrect one.
        top_accuracy: Top-1 accuracy: share of examples whose arg-max over the vocabulary is a correct answer.
        logit_diff: Logit difference, or the metric that was asked for in its place.
    """

    kl_from_full: Measure
    kl_to_full: Measure
    accuracy: Measure
    top_accuracy: Measure
    logit_diff: Measure


MEASURES = tuple(measure.name for measure in fields(Behaviour))
_DERIVED = ("sparsity", "recovered", "recovered_dn", "recovered_both", "recovered_logit_diff", "destroyed")
_PARTS = ("circuit", "complement", "full", "empty", "dn_circuit", "dn_empty")  # whose values of examples are kept
LOGICALLY_COMPLETE = ("ns+dn", "ns|dn")  # directions of circuits that have to be faithful on both sides


@dataclass(frozen=True, repr=False)
class Evaluation:
    """One circuit: what it does, what is left without it, and the same for random circuits of its size.

    Attributes:
        name: The name that was given, or the method and direction that found the circuit.
        edges: Edges of the circuit.
        graph_edges: Edges of the whole graph.
        on_path: Edges on a path from the input to the logits; without one the circuit does what the empty one does.
        examples: Number of pairs.
        circuit: What the circuit does alone.
        complement: What the model does without it.
        full: What the whole model does.
        empty: What the empty circuit does.
        random_circuits: Number of random circuits of the same size.
        random_circuit: Mean of what they do alone; None if there are none.
        random_complement: Mean of what the model does without them; None if there are none.
        direction: In which the circuit was searched; "ns|dn" is a union of both, empty if it is not known.
        dn_circuit: What the circuit does by denoising; None if it was not run so.
        dn_empty: What the empty circuit does by denoising: the model on the clean prompts.
        values: Measures of every example. [circuit, complement, full, empty, dn_circuit, dn_empty; measure; example]
    """

    name: str
    edges: int
    graph_edges: int
    on_path: int
    examples: int
    circuit: Behaviour
    complement: Behaviour
    full: Behaviour
    empty: Behaviour
    random_circuits: int
    random_circuit: Behaviour | None
    random_complement: Behaviour | None
    direction: str = ""
    dn_circuit: Behaviour | None = None
    dn_empty: Behaviour | None = None
    values: Tensor | None = field(default=None, compare=False)

    @property
    def sparsity(self) -> float:
        """Share of the graph's edges that the circuit does without."""
        return 1 - self.edges / self.graph_edges

    @property
    def faithfulness(self) -> Measure:
        """KL(G || C): low is good."""
        return self.circuit.kl_from_full

    @property
    def completeness(self) -> Measure:
        """KL(G\\C || G): high is good."""
        return self.complement.kl_to_full

    @property
    def recovered(self) -> float:
        """Normalised faithfulness by KL(G || C): 0 is the empty circuit, 1 the full graph."""
        return normalise(self.faithfulness, self.empty.kl_from_full, 0.0)

    @property
    def recovered_dn(self) -> float | None:
        """The same by denoising: 0 is the empty circuit, 1 the model on corrupted prompts; None if not run so."""
        if self.dn_circuit is None or self.dn_empty is None:
            return None
        return normalise(self.dn_circuit.kl_from_full, self.dn_empty.kl_from_full, 0.0)

    @property
    def recovered_both(self) -> float | None:
        """Two-sided faithfulness: the smaller of the shares by noising and by denoising; None without the second."""
        by_noising, by_denoising = self.recovered, self.recovered_dn
        if by_denoising is None:
            return None
        return math.nan if math.isnan(by_noising + by_denoising) else min(by_noising, by_denoising)

    @property
    def recovered_by_chance(self) -> float:
        """Normalised faithfulness of random circuits of the same size; NaN if none were run."""
        if self.random_circuit is None:
            return math.nan
        return normalise(self.random_circuit.kl_from_full, self.empty.kl_from_full, 0.0)

    @property
    def two_sided(self) -> bool:
        """Whether both sides count: the circuit was searched in both directions, and run in both."""
        return self.direction in LOGICALLY_COMPLETE and self.dn_circuit is not None

    @property
    def recovered_logit_diff(self) -> float:
        """MIB's f(C), the normalised logit difference: 0 is the empty circuit, 1 the full graph."""
        return normalise(self.circuit.logit_diff, self.empty.logit_diff, self.full.logit_diff)

    @property
    def logit_diff_interval(self) -> Interval:
        """`recovered_logit_diff` with its 95 % interval by resampling pairs; ends are NaN without single examples."""
        if self.values is None:
            return Interval(self.recovered_logit_diff, math.nan, math.nan, self.examples)
        circuit, _, full, empty = self.values[:4, MEASURES.index("logit_diff")]
        return ratio_interval((circuit - empty).tolist(), (full - empty).tolist())

    @property
    def destroyed(self) -> float:
        """Normalised completeness by KL(. || G): 0 is the full graph, 1 the corrupted run."""
        return normalise(self.completeness, 0.0, self.empty.kl_to_full)

    @property
    def ability(self) -> Ability:
        """How well the model does the task on these pairs; the empty circuit is the model on corrupted prompts."""
        return Ability(
            pairs=self.examples,
            pairwise_accuracy=self.full.accuracy.mean,
            top1_accuracy=self.full.top_accuracy.mean,
            logit_diff_clean=self.full.logit_diff.mean,
            logit_diff_corrupted=self.empty.logit_diff.mean,
            logit_diff_error=math.hypot(self.full.logit_diff.error, self.empty.logit_diff.error),
            pairwise_accuracy_corrupted=self.empty.accuracy.mean,
        )

    @property
    def per_example(self) -> list[dict[str, float]]:
        """All measures of every example, such as `circuit_logit_diff`, in the order of the pairs."""
        if self.values is None:
            raise GatewiseError("the measures of single examples were not kept; they come with gw.evaluate.")
        names = [f"{part}_{name}" for part in _PARTS[: len(self.values)] for name in MEASURES]
        return [dict(zip(names, row, strict=True)) for row in self.values.flatten(0, 1).T.tolist()]

    def row(self) -> dict[str, Any]:
        """Put all numbers side by side, as one row of a table.

        Returns:
            Numbers by name, such as `circuit_logit_diff` and `circuit_logit_diff_error`.
        """
        row = {name: getattr(self, name) for name in ("edges", "graph_edges", *_DERIVED)}
        for part in (*_PARTS, "random_circuit", "random_complement"):
            behaviour = getattr(self, part)
            if behaviour is not None:
                for name, measure in asdict(behaviour).items():
                    row[f"{part}_{name}"], row[f"{part}_{name}_error"] = measure["mean"], measure["error"]
        return row

    def to_json(self) -> dict[str, Any]:
        """Make plain data of it.

        Returns:
            All fields but the values of single examples, and the normalised measures.
        """
        plain = asdict(replace(self, values=None))
        del plain["values"]
        return plain | {name: getattr(self, name) for name in _DERIVED}

    def to_frame(self) -> Any:
        """Make a pandas frame of the measures of every example.

        Returns:
            A frame with one row per example, in the order of the pairs.
        """
        return frame(self.per_example)

    def __repr__(self) -> str:
        return as_text([self])

    def _repr_html_(self) -> str:
        return as_html([self])


@dataclass(frozen=True, repr=False)
class Evaluations(Sequence[Evaluation]):
    """Evaluations of several circuits on the same pairs."""

    items: tuple[Evaluation, ...]

    @overload
    def __getitem__(self, index: int) -> Evaluation: ...
    @overload
    def __getitem__(self, index: slice) -> Evaluations: ...
    def __getitem__(self, index: int | slice) -> Evaluation | Evaluations:
        return Evaluations(self.items[index]) if isinstance(index, slice) else self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def _curve(self, *, random: bool = False) -> tuple[Tensor, Tensor]:
        """Shares of edges, in order, and the normalised logit differences of circuits, or random ones, of that size."""
        if len(self) < 2:
            raise GatewiseError("an area needs circuits of at least two sizes; evaluate a list of circuits.")
        shares, recovered = [], []
        for evaluation in sorted(self.items, key=lambda evaluation: evaluation.edges):
            behaviour = evaluation.random_circuit if random else evaluation.circuit
            shares.append(1 - evaluation.sparsity)
            logit_diff = math.nan if behaviour is None else behaviour.logit_diff
            recovered.append(normalise(logit_diff, evaluation.empty.logit_diff, evaluation.full.logit_diff))
        return torch.tensor(shares, dtype=torch.float64), torch.tensor(recovered, dtype=torch.float64)

    @property
    def cpr(self) -> float:
        """MIB's circuit performance ratio: area under f over the share of edges (trapezoid). High is good."""
        return _areas(*self._curve())[0]

    @property
    def cmd(self) -> float:
        """MIB's circuit-model distance: area of |1 - f| over the share of edges (trapezoid). Low is good."""
        return _areas(*self._curve())[1]

    @property
    def areas_by_chance(self) -> tuple[float, float]:
        """CPR and CMD of random circuits of the same sizes; NaN if none were run."""
        return _areas(*self._curve(random=True))

    def to_json(self) -> list[dict[str, Any]]:
        """Make plain data of them.

        Returns:
            What `Evaluation.to_json` gives for each circuit.
        """
        return [evaluation.to_json() for evaluation in self.items]

    def to_frame(self) -> Any:
        """Make a pandas frame of the numbers of every circuit.

        Returns:
            A frame with one row per circuit, as `Evaluation.row` has it.
        """
        return frame([evaluation.row() for evaluation in self.items])

    def __repr__(self) -> str:
        return as_text(self.items)

    def _repr_html_(self) -> str:
        return as_html(self.items)


@overload
def evaluate(
    model: Model,
    data: Data,
    circuits: Circuit,
    *,
    random_circuits: int = ...,
    seed: int = ...,
    names: Sequence[str] = ...,
    denoise: bool = ...,
    ablation: Ablation | None = ...,
    metric: AnyMetric = ...,
    compute: Compute | None = ...,
) -> Evaluation: ...
@overload
def evaluate(
    model: Model,
    data: Data,
    circuits: Sequence[Circuit],
    *,
    random_circuits: int = ...,
    seed: int = ...,
    names: Sequence[str] = ...,
    denoise: bool = ...,
    ablation: Ablation | None = ...,
    metric: AnyMetric = ...,
    compute: Compute | None = ...,
) -> Evaluations: ...
def evaluate(
    model: Model,
    data: Data,
    circuits: Circuit | Sequence[Circuit],
    *,
    random_circuits: int = 3,
    seed: int = 0,
    names: Sequence[str] = (),
    denoise: bool = True,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> Evaluation | Evaluations:
    """Evaluate one circuit or several on both sides, each beside random circuits of its size.

    Args:
        model: The model that the circuits belong to.
        data: Pairs, a task (its held-out pairs are taken) or a setting.
        circuits: One circuit, or a list of them.
        random_circuits: Number of random circuits of each size to compare with.
        seed: Seed of the random circuits, and of noise ablation.
        names: Names of the circuits, in their order; by default the method and direction that found them.
        denoise: Also run each circuit by denoising, for faithfulness on the second side; only patching has it.
        ablation: What removed edges carry: "patching" by default, or "zero", "mean", "noise".
        metric: What stands in the place of the logit difference: a `gw.Metric`, a function or a name.
        compute: Where to run, by default the innermost `with gw.Compute(...)`; workers share examples and circuits.

    Returns:
        An evaluation for one circuit, evaluations for a list.

    Raises:
        GatewiseError: If a circuit belongs to another graph than the model's.
    """
    check_count("random_circuits", random_circuits, 0, MOST_RANDOM_CIRCUITS)
    setting = Setting.of(model, data, "test", ablation=ablation, metric=metric, seed=seed, compute=compute)
    chosen = [circuits] if isinstance(circuits, Circuit) else list(circuits)
    setting.check_circuits(chosen)
    random = [
        setting.graph.random_circuit(size, seed=seed * 1_000 + i)
        for size in sorted({len(circuit) for circuit in chosen})
        for i in range(random_circuits)
    ]
    to_run = [setting.graph.full(), setting.graph.empty()]
    for circuit in (*chosen, *random):  # a circuit and its complement share the runs of their first sublayers
        to_run += [circuit, ~circuit]
    workers = current_compute(compute).worker_pool(model.device)
    measured = _measure(setting, to_run, workers)
    ends = measured[:2]  # of the full and the empty graph
    by_circuit = measured[2:].reshape(-1, 2, *measured.shape[1:]) if chosen else measured[2:]
    denoised = None  # the circuits alone: what their complements and random ones do there, nobody asks
    if denoise and setting.ablation == "patching":
        denoised = _measure(setting, [setting.graph.empty(), *chosen], workers, "dn")
    evaluations = []
    for i, circuit in enumerate(chosen):
        same_size = [len(chosen) + j for j, drawn in enumerate(random) if len(drawn) == len(circuit)]
        name = names[i] if i < len(names) else _name(circuit)
        second_side = None if denoised is None else denoised[[i + 1, 0]]
        evaluations.append(_summarise(name, circuit, ends, by_circuit[i], by_circuit[same_size], second_side))
    return evaluations[0] if isinstance(circuits, Circuit) else Evaluations(tuple(evaluations))


def _areas(shares: Tensor, recovered: Tensor) -> tuple[float, float]:
    """CPR and CMD."""
    return float(torch.trapezoid(recovered, shares)), float(torch.trapezoid((1 - recovered).abs(), shares))


def _summarise(
    name: str, circuit: Circuit, ends: Tensor, both: Tensor, random: Tensor, denoised: Tensor | None
) -> Evaluation:
    """Means and standard errors over examples.

    ends: the full and the empty graph, both: the circuit and its complement, denoised: the circuit and the empty one by
    denoising, [2, measure, example]; random: `both` for random circuits, [circuit, 2, measure, example].
    """
    inside, outside, full, empty = (_behaviour(values) for values in (*both, *ends))
    baseline = [_behaviour(values) for values in random.mean(dim=0)] if len(random) else [None, None]
    dn_circuit, dn_empty = (None, None) if denoised is None else map(_behaviour, denoised)
    return Evaluation(
        name=name,
        edges=len(circuit),
        graph_edges=circuit.graph.n_edges,
        on_path=len(circuit.connected()),
        examples=ends.shape[-1],
        circuit=inside,
        complement=outside,
        full=full,
        empty=empty,
        random_circuits=len(random),
        random_circuit=baseline[0],
        random_complement=baseline[1],
        direction=str(circuit.provenance.get("direction", "")),
        dn_circuit=dn_circuit,
        dn_empty=dn_empty,
        values=torch.cat([both, ends] if denoised is None else [both, ends, denoised]),
    )


def behaviours(setting: Setting, circuits: Sequence[Circuit]) -> list[Behaviour]:
    """What circuits do, and nothing else: no complements, and no random circuits beside them."""
    return [_behaviour(values) for values in example_values(setting, circuits).unbind()]


def example_values(
    setting: Setting, circuits: Sequence[Circuit], direction: Direction = "ns", workers: WorkerPool | None = None
) -> Tensor:
    """Every measure of circuits, and nothing else, for every example, in the order of `MEASURES`.

    Args:
        setting: Model and pairs.
        circuits: What to run.
        direction: By noising or by denoising.
        workers: Who shares the runs; None: this process does them.

    Returns:
        Values in float64. [circuit, measure, example]
    """
    setting.check_circuits(circuits)
    return _measure(setting, circuits, workers, direction)


Piece = tuple[int, int, int]  # a micro-batch; of the circuits to run on it the first, and the one after the last


def _measure(
    setting: Setting, circuits: Sequence[Circuit], workers: WorkerPool | None, direction: Direction = "ns"
) -> Tensor:
    """Each measure of each circuit for every example, whoever runs it. [circuit, measure, example]"""
    batches = range(len(setting.batches()))
    parts = 1 if workers is None else min(len(circuits), -(-_FEWEST_PIECES // len(batches)))
    cuts = list(pairwise(len(circuits) * i // parts for i in range(parts + 1)))
    pieces: list[Piece] = [(batch, *cut) for batch in batches for cut in cuts]
    measured = {}
    with progress_bar("evaluating circuits", len(batches) * len(circuits)) as bar:
        if workers is None:
            measured = {piece: _measure_piece(piece, setting, circuits, direction, bar.advance) for piece in pieces}
        else:
            for piece, values in workers.results(pieces, measured_by_worker, (setting, circuits, direction)):
                measured[piece] = values
                bar.advance(piece[2] - piece[1])
    by_batch = [torch.cat([measured[piece] for piece in pieces if piece[0] == batch]) for batch in batches]
    return torch.cat(by_batch, dim=-1)


def measured_by_worker(piece: Piece, shared: tuple[Setting, Sequence[Circuit], Direction]) -> Tensor:
    """One worker's piece of `_measure`, on one thread."""
    with threads(1):
        return _measure_piece(piece, *shared)


def _measure_piece(
    piece: Piece,
    setting: Setting,
    circuits: Sequence[Circuit],
    direction: Direction,
    advance: Callable[[], None] = lambda: None,
) -> Tensor:
    """Each measure of some circuits for every example of a micro-batch. [circuit, measure, example]"""
    index, first, end = piece
    whole, chosen = setting.batches()[index], circuits[first:end]
    parts = setting.in_fitting_batches(whole, lambda batch: _measure_batch(batch, setting, chosen, direction, advance))
    return torch.cat(parts, dim=-1)


def _measure_batch(
    batch: Batch, setting: Setting, circuits: Sequence[Circuit], direction: Direction, advance: Callable[[], None]
) -> Tensor:
    """Each measure of circuits for every example of a batch. [circuit, measure, example]"""
    prepared = setting.intervention(batch, direction)
    reference = Reference(prepared.reference_logits)
    engine = SparseEngine(setting.model, prepared)
    rows = []
    for circuit in circuits:
        # The full graph is the reference run itself: KL is then exactly 0, not 0 up to rounding.
        whole = len(circuit) == setting.graph.n_edges
        logits = prepared.reference_logits if whole else engine.logits(circuit)
        kl_from_full, kl_to_full = reference.divergences(logits)
        values = {
            "kl_from_full": kl_from_full,
            "kl_to_full": kl_to_full,
            "accuracy": batch.pairs.pairwise_accuracy(logits),
            "top_accuracy": batch.pairs.top1_accuracy(logits),
            "logit_diff": setting.value.value(logits, batch.pairs),
        }
        rows.append(torch.stack([widened(values[name]) for name in MEASURES]))
        advance()
    return torch.stack(rows).cpu().double()  # fetched at the end: an accelerator is not kept waiting


def _behaviour(values: Tensor) -> Behaviour:
    """Mean and standard error over examples. values: [measure, example]"""
    return Behaviour(*map(Measure.of, values))


def normalise(value: Measure | float, low: Measure | float, high: Measure | float) -> float:
    """Where a value lies between low (0) and high (1); NaN if these are equal."""
    span = float(high) - float(low)
    return (float(value) - float(low)) / span if span else float("nan")


def _name(circuit: Circuit) -> str:
    words = [str(circuit.provenance[key]) for key in ("method", "direction") if key in circuit.provenance]
    return " ".join(words) or "circuit"
