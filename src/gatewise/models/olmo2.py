"""OLMo 2: no norm before a block but one after it, and norms over the queries and the keys of all heads of a layer.

Both norms make a layer's heads depend on each other: see `Attention.joint_norm` and `JointHeadNorm`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gatewise.errors import GatewiseError
from gatewise.models.layout import Rotary
from gatewise.models.parts import Attention, JointHeadNorm, Pointwise, mlp
from gatewise.models.transformer import Parts, activation, head_columns, head_rows, rms_norm


def olmo2_parts(hf: Any) -> Parts:
    config, body = hf.config, hf.model
    if config.attention_bias:
        raise GatewiseError(
            "OLMo 2 with attention_bias adds a bias to its heads before their norm, which belongs to no head; load a "
            "model without it."
        )

    def embed(tokens: Tensor, _positions: Tensor) -> Tensor:
        out: Tensor = body.embed_tokens(tokens)
        return out

    layers = [(_attention(layer, config, body.rotary_emb), _mlp(layer)) for layer in body.layers]
    return Parts(embed, layers, rms_norm(body.norm), config.hidden_size)


def _attention(layer: Any, config: Any, rotary: Rotary) -> Attention:
    attention = layer.self_attn
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    return Attention(
        norm=None,
        q=head_rows(attention.q_proj, heads),
        k=head_rows(attention.k_proj, groups),
        v=head_rows(attention.v_proj, groups),
        out=head_columns(attention.o_proj.weight, heads),
        bias=None,
        scale=attention.scaling,
        rotary=rotary,
        q_norm=_over_heads(attention.q_norm, heads),
        k_norm=_over_heads(attention.k_norm, groups),
        joint_norm=rms_norm(layer.post_attention_layernorm),
    )


def _over_heads(module: Any, heads: int) -> JointHeadNorm:
    return JointHeadNorm(module.weight.unflatten(0, (heads, -1)), module.variance_epsilon)


def _mlp(layer: Any) -> Pointwise:
    after, module, act = rms_norm(layer.post_feedforward_layernorm), layer.mlp, activation(layer.mlp.act_fn)

    def function(x: Tensor) -> Tensor:
        return after(module.down_proj(act(module.gate_proj(x)) * module.up_proj(x)))

    return mlp(function)
