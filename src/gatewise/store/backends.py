"""Where the files of a store are: below a folder, or at a URL of any file system that fsspec knows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

from gatewise.archive import DamagedError
from gatewise.errors import GatewiseError
from gatewise.files import UnfitFileError, is_abandoned, read_regular, replace_file

_URL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]+)(?:://(?P<rest>.*)|::.*://.*)", re.DOTALL)
_NAME = re.compile(r"(?P<start>[0-9a-f]{2})/(?P=start)[0-9a-f]{30}\.(safetensors|checkpoint)")
_FORMAT = 2
_MARK, _MARKED = ".gatewise-store", f"A run store of gatewise, format {_FORMAT}.\n".encode()
_ANY_MARK = re.compile(rb"A run store of gatewise, format (\d{1,9})\.\s*")
_PASSWORD = re.compile(r"(?P<before>://[^/@:]*):(?P<password>.*)@", re.DOTALL)  # up to the last @: it may hold / and @
_EXAMPLES = "s3://bucket/runs, gs://bucket/runs or sftp://host/data/runs"


@dataclass(frozen=True)
class File:
    """A result or a checkpoint of a store."""

    name: str  # ab/abcdef....safetensors
    bytes: int
    modified: float  # seconds since 1970; 0 where the file system does not say


class Backend:
    """Files at a URL, read and written as a whole."""

    _way_out = "Is the address right, may you read and write there, and are your credentials valid?"

    def __init__(self, url: str) -> None:
        given = _URL.fullmatch(url)
        self.shown = _PASSWORD.sub(r"\g<before>:***@", url)
        password = _PASSWORD.search(url)
        self._secret = "" if password is None else password["password"]
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
        with self._explained("open"):
            system, path = fsspec.url_to_fs(self.location)
            return system, str(path)

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if there is no such file.

        Raises:
            DamagedError: It is no regular file, or larger than any that gatewise writes.
        """
        with self._explained("read"):
            try:
                return bytes(self._system.cat_file(self._at(name)))
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file; object stores take it as a whole or not at all."""
        with self._explained("write to"):
            try:
                self._system.pipe_file(self._at(name), content)
            except FileNotFoundError:  # of object stores: no such bucket; of others: no such folder
                self._make_folders(self._at(name))
                self._system.pipe_file(self._at(name), content)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self._explained("remove from"), suppress(FileNotFoundError):
            self._system.rm_file(self._at(name))

    def files(self) -> Iterator[File]:
        """List all results and checkpoints."""
        for path, about in sorted(self._listing().items()):
            name = path.strip("/").removeprefix(self._path.strip("/")).strip("/")
            if _NAME.fullmatch(name):
                yield File(name, int(about.get("size") or 0), self._modified(path))

    def exists(self) -> bool:
        """Whether anything was ever stored here."""
        return bool(self._listing())

    def abandoned(self) -> list[Path]:
        """List temporary files whose writers are gone; file systems behind URLs have none that we know of."""
        return []

    def check_format(self) -> None:
        """Raise an error if another version of gatewise has written here, and this one cannot read it."""
        try:
            mark = self.read(_MARK)
        except DamagedError as damage:
            raise GatewiseError(f"{self.shown}/{_MARK} is no mark of a store: {damage}. Remove it.") from damage
        written = None if mark is None else _ANY_MARK.fullmatch(mark)
        if written is not None and int(written[1]) > _FORMAT:
            raise GatewiseError(
                f"the store {self.shown} is of format {int(written[1])}, of a newer version of gatewise; this one "
                f"knows format {_FORMAT} and leaves it as it is. Use the newer version, or give another place."
            )
        if mark != _MARKED and self._is_old():
            raise GatewiseError(
                f"the store {self.shown} was written by an earlier version of gatewise, in a format that this one does "
                f"not read; give another place, or remove it and let its results be computed again."
            )

    def check_writable(self) -> None:
        """Raise an error if nothing can be stored here, or only another version of gatewise may."""
        self.check_format()
        self.write(_MARK, _MARKED)

    def _is_old(self) -> bool:
        return any(path.endswith(".entry") for path in self._listing())

    def _listing(self) -> dict[str, dict[str, Any]]:
        with self._explained("list"):
            self._system.invalidate_cache()
            try:
                listing: dict[str, dict[str, Any]] = self._system.find(self._path, detail=True)
                return listing
            except FileNotFoundError:
                return {}

    def _modified(self, path: str) -> float:
        with self._explained("list"):
            try:
                return float(self._system.modified(path).timestamp())
            except (NotImplementedError, FileNotFoundError):
                return 0.0

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _make_folders(self, path: str) -> None:
        """Make the folders above a file. The first of all, the bucket of an object store, has to be there."""
        parts = path.split("/")
        for count in range(3 if path.startswith("/") else 2, len(parts)):
            folder = "/".join(parts[:count])
            if not self._system.exists(folder):
                with suppress(FileExistsError):  # another process was faster
                    self._system.mkdir(folder, create_parents=False)

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        """Turn any error into ours; each file system has its own for credentials, connections, permissions, buckets."""
        try:
            yield
        except (DamagedError, GatewiseError):
            raise
        except Exception as error:
            lines = self._without_password(str(getattr(error, "strerror", None) or error)).strip().splitlines()
            reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
            raise GatewiseError(
                f"cannot {action} the store {self.shown} ({reason}). What was stored before is untouched. "
                f"{self._way_out}"
            ) from error

    def _without_password(self, text: str) -> str:
        return text.replace(self._secret, "***") if self._secret else text


class Folder(Backend):
    """Files below a folder of this machine, which is made when the first one is written."""

    _way_out = "Free some space, or give another folder that you may read and write."

    def __init__(self, folder: Path) -> None:
        self.folder, self.protocol, self._secret = folder, "file", ""
        self.shown, self.location = str(folder), str(folder.absolute())
        self._system, self._path = LocalFileSystem(), self.location

    def read(self, name: str) -> bytes | None:
        with self._explained("read"):
            try:
                return read_regular(self._inside(name))
            except FileNotFoundError:
                return None
            except IsADirectoryError as error:
                raise DamagedError("it is a folder") from error
            except UnfitFileError as error:
                raise DamagedError(error.strerror) from error

    def write(self, name: str, content: bytes) -> None:
        """Write a file under a temporary name, flush it to disk and rename it."""
        with self._explained("write to"):
            replace_file(self._inside(name), content)

    def remove(self, name: str) -> None:
        with self._explained("remove from"):
            self._inside(name).unlink(missing_ok=True)

    def _inside(self, name: str) -> Path:
        """The path of a file, whose folder within the store is no link to somewhere else."""
        path = self.folder / name
        if path.parent != self.folder and path.parent.is_symlink():
            raise GatewiseError(
                f"{path.parent} of the store is a link to {os.readlink(path.parent)}; results are read and written in "
                f"the store itself. Put the folder there, or give another store."
            )
        return path

    def files(self) -> Iterator[File]:
        for path in self._listed("[0-9a-f][0-9a-f]/*"):
            name = f"{path.parent.name}/{path.name}"
            if _NAME.fullmatch(name):
                with suppress(FileNotFoundError):  # gone since it was listed
                    about = self._inside(name).lstat()
                    yield File(name, about.st_size, about.st_mtime)

    def exists(self) -> bool:
        return self.folder.is_dir()

    def abandoned(self) -> list[Path]:
        abandoned = []
        for path in (*self._listed(".*.part"), *self._listed("[0-9a-f][0-9a-f]/.*.part")):
            with suppress(FileNotFoundError):  # its writer has just finished, or another process has cleaned up
                abandoned += [path] if is_abandoned(path) else []
        return abandoned

    def _is_old(self) -> bool:
        return bool(self._listed("[0-9a-f][0-9a-f]/*/result.json"))

    def _listed(self, pattern: str) -> list[Path]:
        with self._explained("list"):
            return sorted(self.folder.glob(pattern))


def open_backend(address: str | os.PathLike[str]) -> Backend:
    """Open a folder for a path or a `file://` URL, which are two names of the same; else what the URL leads to."""
    text = os.fspath(address)
    if not text.strip():
        raise GatewiseError(
            f"the store is {text!r}, which names no folder; give a folder, or a URL such as {_EXAMPLES}."
        )
    url = _URL.fullmatch(text)
    if url is not None and url["rest"] is not None and url["protocol"] in ("file", "local"):
        return Folder(Path(LocalFileSystem._strip_protocol(text)))
    if url is not None:
        return Backend(text)
    protocol, colon, _ = text.partition(":/")
    if colon and protocol in known_implementations:
        raise GatewiseError(
            f"the store {text!r} looks like a URL that was made a Path; give it as text: {protocol}://..."
        )
    return Folder(Path(address).expanduser())
