"""Where the files of a store are: below a folder, or at a URL of any file system that fsspec knows.

What cannot be sent to a URL is kept in a folder of this machine, the outbox, and sent when the store is next used:
nothing is lost when the URL cannot be reached.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

from gatewise.archive import is_sound
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.files import cache_folder, is_abandoned, replace_file

_URL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]+)(?:://(?P<rest>.*)|::.*://.*)", re.DOTALL)
_NAME = re.compile(r"(?P<start>[0-9a-f]{2})/(?P=start)[0-9a-f]{30}\.(safetensors|checkpoint)")
_MARK, _MARKED = ".gatewise-store", b"A run store of gatewise, format 2.\n"
_EXAMPLES = "s3://bucket/runs, gs://bucket/runs or sftp://host/data/runs"


@dataclass(frozen=True)
class File:
    """A file of a store."""

    root: Root
    name: str  # ab/abcdef....safetensors
    bytes: int
    modified: float  # seconds since 1970; 0 where the file system does not say

    @property
    def where(self) -> str:
        return f"{self.root.shown}/{self.name}"


class Root:
    """Files at a URL, read and written as a whole."""

    _way_out = "Is the address right, may you read and write there, and are your credentials valid?"

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
        self.location, self.shown = f"{self.protocol}://{rest}", self.shown.rstrip("/")
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
            system, path = fsspec.url_to_fs(self.location)
            return system, str(path)

    @property
    def outbox(self) -> Folder | None:
        """Where this machine keeps what could not be sent."""
        name = f"{self.protocol}-{hashlib.sha256(self.location.encode()).hexdigest()[:16]}"
        return Folder(cache_folder() / "outbox" / name)

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

    def files(self) -> Iterator[File]:
        """All results and checkpoints."""
        for path, about in sorted(self._found().items()):
            name = path.strip("/").removeprefix(self._path.strip("/")).strip("/")
            if _NAME.fullmatch(name):
                yield File(self, name, int(about.get("size") or 0), self._modified(path))

    def exists(self) -> bool:
        return bool(self._found())

    def abandoned(self) -> list[Path]:
        """Temporary files whose writers are gone; file systems behind URLs have none that we know of."""
        return []

    def check_format(self) -> None:
        """An error if an earlier version of gatewise has written here, and this one cannot read it."""
        if self.read(_MARK) != _MARKED and self._is_old():
            raise GatewiseError(
                f"the store {self.shown} was written by an earlier version of gatewise, in a format that this one does "
                f"not read; give another place, or remove it and let its results be computed again."
            )

    def check_writable(self) -> None:
        self.write(_MARK, _MARKED)

    def _is_old(self) -> bool:
        return any(path.endswith(".entry") for path in self._found())

    def _found(self) -> dict[str, dict[str, Any]]:
        with self._told("list"):
            self._system.invalidate_cache()
            try:
                found: dict[str, dict[str, Any]] = self._system.find(self._path, detail=True)
                return found
            except FileNotFoundError:
                return {}

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
            said = str(getattr(error, "strerror", None) or error).strip().splitlines()
            reason = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
            raise GatewiseError(
                f"cannot {what} the store {self.shown} ({reason}). What was stored before is untouched. {self._way_out}"
            ) from error


class Folder(Root):
    """Files below a folder of this machine, which is made when the first one is written."""

    _way_out = "Free some space, or give another folder that you may read and write."

    def __init__(self, folder: Path) -> None:
        self.folder, self.protocol = folder, "file"
        self.shown, self.location = str(folder), str(folder.absolute())
        self._system, self._path = LocalFileSystem(), self.location

    @property
    def outbox(self) -> Folder | None:
        return None

    def write(self, name: str, content: bytes) -> None:
        """Flushed to disk and renamed."""
        with self._told("write to"):
            replace_file(self.folder / name, content)

    def files(self) -> Iterator[File]:
        for path in self._listed("[0-9a-f][0-9a-f]/*"):
            name = f"{path.parent.name}/{path.name}"
            if _NAME.fullmatch(name):
                with suppress(FileNotFoundError):  # gone since it was listed
                    about = path.stat()
                    yield File(self, name, about.st_size, about.st_mtime)

    def exists(self) -> bool:
        return self.folder.is_dir()

    def abandoned(self) -> list[Path]:
        found = []
        for path in (*self._listed(".*.part"), *self._listed("[0-9a-f][0-9a-f]/.*.part")):
            with suppress(FileNotFoundError):  # its writer has just finished, or another process has cleaned up
                found += [path] if is_abandoned(path) else []
        return found

    def _is_old(self) -> bool:
        return bool(self._listed("[0-9a-f][0-9a-f]/*/result.json"))

    def _listed(self, pattern: str) -> list[Path]:
        with self._told("list"):
            return sorted(self.folder.glob(pattern))


def root_of(address: str | os.PathLike[str]) -> Root:
    """A folder for a path or a `file://` URL, which are two names of the same; else what the URL leads to."""
    text = os.fspath(address)
    url = _URL.fullmatch(text)
    if url is not None and url["rest"] is not None and url["protocol"] in ("file", "local"):
        return Folder(Path(LocalFileSystem._strip_protocol(text)))
    if url is not None:
        return Root(text)
    protocol, colon, _ = text.partition(":/")
    if colon and protocol in known_implementations:
        raise GatewiseError(
            f"the store {text!r} looks like a URL that was made a Path; give it as text: {protocol}://..."
        )
    return Folder(Path(address).expanduser())


class Shelf:
    """The files of one store: at its root, and in the outbox if there is one."""

    def __init__(self, root: Root) -> None:
        self.root, self.outbox = root, root.outbox
        self.roots = tuple(one for one in (self.root, self.outbox) if one is not None)
        self._cut_off = False  # said already

    def copies(self, name: str) -> Iterator[tuple[str, bytes]]:
        """Where the file is, and its content: at most one for each root."""
        for root in self.roots:
            content = root.read(name)
            if content is not None:
                yield f"{root.shown}/{name}", content

    def write(self, name: str, content: bytes) -> None:
        """To the root; if that cannot be reached, to the outbox, with a warning."""
        try:
            self.root.write(name, content)
        except GatewiseError as error:
            if self.outbox is None:
                raise
            self.outbox.write(name, content)
            if not self._cut_off:
                self._cut_off = True
                warnings.warn(
                    f"{error} Until results can be sent, they are kept in {self.outbox.shown}; this machine finds them "
                    f"there, and sends them when it next uses the store.",
                    GatewiseWarning,
                    stacklevel=4,
                )
        else:
            if self.outbox is not None:
                self.outbox.remove(name)  # of a time when it could not be sent

    def remove(self, name: str) -> None:
        """What may not be removed is left over, and does no harm."""
        for root in self.roots:
            with suppress(GatewiseError):
                root.remove(name)

    def files(self) -> list[File]:
        return [file for root in self.roots for file in root.files()]

    def abandoned(self) -> list[Path]:
        return [path for root in self.roots for path in root.abandoned()]

    def send(self) -> None:
        """Send the results in the outbox. A damaged one stays there, and so do states of searches: see `Checkpoint`."""
        outbox = self.outbox
        if outbox is None:
            return
        for file in [file for file in outbox.files() if file.name.endswith(".safetensors")]:
            content = outbox.read(file.name)
            if content is None or not is_sound(content):
                continue
            try:
                self.root.write(file.name, content)
                outbox.remove(file.name)
            except GatewiseError as error:
                message = f"results of this machine are still to be sent, such as {file.where}: {error}"
                warnings.warn(message, GatewiseWarning, stacklevel=4)
                return
