"""Examples spread over workers, with sums that are the same bit for bit as those of one process.

Each worker calls `score_shard` or `evaluate_shard` with its place, such as (0, 4) for the first of four; whoever has
the results of all of them calls `join_scores` or `join_evaluations`. Micro-batches, and the order in which they are
summed, follow from model, pairs and memory alone; these, and the number of threads, have to be the same everywhere.
What a shard gives is plain tensors by number: they travel by any means (safetensors, Ray, a pool of processes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.engine.batches import batches
from gatewise.errors import GatewiseError
from gatewise.evaluation.evaluations import Evaluations, measure_shard, summarised
from gatewise.methods.contract import Method, Problem, SearchDirection
from gatewise.methods.eap import Blocks, EapConfig, combined, score_blocks
from gatewise.methods.search import Scores, _check, _method, provenance
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

Shard = tuple[int, int]  # which one, of how many
PartScores = Mapping[int, Tensor]


def score_shard(
    model: Model,
    pairs: Pairs,
    shard: Shard,
    method: str = "eap",
    direction: SearchDirection = "ns",
    *,
    memory: int | str | None = None,
    **parameters: Any,
) -> dict[int, Tensor]:
    """What `join_scores` needs of one shard. `method` is 'eap' or 'eap-ig'."""
    _check_shard(shard)
    problem, _, config = _asked(model, pairs, method, direction, memory, parameters)
    return dict(score_blocks(problem, config, shard).sums)


def join_scores(
    model: Model,
    pairs: Pairs,
    shards: Iterable[PartScores],
    method: str = "eap",
    direction: SearchDirection = "ns",
    *,
    memory: int | str | None = None,
    **parameters: Any,
) -> Scores:
    """The scores that `score_edges` gives with the same arguments."""
    problem, chosen, config = _asked(model, pairs, method, direction, memory, parameters)
    scores = Blocks(_joined(shards)).mean(problem)
    values = combined(scores, config.combine) if isinstance(config, EapConfig) else scores[0]
    return Scores(model.graph, values, provenance(problem, chosen, config, {}))


def evaluate_shard(
    model: Model,
    pairs: Pairs,
    circuits: Sequence[Circuit],
    shard: Shard,
    *,
    random_circuits: int = 3,
    seed: int = 0,
    memory: int | str | None = None,
) -> dict[int, Tensor]:
    """What `join_evaluations` needs of one shard."""
    _check_shard(shard)
    return measure_shard(model, pairs, circuits, shard, random_circuits=random_circuits, seed=seed, memory=memory)


def join_evaluations(
    model: Model,
    pairs: Pairs,
    circuits: Sequence[Circuit],
    shards: Iterable[PartScores],
    *,
    random_circuits: int = 3,
    names: Sequence[str] = (),
    memory: int | str | None = None,
) -> Evaluations:
    """The evaluations that `evaluate` gives with the same arguments."""
    measured = _joined(shards)
    needed = sum(1 for _ in batches(model, pairs, memory))
    if sorted(measured) != list(range(needed)):
        raise GatewiseError(
            f"measures of the micro-batches {sorted(measured)} were given, and {needed} are needed; join all shards of "
            f"the same pairs and the same memory, each once."
        )
    return summarised(model, circuits, measured, random_circuits=random_circuits, names=names)


def _asked(
    model: Model,
    pairs: Pairs,
    method: str,
    direction: SearchDirection,
    memory: int | str | None,
    parameters: Mapping[str, Any],
) -> tuple[Problem, Method, Any]:
    if method not in ("eap", "eap-ig"):
        raise GatewiseError(
            f"scores of {method!r} are no sums over examples; the methods with shards are eap and eap-ig."
        )
    chosen, config = _method(method, parameters)
    problem = Problem(model, pairs, direction, (model.graph.n_edges,), memory=memory)
    _check(problem, chosen)
    return problem, chosen, config


def _joined(shards: Iterable[PartScores]) -> dict[int, Tensor]:
    found: dict[int, Tensor] = {}
    for shard in shards:
        if twice := sorted(set(shard) & set(found)):
            raise GatewiseError(f"the parts {twice[:8]} were given twice; join each shard once.")
        found.update(shard)
    return found


def _check_shard(shard: Shard) -> None:
    index, count = shard
    if not 0 <= index < count:
        raise GatewiseError(f"the shard {shard} was asked for; expected (i, n) with i from 0 to n - 1.")
