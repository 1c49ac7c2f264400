"""Writing files so that nothing is ever half-written, and reading them within stated limits."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from gatewise.errors import GatewiseError

MAX_JSON_BYTES = 256 << 20  # a circuit file of three million edges fits
MAX_JSON_VALUES = 20_000_000  # commas and brackets: small ones take thirty times their size in memory


def cache_folder() -> Path:
    """Where downloaded models, and results that wait to be sent, are kept: GATEWISE_CACHE, else the user's cache."""
    chosen = os.environ.get("GATEWISE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gatewise"


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary name beside `path`, flush it to disk, then rename."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.part"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # readable as the user's umask says
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
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
        with path.open("rb") as stream:
            content = stream.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise GatewiseError(f"cannot read {path}: {error.strerror}. Give the path of {what}.") from error
    return parse_json(content, path, what)


def parse_json(content: bytes, path: str | Path, what: str) -> Any:
    """The JSON in the content of a file; `path` is named in errors."""
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
    """A value from a file, for an error: not all of it if it is long, and never an error of its own."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number of too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= width else f"{text[: width - 4]} ..."
