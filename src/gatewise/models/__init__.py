"""Models: the adapter contract, one file per architecture, the loader, and the built-in models.

What needs torch is imported when it is asked for, since the list of built-in models does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gatewise.models.loader import load_model

if TYPE_CHECKING:
    from gatewise.models.model import Model
    from gatewise.models.transformer import register_architecture

__all__ = ["Model", "load_model", "register_architecture"]

_HOME = {"Model": "model", "register_architecture": "transformer"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"gatewise.models.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
