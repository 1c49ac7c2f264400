"""A store at a URL: in a bucket, or in any other file system that fsspec knows (`s3://`, `gs://`, `sftp://`).

    URL/ab/abcdef....entry         one line of JSON, the sizes of an entry's files; then these files
    URL/ab/abcdef....checkpoint    as in a folder
    URL/.gatewise-store            tells that a store is here; written anew to see whether one may write

Object stores cannot rename, but they take a file as a whole or not at all. So an entry is one file there, never half of
one writer's and half of another's. Where a file can be torn, its checksums do not hold: it is computed again.

What is written goes to a folder of this machine first, the outbox, and leaves it once it was sent: nothing is lost when
the URL cannot be reached.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.files import cache_folder
from gatewise.store.checkpoints import Checkpoint, Saved
from gatewise.store.entries import ARRAYS, CHECKSUMS, RESULT, DamagedError

_URL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]+)(?:://(?P<rest>.*)|::.*://.*)", re.DOTALL)
_FILE = re.compile(r"(?P<key>[0-9a-f]{32})\.(?P<kind>entry|checkpoint)")
_MARK = ".gatewise-store"
_EXAMPLES = "s3://bucket/runs, gs://bucket/runs or sftp://host/data/runs"


def place_of(root: str | os.PathLike[str]) -> Path | Remote:
    """A folder for a path or a `file://` URL, which are two names of the same; else what the URL leads to."""
    text = os.fspath(root)
    url = _URL.fullmatch(text)
    if url is not None and url["rest"] is not None and url["protocol"] in ("file", "local"):
        return Path(LocalFileSystem._strip_protocol(text))
    if url is not None:
        return Remote(text)
    protocol, colon, _ = text.partition(":/")
    if colon and protocol in known_implementations:
        raise GatewiseError(
            f"the store {text!r} looks like a URL that was made a Path; give it as text: {protocol}://..."
        )
    return Path(root).expanduser()


@dataclass(frozen=True)
class RemoteFile:
    """A file of a store at a URL."""

    key: str
    kind: Literal["entry", "checkpoint"]
    bytes: int
    modified: float  # seconds since 1970; 0 where the file system does not say


class Remote:
    """The files of a store at a URL, read and written as a whole."""

    def __init__(self, url: str) -> None:
        given = _URL.fullmatch(url)
        self.shown = re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", url)  # without passwords
        if given is None or given["rest"] is None:
            raise GatewiseError(
                f"the store {self.shown!r} is not a plain URL such as {_EXAMPLES}; in chained ones, caches would hide "
                f"what others store."
            )
        self.protocol, rest = given["protocol"], given["rest"].rstrip("/")
        if not rest:
            raise GatewiseError(f"the store {self.shown!r} names no folder; expected something like {_EXAMPLES}.")
        self.url, self.shown = f"{self.protocol}://{rest}", self.shown.rstrip("/")
        self._system, self._path = self._opened()

    def _opened(self) -> tuple[Any, str]:
        try:
            fsspec.get_filesystem_class(self.protocol)
        except ValueError as error:
            raise GatewiseError(
                f"the store {self.shown!r} has the protocol {self.protocol!r}, which fsspec does not know; give a "
                f"folder, or a URL such as {_EXAMPLES}."
            ) from error
        except ImportError as error:
            raise GatewiseError(f"the store {self.shown!r} needs a package that is not there: {error}.") from error
        with self._told("open"):
            system, path = fsspec.url_to_fs(self.url)
            return system, str(path)

    @property
    def outbox(self) -> Path:
        """Where this machine keeps what is not sent yet."""
        return cache_folder() / "outbox" / f"{self.protocol}-{hashlib.sha256(self.url.encode()).hexdigest()[:16]}"

    # Files

    def read(self, name: str) -> bytes | None:
        """None if there is no such file."""
        with self._told("read"):
            try:
                return bytes(self._system.cat_file(self._at(name)))
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        with self._told("write to"):
            try:
                self._system.pipe_file(self._at(name), content)
            except FileNotFoundError:  # of object stores: no such bucket; of others: no such folder
                self._make_folders(self._at(name))
                self._system.pipe_file(self._at(name), content)

    def remove(self, name: str) -> None:
        with self._told("remove from"), suppress(FileNotFoundError):
            self._system.rm_file(self._at(name))

    def check_writable(self) -> None:
        self.write(_MARK, b"A run store of gatewise.\n")

    def files(self) -> Iterator[RemoteFile]:
        """All entries and checkpoints. An error if there is no store."""
        with self._told("list"):
            self._system.invalidate_cache()
            try:
                found = self._system.find(self._path, detail=True)
            except FileNotFoundError:
                found = {}
        if not found:
            raise GatewiseError(f"there is no store at {self.shown}; give the URL that --store was given.")
        for path, about in sorted(found.items()):
            file = _FILE.fullmatch(path.rpartition("/")[2])
            if file is not None and path.strip("/") == self._at(f"{file['key'][:2]}/{file[0]}").strip("/"):
                kind: Literal["entry", "checkpoint"] = "entry" if file["kind"] == "entry" else "checkpoint"
                yield RemoteFile(file["key"], kind, int(about.get("size") or 0), self._modified(path))

    def _modified(self, path: str) -> float:
        with self._told("list"):
            try:
                return float(self._system.modified(path).timestamp())
            except (NotImplementedError, FileNotFoundError):
                return 0.0

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _make_folders(self, path: str) -> None:
        """Those above a file. The first of all, which is the bucket of an object store, has to be there."""
        parts = path.split("/")
        for count in range(3 if path.startswith("/") else 2, len(parts)):
            folder = "/".join(parts[:count])
            if not self._system.exists(folder):
                with suppress(FileExistsError):  # another process was faster
                    self._system.mkdir(folder, create_parents=False)

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Each file system has errors of its own: credentials, connections, permissions, buckets that are not there."""
        try:
            yield
        except Exception as error:
            said = str(error).strip().splitlines()
            reason = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
            raise GatewiseError(
                f"cannot {what} the store {self.shown} ({reason}). Is the address right, may you read and write there, "
                f"and are your credentials valid?"
            ) from error

    def __repr__(self) -> str:
        return f"<Remote {self.shown}>"


# Entries


def entry_name(key: str) -> str:
    return f"{key[:2]}/{key}.entry"


def checkpoint_name(key: str) -> str:
    return f"{key[:2]}/{key}.checkpoint"


def join_files(content: Mapping[str, bytes]) -> bytes:
    """The files of an entry as one."""
    sizes = json.dumps({name: len(part) for name, part in content.items()})
    return b"\n".join((sizes.encode(), b"".join(content.values())))


def split_files(joined: bytes) -> dict[str, bytes]:
    """The files of an entry; a DamagedError if they are not all there. `parse_entry` verifies what they hold."""
    line, _, body = joined.partition(b"\n")
    try:
        sizes = json.loads(line)
        sound = set(sizes) <= {RESULT, ARRAYS, CHECKSUMS} and all(type(n) is int and n >= 0 for n in sizes.values())
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError("its first line cannot be understood") from error
    if not sound or sum(sizes.values()) != len(body):
        raise DamagedError("it is not as long as its first line says")
    content, start = {}, 0
    for name, size in sizes.items():
        content[name], start = body[start : start + size], start + size
    return content


# Checkpoints


class RemoteCheckpoint(Checkpoint):
    """Kept in the outbox and sent, so that the search can go on here and elsewhere, from whichever state is later."""

    def __init__(self, path: Path, key: str, remote: Remote) -> None:
        super().__init__(path, key)
        self._remote, self._name, self._warned = remote, checkpoint_name(key), False

    def load(self) -> Saved | None:
        found = [saved for saved in (self._sent(), super().load()) if saved is not None]
        latest = max(found, key=lambda saved: saved.number, default=None)
        self._number = 0 if latest is None else latest.number
        return latest

    def _keep(self, path: Path, content: bytes) -> None:
        """If it cannot be sent, the state is on this machine, and the search goes on."""
        super()._keep(path, content)
        try:
            self._remote.write(self._name, content)
        except GatewiseError as error:
            if not self._warned:
                self._warned = True
                message = f"the search's state is kept on this machine alone: {error}"
                warnings.warn(message, GatewiseWarning, stacklevel=3)

    def clear(self) -> None:
        super().clear()
        with suppress(GatewiseError):  # what is left over does no harm
            self._remote.remove(self._name)

    def _sent(self) -> Saved | None:
        content = self._remote.read(self._name)
        if content is None:
            return None
        try:
            return self._unpacked(content)
        except DamagedError as damage:
            message = f"the checkpoint {self._name} of {self._remote.shown} is not used: {damage}."
            warnings.warn(message, GatewiseWarning, stacklevel=4)
            return None
