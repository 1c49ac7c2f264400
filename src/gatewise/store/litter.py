"""Temporary names, and which of them nobody will finish.

A temporary name says which process on which machine writes under it. It is abandoned if that process has ended; of
other machines' processes nothing is known, and a day has to pass.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

_NAME = re.compile(r"\..+\.(?P<place>[0-9a-f]{8})-(?P<process>\d{1,10})-[0-9a-f]{8}\.part")
_LONG = 24 * 3600.0  # seconds after which nobody writes under a temporary name any more


def temporary_path(beside: Path) -> Path:
    """A name of this process's own for what will be renamed to `beside`."""
    return beside.with_name(f".{beside.name}.{_place()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.part")


def abandoned(root: Path) -> Iterator[Path]:
    """Temporary files and folders of a store whose writers are gone."""
    for folder in (root, *(path for path in root.glob("[0-9a-f][0-9a-f]") if path.is_dir())):
        for path in folder.glob(".*.part"):
            try:
                if _is_abandoned(path):
                    yield path
            except FileNotFoundError:  # its writer has just finished, or another process has cleaned up
                continue


def remove(path: Path) -> None:
    """Remove a file or a folder; nothing happens if it is gone or may not be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError:  # what is left over does no harm
        return


def discard(folder: Path) -> None:
    """Remove a folder at once for others: it is never seen half removed."""
    temporary = temporary_path(folder)
    try:
        folder.rename(temporary)
    except OSError:  # gone, or what is left over does no harm
        return
    remove(temporary)


def _is_abandoned(path: Path) -> bool:
    written = path.stat().st_mtime
    name = _NAME.fullmatch(path.name)
    if name is None or name["place"] != _place():
        return time.time() - written > _LONG
    number = int(name["process"])
    if number == os.getpid():
        return False
    try:
        process = psutil.Process(number)
        reused = process.create_time() > written + 1  # the writer's number was given to a later process
        return reused or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


@functools.cache
def _place() -> str:
    """The machine, or the container: where process numbers mean the same."""
    try:
        numbers = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        numbers = ""
    return hashlib.sha256(f"{platform.node()} {numbers}".encode()).hexdigest()[:8]
