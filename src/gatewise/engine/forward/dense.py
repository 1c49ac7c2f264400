"""The dense engine: a circuit sublayer by sublayer, one matrix product mixing all senders into all ports of a sublayer.

The input of port r is  base[r] + sum over kept u of mask[r, u] (current[u] - other[u]),  read before the norm, which is
recomputed for every port: this is where an edge is patched. `gradient` is the same computation run backwards, sublayer
by sublayer, without keeping any sublayer's activations: it serves Edge Pruning (a mask between 0 and 1) and EAP (the
gradient at the full mask).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gatewise.engine.runs.activations import Intervention
from gatewise.models.model import Model


class DenseEngine:
    """Runs circuits, given as masks [port, sender], on one prepared batch."""

    def __init__(self, model: Model, intervention: Intervention) -> None:
        self.model, self.on = model, intervention
        # Row 0 holds the base of the sublayer at hand, the others current - other of every sender: so one product adds
        # the base as well, and needs no copy of what is mixed.
        self._rows = intervention.sources.new_empty(len(model.graph.senders) + 1, *intervention.sources.shape[1:])
        self._delta = self._rows[1:]

    @torch.no_grad()
    def logits(self, mask: Tensor) -> Tensor:
        """Logits of the circuit at the last position. [example, vocabulary]"""
        return self.model.unembed(self.residual(mask))

    def gradient(self, mask: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """A loss of the logits, and its gradient with respect to the mask. -> scalar, [port, sender]"""
        value, into_mask, _ = self._differentiate(mask, lambda last: loss(self.model.unembed(last)))
        return value, into_mask

    def mask_gradient(self, mask: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """The gradient with respect to the mask of a loss of the last residual. [port, sender]"""
        return self._differentiate(mask, loss)[1]

    def at_senders(self, mask: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Outputs of all senders [sender, example, window, d], and the gradient of a loss of the residual there."""
        _, _, into_senders = self._differentiate(mask, loss)
        return self._delta + self.on.other, into_senders

    def _differentiate(self, mask: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """A loss of the last residual, and its gradient at the mask and at the senders' outputs."""
        last = self.residual(mask).requires_grad_(True)
        value = loss(last)
        (into_last,) = torch.autograd.grad(value, last)
        return value.detach(), *self._backward(mask, into_last)

    @torch.no_grad()
    def residual(self, mask: Tensor) -> Tensor:
        """The residual that is unembedded at the last position; fills `_delta` on the way. [example, d]"""
        graph, on, delta = self.model.graph, self.on, self._delta
        torch.sub(on.sources, on.other[graph.sender_slices[0]], out=delta[graph.sender_slices[0]])
        for index in range(len(self.model.sublayers)):
            out = self._run_sublayer(index, self._port_inputs(index, mask))
            nodes = graph.sender_slices[index + 1]
            torch.sub(out, on.other[nodes], out=delta[nodes])
        # Only the answer position, the last column, is read at the logits.
        carried: Tensor = torch.tensordot(mask[-1].to(delta.dtype), delta[:, :, -1], dims=1)
        return on.base[-1][:, -1] + carried

    def _port_inputs(self, index: int, mask: Tensor) -> Tensor:
        """Mix the senders into the ports of a sublayer. [port, example, window, d]"""
        graph = self.model.graph
        ports, reads = graph.port_slices[index + 1], graph.sublayers[index + 1].reads
        rows = self._rows[: reads + 1]
        rows[0] = self.on.base[index]
        weights = torch.nn.functional.pad(mask[ports, :reads].to(rows.dtype), (1, 0), value=1.0)
        return (weights @ rows.flatten(1)).reshape(len(weights), *rows.shape[1:])

    def _run_sublayer(self, index: int, x: Tensor) -> Tensor:
        return self.model.run_sublayer(index, x, self.on.layout, self.on.prefix[index])

    def _backward(self, mask: Tensor, into_last: Tensor) -> tuple[Tensor, Tensor]:
        """Sweep back over the sublayers, with the gradient of every sender's output gathered in one buffer.

        -> [port, sender], [sender, example, window, d]
        """
        graph, delta = self.model.graph, self._delta
        # In float32 whatever the model's dtype: masks are trained and edges ranked by these sums.
        into_mask = torch.zeros(len(graph.ports), len(graph.senders), dtype=torch.float32, device=delta.device)
        into_delta = torch.zeros_like(delta)  # [sender, example, window, d]
        into_delta[:, :, -1] = mask[-1].to(delta.dtype)[:, None, None] * into_last
        into_mask[-1] = torch.einsum("sbd,bd->s", delta[:, :, -1].float(), into_last.float())
        for index in reversed(range(len(self.model.sublayers))):
            nodes, ports = graph.sender_slices[index + 1], graph.port_slices[index + 1]
            reads = graph.sublayers[index + 1].reads
            # Run again rather than kept: memory stays at three sender buffers, whatever the number of layers.
            with torch.no_grad():
                x = self._port_inputs(index, mask)
            with torch.enable_grad():
                out = self._run_sublayer(index, x.requires_grad_(True))
            (into_x,) = torch.autograd.grad(out, x, into_delta[nodes])
            # The input of port r is linear in its mask: d input / d mask[r, u] is what u carries, so the mask's
            # gradient is one product of the ports' gradients with delta, and the senders' one with the mask.
            into_ports = into_x.flatten(1)
            into_mask[ports, :reads] = (into_ports @ delta[:reads].flatten(1).T).float()
            into_delta[:reads].flatten(1).addmm_(mask[ports, :reads].to(delta.dtype).T, into_ports)
        return into_mask, into_delta
