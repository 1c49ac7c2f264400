"""The files that a run leaves beside its report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatewise.files import write_json

if TYPE_CHECKING:
    from gatewise.report.investigation import Report


def save_files(found: Report, folder: Path, tables: Any, export: bool) -> list[Path]:
    """`gates.safetensors`, `tables.json`, `evaluation.json`, and `interactions.json` if gates of groups were tested; if
    asked for, the circuits in EAP-IG's format."""
    written = [folder / name for name in ("gates.safetensors", "tables.json", "evaluation.json")]
    found.gates.save(written[0])
    write_json(written[1], tables)
    write_json(written[2], {name: curve.to_json() for name, curve in found.curves.items()}, indent=1)
    if found.interactions is not None:
        written.append(folder / "interactions.json")
        write_json(written[-1], found.interactions.to_json(), indent=1)
    return written + (found.gates.export(folder / "circuits") if export else [])
