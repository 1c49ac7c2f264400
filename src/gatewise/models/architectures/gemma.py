"""Gemma 2 and 3: norms around every block, soft-capping, sliding windows, a scaled embedding.

The norm after attention acts on the sum of a layer's heads. A head's write is its share of the sum times the scale of
that norm, so a change in one head changes what its siblings write: see `Attention.joint_norm`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gatewise.errors import GatewiseError
from gatewise.models.architectures.llama import embedding, gated_mlp, grouped_attention
from gatewise.models.components import Attention, Norm, Pointwise
from gatewise.models.transformer import Parts


def gemma_parts(hf: Any) -> Parts:
    """Return the parts of a transformers Gemma."""
    config, body = hf.config, hf.model
    check_no_bias(config, "Gemma")
    rotary = _rotary_by_layer_type(body, config)
    layers = [
        (_attention(layer, config, rotary[kind]), _mlp(layer))
        for layer, kind in zip(body.layers, config.layer_types, strict=True)
    ]
    cap = config.final_logit_softcapping
    return Parts(embedding(body), layers, gemma_norm(body.norm), config.hidden_size, softcap=cap, needs_bos=True)


def check_no_bias(config: Any, family: str) -> None:
    """Refuse a bias of the attention's output before a norm over the sum of its heads."""
    if config.attention_bias:
        raise GatewiseError(
            f"{family} with attention_bias adds a bias to its heads before their norm, which belongs to no head; load "
            f"a model without it."
        )


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
    has_head_norms = hasattr(attention, "q_norm")  # Gemma 3
    return grouped_attention(
        attention,
        config,
        norm=gemma_norm(layer.input_layernorm),
        rotary=rotary,
        q_norm=gemma_norm(attention.q_norm) if has_head_norms else None,
        k_norm=gemma_norm(attention.k_norm) if has_head_norms else None,
        softcap=config.attn_logit_softcapping if config.model_type == "gemma2" else None,  # Gemma 3 ignores it
        sliding=attention.sliding_window,
        joint_norm=gemma_norm(layer.post_attention_layernorm),
    )


def _mlp(layer: Any) -> Pointwise:
    before, after = gemma_norm(layer.pre_feedforward_layernorm), gemma_norm(layer.post_feedforward_layernorm)
    return gated_mlp(layer.mlp, before, after)
