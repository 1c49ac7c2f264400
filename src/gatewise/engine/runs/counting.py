"""Counting what torch would do, on the meta device: the bytes that live at once, the operations, the bytes moved.

Code that runs under a `Counter` runs as it always does, on tensors that have shapes and no numbers. So a forecast is
made by the very code that it is about, and does not go stale when that changes.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

GRAIN = 1.2  # memory that torch has asked for, over what lives in it: measured where gradients are taken
_VIEWS = ("view", "expand", "detach", "alias", "transpose", "permute", "slice", "select", "unsqueeze", "squeeze", "t.")
_FREE = (*_VIEWS, "split")  # operations that move no bytes, by the beginning of their names


class Counter(TorchDispatchMode):
    """`peak` bytes of live tensors made meanwhile; `operations` of matrix products; bytes `moved` by everything."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = self.moved = 0
        self.operations = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if _is_meta(x)]
        for tensor in given:  # what was there before counts for nobody
            self._known.add(tensor.untyped_storage()._cdata)
        out = function(*args, **kwargs)
        made = [x for x in tree_leaves(out) if _is_meta(x)]
        if not given and not made:
            return out
        for tensor in made:
            self._count(tensor)
        packet = function._overloadpacket
        if packet in flop_registry:
            self.operations += int(flop_registry[packet](*args, **kwargs, out_val=out))
        if not str(function).removeprefix("aten.").startswith(_FREE):
            self.moved += sum(x.numel() * x.element_size() for x in (*given, *made))
        return out

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        self._known.add(storage._cdata)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, storage._cdata, size)

    def _free(self, storage: int, size: int) -> None:
        self.live -= size
        self._known.discard(storage)


def _is_meta(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "meta"
