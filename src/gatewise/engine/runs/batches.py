"""How many examples a batch has: splits pairs so that the work fits the memory budget.

The split depends on the budget and on the sizes alone, never on what happens to be free, so that a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator

from gatewise.compute import parse_bytes
from gatewise.devices import free_memory
from gatewise.errors import GatewiseError
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

MOST_WITH_GRADIENT = 32  # examples at a time: more are no faster, and memory does not grow with their number
_MOST_ON_A_GPU = 256  # which idles with less


def window_of(pairs: Pairs) -> int:
    """Columns from the first difference of any pair on; the last one, which the logits read, in any case."""
    return pairs.width - min(int(pairs.first_difference.min()), pairs.width - 1)


def bytes_per_example(model: Model, window: int, *, gradient: bool = False, buffers: int = 2) -> int:
    """Estimate of what one example takes: sender buffers, the ports of the widest sublayer, the logits.

    With a gradient, sums are taken in float32 at least, and every layer's activations are kept.
    """
    graph = model.graph
    size = model.dtype.itemsize
    widest = max(len(sublayer.ports) for sublayer in graph.sublayers)
    hidden = max(4 * graph.d_model, getattr(getattr(model.hf, "config", None), "intermediate_size", None) or 0)
    outputs = len(graph.senders) * graph.d_model
    if not gradient:
        per_position = (buffers * outputs + widest * graph.d_model * 3 + hidden * 2) * size
    else:
        fine = max(size, 4)
        saved = len(model.sublayers) // 2 * (12 * graph.d_model + 4 * hidden) * size
        per_position = 2 * outputs * size + outputs * fine + widest * graph.d_model * fine + saved
    return per_position * window + (8 if gradient else 4) * model.vocabulary_size * size


def check_free_memory(model: Model, needed: int, what: str) -> None:
    """Refuse work that cannot fit what is free, before it starts."""
    free = free_memory(model.device)
    if needed > free:
        raise GatewiseError(
            f"{what} needs about {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free. "
            f"Use fewer examples, shorter prompts, or dtype='bfloat16'."
        )


def batches(
    model: Model, pairs: Pairs, budget: int | str | None = None, *, gradient: bool = False, share_prefix: bool = True
) -> Iterator[tuple[int, Pairs]]:
    """Consecutive slices of the pairs that fit the budget, each with the index of its first example."""
    allowed = parse_bytes(budget)
    window = window_of(pairs) if share_prefix else pairs.width
    needed = bytes_per_example(model, window, gradient=gradient)
    if needed > allowed:
        enough = f"{-(-needed // 2**30) + 1}GB"
        raise GatewiseError(
            f"one example of {window} tokens on {model.name} needs about {needed / 2**30:.1f} GiB, and the budget is "
            f"{allowed / 2**30:.1f} GiB. Raise it (memory={enough!r}), shorten the prompts, or use bfloat16."
        )
    most = len(pairs)
    if gradient:
        most = MOST_WITH_GRADIENT if (model.planned_for or model.device.type) in ("cpu", "meta") else _MOST_ON_A_GPU
    size = max(1, min(len(pairs), allowed // needed, most))
    for start in range(0, len(pairs), size):
        yield start, pairs[start : start + size]
