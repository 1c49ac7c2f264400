"""Turns a GGUF file of a Llama model into a Hugging Face folder: dequantised weights, config, tokenizer.

Reads one file and writes into one folder; knows nothing about downloads or caches. GGUF keeps the rows of the query
and key matrices in the order of interleaved rotary embeddings; Hugging Face's Llama wants the two halves apart.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gatewise.errors import GatewiseError
from gatewise.files import shown
from gatewise.models.gguf_file import RawTensor, parse_gguf

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Array = npt.NDArray[np.float32]
Metadata = dict[str, Any]

_CONTROL_TOKEN = 3  # GGUF's token type of special tokens
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # Hugging Face's names and GGUF's

_TENSOR_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, folder: Path, on_tensor: Callable[[], None] = lambda: None) -> None:
    """Write `source` into `folder` as a Hugging Face model; `on_tensor` is called after each tensor."""
    from safetensors.numpy import save_file

    if source.stat().st_size == 0:
        raise GatewiseError(f"{source.name} is empty. Download it again.")
    metadata, tensors = parse_gguf(np.memmap(source, dtype=np.uint8, mode="r"), source.name)
    parts = model_parts(metadata, tensors, source.name)
    weights: dict[str, Array] = {}
    for tensor in tensors:
        name, weight = _weight(tensor, metadata, source.name)
        weights[name] = weight
        on_tensor()
    _write_json(folder / "config.json", parts.config)
    _write_json(folder / "tokenizer_config.json", parts.tokenizer_config)
    parts.tokenizer.save(str(folder / "tokenizer.json"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@dataclass(frozen=True, eq=False)
class ModelParts:
    """What a Hugging Face folder has besides weights."""

    config: dict[str, Any]
    tokenizer_config: dict[str, Any]
    tokenizer: Tokenizer


def model_parts(metadata: Metadata, tensors: Sequence[RawTensor], name: str) -> ModelParts:
    """Configuration and tokenizer; an error that names the file if something is missing or makes no sense."""
    architecture, tokenizer = metadata.get("general.architecture"), metadata.get("tokenizer.ggml.pre")
    if (architecture, tokenizer) != ("llama", "smollm"):
        raise GatewiseError(
            f"{name} holds a model of kind {shown(architecture)} with tokenizer {shown(tokenizer)}; only 'llama' with "
            "'smollm' can be converted. Convert it with another tool and give load_model the folder."
        )
    try:
        config = llama_config(metadata, tied=all(tensor.name != "output.weight" for tensor in tensors))
        return ModelParts(config, tokenizer_config(metadata), byte_level_tokenizer(metadata))
    except GatewiseError as error:
        raise GatewiseError(f"{name}: {error} Download it again.") from error


def _weight(tensor: RawTensor, metadata: Metadata, file: str) -> tuple[str, Array]:
    """One tensor under its Hugging Face name, in float32 and in Hugging Face's layout."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    match = re.fullmatch(r"(?:blk\.(\d{1,4})\.)?([a-z_]+)\.(weight|bias)", tensor.name)
    if match is None or match[2] not in _TENSOR_NAMES:
        raise GatewiseError(f"{file} has a tensor {shown(tensor.name)}, which is no part of a Llama model.")
    try:
        weight: Array = np.ascontiguousarray(
            dequantize(tensor.blocks, GGMLQuantizationType(tensor.kind)), dtype=np.float32
        )
    except NotImplementedError as error:
        raise GatewiseError(f"{file}: {tensor.name} cannot be dequantised ({error}).") from error
    heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}.get(match[2])
    if heads is not None:
        count = _whole(metadata, heads)
        if weight.ndim != 2 or weight.shape[0] % (2 * count):
            raise GatewiseError(f"{file}: {tensor.name} of shape {weight.shape} does not divide into {count} heads.")
        weight = split_rotary_halves(weight, count)
    prefix = "" if match[1] is None else f"model.layers.{match[1]}."
    return f"{prefix}{_TENSOR_NAMES[match[2]]}.{match[3]}", weight


def split_rotary_halves(weight: Array, heads: int) -> Array:
    """Rows of each head from (pair, half) order to (half, pair) order. [head * pair * half, column]"""
    rows, columns = weight.shape
    pairs = rows // heads // 2
    return np.ascontiguousarray(weight.reshape(heads, pairs, 2, columns).swapaxes(1, 2).reshape(rows, columns))


def llama_config(metadata: Metadata, *, tied: bool) -> dict[str, Any]:
    """The `config.json` of the model."""
    hidden = _whole(metadata, "llama.embedding_length", 1 << 20)
    heads, key_heads = (_whole(metadata, f"llama.attention.head_count{kind}", 1_000) for kind in ("", "_kv"))
    if hidden % heads or heads % key_heads:
        raise GatewiseError(f"{hidden} dimensions, {heads} heads and {key_heads} key heads do not go together.")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _whole(metadata, "llama.vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": _whole(metadata, "llama.feed_forward_length"),
        "num_hidden_layers": _whole(metadata, "llama.block_count", 1_000),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": _whole(metadata, "llama.context_length"),
        "rms_norm_eps": _shortest(metadata, "llama.attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": _shortest(metadata, "llama.rope.freq_base")},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        **{f"{ours}_token_id": _token(metadata, theirs)[0] for ours, theirs in _SPECIAL.items() if ours != "unk"},
        "dtype": "float32",
    }


def _whole(metadata: Metadata, key: str, most: int = 1 << 30, least: int = 1) -> int:
    value = metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise GatewiseError(f"{key} is {shown(value)}; expected a whole number from {least} to {most:,}.")
    return value


def _texts(metadata: Metadata, key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list):
        raise GatewiseError(f"{key} is {shown(value)}; expected a list of texts.")
    return value


def _token(metadata: Metadata, name: str) -> tuple[int, str]:
    """Number and text of a special token."""
    tokens = _texts(metadata, "tokenizer.ggml.tokens")
    number = _whole(metadata, f"tokenizer.ggml.{name}_token_id", len(tokens) - 1, 0)
    return number, tokens[number]


def _shortest(metadata: Metadata, key: str) -> float:
    """GGUF stores single precision: 9.999999747378752e-06 was written as 1e-05."""
    value = metadata.get(key)
    if not isinstance(value, float) or not 0 < value < math.inf:
        raise GatewiseError(f"{key} is {shown(value)}; expected a positive number.")
    return float(str(np.float32(value)))


def byte_level_tokenizer(metadata: Metadata) -> Tokenizer:
    """Byte-level BPE as GPT-2's, except that every digit stands alone. Adds no token of its own."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = _texts(metadata, "tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in _texts(metadata, "tokenizer.ggml.merges")]
    known = set(tokens)
    fitting = all(len(merge) == 2 and {*merge, "".join(merge)} <= known for merge in merges)
    if not isinstance(kinds, np.ndarray) or not len(kinds) == len(tokens) == len(known) or not fitting:
        raise GatewiseError("its vocabulary is not whole: tokens, their types and their merges do not go together.")
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        AddedToken(token, normalized=False, special=True)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind == _CONTROL_TOKEN
    ]
    tokenizer.add_special_tokens(special)
    return tokenizer


def tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    """The `tokenizer_config.json`: which tokens are special. No BOS is added unless a task asks for it."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{ours}_token": _token(metadata, theirs)[1] for ours, theirs in _SPECIAL.items()},
        "chat_template": str(metadata.get("tokenizer.chat_template", "")),
        "clean_up_tokenization_spaces": False,
        "model_max_length": _whole(metadata, "llama.context_length"),
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
