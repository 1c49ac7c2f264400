"""Models: the adapter contract, one file per architecture, the loader, and the built-in models.

`Model` is imported when it is asked for, since it needs torch and the list of built-in models does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatewise.models.loader import load_model

if TYPE_CHECKING:
    from gatewise.models.model import Model

__all__ = ["Model", "load_model"]


def __getattr__(name: str) -> Any:
    if name == "Model":
        from gatewise.models.model import Model

        return Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
