"""How good circuits are: faithful, complete, sparse, accurate, against the full graph and random circuits.

All by noising with interchange: C is the circuit on the clean run, G\\C its complement. Faithfulness is KL(G || C), low
is good. Completeness is KL(G\\C || G), high is good: without the circuit nothing of the task is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

import torch
from torch import Tensor

from gatewise.circuit import Circuit
from gatewise.engine.batches import batches
from gatewise.engine.circuits import check_circuits, dense_mask
from gatewise.engine.dense import DenseEngine
from gatewise.engine.runs import check_pairs, prepare
from gatewise.errors import GatewiseError
from gatewise.evaluation.measures import Measure, kl_divergence, log_probabilities
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.tasks.pairs import Pairs

MIB_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Behaviour:
    """What one set of edges does with the pairs."""

    kl_from_full: Measure  # KL(G || this)
    kl_to_full: Measure  # KL(this || G)
    accuracy: Measure  # share of examples with right over wrong
    top_accuracy: Measure  # share of examples whose arg-max over the vocabulary is right
    margin: Measure


@dataclass(frozen=True)
class Evaluation:
    """One circuit: what it does, what is left without it, and the same for random circuits of its size."""

    name: str
    edges: int
    graph_edges: int
    circuit: Behaviour
    complement: Behaviour
    full: Behaviour
    empty: Behaviour
    random_circuits: int
    random_circuit: Behaviour | None  # mean over random circuits of the same size
    random_complement: Behaviour | None

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
        return _share(self.empty.kl_from_full, self.faithfulness, 0.0)

    @property
    def recovered_margin(self) -> float:
        """MIB's f(C): share of the way from the empty circuit (0) to the full graph (1), by margin."""
        return _share(self.empty.margin, self.circuit.margin, self.full.margin)

    @property
    def destroyed(self) -> float:
        """Share of the corrupted run's divergence that removing the circuit causes, by KL(. || G)."""
        return _share(0.0, self.completeness, self.empty.kl_to_full)

    def to_json(self) -> dict[str, Any]:
        derived = ("sparsity", "recovered", "recovered_margin", "destroyed")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}

    def __str__(self) -> str:
        return str(Evaluations((self,)))

    def _repr_html_(self) -> str:
        return Evaluations((self,))._repr_html_()


@dataclass(frozen=True)
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
        return share, torch.tensor([item.recovered_margin for item in items], dtype=torch.float64)

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

    def __str__(self) -> str:
        from gatewise.evaluation.table import as_text

        return as_text(self.items)

    def _repr_html_(self) -> str:
        from gatewise.evaluation.table import as_html

        return as_html(self.items)


@overload
def evaluate(
    model: Model,
    pairs: Pairs,
    circuits: Circuit,
    *,
    random_circuits: int = ...,
    seed: int = ...,
    names: Sequence[str] = ...,
    memory: int | str | None = ...,
) -> Evaluation: ...
@overload
def evaluate(
    model: Model,
    pairs: Pairs,
    circuits: Sequence[Circuit],
    *,
    random_circuits: int = ...,
    seed: int = ...,
    names: Sequence[str] = ...,
    memory: int | str | None = ...,
) -> Evaluations: ...
def evaluate(
    model: Model,
    pairs: Pairs,
    circuits: Circuit | Sequence[Circuit],
    *,
    random_circuits: int = 3,
    seed: int = 0,
    names: Sequence[str] = (),
    memory: int | str | None = None,
) -> Evaluation | Evaluations:
    """Evaluate a circuit or several, beside `random_circuits` random ones of each size."""
    chosen = [circuits] if isinstance(circuits, Circuit) else list(circuits)
    check_circuits(model, chosen)
    check_pairs(model, pairs)
    sizes = sorted({len(circuit) for circuit in chosen}) if random_circuits else []
    random = {
        size: [model.graph.random_circuit(size, seed=seed * 1_000 + i) for i in range(random_circuits)]
        for size in sizes
    }
    to_run = [model.graph.full(), model.graph.empty(), *chosen, *(c for size in sizes for c in random[size])]
    with_complements = [circuit for one in to_run for circuit in (one, ~one)]
    found = iter(_behaviours(model, pairs, with_complements, memory))
    full, empty = next(found), next(found)
    next(found), next(found)  # the empty circuit and its complement: the same again
    results = [(next(found), next(found)) for _ in chosen]
    baselines = {size: [(next(found), next(found)) for _ in random[size]] for size in sizes}
    evaluations = Evaluations(
        tuple(
            Evaluation(
                name=names[i] if i < len(names) else _name(circuit),
                edges=len(circuit),
                graph_edges=model.graph.n_edges,
                circuit=_summary([inside]),
                complement=_summary([outside]),
                full=_summary([full]),
                empty=_summary([empty]),
                random_circuits=random_circuits,
                random_circuit=_summary([a for a, _ in baselines[len(circuit)]]) if random_circuits else None,
                random_complement=_summary([b for _, b in baselines[len(circuit)]]) if random_circuits else None,
            )
            for i, (circuit, (inside, outside)) in enumerate(zip(chosen, results, strict=True))
        )
    )
    return evaluations[0] if isinstance(circuits, Circuit) else evaluations


def _behaviours(
    model: Model, pairs: Pairs, circuits: Sequence[Circuit], memory: int | str | None
) -> Iterator[dict[str, Tensor]]:
    """For each circuit, each measure for every example."""
    parts: list[list[dict[str, Tensor]]] = [[] for _ in circuits]
    batch_list = list(batches(model, pairs, memory))
    with progress_bar("evaluating circuits", len(batch_list) * len(circuits)) as bar:
        for _, part in batch_list:
            prepared = prepare(model, part)
            reference = log_probabilities(prepared.reference_logits)
            engine = DenseEngine(model, prepared)
            for row, circuit in enumerate(circuits):
                logits = engine.logits(dense_mask(model, circuit))
                found = log_probabilities(logits)
                parts[row].append(
                    {
                        "kl_from_full": kl_divergence(reference, found).cpu(),
                        "kl_to_full": kl_divergence(found, reference).cpu(),
                        "accuracy": part.right_over_wrong(logits).double().cpu(),
                        "top_accuracy": part.top_is_right(logits).double().cpu(),
                        "margin": part.margin(logits).double().cpu(),
                    }
                )
                bar.advance()
    for rows in parts:
        yield {key: torch.cat([row[key] for row in rows]) for key in rows[0]}


def _summary(runs: Sequence[dict[str, Tensor]]) -> Behaviour:
    """Mean over circuits, then mean and standard error over examples."""
    return Behaviour(**{key: Measure.of(torch.stack([run[key] for run in runs]).mean(0)) for key in runs[0]})


def _share(low: Measure | float, value: Measure | float, high: Measure | float) -> float:
    span = float(high) - float(low)
    return (float(value) - float(low)) / span if span else float("nan")


def _name(circuit: Circuit) -> str:
    made = [str(circuit.provenance[key]) for key in ("method", "direction") if key in circuit.provenance]
    return " ".join(made) or "circuit"
