"""Turns a GGUF file into what Hugging Face would have: a configuration, dequantised weights, a tokenizer.

Reads one file, and writes one folder if asked to; knows nothing about downloads or caches. What an architecture's
configuration and tensors are called is in `families.py`, the tokenizer in `tokenizer.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gatewise.errors import GatewiseError
from gatewise.files import shown
from gatewise.models.gguf.families import FAMILIES, ROPE_TENSORS, Array, Family, Fields, dequantised
from gatewise.models.gguf.file import RawTensor, parse_gguf
from gatewise.models.gguf.tokenizer import TokenizerParts, special_tokens, tokenizer_parts


@dataclass(frozen=True, eq=False)
class GgufModel:
    """The content of a GGUF file whose architecture is known and whose configuration makes sense."""

    file: str  # for errors
    family: Family
    config: dict[str, Any]  # as in config.json
    metadata: Mapping[str, Any]
    tensors: Sequence[RawTensor]

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Yield tensors under their Hugging Face names, in float32 and in Hugging Face's layout."""
        for tensor in self.tensors:
            match = re.fullmatch(r"(?:blk\.(\d{1,4})\.)?([a-z_]+)\.(weight|bias)", tensor.name)
            if match is not None and match[2] in ROPE_TENSORS:
                continue
            if match is None or match[2] not in self.family.tensors:
                raise GatewiseError(
                    f"{self.file} has a tensor {shown(tensor.name)}, which is no part of a model of kind "
                    f"{self.family.name!r}."
                )
            layer = "" if match[1] is None else f"{self.family.layers}.{match[1]}."
            name = f"{layer}{self.family.tensors[match[2]]}.{match[3]}"
            try:
                weight = self.family.layout(match[2], dequantised(tensor), self.config)
            except GatewiseError as error:
                raise GatewiseError(f"{self.file}: {tensor.name} {error}") from error
            yield name, np.require(weight, requirements=["C", "W"])  # views of the file are neither

    def tokenizer(self) -> TokenizerParts:
        """Build the tokenizer that the file describes."""
        try:
            return tokenizer_parts(self.metadata, self.metadata[f"{self.family.name}.context_length"])
        except GatewiseError as error:
            raise GatewiseError(
                f"{self.file}: {error} Give the model's tokenizer as tokenizer= if you have it."
            ) from error


def read_gguf(path: Path) -> GgufModel:
    """Read the model in a file; its weights are read when they are asked for."""
    if path.exists() and not path.is_file():
        raise GatewiseError(f"{path} is not a regular file; expected a .gguf file.")
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, dtype=np.uint8)
    except OSError as error:
        raise GatewiseError(f"cannot read {path}: {error.strerror or error}.") from error
    return gguf_model(*parse_gguf(content, path.name), path.name)


def gguf_model(metadata: Mapping[str, Any], tensors: Sequence[RawTensor], file: str) -> GgufModel:
    """Find the family and make the configuration; raise an error that names the file if something makes no sense."""
    kind = metadata.get("general.architecture")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise GatewiseError(
            f"{file} holds a model of kind {shown(kind)}; the kinds that can be read are {', '.join(FAMILIES)}. "
            "Load another format of the model, a folder in Hugging Face's format for example."
        )
    family = FAMILIES[kind]
    fields = Fields(kind, metadata, {tensor.name: tensor for tensor in tensors})
    try:
        special = special_tokens(metadata)
        config = {
            "model_type": family.model_type,
            "architectures": [family.module],
            **family.config(fields),
            "vocab_size": fields.vocabulary(),
            "tie_word_embeddings": "output.weight" not in fields.tensors,
            **{f"{name}_token_id": special.get(name, (None,))[0] for name in ("bos", "eos", "pad")},
            "dtype": "float32",
        }
    except GatewiseError as error:
        raise GatewiseError(f"{file}: {error} Download it again.") from error
    return GgufModel(file, family, config, metadata, tensors)


def convert(source: Path, folder: Path, on_tensor: Callable[[], None] = lambda: None) -> None:
    """Write `source` into `folder` as a Hugging Face model; `on_tensor` is called after each tensor."""
    from safetensors.numpy import save_file

    model = read_gguf(source)
    tokenizer = model.tokenizer()
    weights: dict[str, Array] = {}
    for name, weight in model.weights():
        weights[name] = weight
        on_tensor()
    for file, content in (("config.json", model.config), ("tokenizer_config.json", tokenizer.config)):
        (folder / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
