"""The walk along the residual stream, which every run over all edges takes."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gatewise.models.model import Model


def walk(model: Model, start: Tensor, write: Callable[[int, Tensor], Tensor], *, biases: bool = True) -> list[Tensor]:
    """What each sublayer reads, and the logits, if sublayer i adds `write(i, what it reads)` and then its output
    bias."""
    graph = model.graph
    current = start
    streams = {graph.sender_slices[0].stop: current}  # by the number of senders that have written
    read = []
    for index, sublayer in enumerate(model.sublayers):
        x = streams[graph.sublayers[index + 1].reads]
        read.append(x)
        current = current + write(index, x)
        if biases and sublayer.bias is not None:
            current = current + sublayer.bias
        streams[graph.sender_slices[index + 1].stop] = current
    return [*read, current]
