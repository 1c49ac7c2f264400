"""`bucket://`: a file system that several processes share, as a bucket is shared by several machines.

Its files are below a folder, but gatewise does not know that: it is handled as any other fsspec file system.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem


class Bucket(LocalFileSystem):  # type: ignore[misc]
    """Local files under another protocol. Folders are not made on the way."""

    protocol = "bucket"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(path.removeprefix("bucket://") if isinstance(path, str) else path)


def install(folder: Path) -> None:
    """As an installed package would: processes that have the folder on their path know the protocol."""
    described = folder / "shared_bucket-0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: shared-bucket\nVersion: 0\n")
    (described / "entry_points.txt").write_text("[fsspec.specs]\nbucket = shared_bucket:Bucket\n")
    (folder / "shared_bucket.py").write_text(Path(__file__).read_text())
