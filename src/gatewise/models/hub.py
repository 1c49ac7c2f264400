"""Models of the Hugging Face hub: asked about with a short timeout, downloaded, compared with its checksums."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from gatewise.errors import GatewiseError, first_line
from gatewise.models.download import sha256_of

_TIMEOUT = 5.0  # seconds until a hub that does not answer counts as out of reach


def ask_hub(name: str, alternatives: str) -> Any:
    """Return what the hub knows about a model; transformers' own retries would take minutes.

    `alternatives`: what a user may give in place of this name, for errors.
    """
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
        raise GatewiseError(
            f"{name!r} is not whole in the local Hugging Face cache, and the hub cannot be reached "
            f"({type(error).__name__}). Without the network give a folder with config.json and *.safetensors, "
            f"{alternatives} that was downloaded before."
        ) from error


def download_from_hub(name: str, info: Any, *, pickles: bool) -> None:
    """Bring a model's files into the Hugging Face cache, and compare each with the checksum that the hub gives."""
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", *(["*.bin"] if pickles else [])]
    try:
        folder = Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except Exception as error:  # as above
        raise GatewiseError(f"the download of {name!r} failed: {first_line(error)}. Try again.") from error
    for file in info.siblings:
        path = folder / file.rfilename
        if not path.is_file():
            continue
        expected = file.blob_id if file.lfs is None else file.lfs.sha256
        checksum = _git_hash(path) if file.lfs is None else sha256_of(path)
        if checksum != expected:
            raise GatewiseError(
                f"{file.rfilename} of {name!r} has the checksum {checksum}, and the hub says {expected}: the download "
                f"is damaged or was replaced. Remove {folder} and try again."
            )


def _git_hash(path: Path) -> str:
    """The hub's checksum of small files: what git calls a blob."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
