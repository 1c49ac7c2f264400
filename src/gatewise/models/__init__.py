"""Models: the adapter contract, one file per architecture, the loader, and the built-in models.

What needs torch is imported when it is asked for, since the list of built-in models does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise._lazy import imported_when_used
from gatewise.models.loader import load_model

if TYPE_CHECKING:
    from gatewise.models.gradient_rules import GradientRule
    from gatewise.models.model import Model
    from gatewise.models.transformer import register_architecture

__all__ = ["GradientRule", "Model", "load_model", "register_architecture"]

_NAMES = {"gradient_rules": "GradientRule", "model": "Model", "transformer": "register_architecture"}
__getattr__ = imported_when_used(__name__, _NAMES)
