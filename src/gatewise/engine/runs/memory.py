"""Giving freed memory back to the system, so that a process that works batch by batch stays as large as one batch.

The C library keeps freed blocks for later ones. Those of the next batch fit the holes only roughly, so the process
grows with the number of batches, though nothing is kept of any of them.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache


def give_back() -> None:
    """Return what is free to the system, where the C library can (glibc); takes milliseconds, changes no result."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> ctypes._NamedFuncPointer | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
