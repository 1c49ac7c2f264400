"""Llama, and what is built like it: Mistral (sliding window), Qwen2 (biases of q, k and v), Qwen3 (norms of each head's
queries and keys), SmolLM2, SmolLM3 (layers without rotary embedding).

What Gemma, OLMo 2 and Phi-3 share with it is here, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gatewise.models.components import Attention, Norm, Pointwise, mlp
from gatewise.models.gradient_rules import product
from gatewise.models.transformer import Parts, activation, head_columns, head_rows, rms_norm


def llama_parts(hf: Any) -> Parts:
    """Return the parts of a transformers Llama."""
    body = hf.model
    layers = [
        (_attention(layer, hf.config, body.rotary_emb), gated_mlp(layer.mlp, rms_norm(layer.post_attention_layernorm)))
        for layer in body.layers
    ]
    return Parts(embedding(body), layers, rms_norm(body.norm), hf.config.hidden_size)


def embedding(body: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Of tokens; positions play no part."""

    def embed(tokens: Tensor, _positions: Tensor) -> Tensor:
        out: Tensor = body.embed_tokens(tokens)
        return out

    return embed


def _attention(layer: Any, config: Any, rotary: Any) -> Attention:
    attention = layer.self_attn
    sliding = getattr(attention, "sliding_window", None)  # Qwen2: set on the layers that use it
    if config.model_type == "mistral":
        sliding = config.sliding_window
    has_head_norms = hasattr(attention, "q_norm")  # Qwen3
    return grouped_attention(
        attention,
        config,
        norm=rms_norm(layer.input_layernorm),
        bias=attention.o_proj.bias,
        rotary=rotary if getattr(attention, "use_rope", True) else None,  # SmolLM3 leaves it out of some layers
        q_norm=rms_norm(attention.q_norm) if has_head_norms else None,
        k_norm=rms_norm(attention.k_norm) if has_head_norms else None,
        sliding=sliding,
    )


def grouped_attention(attention: Any, config: Any, *, bias: Tensor | None = None, **fields: Any) -> Attention:
    """Attention with Llama's four projections; `fields`: further ones of `Attention`."""
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    return Attention(
        q=head_rows(attention.q_proj, heads),
        k=head_rows(attention.k_proj, groups),
        v=head_rows(attention.v_proj, groups),
        out=head_columns(attention.o_proj.weight, heads),
        bias=bias,
        scale=attention.scaling,
        **fields,
    )


def gated_mlp(module: Any, before: Norm | None = None, after: Norm | None = None) -> Pointwise:
    """An MLP whose input is gated, with a norm before it, or after it, which then has no output bias."""
    act = activation(module.activation_fn if hasattr(module, "activation_fn") else module.act_fn)

    def function(x: Tensor) -> Tensor:
        y = x if before is None else before(x)
        if hasattr(module, "gate_up_proj"):  # Phi-3: both in one matrix
            gate, up = module.gate_up_proj(y).chunk(2, dim=-1)
        else:
            gate, up = module.gate_proj(y), module.up_proj(y)
        out = F.linear(product(act(gate), up), module.down_proj.weight)
        return out if after is None else after(out)

    return mlp(function, module.down_proj.bias)
