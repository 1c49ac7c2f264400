"""Answers of `gatewise run`, kept beside its files: the same command again is answered without loading anything.

The store could not do this: its keys need the weights' fingerprint, so that torch and the model have to be loaded. An
answer counts as long as nothing has changed that could change it: the command, the model's and the task's files, the
package and what it computes with, the threads; and as long as the files that it names are as they were written.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gatewise.files import read_regular, write_json
from gatewise.models.download import DOWNLOADS, cached
from gatewise.models.loader import BUILT_IN, TINY_FOLDER
from gatewise.tasks.registry import RECIPES, parse_name

_NAME = "answer.json"
_MOST_BYTES = 64 << 20  # of an answer
_HASHED = 64 << 20  # bytes of a file up to which its content is hashed: all files of pairs, no weights of large models
_PACKAGE = Path(__file__).parents[1]
_COMPUTING = ("torch", "transformers", "tokenizers", "numpy")
_ENVIRONMENT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "CUDA_VISIBLE_DEVICES")


def circumstances(
    command: str, model: str, tasks: Iterable[str], method: str, settings: Sequence[str] = ()
) -> dict[str, Any] | None:
    """All that an answer depends on; None if that cannot be told, as with a model of the hub or an own method.

    settings: The `key=value` texts of --set.
    """
    names = [parse_name(task)[0] for task in tasks]
    task_files = [Path(name) for name in names if name not in RECIPES]
    model_files = _model_files(model)
    own_code = any(":" in text for text in (method, *settings))  # module:NAME, whose code may change
    if own_code or model_files is None or not all(path.is_file() for path in task_files):
        return None
    package = [path for path in _PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {
        "command": command,
        "folder": os.getcwd(),
        "files": _states([*model_files, *task_files, *package]),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _COMPUTING}},
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "environment": {name: os.environ.get(name) for name in _ENVIRONMENT},
    }


def stored_answer(folder: Path, now: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What was answered in these circumstances, if its files are still there."""
    try:
        record = json.loads(read_regular(folder / _NAME, _MOST_BYTES))
        unchanged = record["circumstances"] == now and record["written"] == _states(map(Path, record["written"]))
        return dict(record["answer"]) if now is not None and unchanged else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):  # there is none of ours
        return None


def store_answer(
    folder: Path, now: Mapping[str, Any] | None, answer: Mapping[str, Any], written: Iterable[Path]
) -> None:
    """Keep an answer beside the files that it names."""
    if now is not None:
        write_json(folder / _NAME, {"circumstances": now, "answer": answer, "written": _states(written)})


def _model_files(model: str) -> list[Path] | None:
    """What a model is read from; None if that is not known here."""
    if model in DOWNLOADS:
        path = cached(model)
    elif model in BUILT_IN:
        path = TINY_FOLDER  # synthetic models are made in code, which is part of the package
    else:
        path = Path(model).expanduser()
    if path is None or not path.exists():
        return None
    return sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]


def _states(paths: Iterable[Path]) -> dict[str, list[int] | str]:
    """What changes if the content of a file does: its checksum; of large ones size and times, which take no time."""
    states: dict[str, list[int] | str] = {}
    for path in sorted(paths):
        about = path.stat()
        if about.st_size <= _HASHED:
            states[str(path)] = hashlib.sha256(read_regular(path, _HASHED)).hexdigest()
        else:  # the time of the last change of the inode, too, which nobody can set
            states[str(path)] = [about.st_size, about.st_mtime_ns, about.st_ctime_ns]
    return states
