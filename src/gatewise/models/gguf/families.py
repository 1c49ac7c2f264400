"""What GGUF calls an architecture's sizes and tensors, and what llama.cpp did to their layout, which is undone here.

An architecture is one entry of `FAMILIES`: its name in Hugging Face, its configuration, its tensors' names. The same
numbers as in llama.cpp's `convert_hf_to_gguf.py`, read backwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gatewise.errors import GatewiseError
from gatewise.files import shown
from gatewise.models.gguf.file import RawTensor

Array = npt.NDArray[np.float32]
Config = dict[str, Any]
Rearrange = Callable[[str, Array, Config], Array]  # GGUF's name of a tensor, as the file has it -> as Hugging Face does

ROPE_TENSORS = ("rope_freqs", "rope_factors_long", "rope_factors_short")  # part of the configuration, not weights


def dequantised(tensor: RawTensor) -> Array:
    """Return a tensor's numbers in float32."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(tensor.kind)
    try:
        return np.asarray(dequantize(tensor.blocks, kind), dtype=np.float32)
    except NotImplementedError as error:
        raise GatewiseError(f"is of type {kind.name}, which the gguf package cannot dequantise.") from error


@dataclass(frozen=True, eq=False)
class Fields:
    """The metadata of one architecture, checked as it is asked for, and its tensors by name."""

    prefix: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, RawTensor]

    def __contains__(self, key: str) -> bool:
        return f"{self.prefix}.{key}" in self.metadata

    def integer(self, key: str, most: int = 1 << 30, default: int | None = None) -> int:
        """Return a positive whole number."""
        value = self.metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise GatewiseError(f"{self.prefix}.{key} is {shown(value)}; expected a whole number from 1 to {most:,}.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number, as it was written: GGUF stores 1e-05 as 9.999999747378752e-06."""
        value = self.metadata.get(f"{self.prefix}.{key}", default)
        if not isinstance(value, float) or not 0 < value < math.inf:
            raise GatewiseError(f"{self.prefix}.{key} is {shown(value)}; expected a positive number.")
        return float(str(np.float32(value)))

    def vocabulary(self) -> int:
        """Return how many tokens are embedded."""
        if "token_embd.weight" not in self.tensors:
            raise GatewiseError("it has no tensor 'token_embd.weight'.")
        return self.tensors["token_embd.weight"].shape[0]

    def factors(self, name: str) -> list[float] | None:
        """Return a number for each frequency of the rotary embedding, if the file has them."""
        tensor = self.tensors.get(f"{name}.weight")
        return None if tensor is None else [float(factor) for factor in dequantised(tensor).reshape(-1)]


@dataclass(frozen=True, eq=False)
class Family:
    """How one of GGUF's architectures translates into one of Hugging Face's."""

    name: str  # GGUF's
    model_type: str
    module: str
    config: Callable[[Fields], Config]
    tensors: Mapping[str, str]
    layout: Rearrange = lambda _name, weight, _config: weight
    layers: str = "model.layers"


def _sizes(fields: Fields) -> Config:
    hidden, heads = fields.integer("embedding_length", 1 << 20), fields.integer("attention.head_count", 1_000)
    key_heads = fields.integer("attention.head_count_kv", 1_000, default=heads)
    if heads % key_heads or (hidden % heads and "attention.key_length" not in fields):
        raise GatewiseError(f"{hidden} dimensions, {heads} heads and {key_heads} key heads do not go together.")
    return {
        "hidden_size": hidden,
        "intermediate_size": fields.integer("feed_forward_length"),
        "num_hidden_layers": fields.integer("block_count", 1_000),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": fields.integer("attention.key_length", 1 << 20, default=hidden // heads),
        "max_position_embeddings": fields.integer("context_length"),
    }


def _gated(fields: Fields) -> Config:
    """Root-mean-square norms and a gated MLP: Llama, and nearly everything since."""
    return {
        **_sizes(fields),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(fields),
        "attention_bias": "blk.0.attn_q.bias" in fields.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in fields.tensors,
    }


def _rope(fields: Fields) -> Config:
    rope: Config = {"rope_type": "default", "rope_theta": fields.number("rope.freq_base", 10_000.0)}
    kind = fields.metadata.get(f"{fields.prefix}.rope.scaling.type", "none")
    if isinstance(kind, str) and kind == "linear":  # an array has no truth value
        return {**rope, "rope_type": "linear", "factor": fields.number("rope.scaling.factor")}
    if not isinstance(kind, str) or kind not in ("none", "longrope"):  # longrope: its factors are tensors, see Phi-3
        raise GatewiseError(f"its rotary embedding is scaled by {shown(kind)}; 'linear' is understood.")
    factors = fields.factors("rope_freqs")
    return rope if factors is None else _llama3_rope(rope, factors)


def _llama3_rope(rope: Config, factors: list[float]) -> Config:
    """Llama 3.1 divides its frequencies: GGUF holds the divisors, Hugging Face the four numbers they follow from."""
    largest, original, low, high = max(factors), 8192, 1.0, 4.0
    waves = 2 * math.pi * rope["rope_theta"] ** (np.arange(len(factors)) / len(factors))
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    if not np.allclose(1 / ((1 - smooth) / largest + smooth), factors, rtol=1e-3):
        raise GatewiseError("its rotary embedding is not scaled as that of Llama 3.1 is.")
    scaling = {"factor": largest, "low_freq_factor": low, "high_freq_factor": high}
    return {**rope, "rope_type": "llama3", **scaling, "original_max_position_embeddings": original}


def _smollm3(fields: Fields) -> Config:
    layers = fields.integer("block_count", 1_000)
    return {**_gated(fields), "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(layers)]}


def _phi3(fields: Fields) -> Config:
    config = _gated(fields)
    rope, size = config["rope_parameters"], config["head_dim"]
    rope["partial_rotary_factor"] = fields.integer("rope.dimension_count", size, default=size) / size
    long, short = fields.factors("rope_factors_long"), fields.factors("rope_factors_short")
    if long and short:
        original = fields.integer("rope.scaling.original_context_length")
        rope |= {"rope_type": "longrope", "long_factor": long, "short_factor": short}
        config["original_max_position_embeddings"] = rope["original_max_position_embeddings"] = original
    window = fields.integer("attention.sliding_window") if "attention.sliding_window" in fields else None
    return {**config, "sliding_window": window}


def _gemma(fields: Fields, period: int, largest: int) -> Config:
    """Every `period`-th layer sees everything. The model of `largest` layers scales its scores in another way."""
    config = _gated(fields)
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    config["layer_types"] = [
        "sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(layers)
    ]
    config["query_pre_attn_scalar"] = config["hidden_size"] // heads if layers == largest else config["head_dim"]
    return {**config, "sliding_window": fields.integer("attention.sliding_window")}


def _gemma2(fields: Fields) -> Config:
    caps = {cap: fields.number(cap) for cap in ("attn_logit_softcapping", "final_logit_softcapping")}
    return {**_gemma(fields, period=2, largest=46), **caps}


def _gemma3(fields: Fields) -> Config:
    config = _gemma(fields, period=6, largest=62)
    local = {"rope_type": "default", "rope_theta": 10_000.0}
    return {**config, "rope_parameters": {"sliding_attention": local, "full_attention": config["rope_parameters"]}}


def _gpt2(fields: Fields) -> Config:
    sizes = _sizes(fields)
    return {
        "n_embd": sizes["hidden_size"],
        "n_layer": sizes["num_hidden_layers"],
        "n_head": sizes["num_attention_heads"],
        "n_inner": sizes["intermediate_size"],
        "n_positions": sizes["max_position_embeddings"],
        "layer_norm_epsilon": fields.number("attention.layer_norm_epsilon"),
    }


def _neox(fields: Fields) -> Config:
    config = _sizes(fields)
    rotated = fields.integer("rope.dimension_count", config["head_dim"], default=config["head_dim"])
    parallel = fields.metadata.get(f"{fields.prefix}.use_parallel_residual", True)
    if not isinstance(parallel, bool):
        raise GatewiseError(f"{fields.prefix}.use_parallel_residual is {shown(parallel)}; expected true or false.")
    return {
        **config,
        "layer_norm_eps": fields.number("attention.layer_norm_epsilon"),
        "rope_parameters": {**_rope(fields), "partial_rotary_factor": rotated / config["head_dim"]},
        "use_parallel_residual": parallel,
    }


def split_rotary_halves(name: str, weight: Array, config: Config) -> Array:
    """Rows of each head from the (pair, half) order of interleaved rotary embeddings to (half, pair)."""
    if name not in ("attn_q", "attn_k"):
        return weight
    heads = config["num_attention_heads" if name == "attn_q" else "num_key_value_heads"]
    return _reordered(weight, heads, (heads, -1, 2), swapped=(1, 2))


def _heads_together(name: str, weight: Array, config: Config) -> Array:
    """Rows of the joined projection from (q/k/v, head) order to NeoX's (head, q/k/v)."""
    heads = config["num_attention_heads"]
    return _reordered(weight, heads, (3, heads, -1), swapped=(0, 1)) if name == "attn_qkv" else weight


def _reordered(weight: Array, heads: int, axes: tuple[int, int, int], swapped: tuple[int, int]) -> Array:
    """Read the rows as these axes, of which one is open (-1), and swap two of them."""
    if weight.shape[0] % -math.prod(axes):
        raise GatewiseError(f"of shape {weight.shape} does not divide into {heads} heads.")
    rows: Array = weight.reshape(*axes, *weight.shape[1:]).swapaxes(*swapped)
    return rows.reshape(weight.shape)


def _minus_one(name: str, weight: Array, _config: Config) -> Array:
    """Gemma's norms hold the difference from 1."""
    return weight - 1 if name.endswith("_norm") else weight


def _transposed(name: str, weight: Array, _config: Config) -> Array:
    """GPT-2's matrices map from the left; biases and embeddings are as elsewhere."""
    return weight.T if name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down") else weight


_LLAMA = {
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
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_NORMS_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA2 = {**_LLAMA, **_NORMS_AFTER, "ffn_norm": "pre_feedforward_layernorm"}
_PHI3 = {**_LLAMA, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_NEOX = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
    "attn_norm": "input_layernorm",
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}

FAMILIES = {
    family.name: family
    for family in (
        Family("llama", "llama", "LlamaForCausalLM", _gated, _LLAMA, split_rotary_halves),
        Family("smollm3", "smollm3", "SmolLM3ForCausalLM", _smollm3, _LLAMA, split_rotary_halves),
        Family("qwen2", "qwen2", "Qwen2ForCausalLM", _gated, _LLAMA),
        Family("qwen3", "qwen3", "Qwen3ForCausalLM", _gated, {**_LLAMA, **_HEAD_NORMS}),
        Family("phi3", "phi3", "Phi3ForCausalLM", _phi3, _PHI3),
        Family("gemma2", "gemma2", "Gemma2ForCausalLM", _gemma2, _GEMMA2, _minus_one),
        Family("gemma3", "gemma3_text", "Gemma3ForCausalLM", _gemma3, {**_GEMMA2, **_HEAD_NORMS}, _minus_one),
        Family("olmo2", "olmo2", "Olmo2ForCausalLM", _gated, {**_LLAMA, **_HEAD_NORMS, **_NORMS_AFTER}),
        Family("gpt2", "gpt2", "GPT2LMHeadModel", _gpt2, _GPT2, _transposed, "transformer.h"),
        Family("gptneox", "gpt_neox", "GPTNeoXForCausalLM", _neox, _NEOX, _heads_together, "gpt_neox.layers"),
    )
}
