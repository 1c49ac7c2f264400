"""The run store: found results in folders, keyed by everything that determines them, so that nothing is found twice.

    root/ab/abcdef.../result.json          what was asked, where it came from, the graph, one entry per circuit
                      arrays.safetensors   masks, packed to bits; scores
                      checksums            sha256 of the two

An entry is written under a temporary name, flushed to disk and renamed: it is there as a whole or not at all, also
when two processes write it at once. It is verified when read; a damaged one is set aside and never trusted. No pickle.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_arrays
from safetensors.torch import save as save_arrays
from torch import Tensor

from gatewise.circuit import Circuit
from gatewise.engine.batches import parse_bytes
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.graph import Graph

if TYPE_CHECKING:
    from gatewise.methods.contract import Problem

SCHEMA = 1  # raise it when a method or an entry changes its meaning: older entries are then no longer found
_RESULT, _ARRAYS, _CHECKSUMS = "result.json", "arrays.safetensors", "checksums"
_NOT_A_MATTER_OF_RESULTS = ("name_or_path", "_name_or_path", "transformers_version", "architectures", "dtype")


class Store:
    """Results below one folder, which is made when the first one is written."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).expanduser()

    def key(self, problem: Problem, method: str, config: Any) -> str:
        """The name of the result of this search: a hash of `ingredients`."""
        text = json.dumps(ingredients(problem, method, config), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def folder(self, key: str) -> Path:
        return self.root / key[:2] / key

    def get(self, key: str) -> list[Circuit] | None:
        """The circuits stored under this key; None if there are none, or only damaged ones (with a warning)."""
        folder = self.folder(key)
        try:
            if not folder.is_dir():
                return None
            return _unpacked(*_verified(folder, key))
        except _DamagedError as damage:
            self._set_aside(folder, str(damage))
            return None
        except OSError as error:
            raise GatewiseError(
                f"cannot read the stored result {folder}: {error.strerror}. Give a store that you may read."
            ) from error

    def put(self, key: str, circuits: Sequence[Circuit], record: Mapping[str, Any]) -> None:
        """Store circuits of one graph. `record`: plain data to keep beside them, such as the key's ingredients."""
        content = _packed(key, circuits, record)
        folder = self.folder(key)
        temporary = folder.parent / f".{key}.{uuid.uuid4().hex}.part"
        try:
            temporary.mkdir(parents=True)
            try:
                for name, part in content.items():
                    _write(temporary / name, part)
                _flush_folder(temporary)
                _rename_unless_there(temporary, folder)
                _flush_folder(folder.parent)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        except OSError as error:
            raise self._cannot_write(error) from error

    def check_writable(self) -> None:
        """An error if nothing can be stored here: better before hours of work than after."""
        probe = self.root / f".probe-{uuid.uuid4().hex}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> GatewiseError:
        return GatewiseError(
            f"cannot store a result in {self.root}: {error.strerror}. What was stored before is untouched; "
            f"free some space, or give another folder that you may write to."
        )

    def _set_aside(self, folder: Path, why: str) -> None:
        aside = folder.with_name(f"{folder.name}.damaged-{uuid.uuid4().hex[:8]}")
        try:
            folder.rename(aside)
            done = f"It was set aside as {aside.name}"
        except FileNotFoundError:  # another process was faster
            done = "Another process set it aside"
        except OSError as error:
            done = f"It could not be set aside ({error.strerror})"
        warnings.warn(
            f"the stored result {folder} is damaged: {why}. {done}; the result is computed again.",
            GatewiseWarning,
            stacklevel=4,
        )

    def __repr__(self) -> str:
        return f"<Store in {self.root}>"


def ingredients(problem: Problem, method: str, config: Any) -> dict[str, Any]:
    """Everything that determines the result of a search, as plain data."""
    model = problem.model
    return {
        "schema": SCHEMA,
        "weights": model.fingerprint,
        "architecture": _architecture(model.hf),
        "graph": _graph_entry(model.graph),
        "pairs": problem.pairs.fingerprint,
        "method": method,
        "direction": problem.direction,
        "parameters": _plain(dataclasses.asdict(config)),
        "sizes": list(problem.sizes),
        "threshold": None if problem.threshold is None else float(problem.threshold),
        "seed": problem.seed,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "memory": parse_bytes(problem.memory),  # decides the batches, and so the order of sums
    }


def _architecture(module: Any) -> Any:
    """What besides the weights decides a transformers model's outputs: norms, scales, positions."""
    config = getattr(module, "config", None)
    if config is None:
        return None
    entries = {key: value for key, value in config.to_dict().items() if key not in _NOT_A_MATTER_OF_RESULTS}
    return json.loads(json.dumps(entries, default=str, sort_keys=True))


class _DamagedError(Exception):
    """An entry that is not what was written."""


def _packed(key: str, circuits: Sequence[Circuit], record: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of an entry."""
    if not circuits or any(circuit.graph != circuits[0].graph for circuit in circuits):
        raise GatewiseError(f"a stored result holds circuits of one graph, at least one; got {len(circuits)}.")
    scores: list[Tensor] = []  # methods that rank once give all their circuits the same
    entries = []
    for circuit in circuits:
        place = None
        if circuit.scores is not None:
            place = next((i for i, known in enumerate(scores) if _identical(known, circuit.scores)), len(scores))
            scores += [circuit.scores] if place == len(scores) else []
        entries.append({"edges": len(circuit), "scores": place, "provenance": _plain(circuit.provenance)})
    bits = np.packbits(torch.stack([circuit.mask.cpu() for circuit in circuits]).numpy(), axis=1)
    arrays = {"masks": torch.from_numpy(bits)}
    arrays |= {f"scores.{i}": values.detach().cpu().contiguous().clone() for i, values in enumerate(scores)}
    graph = _graph_entry(circuits[0].graph)
    result = {"schema": SCHEMA, "key": key, "record": _plain(record), "graph": graph, "circuits": entries}
    content = {_RESULT: json.dumps(result, indent=1, allow_nan=False).encode(), _ARRAYS: save_arrays(arrays)}
    return {**content, _CHECKSUMS: _checksums(content)}


def _verified(folder: Path, key: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The content of an entry whose checksums hold."""
    try:
        content = {name: (folder / name).read_bytes() for name in (_RESULT, _ARRAYS)}
        written = (folder / _CHECKSUMS).read_bytes()
    except FileNotFoundError as error:
        raise _DamagedError(f"{Path(str(error.filename)).name} is missing") from error
    if written != _checksums(content):
        raise _DamagedError("its checksums do not hold")
    try:
        result, arrays = json.loads(content[_RESULT]), load_arrays(content[_ARRAYS])
        if (result["schema"], result["key"]) != (SCHEMA, key):
            raise _DamagedError(f"it is the result {result['key']} of schema {result['schema']}")
        return result, arrays
    except (ValueError, TypeError, KeyError, RecursionError, SafetensorError) as error:
        raise _DamagedError(f"it cannot be understood ({error})") from error


def _unpacked(result: dict[str, Any], arrays: dict[str, Tensor]) -> list[Circuit]:
    try:
        graph = _graph_of(result["graph"])
        masks = np.unpackbits(arrays["masks"].numpy(), axis=1, count=graph.n_edges).astype(bool)
        circuits = []
        for entry, mask in zip(result["circuits"], masks, strict=True):
            place = entry["scores"]
            scores = None if place is None else arrays[f"scores.{place}"]
            circuits.append(Circuit(graph, torch.from_numpy(mask), scores, entry["provenance"]))
        return circuits
    except (ValueError, TypeError, KeyError) as error:
        raise _DamagedError(f"it cannot be understood ({error})") from error


def _graph_entry(graph: Graph) -> dict[str, Any]:
    if any(stage.kind == "attention" for stage in graph.stages):
        sizes = {"n_layers": graph.n_layers, "n_heads": graph.n_heads, "d_model": graph.d_model}
        return {**sizes, "parallel": graph.parallel, "qkv": graph.qkv}
    return {"stages": [list(stage.nodes) for stage in graph.stages[:-1]], "d_model": graph.d_model}


def _graph_of(entry: Mapping[str, Any]) -> Graph:
    if "stages" in entry:
        return Graph.layered(entry["stages"][0], entry["stages"][1:], entry["d_model"])
    return Graph.transformer(**entry)


def _identical(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.dtype == b.dtype and torch.equal(a, b))


def _plain(value: Any) -> Any:
    """As JSON can hold it: tuples become lists, numbers that are none become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _checksums(content: Mapping[str, bytes]) -> bytes:
    """In the format of sha256sum, which can verify an entry by itself."""
    return "".join(f"{hashlib.sha256(part).hexdigest()}  {name}\n" for name, part in content.items()).encode()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _flush_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _rename_unless_there(temporary: Path, folder: Path) -> None:
    """A folder cannot be renamed over one that holds files: whoever comes second leaves the first one's, its equal."""
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
