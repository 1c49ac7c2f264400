"""Models of the Hugging Face hub: asked about with a short timeout, downloaded, compared with its checksums.

Files in the Hugging Face cache are used once they have been compared with the checksums that the hub lists, or, without
the network, with those that the cache names its files by. What was compared is recorded in gatewise's own cache with
size and time of every file; what differs is removed, so that it is neither used nor taken for whole at the next start.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from gatewise.errors import GatewiseError, first_line
from gatewise.files import cache_folder, write_json
from gatewise.models.download import sha256_of

_TIMEOUT = 5.0  # seconds until a hub that does not answer counts as out of reach
_TEXTS, _WEIGHTS, _PICKLES = ("*.json", "*.model", "*.txt", "*.jinja"), ("*.safetensors",), ("*.bin",)


def hub_folder(name: str, alternatives: str, *, weights: bool = True, pickles: bool = False) -> Path:
    """Return the folder of a model in the Hugging Face cache, brought there first if need be, all of it verified.

    Args:
        name: The model's id on the hub.
        alternatives: What a user may give in place of this name, for errors.
        weights: Whether its weights are wanted, too, and not only its config and tokenizer.
        pickles: Whether pickled weights are wanted.

    Returns:
        A folder whose files have the checksums that the hub lists.

    Raises:
        GatewiseError: There is no such model, the hub cannot be reached, or a file has another checksum; that file is
            removed.
    """
    patterns = [*_TEXTS, *(_WEIGHTS if weights else ()), *(_PICKLES if pickles else ())]
    folder = _cached_folder(name, patterns)
    if folder is not None and not _is_whole(folder, weights, pickles):
        folder = None
    if folder is not None and _is_recorded(folder, patterns):
        return folder
    try:
        info = _ask_hub(name, alternatives)
    except _UnreachableError:
        if folder is None:
            raise
        _compare_with_names(folder, patterns, name)
    else:
        folder = _download(name, patterns)
        _compare_with_hub(folder, patterns, name, info)
    _record(folder, patterns)
    return folder


class _UnreachableError(GatewiseError):
    """The hub did not answer."""


def _ask_hub(name: str, alternatives: str) -> Any:
    """What the hub knows about a model; transformers' own retries would take minutes."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    try:
        return HfApi().model_info(name, timeout=_TIMEOUT, files_metadata=True)
    except GatedRepoError as error:
        raise GatewiseError(
            f"{name!r} is on the Hugging Face hub but gated: accept its terms there and log in with `hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise GatewiseError(
            f"{name!r} is neither a local folder nor a model that the Hugging Face hub shows you; expected a folder "
            f"with config.json and *.safetensors, {alternatives}."
        ) from error
    except HfHubHTTPError as error:
        raise GatewiseError(f"the Hugging Face hub refused {name!r}: {first_line(error)}. Try again later.") from error
    except Exception as error:  # whatever the HTTP library of the day raises when there is no network
        raise _UnreachableError(
            f"{name!r} is not whole in the local Hugging Face cache, and the hub cannot be reached "
            f"({type(error).__name__}). Without the network give a folder with config.json and *.safetensors, "
            f"{alternatives} that was downloaded before."
        ) from error


def _cached_folder(name: str, patterns: list[str]) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
    except Exception:  # it is not there; the library has an error of its own for each reason
        return None


def _download(name: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except Exception as error:  # as above
        raise GatewiseError(f"the download of {name!r} failed: {first_line(error)}. Try again.") from error


def _is_whole(folder: Path, weights: bool, pickles: bool) -> bool:
    """Whether the cache has what was asked for; that every part of it is there is seen when it is read."""
    kinds = [*(_WEIGHTS if weights else ()), *(_PICKLES if pickles else ())]
    has_weights = not kinds or any(any(folder.glob(kind)) for kind in kinds)
    return has_weights and (not weights or (folder / "config.json").exists())


def _files(folder: Path, patterns: list[str]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if any(fnmatch(path.name, pattern) for pattern in patterns):
            yield path


# Comparing


def _compare_with_hub(folder: Path, patterns: list[str], name: str, info: Any) -> None:
    listed = {file.rfilename: file for file in info.siblings}
    for path in _files(folder, patterns):
        file = listed.get(path.name)
        if file is None:
            _refuse(path, name, "which the hub does not list")
        else:
            _compare(path, file.blob_id if file.lfs is None else file.lfs.sha256, name, "the hub says")


def _compare_with_names(folder: Path, patterns: list[str], name: str) -> None:
    """Compare without the network: the cache keeps a file under its checksum, and the folder has a link to it."""
    for path in _files(folder, patterns):
        checksum = path.resolve().name
        if not path.is_symlink() or re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", checksum) is None:
            raise GatewiseError(
                f"{path.name} of {name!r} is in the Hugging Face cache, but nothing there says what its checksum is, "
                f"and the hub cannot be reached. Try again with the network, or give the path of the folder, {folder}."
            )
        _compare(path, checksum, name, "the cache keeps it as")


def _compare(path: Path, expected: str, name: str, says: str) -> None:
    try:
        checksum = sha256_of(path) if len(expected) == 64 else _git_hash(path)
    except OSError:  # a link to a file that was removed
        checksum = "none"
    if checksum != expected:
        _refuse(path, name, f"which has the checksum {checksum}, and {says} {expected}")


def _refuse(path: Path, name: str, reason: str) -> None:
    """Remove a file, so that it is not used the next time, and say why."""
    for file in (path.resolve(), path):  # what the link of the cache leads to, and the link
        file.unlink(missing_ok=True)
    raise GatewiseError(
        f"{path.name} of {name!r}, {reason}: the download is damaged or was replaced. It was removed from the Hugging "
        f"Face cache; try again."
    )


def _git_hash(path: Path) -> str:
    """The hub's checksum of small files: what git calls a blob."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


# What was compared


def _record_path(folder: Path) -> Path:
    return cache_folder() / "hub" / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]}.json"


def _states(folder: Path, patterns: list[str]) -> dict[str, list[int]]:
    """Size and time of the last change of each file."""
    states = {path.name: path.stat() for path in _files(folder, patterns)}
    return {name: [state.st_size, state.st_mtime_ns] for name, state in states.items()}


def _is_recorded(folder: Path, patterns: list[str]) -> bool:
    try:
        recorded = _recorded(folder)
        return all(recorded.get(name) == state for name, state in _states(folder, patterns).items())
    except OSError:  # a link to a file that was removed
        return False


def _recorded(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(_record_path(folder).read_bytes())["files"])
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or it is not ours
        return {}


def _record(folder: Path, patterns: list[str]) -> None:
    """Remember what was compared; where the cache cannot be written, it is compared again at the next start."""
    with suppress(GatewiseError):
        files = _recorded(folder) | _states(folder, patterns)
        write_json(_record_path(folder), {"folder": str(folder), "files": files})
