"""How good circuits are: faithful, complete, sparse, accurate, against the full graph and random circuits.

All by noising, with patching unless another ablation is asked for: C is the circuit on the clean run, G\\C its
complement. Faithfulness is KL(G || C), low is good. Completeness is KL(G\\C || G), high is good: without the circuit
nothing of the task is left.
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
from gatewise.display import frame
from gatewise.engine.forward.sparse import SparseEngine
from gatewise.engine.runs.activations import Ablation
from gatewise.engine.setting import AnyMetric, Data, Setting
from gatewise.errors import GatewiseError
from gatewise.evaluation.task_check import Ability
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import Measure, Reference
from gatewise.workers import WorkerPool, threads

_FEWEST_PARTS = 16  # of an evaluation by workers
MIB_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Behaviour:
    """What one set of edges does with the pairs."""

    kl_from_full: Measure  # KL(G || this)
    kl_to_full: Measure  # KL(this || G)
    accuracy: Measure  # share of examples with pairwise accuracy
    top_accuracy: Measure  # share of examples whose arg-max over the vocabulary is right
    logit_diff: Measure  # or the metric that was asked for in its place


_MEASURES = tuple(one.name for one in fields(Behaviour))
_NUMBERS = ("edges", "graph_edges", "sparsity", "recovered", "recovered_logit_diff", "destroyed")
_PARTS = ("circuit", "complement", "full", "empty")  # whose measures of single examples are kept


@dataclass(frozen=True, repr=False)
class Evaluation:
    """One circuit: what it does, what is left without it, and the same for random circuits of its size."""

    name: str
    edges: int
    graph_edges: int
    on_path: int  # edges on a path from the input to the logits; without one the circuit does what the empty one does
    examples: int
    circuit: Behaviour
    complement: Behaviour
    full: Behaviour
    empty: Behaviour
    random_circuits: int
    random_circuit: Behaviour | None  # mean over random circuits of the same size
    random_complement: Behaviour | None
    values: Tensor | None = field(default=None, repr=False, compare=False)  # [part, measure, example]

    @property
    def sparsity(self) -> float:
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
    def completeness_reversed(self) -> Measure:
        """KL(G || G\\C), the other order."""
        return self.complement.kl_from_full

    @property
    def recovered(self) -> float:
        """Share of the way from the empty circuit (0) to the full graph (1), by KL(G || C)."""
        return share_between(self.empty.kl_from_full, self.faithfulness, 0.0)

    @property
    def recovered_logit_diff(self) -> float:
        """MIB's f(C): share of the way from the empty circuit (0) to the full graph (1), by logit difference."""
        return share_between(self.empty.logit_diff, self.circuit.logit_diff, self.full.logit_diff)

    @property
    def destroyed(self) -> float:
        """Share of the corrupted run's divergence that removing the circuit causes, by KL(. || G)."""
        return share_between(0.0, self.completeness, self.empty.kl_to_full)

    @property
    def ability(self) -> Ability:
        """How well the model does the task on these pairs; the empty circuit is the model on corrupted prompts."""
        full, empty = self.full, self.empty
        return Ability(
            self.examples,
            full.accuracy.mean,
            full.top_accuracy.mean,
            full.logit_diff.mean,
            empty.logit_diff.mean,
            math.hypot(full.logit_diff.error, empty.logit_diff.error),
            empty.accuracy.mean,
        )

    @property
    def per_example(self) -> list[dict[str, float]]:
        """All measures of every example, such as `circuit_logit_diff`, in the order of the pairs."""
        if self.values is None:
            raise GatewiseError("the measures of single examples were not kept; they come with gw.evaluate.")
        names = [f"{part}_{name}" for part in _PARTS for name in _MEASURES]
        return [dict(zip(names, row, strict=True)) for row in self.values.flatten(0, 1).T.tolist()]

    def row(self) -> dict[str, Any]:
        """All numbers side by side, such as `circuit_logit_diff` and `circuit_logit_diff_error`."""
        row = {name: getattr(self, name) for name in _NUMBERS}
        for part in (*_PARTS, "random_circuit", "random_complement"):
            behaviour = getattr(self, part)
            if behaviour is not None:
                for name, measure in asdict(behaviour).items():
                    row[f"{part}_{name}"], row[f"{part}_{name}_error"] = measure["mean"], measure["error"]
        return row

    def to_json(self) -> dict[str, Any]:
        derived = ("sparsity", "recovered", "recovered_logit_diff", "destroyed")
        plain = {name: value for name, value in asdict(replace(self, values=None)).items() if name != "values"}
        return {**plain, **{name: getattr(self, name) for name in derived}}

    def to_frame(self) -> Any:
        """The measures of every example as a pandas frame."""
        return frame(self.per_example)

    def __repr__(self) -> str:
        return repr(Evaluations((self,)))

    def _repr_html_(self) -> str:
        return Evaluations((self,))._repr_html_()


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

    def _curve(self) -> tuple[Tensor, Tensor]:
        if len(self) < 2:
            raise GatewiseError("an area needs circuits of at least two sizes; evaluate a list of circuits.")
        items = sorted(self.items, key=lambda item: item.edges)
        share = torch.tensor([item.edges / item.graph_edges for item in items], dtype=torch.float64)
        return share, torch.tensor([item.recovered_logit_diff for item in items], dtype=torch.float64)

    @property
    def cpr(self) -> float:
        """MIB's circuit performance ratio: area under f over the share of edges (trapezoid). High is good."""
        share, recovered = self._curve()
        return float(torch.trapezoid(recovered, share))

    @property
    def cmd(self) -> float:
        """MIB's circuit-model distance: area of |1 - f| over the share of edges (trapezoid). Low is good."""
        share, recovered = self._curve()
        return float(torch.trapezoid((1 - recovered).abs(), share))

    def to_json(self) -> list[dict[str, Any]]:
        return [item.to_json() for item in self.items]

    def to_frame(self) -> Any:
        """The numbers of every circuit as a pandas frame, one row each."""
        return frame([item.row() for item in self.items])

    def __repr__(self) -> str:
        from gatewise.evaluation.evaluation_table import as_text

        return as_text(self.items)

    def _repr_html_(self) -> str:
        from gatewise.evaluation.evaluation_table import as_html

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
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> Evaluation | Evaluations:
    """Evaluate a circuit or several, beside `random_circuits` random ones of each size.

    Of a task, the held-out pairs are taken. `ablation`: what removed edges carry, as for `discover`. `metric`: what
    stands in the place of the logit difference. `compute`: workers share
    examples and circuits.
    """
    setting = Setting.of(model, data, "test", ablation=ablation, metric=metric, seed=seed, compute=compute)
    chosen = [circuits] if isinstance(circuits, Circuit) else list(circuits)
    team = current_compute(compute).worker_pool(model.device)
    measured = _measured(setting, _run(setting, chosen, random_circuits, seed), team)
    evaluations = _summarised(setting, chosen, measured, random_circuits, names)
    return evaluations[0] if isinstance(circuits, Circuit) else evaluations


def behaviours(setting: Setting, circuits: Sequence[Circuit]) -> list[Behaviour]:
    """What circuits do, and nothing else: no complements, and no random circuits beside them."""
    setting.check_circuits(circuits)
    return [_summary([found]) for found in _measured(setting, circuits, None)]


def _run(setting: Setting, circuits: Sequence[Circuit], random_circuits: int, seed: int) -> list[Circuit]:
    """All that is run: the full graph, the empty one, then circuits and random ones, each before its complement."""
    setting.check_circuits(circuits)
    graph = setting.graph
    sizes = sorted({len(circuit) for circuit in circuits}) if random_circuits else []
    random = [graph.random_circuit(n, seed=seed * 1_000 + i) for n in sizes for i in range(random_circuits)]
    both = [circuit for one in (*circuits, *random) for circuit in (one, ~one)]
    return [graph.full(), graph.empty(), *both]


def _summarised(
    setting: Setting,
    chosen: Sequence[Circuit],
    measured: Tensor,
    random_circuits: int,
    names: Sequence[str],
) -> Evaluations:
    """The evaluations of circuits from the measures of all that was run."""
    found = iter(measured)
    sizes = sorted({len(circuit) for circuit in chosen}) if random_circuits else []
    full, empty = next(found), next(found)
    results = [(next(found), next(found)) for _ in chosen]
    baselines = {size: [(next(found), next(found)) for _ in range(random_circuits)] for size in sizes}
    return Evaluations(
        tuple(
            Evaluation(
                name=names[i] if i < len(names) else _name(circuit),
                edges=len(circuit),
                graph_edges=setting.graph.n_edges,
                on_path=len(circuit.connected()),
                examples=measured.shape[-1],
                circuit=_summary([inside]),
                complement=_summary([outside]),
                full=_summary([full]),
                empty=_summary([empty]),
                random_circuits=random_circuits,
                random_circuit=_summary([a for a, _ in baselines[len(circuit)]]) if random_circuits else None,
                random_complement=_summary([b for _, b in baselines[len(circuit)]]) if random_circuits else None,
                values=torch.stack([inside, outside, full, empty]),
            )
            for i, (circuit, (inside, outside)) in enumerate(zip(chosen, results, strict=True))
        )
    )


Piece = tuple[int, int, int]  # a micro-batch; of the circuits to run on it the first, and the one after the last


def _measured(setting: Setting, circuits: Sequence[Circuit], team: WorkerPool | None) -> Tensor:
    """Each measure of each circuit for every example, whoever runs it. [circuit, measure, example]"""
    batches, found = range(len(setting.batches())), {}
    pieces = 1 if team is None else min(len(circuits), -(-_FEWEST_PARTS // len(batches)))
    cuts = list(pairwise(len(circuits) * i // pieces for i in range(pieces + 1)))
    parts: list[Piece] = [(batch, *cut) for batch in batches for cut in cuts]
    with progress_bar("evaluating circuits", len(batches) * len(circuits)) as bar:
        if team is None:
            found = {part: _measured_part(part, setting, circuits, bar.advance) for part in parts}
        else:
            for part, measures in team.results(parts, measured_by_worker, (setting, circuits)):
                found[part] = measures
                bar.advance(part[2] - part[1])
    rows = [torch.cat([found[part] for part in parts if part[0] == batch]) for batch in batches]
    return torch.cat(rows, dim=-1)


def measured_by_worker(part: Piece, shared: tuple[Setting, Sequence[Circuit]]) -> Tensor:
    with threads(1):
        return _measured_part(part, *shared)


def _measured_part(
    part: Piece, setting: Setting, circuits: Sequence[Circuit], advance: Callable[[], None] = lambda: None
) -> Tensor:
    """Each measure of some circuits for every example of a micro-batch. [circuit, measure, example]"""
    index, first, end = part
    batch = setting.batches()[index]
    prepared = setting.intervention(batch)
    reference = Reference(prepared.reference_logits)
    engine = SparseEngine(setting.model, prepared)
    rows = []
    for circuit in circuits[first:end]:
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
        rows.append(torch.stack([values[name].double().cpu() for name in _MEASURES]))
        advance()
    return torch.stack(rows)


def _summary(runs: Sequence[Tensor]) -> Behaviour:
    """Mean over circuits, then mean and standard error over examples. runs: [measure, example] each"""
    return Behaviour(*map(Measure.of, torch.stack(list(runs)).mean(0)))


def share_between(low: Measure | float, value: Measure | float, high: Measure | float) -> float:
    """Where a value lies on the way from low (0) to high (1); NaN if they are equal."""
    span = float(high) - float(low)
    return (float(value) - float(low)) / span if span else float("nan")


def _name(circuit: Circuit) -> str:
    made = [str(circuit.provenance[key]) for key in ("method", "direction") if key in circuit.provenance]
    return " ".join(made) or "circuit"
