"""GPT-Neo: GPT-2's blocks, scores that are not scaled, and a sliding window in every other layer."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gatewise.models.components import Attention, Pointwise, mlp
from gatewise.models.transformer import Parts, activation, head_columns, head_rows, layer_norm


def gpt_neo_parts(hf: Any) -> Parts:
    """Return the parts of a transformers GPT-Neo."""
    config, body = hf.config, hf.transformer

    def embed(tokens: Tensor, positions: Tensor) -> Tensor:
        out: Tensor = body.wte(tokens) + body.wpe(positions)
        return out

    layers = [(_attention(block, config), _mlp(block)) for block in body.h]
    return Parts(embed, layers, layer_norm(body.ln_f), config.hidden_size)


def _attention(block: Any, config: Any) -> Attention:
    attention = block.attn.attention
    heads = config.num_heads
    return Attention(
        norm=layer_norm(block.ln_1),
        q=head_rows(attention.q_proj, heads),
        k=head_rows(attention.k_proj, heads),
        v=head_rows(attention.v_proj, heads),
        out=head_columns(attention.out_proj.weight, heads),
        bias=attention.out_proj.bias,
        scale=1.0,
        sliding=config.window_size if attention.attention_type == "local" else None,
    )


def _mlp(block: Any) -> Pointwise:
    norm, module, act = layer_norm(block.ln_2), block.mlp, activation(block.mlp.act)

    def function(x: Tensor) -> Tensor:
        return F.linear(act(module.c_fc(norm(x))), module.c_proj.weight)

    return mlp(function, module.c_proj.bias)
