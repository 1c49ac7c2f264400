"""Synthetic receivers of every kind of gate, and of what must not be taken for one: the truth that gates are judged by.

Sources emit 1 on the clean side and 0 on the corrupted one. A receiver turns them into one number by a function that is
written down here, so that the effect of every set of clean groups is known without running anything: node `B`, or a
real attention head `a0.h0` with its q, k and v. `out` carries it to the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.graph import Graph, Sublayer
from gatewise.errors import GatewiseError
from gatewise.models.components import Attention, Norm, Pointwise, Projection
from gatewise.models.model import Model
from gatewise.models.synthetic.logic_model import synthetic, token_pairs
from gatewise.tasks.pairs import Pairs

Function = Callable[[Tensor], Tensor]  # of what sources emit: [..., source] -> [...]
_SHARP = 20.0  # attention scores between looking there and looking away
_HUGE = 1e12  # epsilon of a norm that only scales


@dataclass(frozen=True, eq=False)
class SyntheticReceiver:
    """A model with one receiver whose groups and gate indices are known."""

    name: str
    model: Model
    pairs: Pairs
    receiver: str
    groups: Mapping[str, tuple[str, ...]]  # edges; what is tested
    alone: tuple[str, ...]  # edges into the receiver that act for themselves
    grouped: bool  # whether the groups can be told apart: members of a threshold or a saturating sum are all alike
    label: str
    gamma: Mapping[str, float]
    gate: bool  # False: whatever is seen here is not one


@dataclass(frozen=True, eq=False)
class _Recipe:
    function: Function
    groups: Sequence[Sequence[int]]  # sources
    label: str
    alone: Sequence[int] = ()
    grouped: bool = True
    scatter: float = 0.0  # standard deviation of a last source, which differs between examples and not between sides
    beside: float = 0.0  # of the logit difference that another source brings, past the receiver
    after: Function = torch.positive  # what `out` does to the receiver's number

    @property
    def sources(self) -> int:
        return sum(map(len, self.groups)) + len(self.alone) + (self.scatter > 0)


def _mean(x: Tensor, first: int, last: int) -> Tensor:
    return x[..., first:last].mean(dim=-1)


def _either(a: Tensor, b: Tensor) -> Tensor:
    return 1 - (1 - a) * (1 - b)


def _step(x: Tensor, needed: float) -> Tensor:
    """0 up to one less than needed, 1 from needed on, straight between."""
    total = x.sum(dim=-1)
    return torch.relu(total - needed + 1) - torch.relu(total - needed)


def _under_norm(x: Tensor) -> Tensor:
    """A threshold on a sum that a root-mean-square norm over the two and a constant has scaled."""
    return torch.relu(x.sum(dim=-1) / ((x.square().sum(dim=-1) + 1) / 3).sqrt() - 1.3)


def _graded(share: float) -> Function:
    return lambda x: (1 - share) * x.mean(dim=-1) + share * x.prod(dim=-1)


_PAIR = ((0,), (1,))
_HALVES = (range(5), range(5, 10))
_RECIPES: dict[str, _Recipe] = {
    "and-of-groups": _Recipe(lambda x: _mean(x, 0, 5) * _mean(x, 5, 10), _HALVES, "AND"),
    "or-of-groups": _Recipe(lambda x: _either(_mean(x, 0, 5), _mean(x, 5, 10)), _HALVES, "OR"),
    "two-of-three": _Recipe(lambda x: _step(x, 2), ((0,), (1,), (2,)), "2 of 3", grouped=False),
    "five-of-ten": _Recipe(lambda x: _step(x, 5), (range(4), range(4, 7), range(7, 10)), "2 of 3", grouped=False),
    "saturating": _Recipe(lambda x: torch.tanh(3 * x.mean(dim=-1)), _HALVES, "OR", grouped=False),
    "xor": _Recipe(lambda x: x.sum(dim=-1) - 2 * x.prod(dim=-1), _PAIR, "XOR-like", beside=1.0),
    "or-beside-adders": _Recipe(
        lambda x: 0.3 * _either(x[..., 0], x[..., 1]) + 0.4 * x[..., 2] + 0.3 * x[..., 3], _PAIR, "OR", alone=(2, 3)
    ),
    "graded-25": _Recipe(_graded(0.25), _PAIR, "ADDER"),
    "graded-50": _Recipe(_graded(0.5), _PAIR, "AND"),
    "graded-75": _Recipe(_graded(0.75), _PAIR, "AND"),
    "negative": _Recipe(lambda x: -x.prod(dim=-1), _PAIR, "AND", beside=2.0),
    "backup": _Recipe(lambda x: x[..., 0] * (1 - x[..., 1]), _PAIR, "inhibiting", beside=1.0),
    "under-norm": _Recipe(_under_norm, _PAIR, "AND"),
    "self-curvature": _Recipe(lambda x: 0.5 * x[..., 0].square() + 0.5 * x[..., 1], _PAIR, "ADDER"),
    "downstream": _Recipe(lambda x: x.mean(dim=-1), _PAIR, "ADDER", after=lambda value: torch.tanh(3 * value)),
    "additive": _Recipe(lambda x: 0.6 * x[..., 0] + 0.4 * x[..., 1], _PAIR, "ADDER"),
    "additive-on-average": _Recipe(
        lambda x: 0.6 * x[..., 0] + 0.4 * x[..., 1] + x[..., :3].prod(dim=-1), _PAIR, "ADDER", scatter=0.3
    ),
}
_HEADS = {"q-and-k": "qk", "k-and-v": "kv", "q-and-k-and-v": "qkv"}
KINDS = (*_RECIPES, *_HEADS)


def synthetic_receiver(name: str, *, noise: float = 0.0, examples: int = 16, seed: int = 0) -> SyntheticReceiver:
    """Make a model with one receiver of a known kind, in float64.

    Args:
        name: One of `KINDS`.
        noise: Standard deviation of what sources emit between examples, and of stray weights.
        examples: Number of pairs.
        seed: Of the noise.

    Returns:
        The model, its pairs, and the true groups, label and gate indices.
    """
    if name in _HEADS:
        return _head(name, _HEADS[name], noise, examples, seed)
    if name not in _RECIPES:
        raise GatewiseError(f"there is no synthetic kind {name!r}; there are {', '.join(KINDS)}.")
    recipe = _RECIPES[name]
    names = [f"A{i + 1}" for i in range(recipe.sources)]
    sources = [*names, "beside"]
    emitted = _emitted(len(sources), examples, noise, seed)
    if recipe.scatter:
        emitted[1:, len(names) - 1] = recipe.scatter * _normal(seed + 2, examples).repeat(2)
    graph = Graph.layered(sources, [["B"], ["out"]], len(sources) + 2)
    stray = noise * _normal(seed + 1, len(names))

    def receiver(x: Tensor, _nodes: Sequence[int]) -> Tensor:
        read = x[..., : len(names)]
        return _written(x, len(sources), recipe.function(read) + read @ stray)

    def out(x: Tensor, _nodes: Sequence[int]) -> Tensor:
        return _written(x, len(sources) + 1, recipe.after(x[..., len(sources)]) + recipe.beside * x[..., len(names)])

    model = synthetic(f"synthetic:{name}", graph, emitted, (Pointwise(receiver), Pointwise(out)), len(sources) + 1, {})
    groups = {f"G{i + 1}": tuple(f"{names[member]}->B" for member in group) for i, group in enumerate(recipe.groups)}
    alone = tuple(f"{names[member]}->B" for member in recipe.alone)
    gamma = dict(zip(groups, _gate_indices(recipe.function, recipe.groups, recipe.sources), strict=True))
    gate = recipe.label != "ADDER" or name.startswith("graded")
    pairs = _pairs(examples, positions=1)
    return SyntheticReceiver(name, model, pairs, "B", groups, alone, recipe.grouped, recipe.label, gamma, gate)


def _head(name: str, kinds: str, noise: float, examples: int, seed: int) -> SyntheticReceiver:
    """A head at the last of two positions that looks at the first if q and k say so, and fetches v from there.

    Sources q (at the last position), k and v (at the first) are 1 on the clean side, or on both if they are no part of
    the gate. `one` is always 1; `here` is 1 at the last position, which the head looks at otherwise.
    """
    sources = ("q", "k", "v", "one", "here")
    emitted = _emitted(len(sources), examples, noise, seed)
    for i, source in enumerate(sources):
        if source not in kinds:
            emitted[:, i] = 1.0
    speaking = torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0, 1.0]])  # [position, source]
    width = len(sources) + 2
    weights = {kind: torch.zeros(1, width, 2, dtype=torch.float64) for kind in "qkv"}
    weights["q"][0, 0, 0], weights["q"][0, 3, 1] = _SHARP, 1.0
    weights["k"][0, 1, 0], weights["k"][0, 4, 1] = 1.0, _SHARP / 2
    weights["v"][0, 2, 0] = 1.0
    out = torch.zeros(1, 2, width, dtype=torch.float64)
    out[0, 0, len(sources)] = 1.0
    # A norm with a huge epsilon divides by a constant, which its weight takes back: attention reads the plain stream.
    norm = Norm(torch.full((width,), math.sqrt(_HUGE), dtype=torch.float64), None, _HUGE, center=False)
    q, k, v = (Projection(weights[kind], None) for kind in "qkv")
    attention = Attention(norm=norm, q=q, k=k, v=v, out=out, bias=None, scale=1.0)
    sublayers = (
        Sublayer("source", sources, (), 0, -1),
        Sublayer("attention", ("a0.h0",), ("a0.h0<q>", "a0.h0<k>", "a0.h0<v>"), len(sources), 0),
        Sublayer("pointwise", ("out",), ("out",), len(sources) + 1, 1),
        Sublayer("output", (), ("logits",), len(sources) + 2, 2),
    )
    last = Pointwise(lambda x, _nodes: _written(x, len(sources) + 1, x[..., len(sources)]))
    graph = Graph(sublayers, 2, len(sources), width)
    model = synthetic(f"synthetic:{name}", graph, emitted, (attention, last), width - 1, {}, speaking)
    groups = {kind: (f"{kind}->a0.h0<{kind}>",) for kind in kinds}

    def gathered(x: Tensor) -> Tensor:
        values = dict.fromkeys("qkv", torch.ones_like(x[..., 0])) | dict(zip(kinds, x.unbind(-1), strict=True))
        return values["v"] * torch.sigmoid(_SHARP * (values["q"] * values["k"] - 0.5))

    gamma = dict(zip(groups, _gate_indices(gathered, [(i,) for i in range(len(kinds))], len(kinds)), strict=True))
    return SyntheticReceiver(name, model, _pairs(examples, positions=2), "a0.h0", groups, (), True, "AND", gamma, True)


def _emitted(sources: int, examples: int, noise: float, seed: int) -> Tensor:
    """What sources emit: on token 0 nothing, then on the clean token of each example, then on the corrupted ones."""
    clean = 1 + noise * _normal(seed, examples, sources)
    return torch.cat([torch.zeros_like(clean[:1]), clean, torch.zeros_like(clean)])


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _written(x: Tensor, dimension: int, value: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[..., dimension] = value
    return out


def _pairs(examples: int, positions: int) -> Pairs:
    """Every example has its own clean and its own corrupted token, at all positions."""
    clean, corrupted = ([[first + i] * positions for i in range(examples)] for first in (1, examples + 1))
    return token_pairs(clean, corrupted)


def _gate_indices(function: Function, groups: Sequence[Sequence[int]], sources: int) -> list[float]:
    """The gate index of every group by its definition, all other sources corrupted."""

    def value(chosen: Sequence[Sequence[int]]) -> float:
        x = torch.zeros(sources, dtype=torch.float64)
        x[[member for group in chosen for member in group]] = 1.0
        return float(function(x))

    indices = []
    for group in groups:
        ns = abs(value(groups) - value([other for other in groups if other is not group]))
        dn = abs(value([group]) - value([]))
        indices.append((ns - dn) / (ns + dn) if ns + dn > 1e-9 else math.nan)
    return indices
