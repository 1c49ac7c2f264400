"""`discover`, `discover_all` and `score_edges`: every method by one call, with everything checked before the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.selection import Selection, number_of_edges
from gatewise.compute import Compute, current_compute
from gatewise.engine.runs.activations import Ablation
from gatewise.engine.setting import AnyMetric, Data, Setting
from gatewise.errors import GatewiseError
from gatewise.methods.base import Method, Problem, SearchDirection
from gatewise.methods.parallel import searches
from gatewise.methods.provenance import provenance
from gatewise.methods.registry import find_method
from gatewise.methods.scores import Scores
from gatewise.methods.searching import check_problem, find_circuits
from gatewise.methods.smallest import smallest_circuits
from gatewise.models.model import Model
from gatewise.workers import threads

Size = int | float  # a number of edges, or a share of the graph's below 1
Sizes = Sequence[Size] | Mapping[SearchDirection, Sequence[Size]]


def discover(
    model: Model,
    data: Data,
    method: str | Method = "eap",
    direction: SearchDirection = "ns",
    *,
    edges: Size | None = None,
    threshold: float | None = None,
    faithfulness: float | None = None,
    select: Selection = "top",
    seed: int = 0,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> Circuit:
    """Find one circuit: of exactly `edges` edges, of all that reach a `threshold`, or the smallest faithful one.

    Args:
        model: The model to search in.
        data: Pairs, a task (its training pairs are taken), or a `Setting`, which has ablation and metric of its own.
        method: A name that `gatewise methods` lists, a method with parameters of your own such as
            `gatewise.methods.Acdc(combine="either")`, or `module:Name`.
        direction: `ns` (noising), `dn` (denoising), or `ns+dn` (both, combined as the method's `combine` says).
        edges: A whole number, or a share of the graph's edges, as in 0.01. Give this or `threshold`.
        threshold: In the method's own unit, which `gatewise methods` tells.
        faithfulness: Instead of both: the share of the KL between the runs that the circuit has to keep, as in 0.85, by
            `gatewise.methods.smallest_circuits`. A third of the pairs is kept from the search to choose the size on.
            `edges` is then the most that are allowed.
        select: The `top` edges, or `connected` ones, all on a path from the input to the logits.
        seed: Of everything random.
        ablation: What removed edges carry: `patching` (the other run, the default), or `zero`, `mean`, `noise` (ns
            only).
        metric: What the search keeps unchanged: by default KL for ACDC and Edge Pruning and the logit difference for
            EAP; or "kl", "logit_diff", a `gatewise.engine.Metric`, or a function of logits and pairs.
        compute: Memory, workers and the store. Workers share examples of EAP and EAP-IG, trainings of Edge Pruning.

    Returns:
        The circuit, with the scores of all edges and its provenance.

    Raises:
        GatewiseError: What is asked for has no meaning or cannot be done, said before the work; or no circuit is as
            faithful as asked for.
    """
    if not isinstance(direction, str) or isinstance(edges, Sequence):
        raise GatewiseError(
            f"discover finds one circuit, got direction={direction!r} and edges={edges!r}; discover_all finds those of "
            f"several directions and sizes."
        )
    if faithfulness is not None:
        circuits = discover_all(
            model,
            data,
            method,
            (direction,),
            sizes=None if edges is None else (edges,),
            threshold=threshold,
            faithfulness=faithfulness,
            select=select,
            seed=seed,
            ablation=ablation,
            metric=metric,
            compute=compute,
        )
        return circuits[direction][0]
    setting = Setting.of(model, data, "train", ablation=ablation, metric=metric, seed=seed, compute=compute)
    sizes = {} if edges is None else {direction: (number_of_edges(edges, model.graph),)}
    problem = Problem(setting, (direction,), sizes, threshold, select, seed)
    (circuit,) = find_circuits(problem, find_method(method), current_compute(compute))[direction]
    return circuit


def discover_all(
    model: Model,
    data: Data,
    method: str | Method = "eap",
    directions: Sequence[SearchDirection] = ("ns", "dn"),
    *,
    sizes: Sizes | None = None,
    threshold: float | None = None,
    faithfulness: float | None = None,
    select: Selection = "top",
    seed: int = 0,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> dict[SearchDirection, tuple[Circuit, ...]]:
    """Find circuits of several directions and sizes, sharing all work that they have in common.

    Args:
        model: As for `discover`.
        data: As for `discover`.
        method: As for `discover`.
        directions: Some of `ns`, `dn` and `ns+dn`. Workers search in the directions of ACDC side by side.
        sizes: Numbers of edges, or shares of the graph's, for all directions or by direction. Give this or
            `threshold`.
        threshold: As for `discover`.
        faithfulness: As for `discover`; every direction gets a size of its own, and `sizes` is then one number at most,
            the most edges that are allowed.
        select: As for `discover`.
        seed: As for `discover`.
        ablation: As for `discover`.
        metric: As for `discover`.
        compute: As for `discover`.

    Returns:
        For each direction one circuit per size, in the order of the sizes, or one for the threshold or faithfulness.

    Raises:
        GatewiseError: What is asked for has no meaning or cannot be done, said before the work; or no circuit is as
            faithful as asked for.
    """
    if faithfulness is not None:
        if threshold is not None or isinstance(sizes, Mapping) or (sizes is not None and len(sizes) > 1):
            raise GatewiseError(
                "faithfulness= chooses the size by itself: leave out threshold=, and give one number of edges at most, "
                "the most that are allowed."
            )
        smallest = smallest_circuits(
            model,
            data,
            method,
            directions,
            faithfulness=faithfulness,
            edges=sizes[0] if sizes else None,
            select=select,
            seed=seed,
            ablation=ablation,
            metric=metric,
            compute=compute,
        )
        return {direction: (choice.reached(),) for direction, choice in smallest.items()}
    setting = Setting.of(model, data, "train", ablation=ablation, metric=metric, seed=seed, compute=compute)
    problem = Problem(setting, tuple(directions), _by_direction(sizes, directions, model), threshold, select, seed)
    return find_circuits(problem, find_method(method), current_compute(compute))


def score_edges(
    model: Model,
    data: Data,
    method: str | Method = "eap",
    direction: SearchDirection = "ns",
    *,
    seed: int = 0,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> Scores:
    """Score every edge of the graph by a method.

    Args:
        model: As for `discover`.
        data: As for `discover`.
        method: As for `discover`.
        direction: As for `discover`.
        seed: As for `discover`.
        ablation: As for `discover`.
        metric: As for `discover`.
        compute: As for `discover`; scores are not stored.

    Returns:
        One number per edge, with its provenance. What they mean is the method's to say.

    Raises:
        GatewiseError: What is asked for has no meaning or cannot be done; said before the work.
    """
    setting = Setting.of(model, data, "train", ablation=ablation, metric=metric, seed=seed, compute=compute)
    problem = Problem(setting, (direction,), {direction: (setting.graph.n_edges,)}, seed=seed)
    bound = find_method(method)
    check_problem(problem, bound)
    setting.check_finite_outputs()
    workers = current_compute(compute).worker_pool(model.device)
    with threads(None if workers is None else 1):
        ((_, findings, times),) = searches([problem], bound, workers)
        record = provenance(problem, direction, bound, times)
    return Scores(setting.graph, findings[direction][0].scores, record)


def _by_direction(
    sizes: Sizes | None, directions: Sequence[SearchDirection], model: Model
) -> dict[SearchDirection, tuple[int, ...]]:
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        sizes = dict.fromkeys(directions, sizes)
    if sorted(sizes) != sorted(directions):
        raise GatewiseError(f"sizes are given for {', '.join(sizes)}; the directions are {', '.join(directions)}.")
    numbers: dict[SearchDirection, tuple[int, ...]] = {}
    for direction in directions:
        if not isinstance(sizes[direction], Sequence):
            raise GatewiseError(f"sizes is a list of numbers of edges, such as [50, 100]; got {sizes[direction]!r}.")
        numbers[direction] = tuple(number_of_edges(size, model.graph) for size in sizes[direction])
    return numbers
