"""gatewise finds logically complete circuits in language models.

Names are imported when first used, so that the command line answers before torch is loaded. `_surface.py` lists them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gatewise._surface import *

    __version__: str
else:  # unseen by type checkers, which would otherwise take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return version("gatewise")
        if name == "__all__":
            return __dir__()
        if name.startswith("_") or name not in __dir__():
            raise AttributeError(f"module 'gatewise' has no attribute {name!r}")
        return getattr(import_module("gatewise._surface"), name)

    def __dir__() -> list[str]:
        return sorted(name for name in vars(import_module("gatewise._surface")) if not name.startswith("_"))
