"""Phi-3: Llama's blocks with q, k and v in one matrix, and the MLP's gate and input in another."""

from __future__ import annotations

from typing import Any

from gatewise.models.architectures.llama import embedding, gated_mlp
from gatewise.models.components import Attention
from gatewise.models.layout import Rotary
from gatewise.models.transformer import Parts, head_columns, rms_norm, row_projection


def phi3_parts(hf: Any) -> Parts:
    """Return the parts of a transformers Phi-3."""
    body = hf.model
    layers = [
        (_attention(layer, hf.config, body.rotary_emb), gated_mlp(layer.mlp, rms_norm(layer.post_attention_layernorm)))
        for layer in body.layers
    ]
    return Parts(embedding(body), layers, rms_norm(body.norm), hf.config.hidden_size)


def _attention(layer: Any, config: Any, rotary: Rotary) -> Attention:
    attention = layer.self_attn
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, attention.head_dim
    q, k, v = attention.qkv_proj.weight.split([heads * size, groups * size, groups * size])
    return Attention(
        norm=rms_norm(layer.input_layernorm),
        q=row_projection(q, None, heads),
        k=row_projection(k, None, groups),
        v=row_projection(v, None, groups),
        out=head_columns(attention.o_proj.weight, heads),
        bias=None,
        scale=attention.scaling,
        rotary=rotary,
        sliding=config.sliding_window,
    )
