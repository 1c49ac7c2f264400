"""OLMo 2: no norm before a block but one after it, and norms over the queries and the keys of all heads of a layer.

Both norms make a layer's heads depend on each other: see `Attention.joint_norm` and `JointHeadNorm`.
"""

from __future__ import annotations

from typing import Any

from gatewise.models.architectures.gemma import check_no_bias
from gatewise.models.architectures.llama import embedding, gated_mlp, grouped_attention
from gatewise.models.components import Attention, JointHeadNorm
from gatewise.models.layout import Rotary
from gatewise.models.transformer import Parts, rms_norm


def olmo2_parts(hf: Any) -> Parts:
    """Return the parts of a transformers OLMo 2."""
    config, body = hf.config, hf.model
    check_no_bias(config, "OLMo 2")
    layers = [
        (
            _attention(layer, config, body.rotary_emb),
            gated_mlp(layer.mlp, after=rms_norm(layer.post_feedforward_layernorm)),
        )
        for layer in body.layers
    ]
    return Parts(embedding(body), layers, rms_norm(body.norm), config.hidden_size)


def _attention(layer: Any, config: Any, rotary: Rotary) -> Attention:
    attention = layer.self_attn
    return grouped_attention(
        attention,
        config,
        norm=None,
        rotary=rotary,
        q_norm=_over_heads(attention.q_norm, config.num_attention_heads),
        k_norm=_over_heads(attention.k_norm, config.num_key_value_heads),
        joint_norm=rms_norm(layer.post_attention_layernorm),
    )


def _over_heads(module: Any, heads: int) -> JointHeadNorm:
    return JointHeadNorm(module.weight.unflatten(0, (heads, -1)), module.variance_epsilon)
