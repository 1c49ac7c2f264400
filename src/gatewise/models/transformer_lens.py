"""TransformerLens 4: from its `TransformerBridge` to the transformers module inside, without importing TransformerLens.

A bridge puts a component with hooks around every part of the module it was made from, which stays inside as
`_original_component`. Taking these shells off again, on a view that shares the weights, gives the plain module back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatewise.errors import GatewiseError

if TYPE_CHECKING:
    import torch

_INSIDE = "_original_component"


def is_bridge(module: Any) -> bool:
    """Whether this is a TransformerBridge."""
    return any(kind.__name__ == "TransformerBridge" for kind in type(module).__mro__)


def check_bridge(bridge: Any) -> None:
    """Refuse weights that were folded or centred: they are no longer those of the model that they are named after."""
    if getattr(bridge, "compatibility_mode", False) or getattr(bridge, "_weights_processed", False):
        raise GatewiseError(
            "the weights of this TransformerBridge were processed (enable_compatibility_mode or process_weights folds "
            "norms into them), so that scores would be of another model. Give the bridge as boot_transformers made it."
        )


def without_hooks(module: torch.nn.Module) -> torch.nn.Module:
    """The module with every shell replaced by what is inside it; changes its argument."""
    for name, child in list(module.named_children()):
        inside = child
        while _INSIDE in inside._modules:
            inside = getattr(inside, _INSIDE)
        setattr(module, name, without_hooks(inside))
    return module
