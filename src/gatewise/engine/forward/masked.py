"""The masked engine: a loss of soft masks, and its gradient with respect to them at the open edges, for each example.

An edge whose mask is exactly 0 has no say, and the masks of trainings are mostly 0. So a node without an open path to
the logits, or from a source that differs, is not run; ports that read nothing open share their input; and no gradient
is computed for closed edges. Every example has a mask of its own, or all have the same. Sublayers are kept for the way
back while there is room, and run again beyond it. The dense engine, with one mask for all, is the slow twin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.engine.patching.propagation import all_liveness, differing_senders
from gatewise.engine.runs.activations import Intervention
from gatewise.models.components import KINDS, Attention, Kind, queries_at_once
from gatewise.models.model import Model

_SAVED_BY_ATTENTION, _SAVED_BY_MLP = 4, 14  # what autograd keeps for the way back, in units of the ports' inputs
_Indices = slice | Tensor


@dataclass(frozen=True, eq=False)
class _Sublayer:
    """What of a sublayer is run."""

    index: int
    chosen: Tensor  # which of its nodes
    own: Tensor  # which of its ports read something, sorted
    nodes: _Indices  # the senders that are its nodes
    ports: _Indices  # the ports that read something
    senders: _Indices  # what they read


class MaskedEngine:
    """Runs masks on one prepared batch. room: bytes that may be kept of the way forward for the way back."""

    def __init__(self, model: Model, intervention: Intervention, room: int = 0) -> None:
        self.model, self.on, self._room = model, intervention, room
        shape = (len(model.graph.senders), *intervention.sources.shape[1:])
        self._delta = intervention.sources.new_zeros(shape)  # current - other of every sender that is run

    def gradient(self, mask: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """A loss of the logits, and its gradient at the open edges, 0 at closed ones. -> [example, port, sender]

        mask: [example, port, sender], or [port, sender] for all examples; on the CPU, where the run is planned.
        """
        *plan, logits = self._plan((mask != 0).any(dim=0) if mask.dim() == 3 else mask != 0)
        weights = mask.to(self._delta.device, self._delta.dtype)
        saved: dict[int, tuple[Tensor, Tensor]] = {}
        room = self._room
        for sublayer in plan:
            x = self._mixed(sublayer, weights)
            room -= self._bytes_kept(sublayer, x)
            with torch.set_grad_enabled(room >= 0):
                out = self._run(sublayer, x.requires_grad_(room >= 0))
            if room >= 0:
                saved[sublayer.index] = (x, out)
            self._delta[sublayer.nodes] = torch.sub(out.detach(), self.on.other[sublayer.nodes])
        last = self._mixed(logits, weights)[0].requires_grad_(True)
        value = loss(self.model.unembed(last[:, -1]))
        (into_last,) = torch.autograd.grad(value, last)
        # In float32 at least: masks are trained by these sums over positions and dimensions.
        fine = torch.promote_types(weights.dtype, torch.float32)
        shape = (self._delta.shape[1], *mask.shape[-2:])
        into_mask = torch.zeros(shape, dtype=fine, device=weights.device)
        into_delta = torch.zeros_like(self._delta)
        self._spread(logits, weights, into_last[None], into_mask, into_delta)
        for sublayer in reversed(plan):
            if not len(sublayer.own):  # reads no open edge: no gradient goes back through it
                continue
            if sublayer.index in saved:
                x, out = saved.pop(sublayer.index)
            else:
                x = self._mixed(sublayer, weights).requires_grad_(True)
                out = self._run(sublayer, x)
            (into_x,) = torch.autograd.grad(out, x, into_delta[sublayer.nodes])
            self._spread(sublayer, weights, into_x, into_mask, into_delta)
        # An edge that is open in another example only was mixed with this one's weight of 0, and has a gradient there.
        return value.detach(), into_mask * (weights != 0)

    def _bytes_kept(self, sublayer: _Sublayer, x: Tensor) -> int:
        """Estimate what autograd keeps of a sublayer for the way back. x: inputs of its ports"""
        if not isinstance(self.model.sublayers[sublayer.index], Attention):
            return _SAVED_BY_MLP * x.nbytes
        layout, maps = self.on.layout, len(sublayer.chosen) * x.shape[1]
        cut_up = queries_at_once(maps, layout.window, layout.width) < layout.window
        return _SAVED_BY_ATTENTION * x.nbytes + (0 if cut_up else 4 * maps * layout.window * layout.width)

    def _plan(self, opened: Tensor) -> list[_Sublayer]:
        """What has to be run, sublayer by sublayer; the last is the logits. opened: [port, sender] of bool"""
        model, graph = self.model, self.model.graph
        differs = differing_senders(model, opened, all_liveness(model, opened), self.on.is_run)
        plan = []
        for index in range(len(model.sublayers)):
            nodes, ports = graph.sender_slices[index + 1], graph.port_slices[index + 1]
            reads = graph.sublayers[index + 1].reads
            chosen = differs[nodes].nonzero().flatten()
            if len(chosen):
                plan.append(self._sublayer(index, chosen, opened[ports, :reads] & differs[:reads]))
        sources = graph.sender_slices[0]
        torch.sub(self.on.sources, self.on.other[sources], out=self._delta[sources])
        logits = self._sublayer(len(model.sublayers), torch.tensor([0]), opened[-1:] & differs)
        return [*plan, logits]

    def _sublayer(self, index: int, chosen: Tensor, carrying: Tensor) -> _Sublayer:
        """carrying: which open edges carry something [port of the sublayer, sender]"""
        graph = self.model.graph
        part = self.model.sublayers[index] if index < len(self.model.sublayers) else None
        first_port, first_node = graph.port_slices[index + 1].start, graph.sender_slices[index].stop
        used = carrying.any(dim=0).nonzero().flatten()
        if not isinstance(part, Attention):
            own = chosen
        elif part.separable:
            of_chosen = torch.zeros(len(carrying), dtype=torch.bool)
            of_chosen.view(-1, part.n_heads)[:, chosen] = True
            own = (of_chosen & carrying.any(dim=1)).nonzero().flatten()
        else:
            own, chosen = torch.arange(len(carrying)), torch.arange(part.n_heads)
        stop = int(used[-1]) + 1 if len(used) else 0
        # Mixing in a few senders that carry nothing costs less than gathering the others.
        senders = slice(0, stop) if 2 * len(used) >= stop else used
        return _Sublayer(index, chosen, own, _as_slice(chosen + first_node), _as_slice(own + first_port), senders)

    def _mixed(self, sublayer: _Sublayer, weights: Tensor) -> Tensor:
        """Inputs of the ports that read something. [port, example, window, d]"""
        base, carried = self.on.base[sublayer.index], self._delta[sublayer.senders]
        if sublayer.index == len(self.model.sublayers):
            base, carried = base[:, -1:], carried[:, :, -1:]
        share = weights[..., sublayer.ports, :][..., sublayer.senders]
        if share.dim() == 2:
            return torch.addmm(base.flatten(), share, carried.flatten(1)).reshape(-1, *base.shape)
        mixed = torch.baddbmm(base.flatten(1)[:, None], share, carried.transpose(0, 1).flatten(2))
        return mixed.transpose(0, 1).reshape(-1, *base.shape)

    def _spread(
        self, sublayer: _Sublayer, weights: Tensor, into_x: Tensor, into_mask: Tensor, into_delta: Tensor
    ) -> None:
        """Add to the gradients at the mask and at the senders, out of those at inputs [port, example, column, d]."""
        columns, senders, ports = into_x.shape[2], sublayer.senders, sublayer.ports
        carried = self._delta[senders][:, :, -columns:]
        by_example = into_x.transpose(0, 1).flatten(2)  # [example, port, column and d]
        rows = ports[:, None] if isinstance(ports, Tensor) and isinstance(senders, Tensor) else ports
        into_share = torch.bmm(by_example, carried.transpose(0, 1).flatten(2).transpose(1, 2))
        into_mask[:, rows, senders] = into_share.to(into_mask.dtype)
        share = weights[..., ports, :][..., senders]
        if share.dim() == 2:
            into_carried = (share.T @ into_x.flatten(1)).view_as(carried)
        else:
            into_carried = torch.bmm(share.transpose(1, 2), by_example).transpose(0, 1).reshape(carried.shape)
        into_delta[senders, :, -columns:] += into_carried

    def _run(self, sublayer: _Sublayer, x: Tensor) -> Tensor:
        """What the chosen nodes put out. [node, example, window, d]"""
        part, layout, prefix = self.model.sublayers[sublayer.index], self.on.layout, self.on.prefix[sublayer.index]
        if not isinstance(part, Attention):
            return part(x, sublayer.chosen.tolist())
        if x.shape[0] == len(self.model.graph.sublayers[sublayer.index + 1].ports):
            return part(x, layout, prefix)
        q, k, v = (self._projected(part, sublayer, x, kind) for kind in KINDS)
        heads = sublayer.chosen.to(x.device)
        return part.write(part.attend(q, k, v, layout, prefix, heads), heads)

    def _projected(self, part: Attention, sublayer: _Sublayer, x: Tensor, kind: Kind) -> Tensor:
        """Queries, keys or values of the chosen heads: of those with an input of their own, and of the others."""
        first = 0 if self.model.graph.qkv == "merged" else part.n_heads * KINDS.index(kind)
        # Ports are sorted, all q before all k before all v: those of a kind stand together.
        rows = slice(*torch.searchsorted(sublayer.own, torch.tensor([first, first + part.n_heads])).tolist())
        own = sublayer.own[rows] - first
        others = sublayer.chosen[~torch.isin(sublayer.chosen, own)]
        return part.project_heads(kind, [(own, x[rows]), (others, self.on.base[sublayer.index][None])], self.on.layout)


def _as_slice(indices: Tensor) -> _Indices:
    """A slice, if the indices are one: what it selects need not be copied."""
    if len(indices) and int(indices[-1]) - int(indices[0]) + 1 == len(indices):
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices
