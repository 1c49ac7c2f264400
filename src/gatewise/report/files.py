"""The files that a run leaves beside its report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatewise.files import write_json

if TYPE_CHECKING:
    from gatewise.report.investigation import Investigation


def save_files(found: Investigation, folder: Path, tables: Any) -> list[Path]:
    """`gates.json`, `tables.json`, `evaluation.json`, and the largest circuits in the format of EAP-IG and MIB."""
    written = [folder / name for name in ("gates.json", "tables.json", "evaluation.json")]
    found.gates.save(written[0])
    write_json(written[1], tables)
    write_json(written[2], {name: curve.to_json() for name, curve in found.curves.items()}, indent=1)
    for name, circuits in found.searches.items():
        written.append(folder / "circuits" / f"{name}-{len(circuits[-1])}.json")
        circuits[-1].save(written[-1])
    return written
