"""`discover` and `score_edges`: one call for every method, with everything checked before the work starts."""

from __future__ import annotations

import dataclasses
import platform
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.engine.circuits import last_logits
from gatewise.engine.runs import check_pairs
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.methods.contract import Finding, Method, Problem, SearchDirection
from gatewise.methods.ingredients import ingredients
from gatewise.methods.registry import methods
from gatewise.models.model import Model
from gatewise.notebook import card, strongest
from gatewise.store import Store
from gatewise.tasks.pairs import Pairs


@dataclass(frozen=True, eq=False)
class Scores:
    """One number per edge, in the order of `graph.edges`."""

    graph: Graph
    values: Tensor  # [edge]
    provenance: Mapping[str, Any]

    def __getitem__(self, edge: str) -> float:
        return float(self.values[self.graph.index(edge)])

    def __repr__(self) -> str:
        best = torch.argsort(self.values.abs(), descending=True)[:3].tolist()
        shown = ", ".join(f"{self.graph.edges[i]} {float(self.values[i]):.4g}" for i in best)
        made = f"{self.provenance.get('method')} {self.provenance.get('direction')}"
        return f"<Scores by {made} of {len(self.values):,} edges; strongest {shown}>"

    def _repr_html_(self) -> str:
        made = f"by {self.provenance.get('method')} {self.provenance.get('direction')} of {len(self.values):,} edges"
        rows = [(self.graph.edges[i], f"{self.values[i]:.4g}") for i in strongest(self.values)]
        return card("Scores", made, ("edge", "score"), rows)


@overload
def discover(
    model: Model,
    pairs: Pairs,
    method: str = ...,
    direction: SearchDirection = ...,
    *,
    edges: int | None = ...,
    threshold: float | None = ...,
    seed: int = ...,
    memory: int | str | None = ...,
    store: Store | str | Path | None = ...,
    **parameters: Any,
) -> Circuit: ...
@overload
def discover(
    model: Model,
    pairs: Pairs,
    method: str = ...,
    direction: SearchDirection = ...,
    *,
    edges: Sequence[int],
    seed: int = ...,
    memory: int | str | None = ...,
    store: Store | str | Path | None = ...,
    **parameters: Any,
) -> list[Circuit]: ...
def discover(
    model: Model,
    pairs: Pairs,
    method: str = "eap",
    direction: SearchDirection = "ns",
    *,
    edges: int | Sequence[int] | None = None,
    threshold: float | None = None,
    seed: int = 0,
    memory: int | str | None = None,
    store: Store | str | Path | None = None,
    **parameters: Any,
) -> Circuit | list[Circuit]:
    """Find a circuit of exactly `edges` edges (or one for each of a list), or of a `threshold`.

    `direction`: `ns` (noising), `dn` (denoising), `ns+dn` (both, combined as the method's `combine` says).
    `store`: a folder or URL that keeps results; what was found before with the same weights, pairs and settings is read
    there, and a search that was interrupted goes on from its last checkpoint.
    Further arguments are the method's own parameters; `gatewise methods` lists them.
    """
    chosen, config = _method(method, parameters)
    sizes = () if edges is None else (edges,) if isinstance(edges, int) else tuple(edges)
    problem = Problem(model, pairs, direction, sizes, threshold, seed, memory)
    _check(problem, chosen)
    if store is None:
        circuits = _search(problem, chosen, config)
    else:
        circuits = _stored_search(problem, chosen, config, store if isinstance(store, Store) else Store(store))
    if not all(circuits):
        message = f"the threshold {threshold} keeps no edge; the circuit is empty. Lower it."
        warnings.warn(message, GatewiseWarning, stacklevel=2)
    return circuits[0] if edges is None or isinstance(edges, int) else circuits


def score_edges(
    model: Model,
    pairs: Pairs,
    method: str = "eap",
    direction: SearchDirection = "ns",
    *,
    seed: int = 0,
    memory: int | str | None = None,
    **parameters: Any,
) -> Scores:
    """What a method thinks of every edge of the graph."""
    chosen, config = _method(method, parameters)
    problem = Problem(model, pairs, direction, (model.graph.n_edges,), None, seed, memory)
    _check(problem, chosen)
    clock = _Clock()
    finding = chosen.search(problem, config)[0]
    return Scores(model.graph, finding.scores, provenance(problem, chosen, config, clock.times()))


def _method(name: str, parameters: Mapping[str, Any]) -> tuple[Method, Any]:
    known = methods()
    if name not in known:
        raise GatewiseError(f"there is no method {name!r}; there are {', '.join(known)}.")
    chosen = known[name]
    fields = {f.name for f in dataclasses.fields(chosen.config)}
    unknown = sorted(set(parameters) - fields)
    if unknown:
        raise GatewiseError(f"{name} has no parameter {unknown[0]!r}; its parameters are {', '.join(sorted(fields))}.")
    return chosen, chosen.config(**parameters)


def _check(problem: Problem, method: Method) -> None:
    """Refuse what cannot work, before the work."""
    model, graph = problem.model, problem.model.graph
    if problem.direction not in ("ns", "dn", "ns+dn"):
        raise GatewiseError(f"direction is 'ns', 'dn' or 'ns+dn', got {problem.direction!r}.")
    if bool(problem.sizes) == (problem.threshold is not None):
        raise GatewiseError("give either edges= (a number of edges, or several) or threshold=, not both.")
    for size in problem.sizes:
        if not 0 < size <= graph.n_edges:
            raise GatewiseError(f"a circuit of {size:,} edges was asked for; {model.name} has {graph.n_edges:,}.")
    if problem.threshold is not None and not problem.threshold >= 0:
        raise GatewiseError(f"the threshold is {problem.threshold}; expected 0 or more ({method.threshold_meaning}).")
    check_pairs(model, problem.pairs)
    for name, tensor in model.tensors().items():
        if not bool(torch.isfinite(tensor).all()):
            raise GatewiseError(f"the weight {name!r} of {model.name} holds NaN or infinity; load sound weights.")
    for side in ("clean", "corrupted"):
        if not bool(torch.isfinite(last_logits(model, problem.pairs[:1], side)).all()):
            raise GatewiseError(f"{model.name} gives NaN or infinite logits on the {side} side; try dtype='float32'.")


def _search(problem: Problem, method: Method, config: Any) -> list[Circuit]:
    clock = _Clock()
    findings = method.search(problem, config)
    record = provenance(problem, method, config, clock.times())
    return [_circuit(problem, finding, record) for finding in findings]


def _stored_search(problem: Problem, method: Method, config: Any, store: Store) -> list[Circuit]:
    """What the store has, or else what the search finds, from its last checkpoint on; it is then stored."""
    store.tidy()
    asked = ingredients(problem, method.name, config)
    key = store.key(asked)
    checkpoint = store.checkpoint(key)
    found = store.get(key)
    if found is not None:
        return found
    store.check_writable()
    circuits = _search(dataclasses.replace(problem, checkpoint=checkpoint), method, config)
    try:
        store.put(key, circuits, asked)
    except GatewiseError as error:  # the work is done: hand it over all the same
        warnings.warn(f"the result was found but not stored: {error}", GatewiseWarning, stacklevel=3)
    return circuits


def _circuit(problem: Problem, finding: Finding, record: Mapping[str, Any]) -> Circuit:
    notes = {"edges": int(finding.mask.sum()), **({"notes": dict(finding.notes)} if finding.notes else {})}
    return Circuit(problem.model.graph, finding.mask, finding.scores.cpu(), {**record, **notes})


class _Clock:
    """What a search takes, from now on."""

    def __init__(self) -> None:
        self._wall, self._processor = time.time(), time.process_time()

    def times(self) -> dict[str, Any]:
        return {
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(time.time() - self._wall, 3),
            "processor_seconds": round(
                time.process_time() - self._processor, 3
            ),  # on all threads; not an accelerator's
        }


def provenance(problem: Problem, method: Method, config: Any, times: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that determines a result, and what it took."""
    model, pairs = problem.model, problem.pairs
    return {
        "method": method.name,
        "direction": problem.direction,
        "parameters": dataclasses.asdict(config),
        "threshold": problem.threshold,
        "seed": problem.seed,
        "model": model.name,
        "weights": model.fingerprint,
        "task": pairs.name,
        "examples": len(pairs),
        "data": pairs.fingerprint,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "versions": {
            "gatewise": version("gatewise"),
            "torch": version("torch"),
            "transformers": version("transformers"),
            "python": platform.python_version(),
        },
        "time": dict(times),
    }
