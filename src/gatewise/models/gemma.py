"""Gemma 2 and 3: norms around every block, soft-capping, sliding windows, a scaled embedding.

The norm after attention acts on the sum of a layer's heads. A head's write is its share of the sum times the scale of
that norm, so a change in one head changes what its siblings write: see `Attention.joint_norm`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from gatewise.errors import GatewiseError
from gatewise.models.parts import Attention, Norm, Pointwise, mlp
from gatewise.models.transformer import Parts, activation, head_columns, head_rows


def gemma_parts(hf: Any) -> Parts:
    config, body = hf.config, hf.model
    if config.attention_bias:
        raise GatewiseError(
            "Gemma with attention_bias adds a bias to its heads before their norm, which belongs to no head; load a "
            "model without it."
        )

    def embed(tokens: Tensor, _positions: Tensor) -> Tensor:
        out: Tensor = body.embed_tokens(tokens)
        return out

    rotary = _rotary_by_layer_type(body, config)
    layers = [
        (_attention(layer, config, rotary[kind]), _mlp(layer))
        for layer, kind in zip(body.layers, config.layer_types, strict=True)
    ]
    cap = config.final_logit_softcapping
    return Parts(embed, layers, gemma_norm(body.norm), config.hidden_size, softcap=cap, needs_bos=True)


def gemma_norm(module: Any) -> Norm:
    """Gemma stores a norm's weight as its difference from 1."""
    return Norm(1 + module.weight.detach(), None, module.eps, center=False)


def _rotary_by_layer_type(body: Any, config: Any) -> dict[str, Any]:
    kinds = set(config.layer_types)
    if config.model_type == "gemma2":
        return dict.fromkeys(kinds, body.rotary_emb)
    return {kind: partial(body.rotary_emb, layer_type=kind) for kind in kinds}


def _attention(layer: Any, config: Any, rotary: Any) -> Attention:
    attention = layer.self_attn
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    has_head_norms = hasattr(attention, "q_norm")  # Gemma 3
    return Attention(
        norm=gemma_norm(layer.input_layernorm),
        q=head_rows(attention.q_proj, heads),
        k=head_rows(attention.k_proj, groups),
        v=head_rows(attention.v_proj, groups),
        out=head_columns(attention.o_proj.weight, heads),
        bias=None,
        scale=attention.scaling,
        rotary=rotary,
        q_norm=gemma_norm(attention.q_norm) if has_head_norms else None,
        k_norm=gemma_norm(attention.k_norm) if has_head_norms else None,
        softcap=config.attn_logit_softcapping if config.model_type == "gemma2" else None,  # Gemma 3 ignores it
        sliding=attention.sliding_window,
        joint_norm=gemma_norm(layer.post_attention_layernorm),
    )


def _mlp(layer: Any) -> Pointwise:
    before, after = gemma_norm(layer.pre_feedforward_layernorm), gemma_norm(layer.post_feedforward_layernorm)
    module, act = layer.mlp, activation(layer.mlp.act_fn)

    def function(x: Tensor) -> Tensor:
        y = before(x)
        return after(module.down_proj(act(module.gate_proj(y)) * module.up_proj(y)))

    return mlp(function)
