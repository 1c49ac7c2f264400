"""Which files of a model's folder are its weights, and their content: plain safetensors, of the folder itself.

transformers would follow an index to pickles and to other folders, load the base model that an adapter names, and
wait for ever on a pipe. So the files are chosen and read here, and it gets tensors.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from gatewise.errors import GatewiseError, first_line
from gatewise.files import MAX_JSON_BYTES, parse_json, read_bytes, shown

if TYPE_CHECKING:
    from torch import Tensor

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_READ = re.compile(
    r".*\.(json|safetensors|model|txt|jinja|bin)"
)  # names of files that are opened, here or by transformers
_SHARD = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\.safetensors")
_LARGEST_INDEX = 64 << 20
_EXTRA_BYTES = 1 << 30  # beside the parameters: masks and the like that older checkpoints hold


def check_files(folder: Path) -> None:
    """Refuse a folder with something that is no regular file, or too large to be one, where a file is to be read.

    Args:
        folder: Of a model.

    Raises:
        GatewiseError: A file is a pipe, a device or a folder, or larger than any of its kind.
    """
    for path in sorted(folder.iterdir()):
        if _READ.fullmatch(path.name) is None:
            continue
        if not path.is_file():
            raise GatewiseError(f"{path} is not a regular file; expected a folder with config.json and *.safetensors.")
        if path.suffix not in (".safetensors", ".bin") and path.stat().st_size > MAX_JSON_BYTES:
            raise GatewiseError(f"{path} is larger than {MAX_JSON_BYTES:,} bytes; copy the model again.")


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files that hold a model's weights.

    Args:
        folder: Of a model.

    Returns:
        `model.safetensors`, or the files that its index names; empty if there is neither.

    Raises:
        GatewiseError: The index names something else than safetensors files of this folder, or the weights are those of
            an adapter.
    """
    if (folder / "adapter_config.json").exists():
        raise GatewiseError(
            f"{folder} holds an adapter of PEFT (adapter_config.json), whose base model is elsewhere. Merge both with "
            f"peft's merge_and_unload, save them with save_pretrained, and give that folder."
        )
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    if not (folder / _INDEX).is_file():
        return []
    names = index_names(read_bytes(folder / _INDEX, "an index of weights", _LARGEST_INDEX), folder / _INDEX)
    for name in names:
        if not (folder / name).is_file():
            raise GatewiseError(f"{folder / _INDEX} names {name}, which is not there. Copy all of the model.")
    return [folder / name for name in names]


def index_names(content: bytes, path: str | Path) -> list[str]:
    """Return the names of files in an index of weights, which are plain ones of safetensors.

    Args:
        content: Of the file.
        path: Named in errors.

    Returns:
        The names, sorted.

    Raises:
        GatewiseError: It is no index, or names a pickle or a file elsewhere.
    """
    index = parse_json(content, path, "an index of weights")
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise GatewiseError(f"{path} has no 'weight_map'; expected what transformers' save_pretrained writes.")
    for name in weight_map.values():
        if not isinstance(name, str) or _SHARD.fullmatch(name) is None:
            raise GatewiseError(
                f"{path} names {shown(name)}; expected names of *.safetensors files of the same folder. Other files "
                f"are not read: they may be pickles, which can run code, or not of this model."
            )
    return sorted(set(weight_map.values()))


def count_parameters(files: list[Path]) -> int:
    """Count the numbers in safetensors files, by their headers."""
    from safetensors import SafetensorError, safe_open

    held = 0
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                held += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
        except (SafetensorError, OSError, RuntimeError) as error:
            raise GatewiseError(
                f"{path} is not a whole safetensors file: {first_line(error)}. Copy it again."
            ) from error
    return held


def check_size(held_bytes: int, needed: int, source: Path) -> None:
    """Refuse weights that are far more than the model has, or than the memory, before they are opened.

    Args:
        held_bytes: Of the files.
        needed: Parameters that a model of this configuration has.
        source: Named in errors.

    Raises:
        GatewiseError: The memory would be filled.
    """
    if held_bytes > _EXTRA_BYTES + 16 * needed:
        raise GatewiseError(
            f"{source} holds {held_bytes:,} bytes of weights, far more than the {needed:,} parameters of its "
            f"configuration take. Its files are not this model's; copy it again."
        )
    memory = psutil.virtual_memory().total + psutil.swap_memory().total
    if 2 * needed > memory:  # two bytes each, in the smallest dtype
        raise GatewiseError(
            f"{source} has {needed:,} parameters, which take at least {2 * needed / 2**30:,.1f} GiB; this machine has "
            f"{memory / 2**30:,.1f} GiB. Use a smaller model or a larger machine."
        )


def read_weights(files: list[Path]) -> dict[str, Tensor]:
    """Read tensors by name out of safetensors files."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights: dict[str, Tensor] = {}
    for path in files:
        try:
            weights |= load_file(path)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise GatewiseError(
                f"{path} is not a whole safetensors file: {first_line(error)}. Copy it again."
            ) from error
    return weights
