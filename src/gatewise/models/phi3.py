"""Phi-3: Llama's blocks with q, k and v in one matrix, and the MLP's gate and input in another."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gatewise.models.layout import Rotary
from gatewise.models.parts import Attention, Pointwise, mlp
from gatewise.models.transformer import Parts, activation, head_columns, rms_norm, row_projection


def phi3_parts(hf: Any) -> Parts:
    config, body = hf.config, hf.model

    def embed(tokens: Tensor, _positions: Tensor) -> Tensor:
        out: Tensor = body.embed_tokens(tokens)
        return out

    layers = [(_attention(layer, config, body.rotary_emb), _mlp(layer)) for layer in body.layers]
    return Parts(embed, layers, rms_norm(body.norm), config.hidden_size)


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


def _mlp(layer: Any) -> Pointwise:
    norm, module = rms_norm(layer.post_attention_layernorm), layer.mlp
    act = activation(module.activation_fn)

    def function(x: Tensor) -> Tensor:
        gate, up = module.gate_up_proj(norm(x)).chunk(2, dim=-1)
        return F.linear(act(gate) * up, module.down_proj.weight)

    return mlp(function)
