"""Turns a GGUF file of a Llama model into a Hugging Face folder: dequantised weights, config, tokenizer.

Reads one file and writes into one folder; knows nothing about downloads or caches. GGUF keeps the rows of the query
and key matrices in the order of interleaved rotary embeddings; Hugging Face's Llama wants the two halves apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gatewise.errors import GatewiseError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Array = npt.NDArray[np.float32]
Metadata = dict[str, Any]

_CONTROL_TOKEN = 3  # GGUF's token type of special tokens

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
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    reader = GGUFReader(source)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    architecture, tokenizer = metadata.get("general.architecture"), metadata.get("tokenizer.ggml.pre")
    if (architecture, tokenizer) != ("llama", "smollm"):
        raise GatewiseError(
            f"{source.name} holds a model of kind {architecture!r} with tokenizer {tokenizer!r}; only 'llama' with "
            "'smollm' can be converted. Convert it with another tool and give load_model the folder."
        )
    weights: dict[str, Array] = {}
    for tensor in reader.tensors:
        name, weight = _weight(tensor, metadata)
        weights[name] = weight
        on_tensor()
    config = llama_config(metadata, tied="lm_head.weight" not in weights)
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer_config.json", tokenizer_config(metadata))
    byte_level_tokenizer(metadata).save(str(folder / "tokenizer.json"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _weight(tensor: Any, metadata: Metadata) -> tuple[str, Array]:
    """One tensor under its Hugging Face name, in float32 and in Hugging Face's layout."""
    from gguf.quants import dequantize

    weight: Array = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    *block, kind, suffix = tensor.name.split(".")
    if kind == "attn_q":
        weight = split_rotary_halves(weight, metadata["llama.attention.head_count"])
    elif kind == "attn_k":
        weight = split_rotary_halves(weight, metadata["llama.attention.head_count_kv"])
    prefix = f"model.layers.{block[1]}." if block else ""
    return f"{prefix}{_TENSOR_NAMES[kind]}.{suffix}", weight


def split_rotary_halves(weight: Array, heads: int) -> Array:
    """Rows of each head from (pair, half) order to (half, pair) order. [head * pair * half, column]"""
    rows, columns = weight.shape
    pairs = rows // heads // 2
    return np.ascontiguousarray(weight.reshape(heads, pairs, 2, columns).swapaxes(1, 2).reshape(rows, columns))


def llama_config(metadata: Metadata, *, tied: bool) -> dict[str, Any]:
    """The `config.json` of the model."""
    hidden, heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata["llama.vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": _shortest(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_type": "default", "rope_theta": _shortest(metadata["llama.rope.freq_base"])},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
    }


def _shortest(value: float) -> float:
    """GGUF stores single precision: 9.999999747378752e-06 was written as 1e-05."""
    return float(str(np.float32(value)))


def byte_level_tokenizer(metadata: Metadata) -> Tokenizer:
    """Byte-level BPE as GPT-2's, except that every digit stands alone. Adds no token of its own."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in metadata["tokenizer.ggml.merges"])]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
    special = [AddedToken(token, normalized=False, special=True) for token, kind in kinds if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens(special)
    return tokenizer


def tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    """The `tokenizer_config.json`: which tokens are special. No BOS is added unless a task asks for it."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
        "chat_template": metadata["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
