"""Keeps files of the working folder from running as modules: in this process, and in those that it starts.

`python -c`, `python -m` and the processes of `multiprocessing` and Ray look for modules in the working folder first. A
folder that came from elsewhere may hold a `torch.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


def leave_out_working_folder(keep: str) -> None:
    """Let this process find no modules in its working folder, unless it runs from there.

    Args:
        keep: The folder of our own package, which stays.
    """
    sys.path[:] = [entry for entry in sys.path if not _is_working_folder(entry) or _same_folder(entry, keep)]


@contextmanager
def starting_elsewhere() -> Iterator[None]:
    """Let interpreters that start meanwhile look for no modules in the working folder.

    Python has a variable for that from 3.11 on; older ones start in the folder of the standard library, which is
    searched anyway. Nothing else may start processes or use relative paths meanwhile: hold a lock.
    """
    if sys.version_info >= (3, 11):
        before = os.environ.get("PYTHONSAFEPATH")
        os.environ["PYTHONSAFEPATH"] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ["PYTHONSAFEPATH"]
            else:
                os.environ["PYTHONSAFEPATH"] = before
    else:
        folder = os.getcwd()
        os.chdir(Path(os.__file__).parent)
        try:
            yield
        finally:
            os.chdir(folder)


def take_up(folder: str, entries: Sequence[str]) -> None:
    """In a worker: work in the folder of the process that started it, and find its modules as it does, but there last.

    Args:
        folder: The working folder of that process.
        entries: Its `sys.path`.
    """
    with suppress(OSError):  # another machine may not have it
        os.chdir(folder)
    others = [entry for entry in sys.path if not _is_working_folder(entry)]
    others += [entry for entry in entries if not _is_working_folder(entry) and entry not in others]
    # Modules of the user's own are in the working folder, if the user's process looks there. They come last, so that
    # none of them stands for another module that this process needs.
    sys.path[:] = [*others, *([folder] if any(map(_is_working_folder, entries)) else [])]


def _is_working_folder(entry: str) -> bool:
    return entry == "" or _same_folder(entry, os.getcwd())


def _same_folder(entry: str, folder: str) -> bool:
    return os.path.realpath(entry) == os.path.realpath(folder)
