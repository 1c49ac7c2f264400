"""GPT-NeoX (Pythia): parallel blocks, partial rotary embedding, q, k and v interleaved by head."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gatewise.models.components import Attention, Pointwise, Projection, mlp
from gatewise.models.layout import Rotary
from gatewise.models.transformer import Parts, activation, head_columns, layer_norm


def neox_parts(hf: Any) -> Parts:
    """Return the parts of a transformers GPT-NeoX."""
    config, body = hf.config, hf.gpt_neox

    def embed(tokens: Tensor, _positions: Tensor) -> Tensor:
        out: Tensor = body.embed_in(tokens)
        return out

    layers = [(_attention(layer, config.num_attention_heads, body.rotary_emb), _mlp(layer)) for layer in body.layers]
    parallel = bool(config.use_parallel_residual)
    return Parts(embed, layers, layer_norm(body.final_layer_norm), config.hidden_size, parallel)


def _attention(layer: Any, heads: int, rotary: Rotary) -> Attention:
    fused = layer.attention.query_key_value  # rows: head, then q/k/v, then dimension
    weight = fused.weight.unflatten(0, (heads, 3, -1))
    bias = None if fused.bias is None else fused.bias.unflatten(0, (heads, 3, -1))
    q, k, v = (Projection(weight[:, i].transpose(1, 2), None if bias is None else bias[:, i]) for i in range(3))
    return Attention(
        norm=layer_norm(layer.input_layernorm),
        q=q,
        k=k,
        v=v,
        out=head_columns(layer.attention.dense.weight, heads),
        bias=layer.attention.dense.bias,
        scale=layer.attention.scaling,
        rotary=rotary,
    )


def _mlp(layer: Any) -> Pointwise:
    norm, module, act = layer_norm(layer.post_attention_layernorm), layer.mlp, activation(layer.mlp.act)

    def function(x: Tensor) -> Tensor:
        return F.linear(act(module.dense_h_to_4h(norm(x))), module.dense_4h_to_h.weight)

    return mlp(function, module.dense_4h_to_h.bias)
