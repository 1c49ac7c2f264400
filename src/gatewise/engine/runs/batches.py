"""How many examples a batch has: splits pairs so that the work fits the memory budget.

The split depends on the budget and on the sizes alone, never on what happens to be free, so that a run can be repeated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from gatewise.compute import format_bytes, parse_bytes
from gatewise.devices import free_memory
from gatewise.errors import GatewiseError
from gatewise.models.components import Attention, queries_at_once
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

MOST_WITH_GRADIENT = 32  # examples at a time: more are no faster, and memory does not grow with their number
ROW_BYTES = 1 << 28  # of buffers for the rows of one proposal of the incremental engine
_MOST_ON_A_GPU = 256  # which idles with less
_MAP_COPIES = 4  # of attention scores at once: scaled, masked, their softmax, and in the dtype of the values
_MAP_COPIES_BACK = 6  # of the way forward again, and of the way back


def window_of(pairs: Pairs) -> int:
    """Columns from the first difference of any pair on; the last one, which the logits read, in any case."""
    return pairs.width - min(int(pairs.first_difference.min()), pairs.width - 1)


@dataclass(frozen=True)
class _Sizes:
    """Numbers of a model that estimates are made of."""

    outputs: int  # of all senders at one position
    streams: int  # of the residual streams that sublayers and logits read, at one position
    widest: int  # inputs of the ports of the widest sublayer, at one position
    all_ports: int  # inputs of all ports, at one position
    hidden: int  # of an MLP at one position
    heads: int  # of the layer that has most of them
    gathered: int  # queries of all heads of a layer, at one position
    keys_values: int  # keys and values of all layers, at one position
    attention_layers: int

    @classmethod
    def of(cls, model: Model) -> _Sizes:
        graph, d = model.graph, model.d_model
        layers = [sublayer for sublayer in model.sublayers if isinstance(sublayer, Attention)]
        stated = getattr(getattr(model.hf, "config", None), "intermediate_size", None) or 0
        return cls(
            outputs=len(graph.senders) * d,
            streams=len(graph.sublayers) * d,
            widest=max(len(sublayer.ports) for sublayer in graph.sublayers) * d,
            all_ports=len(graph.ports) * d,
            hidden=max(4 * d, stated),
            heads=max((layer.n_heads for layer in layers), default=0),
            gathered=max((layer.out.shape[0] * layer.out.shape[1] for layer in layers), default=0),
            keys_values=sum(2 * layer.k.weight.shape[0] * layer.k.weight.shape[2] for layer in layers),
            attention_layers=len(layers),
        )

    def maps(self, examples: int, queries: int, columns: int) -> int:
        """Bytes of attention scores that a layer makes at a time."""
        maps = max(1, self.heads * examples)
        return 4 * maps * queries_at_once(maps, queries, columns) * columns

    def kept_maps(self, examples: int, queries: int, columns: int) -> int:
        """Bytes of attention weights that both runs keep for the way back: none of those that are cut into blocks."""
        if queries_at_once(max(1, self.heads), queries, columns) < queries:
            return 0
        return 2 * self.attention_layers * self.maps(examples, queries, columns)


def bytes_needed(
    model: Model, examples: int, window: int, width: int | None = None, *, gradient: bool = False, states: int = 0
) -> int:
    """Estimate what examples take at most that are run at once: linear in tokens, but for blocks of attention maps.

    Args:
        model: The model.
        examples: How many.
        window: Columns from the first difference on.
        width: All columns; by default the window.
        gradient: Whether gradients are taken: sums are then in float32 at least, and layers' activations are kept.
        states: In how many directions the incremental engine keeps the state of every node.

    Returns:
        Bytes.
    """
    width = window if width is None else width
    sizes, d, vocabulary = _Sizes.of(model), model.d_model, model.vocabulary_size
    size, fine, before = model.dtype.itemsize, max(model.dtype.itemsize, 4), width - window
    # The columns before the window are run once; their keys and values stay. So do positions and the rotary embedding.
    before_bytes = (sizes.keys_values * before + 4 * d * width) * size
    first_run = (sizes.heads * d + 4 * sizes.gathered + 3 * sizes.hidden + 4 * d) * before * size
    if gradient:
        saved = sizes.attention_layers * (12 * d + 4 * sizes.hidden) * size
        per_position = 2 * sizes.outputs * size + sizes.outputs * fine + 2 * sizes.widest * fine + saved
        logits = 8 * vocabulary * size
        maps = _MAP_COPIES_BACK * sizes.maps(examples, window, width) + sizes.kept_maps(examples, window, width)
    else:
        heads = sizes.attention_layers * 3 * sizes.gathered
        work = 2 * sizes.widest + 2 * sizes.hidden + 4 * sizes.gathered
        per_position = (3 * sizes.outputs + 2 * sizes.streams + heads + work) * size
        # Each state has outputs, inputs of ports, shared inputs, queries, keys and values; the canonical evaluation
        # has runs and a buffer of its own.
        per_position += states * (3 * sizes.outputs + 3 * sizes.streams + sizes.all_ports + heads) * size
        logits = vocabulary * (4 * size + 6 * 8)  # measured in float64
        maps = _MAP_COPIES * sizes.maps(examples, window, width)
    before_window = examples * first_run + _MAP_COPIES * sizes.maps(examples, before, before)
    return examples * (before_bytes + logits) + max(before_window, examples * per_position * window + maps)


def check_free_memory(model: Model, needed: int, what: str) -> None:
    """Refuse work that cannot fit what is free, before it starts."""
    free = free_memory(model.device)
    if needed > free:
        raise GatewiseError(
            f"{what} needs about {format_bytes(needed)}, and {format_bytes(free)} are free. "
            f"Use fewer examples, shorter prompts, or dtype='bfloat16'."
        )


def check_budget(needed: int, budget: int, what: str) -> None:
    """Refuse work that does not fit the memory budget, before it starts."""
    if needed > budget:
        enough = f"{-(-needed * 21 // 20 >> 20)}MB"
        raise GatewiseError(
            f"{what} needs about {format_bytes(needed)}, and the budget is {format_bytes(budget)}. "
            f"Raise it (memory={enough!r}), use fewer examples or shorter prompts, or dtype='bfloat16'."
        )


def batches(
    model: Model, pairs: Pairs, budget: int | str | None = None, *, gradient: bool = False, share_prefix: bool = True
) -> Iterator[tuple[int, Pairs]]:
    """Consecutive slices of the pairs that fit the budget, each with the index of its first example."""
    allowed = parse_bytes(budget)
    window = window_of(pairs) if share_prefix else pairs.width

    def needed(examples: int) -> int:
        return bytes_needed(model, examples, window, pairs.width, gradient=gradient)

    check_budget(needed(1), allowed, f"one example of {pairs.width} tokens on {model.name}")
    most = len(pairs)
    if gradient:
        most = MOST_WITH_GRADIENT if (model.planned_for or model.device.type) in ("cpu", "meta") else _MOST_ON_A_GPU
    counts = range(1, min(most, len(pairs)) + 1)
    size = max(1, bisect_right(counts, allowed, key=needed))
    for start in range(0, len(pairs), size):
        yield start, pairs[start : start + size]
