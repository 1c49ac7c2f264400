"""Search for circuits, or recall them from the store; of methods that rank once, all sizes from one search."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.selection import Selection, check_selection
from gatewise.compute import Compute
from gatewise.engine.metrics import metric_of
from gatewise.engine.runs.activations import ABLATIONS
from gatewise.engine.setting import AnyMetric
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.methods.base import (
    SEARCH_DIRECTIONS,
    Finding,
    Method,
    Problem,
    SearchDirection,
    ranked,
    single_directions_of,
)
from gatewise.methods.parallel import searches
from gatewise.methods.provenance import ingredients, provenance, storable
from gatewise.store.checkpoints import Checkpoint
from gatewise.store.results import CIRCUITS, Store, remember_all
from gatewise.workers import WorkerPool, threads


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


def find_circuits(problem: Problem, method: Method, compute: Compute) -> dict[SearchDirection, tuple[Circuit, ...]]:
    """Find the circuits of each direction, one per size or one for the threshold."""
    check_problem(problem, method)
    if method.ranks_once:
        rankings = find_rankings(problem, method, compute)
        circuits = {direction: cut_ranking(problem, direction, whole) for direction, whole in rankings.items()}
    else:
        circuits = _recall_or_search(problem, method, compute)
    _warn_of_useless(circuits, problem.threshold, method)
    return circuits


def find_rankings(problem: Problem, method: Method, compute: Compute) -> dict[SearchDirection, Circuit]:
    """Rank all edges in each direction by a method that ranks once: the full graph, with scores.

    Neither the search nor its key depends on sizes, so that what is in the store serves all of them.
    """
    everything = dict.fromkeys(problem.directions, (problem.graph.n_edges,))
    whole = replace(problem, sizes=everything, threshold=None, select="top")
    return {direction: circuits[0] for direction, circuits in _recall_or_search(whole, method, compute).items()}


def cut_ranking(problem: Problem, direction: SearchDirection, whole: Circuit) -> tuple[Circuit, ...]:
    """Cut a ranking of all edges at the problem's sizes or at its threshold."""
    assert whole.scores is not None
    record = {**whole.provenance, "threshold": problem.threshold, "select": problem.select}
    circuits = []
    for finding in ranked(problem.only(direction), {direction: whole.scores})[direction]:
        own_record = {**record, "edges": int(finding.mask.sum())}
        circuits.append(Circuit(problem.graph, finding.mask, whole.scores, own_record))
    return tuple(circuits)


def _recall_or_search(problem: Problem, method: Method, compute: Compute) -> dict[SearchDirection, tuple[Circuit, ...]]:
    """Recall the circuits of each direction from the store, or else search for them."""
    store, workers = compute.open_store(), compute.worker_pool(problem.model.device)
    if store is not None and not storable(problem):
        message = "the metric has no version, so results are neither looked up nor stored; give a Metric with one."
        warnings.warn(message, GatewiseWarning, stacklevel=5)
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
    return {direction: tuple(recalled[direction]) for direction in problem.directions}


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
