"""The files of an entry: written as a whole or not at all, and verified when read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_arrays
from safetensors.torch import save as save_arrays
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.packed import graph_entry, graph_of
from gatewise.errors import GatewiseError
from gatewise.store.keys import SCHEMA
from gatewise.store.litter import temporary_path
from gatewise.store.values import as_plain, decode, encode

RESULT, ARRAYS, CHECKSUMS = "result.json", "arrays.safetensors", "checksums"
FILES = {"circuits": (RESULT, ARRAYS), "json": (RESULT,)}  # by the kind of the entry, besides its checksums


class DamagedError(Exception):
    """An entry that is not what was written."""


# Writing


def pack_circuits(key: str, circuits: Sequence[Circuit], record: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of an entry that holds circuits of one graph."""
    if not circuits or any(circuit.graph != circuits[0].graph for circuit in circuits):
        raise GatewiseError(f"a stored result holds circuits of one graph, at least one; got {len(circuits)}.")
    scores: list[Tensor] = []  # methods that rank once give all their circuits the same
    entries = []
    for circuit in circuits:
        place = None
        if circuit.scores is not None:
            place = next((i for i, known in enumerate(scores) if _identical(known, circuit.scores)), len(scores))
            scores += [circuit.scores] if place == len(scores) else []
        entries.append({"edges": len(circuit), "scores": place, "provenance": as_plain(circuit.provenance)})
    bits = np.packbits(torch.stack([circuit.mask.cpu() for circuit in circuits]).numpy(), axis=1)
    arrays = {"masks": torch.from_numpy(bits)}
    arrays |= {f"scores.{i}": values.detach().cpu().contiguous().clone() for i, values in enumerate(scores)}
    body = {"graph": graph_entry(circuits[0].graph), "circuits": entries}
    return _with_checksums({RESULT: _result(key, "circuits", record, body), ARRAYS: save_arrays(arrays)})


def pack_value(key: str, value: Any, record: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of an entry that holds plain data."""
    return _with_checksums({RESULT: _result(key, "json", record, {"value": encode(value, "the result")})})


def _result(key: str, kind: str, record: Mapping[str, Any], body: Mapping[str, Any]) -> bytes:
    result = {"schema": SCHEMA, "key": key, "kind": kind, "record": as_plain(record), **body}
    return json.dumps(result, indent=1, allow_nan=False).encode()


def write_entry(folder: Path, content: Mapping[str, bytes]) -> None:
    """Write the files under a temporary name, flush them to disk, and rename. After an OSError nothing is left."""
    temporary = temporary_path(folder)
    temporary.mkdir(parents=True)
    try:
        for name, part in content.items():
            _write(temporary / name, part)
        _flush_folder(temporary)
        _rename_unless_there(temporary, folder)
        _flush_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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


# Reading


def files_of(folder: Path) -> dict[str, bytes]:
    """What an entry's files hold, not verified. Raises DamagedError and OSError."""
    try:
        content = {name: (folder / name).read_bytes() for name in (RESULT, ARRAYS) if (folder / name).exists()}
        return {**content, CHECKSUMS: (folder / CHECKSUMS).read_bytes()}
    except FileNotFoundError as error:
        raise DamagedError(f"{Path(str(error.filename)).name} is missing") from error


def parse_entry(files: Mapping[str, bytes], key: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The result of an entry whose checksums hold, and its arrays if it has some. Raises DamagedError."""
    content = {name: files[name] for name in (RESULT, ARRAYS) if name in files}
    written = files.get(CHECKSUMS)
    if written is None:
        raise DamagedError(f"{CHECKSUMS} is missing")
    if written != _checksums(content):
        missing = [name for name in (RESULT, ARRAYS) if name not in content and name.encode() in written]
        raise DamagedError(f"{missing[0]} is missing" if missing else "its checksums do not hold")
    try:
        result = json.loads(content[RESULT])
        arrays = load_arrays(content[ARRAYS]) if ARRAYS in content else {}
        if (result["schema"], result["key"]) != (SCHEMA, key):
            raise DamagedError(f"it is the result {result['key']} of schema {result['schema']}")
        if FILES[kind_of(result)] != tuple(content):
            raise DamagedError(f"a result of the kind {kind_of(result)} does not have the files {', '.join(content)}")
        return result, arrays
    except (ValueError, TypeError, KeyError, RecursionError, SafetensorError) as error:
        raise DamagedError(f"it cannot be understood ({error})") from error


def kind_of(result: Mapping[str, Any]) -> str:
    """`circuits` or `json`."""
    return str(result.get("kind", "circuits"))


def unpack_circuits(result: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> list[Circuit]:
    try:
        graph = graph_of(result["graph"])
        masks = np.unpackbits(arrays["masks"].numpy(), axis=1, count=graph.n_edges).astype(bool)
        circuits = []
        for entry, mask in zip(result["circuits"], masks, strict=True):
            place = entry["scores"]
            scores = None if place is None else arrays[f"scores.{place}"]
            circuits.append(Circuit(graph, torch.from_numpy(mask), scores, entry["provenance"]))
        return circuits
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"it cannot be understood ({error})") from error


def unpack_value(result: Mapping[str, Any]) -> Any:
    try:
        return decode(result["value"])
    except (ValueError, KeyError) as error:
        raise DamagedError(f"it cannot be understood ({error})") from error


def value_in(content: Mapping[str, bytes]) -> Any:
    """The value of a packed entry, as it will be read."""
    return unpack_value(json.loads(content[RESULT]))


def _identical(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.dtype == b.dtype and torch.equal(a, b))


def _with_checksums(content: Mapping[str, bytes]) -> dict[str, bytes]:
    return {**content, CHECKSUMS: _checksums(content)}


def _checksums(content: Mapping[str, bytes]) -> bytes:
    """In the format of sha256sum, which can verify an entry by itself."""
    return "".join(f"{hashlib.sha256(part).hexdigest()}  {name}\n" for name, part in content.items()).encode()
