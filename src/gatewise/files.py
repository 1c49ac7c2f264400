"""Writing files so that nothing is ever half-written, and reading them within stated limits."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from gatewise.errors import GatewiseError

MAX_JSON_BYTES = 1 << 30


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary name beside `path`, flush it to disk, then rename."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise GatewiseError(
            f"cannot write {path}: {error.strerror}. Choose another place or free some space."
        ) from error


def write_json(path: Path, content: Any, *, indent: int | None = None) -> None:
    write_atomically(path, (json.dumps(content, indent=indent, allow_nan=False) + "\n").encode())


def read_json(path: Path, what: str) -> Any:
    """Parse a JSON file; every way it can be broken is an error that names the file."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise GatewiseError(f"{path} has {size:,} bytes; {what} has at most {MAX_JSON_BYTES:,}.")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise GatewiseError(f"cannot read {path}: {error.strerror}. Give the path of {what}.") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, GatewiseError):
            raise
        raise GatewiseError(f"{path} is not valid JSON ({error}). Give the path of {what}.") from error
