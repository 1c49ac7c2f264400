"""GPT-2: learned positions, layer norms, one matrix for q, k and v."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gatewise.errors import GatewiseError
from gatewise.models.components import Attention, Pointwise, Projection, mlp
from gatewise.models.transformer import Parts, activation, layer_norm


def gpt2_parts(hf: Any) -> Parts:
    """Return the parts of a transformers GPT-2."""
    config, body = hf.config, hf.transformer
    if config.add_cross_attention:
        raise GatewiseError("GPT-2 with cross-attention is not a decoder on its own; load a model without it.")

    def embed(tokens: Tensor, positions: Tensor) -> Tensor:
        out: Tensor = body.wte(tokens) + body.wpe(positions)
        return out

    layers = [(_attention(block), _mlp(block)) for block in body.h]
    return Parts(embed, layers, layer_norm(body.ln_f), config.n_embd)


def _attention(block: Any) -> Attention:
    attention = block.attn
    heads, size = attention.num_heads, attention.head_dim
    weight = attention.c_attn.weight.unflatten(1, (3, heads, size))  # [d_model, q/k/v, head, dimension]
    bias = attention.c_attn.bias.unflatten(0, (3, heads, size))
    q, k, v = (Projection(weight[:, i].transpose(0, 1), bias[i]) for i in range(3))
    return Attention(
        norm=layer_norm(block.ln_1),
        q=q,
        k=k,
        v=v,
        out=attention.c_proj.weight.unflatten(0, (heads, size)),
        bias=attention.c_proj.bias,
        scale=attention.scaling,
    )


def _mlp(block: Any) -> Pointwise:
    norm, module, act = layer_norm(block.ln_2), block.mlp, activation(block.mlp.act)

    def function(x: Tensor) -> Tensor:
        out: Tensor = act(norm(x) @ module.c_fc.weight + module.c_fc.bias) @ module.c_proj.weight
        return out

    return mlp(function, module.c_proj.bias)
