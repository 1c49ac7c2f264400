"""`discover`, `discover_all` and `score_edges`: every method by one call, with everything checked before the work."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.selection import Selection, check_selection, number_of_edges
from gatewise.compute import Compute, current_compute
from gatewise.engine.metrics import metric_of
from gatewise.engine.runs.activations import ABLATIONS, Ablation
from gatewise.engine.setting import AnyMetric, Data, Setting
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.methods.base import SEARCH_DIRECTIONS, Finding, Method, Problem, SearchDirection, single_directions_of
from gatewise.methods.parallel import searches
from gatewise.methods.provenance import ingredients, provenance, storable
from gatewise.methods.registry import find_method
from gatewise.methods.scores import Scores
from gatewise.models.model import Model
from gatewise.store.checkpoints import Checkpoint
from gatewise.store.results import CIRCUITS, Store, remember_all
from gatewise.workers import WorkerPool, threads

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
    select: Selection = "top",
    seed: int = 0,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> Circuit:
    """Find one circuit: of exactly `edges` edges, or of all edges that reach a `threshold`.

    Args:
        model: The model to search in.
        data: Pairs, a task (its training pairs are taken), or a `Setting`, which has ablation and metric of its own.
        method: A name that `gatewise methods` lists, a method with parameters of your own such as
            `gatewise.methods.Acdc(combine="either")`, or `module:Name`.
        direction: `ns` (noising), `dn` (denoising), or `ns+dn` (both, combined as the method's `combine` says).
        edges: A whole number, or a share of the graph's edges, as in 0.01. Give this or `threshold`.
        threshold: In the method's own unit, which `gatewise methods` tells.
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
        GatewiseError: What is asked for has no meaning or cannot be done; said before the work.
    """
    if not isinstance(direction, str) or isinstance(edges, Sequence):
        raise GatewiseError(
            f"discover finds one circuit, got direction={direction!r} and edges={edges!r}; discover_all finds those of "
            f"several directions and sizes."
        )
    setting = Setting.of(model, data, "train", ablation=ablation, metric=metric, seed=seed, compute=compute)
    sizes = {} if edges is None else {direction: (number_of_edges(edges, model.graph),)}
    problem = Problem(setting, (direction,), sizes, threshold, select, seed)
    (circuit,) = _find_circuits(problem, find_method(method), current_compute(compute))[direction]
    return circuit


def discover_all(
    model: Model,
    data: Data,
    method: str | Method = "eap",
    directions: Sequence[SearchDirection] = ("ns", "dn"),
    *,
    sizes: Sizes | None = None,
    threshold: float | None = None,
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
        select: As for `discover`.
        seed: As for `discover`.
        ablation: As for `discover`.
        metric: As for `discover`.
        compute: As for `discover`.

    Returns:
        For each direction one circuit per size, in the order of the sizes, or one for the threshold.

    Raises:
        GatewiseError: What is asked for has no meaning or cannot be done; said before the work.
    """
    setting = Setting.of(model, data, "train", ablation=ablation, metric=metric, seed=seed, compute=compute)
    problem = Problem(setting, tuple(directions), _by_direction(sizes, directions, model), threshold, select, seed)
    return _find_circuits(problem, find_method(method), current_compute(compute))


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


def check_choices(
    directions: Sequence[str], select: Selection | str = "top", ablation: str = "patching", metric: AnyMetric = None
) -> None:
    """Refuse words that mean nothing, whatever the model."""
    for direction in directions:
        if direction not in SEARCH_DIRECTIONS:
            raise GatewiseError(f"direction is 'ns', 'dn' or 'ns+dn', got {direction!r}.")
    if not directions:
        raise GatewiseError("no direction was given; expected 'ns', 'dn' or 'ns+dn', or several of them.")
    check_selection(select)
    if ablation not in ABLATIONS:
        raise GatewiseError(f"ablation is one of {', '.join(ABLATIONS)}; got {ablation!r}.")
    metric_of(metric)


def check_problem(problem: Problem, method: Method) -> None:
    """Refuse what cannot work, before the work."""
    check_choices(problem.directions, problem.select, problem.setting.ablation)
    for direction in problem.directions:
        for single in single_directions_of(direction):
            problem.setting.check_direction(single)
    if any(problem.sizes.values()) == (problem.threshold is not None):
        raise GatewiseError("give either edges= (or sizes=, numbers of edges) or threshold=, not both.")
    edges = problem.graph.n_edges
    for sizes in problem.sizes.values():
        for size in sorted(sizes, reverse=True):  # of sizes that follow from one that was asked for, that one
            if not 0 < size <= edges:
                raise GatewiseError(f"a circuit of {size:,} edges was asked for; {problem.model.name} has {edges:,}.")
    threshold, select = problem.threshold, problem.select
    if threshold is not None and not threshold >= 0:
        raise GatewiseError(f"the threshold is {threshold}; expected 0 or more ({method.threshold_meaning}).")
    if threshold is not None and select != "top":
        raise GatewiseError(f"select={select!r} goes with edges=; a threshold keeps all edges that reach it.")
    method.check(problem)


def _find_circuits(problem: Problem, method: Method, compute: Compute) -> dict[SearchDirection, tuple[Circuit, ...]]:
    """Recall the circuits of each direction from the store, or else search for them."""
    check_problem(problem, method)
    store, workers = compute.open_store(), compute.worker_pool(problem.model.device)
    if store is not None and not storable(problem):
        message = "the metric has no version, so results are neither looked up nor stored; give a Metric with one."
        warnings.warn(message, GatewiseWarning, stacklevel=3)
        store = None
    # Workers compute on one thread each, and the number of threads is part of the key.
    with threads(None if workers is None else 1):
        recalled = remember_all(
            store,
            {direction: ingredients(problem.only(direction), method) for direction in problem.directions},
            lambda missing: _search(problem.only(*missing), method, store, workers),
            CIRCUITS,
        )
        if store is not None and method.together and len(problem.directions) > 1:
            # A search that was killed while it stored its directions one by one has left the state of all behind.
            for checkpoint in _checkpoints(_with_checkpoint(problem, method, store), method):
                checkpoint.clear()
    circuits = {direction: tuple(recalled[direction]) for direction in problem.directions}
    _warn_of_useless(circuits, problem.threshold, method)
    return circuits


def _search(
    problem: Problem, method: Method, store: Store | None, workers: WorkerPool | None
) -> Iterator[tuple[dict[SearchDirection, list[Circuit]], list[Checkpoint]]]:
    """Search, from the last checkpoints on; yield circuits, and the checkpoints that are then no longer needed."""
    problem.setting.check_finite_outputs()  # what is stored was sound when it was found
    groups = [problem] if method.together else [problem.only(direction) for direction in problem.directions]
    if store is not None:
        groups = [_with_checkpoint(group, method, store) for group in groups]
    for group, findings, times in searches(groups, method, workers):
        circuits: dict[SearchDirection, list[Circuit]] = {}
        for direction in group.directions:
            record = provenance(group, direction, method, times)
            circuits[direction] = [_circuit(finding, group, record) for finding in findings[direction]]
        yield circuits, _checkpoints(group, method)


def _with_checkpoint(problem: Problem, method: Method, store: Store) -> Problem:
    return replace(problem, checkpoint=store.checkpoint(store.key(ingredients(problem, method), CIRCUITS)))


def _checkpoints(problem: Problem, method: Method) -> list[Checkpoint]:
    """Those of a search and of the parts of it that workers do."""
    parts = method.parts(problem) if method.saves_parts else ()
    return [problem.checkpoint, *(problem.for_part(part).checkpoint for part in parts)]


def _circuit(finding: Finding, problem: Problem, record: Mapping[str, Any]) -> Circuit:
    notes = {"notes": dict(finding.notes)} if finding.notes else {}
    own_record = {**record, "edges": int(finding.mask.sum()), **notes}
    return Circuit(problem.graph, finding.mask, finding.scores.cpu(), own_record)


def _warn_of_useless(
    circuits: Mapping[SearchDirection, Sequence[Circuit]], threshold: float | None, method: Method
) -> None:
    """Warn of circuits that do nothing, and of what the method itself says against them."""
    for direction, sized in circuits.items():
        for circuit in sized:
            name = f"the {direction} circuit of {len(circuit):,} edges"
            sentences = [f"{name} {doubt}" for doubt in method.doubts(circuit)]
            if not circuit:
                sentences = [f"the threshold {threshold} keeps no edge; the circuit is empty. Lower it."]
            elif not circuit.connected():
                sentences.append(
                    f"{name} has no path from the input to the logits, so it does what the empty circuit does. Use "
                    f"select='connected', or more edges."
                )
            for sentence in sentences:
                warnings.warn(sentence, GatewiseWarning, stacklevel=4)
