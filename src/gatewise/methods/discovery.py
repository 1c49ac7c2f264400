"""`discover` and `score_edges`: one call for every method, with everything checked before the work starts."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.circuits.selection import Selection, check_selection, number_of_edges
from gatewise.compute import Compute, current_compute
from gatewise.engine.runs.activations import Ablation
from gatewise.engine.setting import AnyMetric, Data, Setting
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.methods.base import SEARCH_DIRECTIONS, Finding, Method, Problem, SearchDirection, parts_of
from gatewise.methods.parallel import searches
from gatewise.methods.provenance import ingredients, provenance, storable
from gatewise.methods.registry import find_method
from gatewise.methods.scores import Scores
from gatewise.models.model import Model
from gatewise.store import Store
from gatewise.workers import WorkerPool, threads

Size = int | float  # a number of edges, or a share of the graph's below 1
Sizes = Size | Sequence[Size]


@overload
def discover(
    model: Model,
    data: Data,
    method: str | Method = ...,
    direction: SearchDirection = ...,
    *,
    edges: Size | None = ...,
    threshold: float | None = ...,
    select: Selection = ...,
    seed: int = ...,
    ablation: Ablation | None = ...,
    metric: AnyMetric = ...,
    compute: Compute | None = ...,
    **parameters: Any,
) -> Circuit: ...
@overload
def discover(
    model: Model,
    data: Data,
    method: str | Method = ...,
    direction: SearchDirection = ...,
    *,
    edges: Sequence[Size],
    **more: Any,
) -> list[Circuit]: ...
@overload
def discover(
    model: Model,
    data: Data,
    method: str | Method = ...,
    *,
    direction: Sequence[SearchDirection],
    **more: Any,
) -> dict[SearchDirection, Any]: ...
def discover(
    model: Model,
    data: Data,
    method: str | Method = "eap",
    direction: SearchDirection | Sequence[SearchDirection] = "ns",
    *,
    edges: Sizes | Mapping[SearchDirection, Sizes] | None = None,
    threshold: float | None = None,
    select: Selection = "top",
    seed: int = 0,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
    **parameters: Any,
) -> Circuit | list[Circuit] | dict[SearchDirection, Any]:
    """Find a circuit of exactly `edges` edges (or one for each of a list), or of a `threshold`.

    `model`, `pairs`: or a `Setting` in place of both, which also has ablation, metric and memory. Of a task, its pairs
    to search on are taken. `edges`: a whole number, or a share of the graph's edges, as in 0.01.
    `method`: a name, `module:NAME` of your own, or a `Method`. `direction`: `ns` (noising), `dn` (denoising), `ns+dn`
    (both, combined as the method's `combine` says), or several of them, which gives a dict and shares all work that
    directions have in common; `edges` may then be a dict too.
    `select`: the `top` edges, or `connected` ones, all on a path from the input to the logits.
    `ablation`: what removed edges carry: `patching` (the other run), or `zero`, `mean`, `noise` (ns only).
    `metric`: what the search keeps unchanged: by default KL for ACDC and Edge Pruning and the logit difference for EAP;
    or 'kl', 'logit_diff', a `gatewise.engine.Metric`, or a function of logits and pairs.
    `compute`: memory, workers and the store; workers share examples of EAP and EAP-IG, directions of ACDC and Edge
    Pruning. Further arguments are the method's own parameters; `gatewise methods` lists them.
    """
    chosen, config = configured(method, parameters)
    directions: tuple[SearchDirection, ...] = (direction,) if isinstance(direction, str) else tuple(direction)
    setting = Setting.of(model, data, "train", ablation=ablation, metric=metric, seed=seed, compute=compute)
    problem = Problem(setting, directions, _sizes(edges, directions, setting.graph), threshold, select, seed)
    check_problem(problem, chosen)
    store, team = current_compute(compute).open_store(), current_compute(compute).worker_pool(model.device)
    with threads(None if team is None else 1):
        found = _searched(problem, chosen, config, store, team)
    _warn(found, threshold)
    answers = {one: _as_asked(found[one], edges, one) for one in directions}
    return answers[direction] if isinstance(direction, str) else answers


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
    **parameters: Any,
) -> Scores:
    """What a method thinks of every edge of the graph. Arguments are those of `discover`."""
    chosen, config = configured(method, parameters)
    setting = Setting.of(model, data, "train", ablation=ablation, metric=metric, seed=seed, compute=compute)
    problem = Problem(setting, (direction,), {direction: (setting.graph.n_edges,)}, seed=seed)
    check_problem(problem, chosen)
    setting.check_sound()
    team = current_compute(compute).worker_pool(model.device)
    with threads(None if team is None else 1):
        ((_, findings, times),) = searches([problem], chosen, config, team)
        record = provenance(problem, direction, chosen, config, times)
    return Scores(setting.graph, findings[direction][0].scores, record)


def configured(method: str | Method, parameters: Mapping[str, Any]) -> tuple[Method, Any]:
    """The method and its parameters, the names of which are checked."""
    chosen = find_method(method)
    fields = {f.name for f in dataclasses.fields(chosen.config)}
    unknown = sorted(set(parameters) - fields)
    if unknown:
        known = f"its parameters are {', '.join(sorted(fields))}" if fields else "it has none"
        raise GatewiseError(f"{chosen.name} has no parameter {unknown[0]!r}; {known}.")
    return chosen, chosen.config(**parameters)


def _sizes(
    edges: Sizes | Mapping[SearchDirection, Sizes] | None, directions: Sequence[SearchDirection], graph: Graph
) -> dict[SearchDirection, tuple[int, ...]]:
    if edges is None:
        return {}
    if isinstance(edges, Mapping) and sorted(edges) != sorted(directions):
        raise GatewiseError(f"edges has sizes for {', '.join(edges)}; the directions are {', '.join(directions)}.")
    asked = edges if isinstance(edges, Mapping) else dict.fromkeys(directions, edges)
    listed = {one: [some] if isinstance(some := asked[one], (int, float)) else list(some) for one in directions}
    return {one: tuple(number_of_edges(size, graph) for size in some) for one, some in listed.items()}


def _as_asked(circuits: list[Circuit], edges: Any, direction: SearchDirection) -> Circuit | list[Circuit]:
    asked = edges[direction] if isinstance(edges, Mapping) else edges
    return circuits[0] if asked is None or isinstance(asked, (int, float)) else circuits


def check_problem(problem: Problem, method: Method) -> None:
    """Refuse what cannot work, before the work."""
    model, graph = problem.model, problem.graph
    for direction in problem.directions:
        if direction not in SEARCH_DIRECTIONS:
            raise GatewiseError(f"direction is 'ns', 'dn' or 'ns+dn', got {direction!r}.")
        for part in parts_of(direction):
            problem.setting.check_direction(part)
    if not problem.directions:
        raise GatewiseError("no direction was given; expected 'ns', 'dn' or 'ns+dn', or several of them.")
    check_selection(problem.select)
    sizes = [size for some in problem.sizes.values() for size in some]
    if bool(sizes) == (problem.threshold is not None):
        raise GatewiseError("give either edges= (a number of edges, or several) or threshold=, not both.")
    for size in sizes:
        if not 0 < size <= graph.n_edges:
            raise GatewiseError(f"a circuit of {size:,} edges was asked for; {model.name} has {graph.n_edges:,}.")
    if problem.threshold is not None and not problem.threshold >= 0:
        raise GatewiseError(f"the threshold is {problem.threshold}; expected 0 or more ({method.threshold_meaning}).")
    if problem.threshold is not None and problem.select != "top":
        raise GatewiseError(f"select={problem.select!r} goes with edges=; a threshold keeps all edges that reach it.")


def _searched(
    problem: Problem, method: Method, config: Any, store: Store | None, team: WorkerPool | None
) -> dict[SearchDirection, list[Circuit]]:
    """What the store has, or else what searches find, from their last checkpoint on; it is then stored."""
    if store is not None and not storable(problem):
        message = "the metric has no version, so results are neither looked up nor stored; give a Metric with one."
        warnings.warn(message, GatewiseWarning, stacklevel=3)
        store = None
    found: dict[SearchDirection, list[Circuit]] = {}
    if store is not None:
        store.tidy()
        for direction in problem.directions:
            known = store.get(store.key(ingredients(problem.only(direction), method, config)))
            if known is not None:
                found[direction] = known
    missing = tuple(direction for direction in problem.directions if direction not in found)
    groups = [problem.only(*one) for one in ([missing] if method.together and missing else [(d,) for d in missing])]
    if groups:  # what is stored was sound when it was found
        problem.setting.check_sound()
    if groups and store is not None:
        store.check_writable()
        keys = [store.key(ingredients(group, method, config)) for group in groups]
        groups = [replace(one, checkpoint=store.checkpoint(key)) for one, key in zip(groups, keys, strict=True)]
    for group, findings, times in searches(groups, method, config, team):
        for direction in group.directions:
            record = provenance(problem, direction, method, config, times)
            found[direction] = [_circuit(problem, finding, record) for finding in findings[direction]]
        if store is not None:
            _store(group, {one: found[one] for one in group.directions}, method, config, store)
    return found


def _store(
    problem: Problem, circuits: Mapping[SearchDirection, list[Circuit]], method: Method, config: Any, store: Store
) -> None:
    try:
        for direction, found in circuits.items():
            record = ingredients(problem.only(direction), method, config)
            store.put(store.key(record), found, record)
        problem.checkpoint.clear()
        for name in method.parts.names(problem, config) if method.parts is not None and method.parts.saves else ():
            problem.checkpoint.part(str(name)).clear()
    except GatewiseError as error:  # the work is done: hand it over all the same
        warnings.warn(f"the result was found but not stored: {error}", GatewiseWarning, stacklevel=5)


def _circuit(problem: Problem, finding: Finding, record: Mapping[str, Any]) -> Circuit:
    notes = {"edges": int(finding.mask.sum()), **({"notes": dict(finding.notes)} if finding.notes else {})}
    return Circuit(problem.graph, finding.mask, finding.scores.cpu(), {**record, **notes})


def _warn(found: Mapping[SearchDirection, Sequence[Circuit]], threshold: float | None) -> None:
    """Say what makes a circuit worthless."""
    for direction, circuits in found.items():
        for circuit in circuits:
            if not circuit:
                message = f"the threshold {threshold} keeps no edge; the circuit is empty. Lower it."
            elif not circuit.connected():
                message = (
                    f"the {direction} circuit of {len(circuit):,} edges has no path from the input to the logits, so "
                    f"it does what the empty circuit does. Use select='connected', or more edges."
                )
            else:
                continue
            warnings.warn(message, GatewiseWarning, stacklevel=3)
