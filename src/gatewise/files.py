"""Writing files so that nothing is ever half-written, and reading them within stated limits.

A file is written under a temporary name, flushed to disk and renamed. The temporary name says which process on which
machine writes under it, and when that process began, in ticks that no change of the clock moves: it is abandoned if
that process has ended. Of other machines' processes nothing is known, and a day has to pass.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import math
import os
import platform
import re
import stat
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gatewise.errors import GatewiseError

MAX_BYTES = 1 << 30  # of a file that a user names: three circuits of ten million edges with scores fit
MAX_JSON_BYTES = 256 << 20  # a circuit file of three million edges fits
MAX_JSON_VALUES = 20_000_000  # commas and brackets: small ones take thirty times their size in memory
_TEMPORARY = re.compile(
    r"\..+\.(?P<machine>[0-9a-f]{8})-(?P<process>\d{1,10})(?:-b(?P<begun>\d{1,20}))?-[0-9a-f]{8}\.part"
)
_LONG = 24 * 3600.0  # seconds after which nobody writes under a temporary name any more


def cache_folder() -> Path:
    """Return where downloaded models are kept: GATEWISE_CACHE, else the user's cache."""
    chosen = os.environ.get("GATEWISE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gatewise"


# Writing


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is there as a whole or as it was before, whenever the process or the machine stops."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise GatewiseError(
            f"cannot write {path}: {error.strerror}. Choose another place or free some space."
        ) from error


def replace_file(path: Path, content: bytes) -> None:
    """Do the same for callers who have something else to say about an OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    try:
        _write(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def temporary_path(beside: Path) -> Path:
    """Return a name of this process's own for what will be renamed to `beside`."""
    number = os.getpid()
    return beside.with_name(f".{beside.name}.{_machine()}-{number}-b{_begun(number)}-{uuid.uuid4().hex[:8]}.part")


def _write(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # readable as the user's umask says
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _flush_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_abandoned(temporary: Path) -> bool:
    """Whether nobody will finish this temporary file."""
    import psutil

    written = temporary.stat().st_mtime
    name = _TEMPORARY.fullmatch(temporary.name)
    if name is None or name["machine"] != _machine():
        return time.time() - written > _LONG
    number = int(name["process"])
    if number == os.getpid():
        return False
    try:
        if psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
            return True
        if name["begun"] is None:  # written by an earlier version: the number may have gone to a later process
            return time.time() - written > _LONG
        return int(name["begun"]) != _begun(number)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def _begun(number: int) -> int:
    """When a process began: in ticks since the machine did, or where the system does not tell these in microseconds."""
    import psutil

    try:
        # Not `create_time`: on Linux that is made of the clock's time, and differs after the clock was set.
        return int(Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return int(psutil.Process(number).create_time() * 1e6)


@functools.cache
def _machine() -> str:
    """The machine, or the container: where process numbers mean the same."""
    try:
        numbers = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        numbers = ""
    return hashlib.sha256(f"{platform.node()} {numbers}".encode()).hexdigest()[:8]


def write_json(path: Path, content: Any, *, indent: int | None = None) -> None:
    """Write a JSON file; a number that is none is refused."""
    write_atomically(path, (json.dumps(content, indent=indent, allow_nan=False) + "\n").encode())


def as_plain(value: Any) -> Any:
    """Turn a value into JSON for the record: tuples become lists, NaN and infinities null."""
    if isinstance(value, Mapping):
        return {str(key): as_plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(element) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# Reading


class UnfitFileError(OSError):
    """What has the name of a file and is none that we read: a pipe, a device, or something too large."""


def read_regular(path: Path, largest: int = MAX_BYTES) -> bytes:
    """Read a regular file of at most so many bytes. A pipe is not waited for, and nothing larger is read.

    Raises:
        UnfitFileError: It is no regular file, or too large.
        OSError: It cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        about = os.fstat(handle)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(about.st_mode):
            raise UnfitFileError(errno.EINVAL, "it is no regular file")
        with os.fdopen(handle, "rb", closefd=False) as stream:
            content = b"" if about.st_size > largest else stream.read(largest + 1)
        if max(about.st_size, len(content)) > largest:
            raise UnfitFileError(errno.EFBIG, f"it is larger than {largest:,} bytes")
        return content
    finally:
        os.close(handle)


def read_bytes(path: Path, what: str, largest: int = MAX_BYTES) -> bytes:
    """Read a file of at most so many bytes; `what` it should be is named in errors."""
    try:
        return read_regular(path, largest)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise GatewiseError(f"{path} is larger than {largest:,} bytes, the most that {what} has.") from error
        raise GatewiseError(f"cannot read {path}: {error.strerror}. Give the path of {what}.") from error


def read_json(path: Path, what: str) -> Any:
    """Parse a JSON file; every way it can be broken is an error that names the file."""
    return parse_json(read_bytes(path, what, MAX_JSON_BYTES), path, what)


def parse_json(content: bytes, path: str | Path, what: str) -> Any:
    """Parse the content of a JSON file; `path` is named in errors."""
    if len(content) > MAX_JSON_BYTES:
        raise GatewiseError(f"{path} is larger than {MAX_JSON_BYTES:,} bytes, the most that {what} has.")
    values = sum(content.count(sign) for sign in (b",", b"[", b"{"))
    if values > MAX_JSON_VALUES:
        raise GatewiseError(f"{path} has about {values:,} values; {what} has at most {MAX_JSON_VALUES:,}.")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise GatewiseError(f"{path} is not valid JSON ({error}). Give the path of {what}.") from error


def shown(value: Any, width: int = 80) -> str:
    """Return a value from a file as text for an error: shortened if it is long, and never an error of its own."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number of too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= width else f"{text[: width - 4]} ..."
