"""Giving freed memory back to the system, so that a process that works batch by batch stays as large as one batch.

The C library keeps freed blocks for later ones. Those of the next batch fit the holes only roughly, so the process
grows with the number of batches, though nothing is kept of any of them.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_MMAP_THRESHOLD, _LARGE_BLOCK = -3, 1 << 20  # glibc's M_MMAP_THRESHOLD, and its value in bytes


def give_back() -> None:
    """Return what is free to the system, where the C library can (glibc); takes milliseconds, changes no result."""
    trim = _trim()
    if trim is not None:
        trim(0)


def map_large_blocks() -> None:
    """Take blocks above a megabyte from the system one by one from now on, and return each when it is freed.

    The C library learns from what is freed to take blocks of up to 32 MB from its heap. Those of long prompts leave
    holes there: a process took more than twice what lived in it. New pages cost some time, and change no result.
    """
    choose = None if _library() is None else getattr(_library(), "mallopt", None)
    if choose is not None:
        choose(_MMAP_THRESHOLD, _LARGE_BLOCK)


@cache
def _trim() -> ctypes._NamedFuncPointer | None:
    return None if _library() is None else getattr(_library(), "malloc_trim", None)


@cache
def _library() -> ctypes.CDLL | None:
    """The C library, where it is one that can do this."""
    return ctypes.CDLL(None) if sys.platform.startswith("linux") else None
