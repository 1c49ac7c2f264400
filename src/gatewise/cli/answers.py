"""Answers of `gatewise run`, kept beside its files: the same question again is answered without loading anything.

An answer counts as long as nothing has changed that could change it: the command, the model's and the task's files, the
package and what it computes with, the threads; and as long as the files that it tells of are as they were written.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gatewise.files import write_json

_NAME = "answer.json"
_PACKAGE = Path(__file__).parents[1]
_COMPUTING = ("torch", "transformers", "tokenizers", "numpy")
_ENVIRONMENT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "CUDA_VISIBLE_DEVICES")


def circumstances(command: str, model: str, task: str, method: str) -> dict[str, Any] | None:
    """All that an answer depends on; None if that cannot be told, as with a model of the hub or an own method."""
    from importlib.metadata import version

    from gatewise.tasks.registry import RECIPES, parse_name

    name, _ = parse_name(task)
    own = [] if name in RECIPES else [Path(name)]
    files = _model_files(model)
    if ":" in method or files is None or not all(path.is_file() for path in own):
        return None
    return {
        "command": command,
        "folder": os.getcwd(),
        "files": _states([*files, *own]),
        "package": _states(path for path in _PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _COMPUTING}},
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "environment": {name: os.environ.get(name) for name in _ENVIRONMENT},
    }


def kept_answer(folder: Path, asked: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What was answered in these circumstances, if its files are still there."""
    try:
        kept = json.loads((folder / _NAME).read_bytes())
        same = asked is not None and kept["asked"] == asked and kept["written"] == _states(map(Path, kept["written"]))
        return dict(kept["answer"]) if same else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # there is none, or it is not ours
        return None


def keep_answer(
    folder: Path, asked: Mapping[str, Any] | None, answer: Mapping[str, Any], written: Iterable[Path]
) -> None:
    if asked is not None:
        write_json(folder / _NAME, {"asked": asked, "answer": answer, "written": _states(written)})


def _model_files(model: str) -> list[Path] | None:
    """What a model is read from; None if that is not known here."""
    from gatewise.models.download import DOWNLOADS, cached
    from gatewise.models.loader import BUILT_IN, TINY_FOLDER

    if model in DOWNLOADS:
        place = cached(model)
    elif model in BUILT_IN:
        place = TINY_FOLDER  # synthetic models are made in code, which is part of the package
    else:
        place = Path(model).expanduser()
    if place is None or not place.exists():
        return None
    return sorted(path for path in place.iterdir() if path.is_file()) if place.is_dir() else [place]


def _states(paths: Iterable[Path]) -> dict[str, list[int]]:
    """Size and time of the last change of each file: what changes if its content does."""
    found = {str(path): path.stat() for path in paths}
    return {path: [state.st_size, state.st_mtime_ns] for path, state in sorted(found.items())}
