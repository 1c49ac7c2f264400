"""How sure a circuit is: what becomes of it on other pairs, by resampling those it was found on.

Pairs that share a template are not independent: where there are enough templates, whole templates are resampled.

The Jaccard index is that between two resamples, not between a resample and the original, which flatters. Plain
resamples flatter, too: both lie around the scores of the same pairs, whose noise they share. So for the Jaccard index
each edge's mean is first shrunk by its own noise, mean * (1 - variance / mean^2) or 0, and the resamples are moved to
lie around that. Measured by `make coverage-study`: docs/specificity.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.selection import Selection, number_of_edges, select_edges
from gatewise.compute import Compute, current_compute
from gatewise.engine.runs.activations import Ablation
from gatewise.engine.setting import AnyMetric, Data, Setting
from gatewise.errors import GatewiseError
from gatewise.limits import check_count
from gatewise.methods.base import Method, Problem, SearchDirection
from gatewise.methods.example_scores import ExampleScores, score_examples
from gatewise.methods.registry import find_method
from gatewise.methods.searching import check_problem, find_circuits
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import Interval, percentile_interval
from gatewise.tasks.pairs import Pairs
from gatewise.workers import WorkerPool, threads

Unit = Literal["pairs", "templates"]
CONFIDENT = 0.95  # share of resamples
RESAMPLES, SEARCHES = 200, 20  # of scores, and of searches, unless others are asked for
_FEWEST_TEMPLATES = 8  # fewer cannot stand for templates that were not seen
_MOST_RESAMPLES = 100_000


@dataclass(frozen=True, eq=False, repr=False)
class Confidence:
    """A circuit with what resampling its pairs says about it.

    Attributes:
        circuit: The circuit of all pairs. `circuit.confident()` are the edges that resamples agree on.
        inclusion: Share of resamples whose circuit of this size contains each edge of the graph. [edge]
        jaccard: Jaccard index between two resamples, with the interval that holds 95 % of them: what two independent
            draws of as many pairs are expected to agree on. n is the number of units.
        plain_jaccard: Its mean without taking noise from the centre, which flatters; the same where scores of examples
            are not known.
        resamples: How many.
        unit: What was resampled.
    """

    circuit: Circuit
    inclusion: Tensor
    jaccard: Interval
    plain_jaccard: float
    resamples: int
    unit: Unit

    @property
    def confident(self) -> Circuit:
        """The edges of the circuit that at least 95 % of resamples contain."""
        return self.circuit.confident(CONFIDENT)

    def to_json(self) -> dict[str, Any]:
        """Make plain data of it.

        Returns:
            The numbers, and the inclusion of the circuit's edges by name.
        """
        return {
            "edges": len(self.circuit),
            "confident": len(self.confident),
            "jaccard": [self.jaccard.value, self.jaccard.low, self.jaccard.high],
            "plain_jaccard": self.plain_jaccard,
            "resamples": self.resamples,
            "unit": self.unit,
            "units": self.jaccard.n,
            "inclusion": dict(self.circuit.inclusion),
        }

    def __repr__(self) -> str:
        return (
            f"<Confidence: {len(self.confident):,} of {len(self.circuit):,} edges are in at least {CONFIDENT:.0%} of "
            f"{self.resamples} resamples of {self.jaccard.n} {self.unit}; Jaccard between two resamples "
            f"{self.jaccard.value:.2f} (95 % {self.jaccard.low:.2f} to {self.jaccard.high:.2f})>"
        )


def resample_circuit(
    model: Model,
    data: Data,
    method: str | Method = "eap",
    direction: SearchDirection = "ns",
    *,
    edges: int | float,
    resamples: int | None = None,
    select: Selection = "top",
    seed: int = 0,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> Confidence:
    """Find a circuit, and how much of it stays when its pairs are resampled.

    Args:
        model: As for `discover`.
        data: As for `discover`.
        method: As for `discover`. EAP, EAP-IG and `exact` score each example once, and resamples cost next to nothing;
            other methods search again on each resample.
        direction: As for `discover`.
        edges: A whole number, or a share of the graph's edges.
        resamples: How many; by default 200 from scores of examples, 20 searches.
        select: As for `discover`.
        seed: Of the resamples and of the search.
        ablation: As for `discover`.
        metric: As for `discover`.
        compute: As for `discover`; workers share blocks of examples, or the searches.

    Returns:
        The circuit, which knows its confident edges, and the Jaccard index between two resamples.

    Raises:
        GatewiseError: What is asked for has no meaning or cannot be done; said before the work.
    """
    setting = Setting.of(model, data, "train", ablation=ablation, metric=metric, seed=seed, compute=compute)
    size = number_of_edges(edges, model.graph)
    bound = method if method == "exact" else find_method(method)
    if bound == "exact" or (isinstance(bound, Method) and bound.scores_examples):
        _check_resamples(RESAMPLES if resamples is None else resamples, setting.pairs)
        scores = score_examples(model, setting, bound, direction, seed=seed, compute=compute)
        return resample_scores(scores, edges=size, resamples=resamples or RESAMPLES, select=select, seed=seed)
    assert isinstance(bound, Method)
    searches = SEARCHES if resamples is None else resamples
    _check_resamples(searches, setting.pairs)
    problem = Problem(setting, (direction,), {direction: (size,)}, None, select, seed)
    check_problem(problem, bound)
    return _resample_searches(problem, bound, searches, current_compute(compute))


def resample_scores(
    scores: ExampleScores, *, edges: int | float, resamples: int = RESAMPLES, select: Selection = "top", seed: int = 0
) -> Confidence:
    """Resample the examples of known scores.

    Args:
        scores: What `score_examples` gave.
        edges: A whole number, or a share of the graph's edges.
        resamples: How many.
        select: The `top` edges, or `connected` ones.
        seed: Of the resamples.

    Returns:
        The circuit of the mean scores, which knows its confident edges, and the Jaccard index between two resamples.

    Raises:
        GatewiseError: There are fewer than two pairs, or numbers make no sense.
    """
    graph, size = scores.graph, number_of_edges(edges, scores.graph)
    _check_resamples(resamples, scores.pairs)
    unit, units = resampled_units(scores.pairs)
    weights = resample_weights(units, resamples, seed)
    mean = scores.mean()
    means = scores.combine(weights).float()
    record = {**scores.provenance, "edges": size, "select": select, "threshold": None}
    circuit = Circuit(graph, select_edges(graph, mean.values.abs(), size, select), mean.values, record)
    inclusion, plain = _agreement(_masks(circuit, means, select))
    moved = _around_shrunk_mean(means, mean.values, len(set(units)))
    _, jaccards = _agreement(_masks(circuit, moved, select))
    return _confidence(circuit, inclusion, jaccards, plain, resamples, unit, len(set(units)))


def resampled_units(pairs: Pairs) -> tuple[Unit, list[int]]:
    """Say what is resampled, and which unit each pair belongs to.

    Args:
        pairs: Of which some may share a template.

    Returns:
        "templates" if there are at least eight, of which some have several pairs, else "pairs"; and the number of each
        pair's unit.
    """
    names = sorted(set(pairs.templates))
    if _FEWEST_TEMPLATES <= len(names) < len(pairs):
        number = {name: index for index, name in enumerate(names)}
        return "templates", [number[name] for name in pairs.templates]
    return "pairs", list(range(len(pairs)))


def resample_weights(units: Sequence[int], resamples: int, seed: int = 0) -> Tensor:
    """Draw resamples of units, each with all of its examples.

    Args:
        units: The unit of each example.
        resamples: How many.
        seed: Of the draws.

    Returns:
        What each example weighs in the mean of each resample. [resample, example] of float64
    """
    owner = torch.tensor(units)
    count = int(owner.max()) + 1
    drawn = torch.randint(0, count, (resamples, count), generator=torch.Generator().manual_seed(seed))
    times = torch.zeros(resamples, count, dtype=torch.float64)
    times.scatter_add_(1, drawn, torch.ones(resamples, count, dtype=torch.float64))
    weights: Tensor = times[:, owner]
    return weights / weights.sum(dim=1, keepdim=True)


def _check_resamples(resamples: int, pairs: Pairs) -> None:
    check_count("resamples", resamples, 2, _MOST_RESAMPLES)
    if len(pairs) < 2:
        raise GatewiseError("resampling needs at least two pairs; got one. Give more examples.")


def _around_shrunk_mean(means: Tensor, mean: Tensor, units: int) -> Tensor:
    """Move resampled means from the sample's mean, whose noise all share, to what is left of it without noise."""
    variance = means.var(dim=0) * (units / (units - 1))
    shrunk = mean * (1 - variance / mean.square().clamp(min=1e-38)).clamp(min=0)
    # Resamples of n units deviate by sqrt((n - 1) / n) less than draws do.
    moved: Tensor = (means - mean) * (units / (units - 1)) ** 0.5 + shrunk
    return moved


def _masks(circuit: Circuit, scores: Tensor, select: Selection) -> Tensor:
    """Circuits of equal size from each row of scores. [resample, edge] of bool"""
    return torch.stack([select_edges(circuit.graph, row.abs(), len(circuit), select) for row in scores])


def _agreement(masks: Tensor) -> tuple[Tensor, Tensor]:
    """Share of masks that contain each edge [edge], and the Jaccard index of every two masks [pair]."""
    inclusion = masks.double().mean(dim=0)
    members = masks[:, masks.any(dim=0)].float()
    both = members @ members.T
    size = both.diagonal()
    jaccards = both / (size[:, None] + size[None] - both)
    first, second = torch.triu_indices(len(masks), len(masks), 1)
    return inclusion, jaccards[first, second].double()


def _confidence(
    circuit: Circuit, inclusion: Tensor, jaccards: Tensor, plain: Tensor, resamples: int, unit: Unit, units: int
) -> Confidence:
    low, high = percentile_interval(jaccards)
    jaccard = Interval(float(jaccards.mean()), float(low), float(high), units)
    shares = {circuit.graph.edges[index]: round(float(inclusion[index]), 6) for index in circuit.indices}
    record = {
        "inclusion": shares,
        "jaccard": [jaccard.value, jaccard.low, jaccard.high],
        "resamples": resamples,
        "unit": unit,
        "units": units,
    }
    known = circuit.with_provenance(confidence=record)
    return Confidence(known, inclusion, jaccard, float(plain.mean()), resamples, unit)


def _resample_searches(problem: Problem, method: Method, resamples: int, compute: Compute) -> Confidence:
    """Search again on every resample; workers share the searches."""
    (direction,) = problem.directions
    unit, units = resampled_units(problem.pairs)
    store = compute.open_store()
    alone = Compute(memory=compute.memory, store=None if store is None else store.location)
    workers = compute.worker_pool(problem.model.device)
    with threads(None if workers is None else 1):
        (circuit,) = find_circuits(problem, method, alone)[direction]
        rows = _drawn_rows(units, resamples, problem.seed)
        masks: dict[int, Tensor] = {}
        pool = WorkerPool() if workers is None else workers
        shared = (problem, method, alone, rows)
        with progress_bar(f"{method.title} {direction} of resamples", resamples) as bar:
            for index, mask in pool.results(list(range(resamples)), _search_resample, shared):
                masks[index] = mask
                bar.advance()
    inclusion, jaccards = _agreement(torch.stack([masks[index] for index in range(resamples)]))
    return _confidence(circuit, inclusion, jaccards, jaccards, resamples, unit, len(set(units)))


def _drawn_rows(units: Sequence[int], resamples: int, seed: int) -> list[list[int]]:
    """The examples of each resample, those of a unit that is drawn twice twice."""
    members: dict[int, list[int]] = {}
    for row, unit in enumerate(units):
        members.setdefault(unit, []).append(row)
    drawn = torch.randint(0, len(members), (resamples, len(members)), generator=torch.Generator().manual_seed(seed))
    return [[row for unit in draw for row in members[unit]] for draw in drawn.tolist()]


def _search_resample(index: int, shared: tuple[Problem, Method, Compute, Sequence[Sequence[int]]]) -> Tensor:
    problem, method, compute, rows = shared
    (direction,) = problem.directions
    setting = problem.setting.with_pairs(problem.pairs[list(rows[index])])
    again = Problem(setting, problem.directions, problem.sizes, None, problem.select, problem.seed)
    return find_circuits(again, method, compute)[direction][0].mask
