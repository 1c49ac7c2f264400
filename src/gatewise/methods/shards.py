"""Scores of one search from several processes: each takes a share of the examples, one joins what they give.

    parts = [score_shard(model, pairs, (i, 4)) for i in range(4)]   # anywhere, in any order
    scores = join_scores(model, pairs, parts)                       # bit for bit what score_edges gives

For methods whose scores are sums over examples (`Method.sums`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from gatewise.engine.batches import check_shard, joined_parts
from gatewise.engine.setting import Memory, Setting
from gatewise.errors import GatewiseError
from gatewise.methods.contract import Method, Problem, SearchDirection, Shard, Sums
from gatewise.methods.record import provenance
from gatewise.methods.scores import Scores
from gatewise.methods.search import check_problem, configured
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs


def score_shard(
    model: Model | Setting,
    pairs: Pairs | None,
    shard: Shard,
    method: str | Method = "eap",
    direction: SearchDirection = "ns",
    *,
    memory: Memory = None,
    **parameters: Any,
) -> dict[int, Tensor]:
    """What `join_scores` needs of one shard."""
    check_shard(shard)
    problem, _, config, sums = _asked(model, pairs, method, direction, memory, parameters)
    return dict(sums.of_shard(problem, config, shard))


def join_scores(
    model: Model | Setting,
    pairs: Pairs | None,
    shards: Iterable[Mapping[int, Tensor]],
    method: str | Method = "eap",
    direction: SearchDirection = "ns",
    *,
    memory: Memory = None,
    **parameters: Any,
) -> Scores:
    """The scores that `score_edges` gives with the same arguments."""
    problem, chosen, config, sums = _asked(model, pairs, method, direction, memory, parameters)
    values = sums.joined(problem, config, joined_parts(shards))[direction]
    return Scores(problem.graph, values, provenance(problem, direction, chosen, config, {}))


def _asked(
    model: Model | Setting,
    pairs: Pairs | None,
    method: str | Method,
    direction: SearchDirection,
    memory: Memory,
    parameters: Mapping[str, Any],
) -> tuple[Problem, Method, Any, Sums]:
    chosen, config = configured(method, parameters)
    if chosen.sums is None:
        raise GatewiseError(f"scores of {chosen.name!r} are no sums over examples, so they cannot be made in shards.")
    setting = Setting.of(model, pairs, memory=memory)
    problem = Problem(setting, (direction,), {direction: (setting.graph.n_edges,)})
    check_problem(problem, chosen)
    return problem, chosen, config, chosen.sums
