"""Llama, and what is built like it: Mistral (sliding window), Qwen2 (biases of q, k and v), Qwen3 (norms of each head's
queries and keys), SmolLM2, SmolLM3 (layers without rotary embedding)."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gatewise.models.parts import Attention, Pointwise, mlp
from gatewise.models.transformer import Parts, activation, head_columns, head_rows, rms_norm


def llama_parts(hf: Any) -> Parts:
    config, body = hf.config, hf.model

    def embed(tokens: Tensor, _positions: Tensor) -> Tensor:
        out: Tensor = body.embed_tokens(tokens)
        return out

    layers = [(_attention(layer, config, body.rotary_emb), _mlp(layer)) for layer in body.layers]
    return Parts(embed, layers, rms_norm(body.norm), config.hidden_size)


def _attention(layer: Any, config: Any, rotary: Any) -> Attention:
    attention = layer.self_attn
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    sliding = getattr(attention, "sliding_window", None)  # Qwen2: set on the layers that use it
    if config.model_type == "mistral":
        sliding = config.sliding_window
    has_head_norms = hasattr(attention, "q_norm")  # Qwen3
    return Attention(
        norm=rms_norm(layer.input_layernorm),
        q=head_rows(attention.q_proj, heads),
        k=head_rows(attention.k_proj, groups),
        v=head_rows(attention.v_proj, groups),
        out=head_columns(attention.o_proj.weight, heads),
        bias=attention.o_proj.bias,
        scale=attention.scaling,
        rotary=rotary if getattr(attention, "use_rope", True) else None,  # SmolLM3 leaves it out of some layers
        q_norm=rms_norm(attention.q_norm) if has_head_norms else None,
        k_norm=rms_norm(attention.k_norm) if has_head_norms else None,
        sliding=sliding,
    )


def _mlp(layer: Any) -> Pointwise:
    norm, module, act = rms_norm(layer.post_attention_layernorm), layer.mlp, activation(layer.mlp.act_fn)

    def function(x: Tensor) -> Tensor:
        y = norm(x)
        return F.linear(act(module.gate_proj(y)) * module.up_proj(y), module.down_proj.weight)

    return mlp(function, module.down_proj.bias)
