"""OPT: learned positions that begin at 2, layer norms, ReLU."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gatewise.errors import GatewiseError
from gatewise.models.components import Attention, Pointwise, mlp
from gatewise.models.transformer import Parts, activation, head_columns, head_rows, layer_norm


def opt_parts(hf: Any) -> Parts:
    """Return the parts of a transformers OPT."""
    config, body = hf.config, hf.model.decoder
    if not config.do_layer_norm_before or body.final_layer_norm is None or not config.layer_norm_elementwise_affine:
        raise GatewiseError(
            "this OPT has no layer norms with weights before its blocks and its logits (OPT-350M is the one that is "
            "like that); load another size, such as facebook/opt-125m."
        )
    if body.project_in is not None:
        raise GatewiseError(
            f"this OPT embeds tokens in {config.word_embed_proj_dim} dimensions and computes in {config.hidden_size}; "
            "load one with as many of both, such as facebook/opt-125m."
        )
    positions_table = body.embed_positions

    def embed(tokens: Tensor, positions: Tensor) -> Tensor:
        of_positions = F.embedding(positions + positions_table.offset, positions_table.weight)
        out: Tensor = body.embed_tokens(tokens) + of_positions
        return out

    layers = [(_attention(layer, config.num_attention_heads), _mlp(layer)) for layer in body.layers]
    return Parts(embed, layers, layer_norm(body.final_layer_norm), config.hidden_size)


def _attention(layer: Any, heads: int) -> Attention:
    attention = layer.self_attn
    return Attention(
        norm=layer_norm(layer.self_attn_layer_norm),
        q=head_rows(attention.q_proj, heads),
        k=head_rows(attention.k_proj, heads),
        v=head_rows(attention.v_proj, heads),
        out=head_columns(attention.out_proj.weight, heads),
        bias=attention.out_proj.bias,
        scale=attention.scaling,
    )


def _mlp(layer: Any) -> Pointwise:
    norm, act = layer_norm(layer.final_layer_norm), activation(layer.activation_fn)

    def function(x: Tensor) -> Tensor:
        return F.linear(act(layer.fc1(norm(x))), layer.fc2.weight)

    return mlp(function, layer.fc2.bias)
