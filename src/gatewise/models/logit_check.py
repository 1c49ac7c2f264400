"""Compares what an adapter made of a module with the module itself: the same prompt has to give the same logits.

At a short prompt when a model is loaded, and at the longest prompt of every task, since positions, windows and masks
show at their lengths only. A model remembers what it was compared at, and takes it along to workers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gatewise.errors import GatewiseError, first_line
from gatewise.models.components import KINDS, Attention, Pointwise
from gatewise.models.layout import Layout
from gatewise.models.model import Model

_SHORT = 12  # tokens of the prompt at which every model is compared when it is loaded
_TOLERANCE = 1e-3  # of the spread of logits; rounding differs between ways to compute the same
_ROUNDINGS = 100  # of the dtype, where this is more
_BLOCK = 256  # positions of an MLP at a time: a long prompt's inner values would take more than its attention


def check_short_prompt(model: Model) -> None:
    """Compare a new model with transformers at a short prompt.

    Args:
        model: As its adapter made it; on the meta device there is nothing to compare.

    Raises:
        GatewiseError: The logits differ.
    """
    most = getattr(model.hf.config, "max_position_embeddings", None) or _SHORT
    check_prompts(model, min(_SHORT, most))


def check_prompts(model: Model, longest: int) -> None:
    """Compare a model with transformers at the length of the longest prompt, unless it was at this or a longer one.

    Args:
        model: Any model; those without a transformers module, or on the meta device, have nothing to compare.
        longest: Tokens of the longest prompt.

    Raises:
        GatewiseError: The logits differ, or they depend on which prompts share a batch.
    """
    if model.hf is None or model.device.type == "meta" or longest <= max(model.compared_at, default=0):
        return
    _check_rotary_lengths(model, longest)
    _compare_logits(model, longest)
    model.compared_at.add(longest)


@torch.no_grad()
def _compare_logits(model: Model, length: int) -> None:
    tokens = torch.linspace(0, model.vocabulary_size - 1, length, device=model.device).long()[None]
    try:
        both = torch.stack([_last_logits(model.hf, tokens), _plain_logits(model, tokens)])
        expected, adapted = both.cpu().double()
    except Exception as error:  # a config that does not go with itself; transformers raises whatever comes first
        raise GatewiseError(
            f"{model.name} cannot be run on a prompt of {length} tokens ({type(error).__name__}: {first_line(error)}). "
            f"Check its config, and that transformers itself runs it."
        ) from error
    finite = expected.isfinite()
    if not torch.equal(finite, adapted.isfinite()):
        model.check_finite()  # weights that are not finite are the simpler thing to say
    difference = (adapted - expected)[finite].abs().max().item() if finite.any() else 0.0
    spread = expected[finite].std().item() if finite.any() else 0.0
    # Not `>`: a difference of NaN has to be refused as well.
    if not difference <= max(_TOLERANCE, _ROUNDINGS * _rounding(model)) * spread:
        raise GatewiseError(
            f"the adapter of {model.hf.config.model_type!r} does not give transformers' logits for {model.name}: on a "
            f"prompt of {length} tokens they differ by up to {difference:.2g}, and logits spread by {spread:.2g}. Some "
            f"setting of its config is not followed, or the adapter is wrong in norms, biases, scale, masks or rotary "
            f"embedding. Load another model, or register an adapter of your own (docs/own-model.md)."
        )


def _rounding(model: Model) -> float:
    """Relative error of a product: of the dtype, or of the shorter one that a device may multiply it in."""
    shorter = model.device.type != "cpu" and torch.get_float32_matmul_precision() != "highest"
    return max(torch.finfo(model.dtype).eps, 2.0**-10 if shorter else 0.0)


def _last_logits(hf: Any, tokens: Tensor) -> Tensor:
    """Transformers' logits at the last position. [1, vocabulary]"""
    options: dict[str, Any] = {"use_cache": False, "return_dict": True}
    if "logits_to_keep" in inspect.signature(hf.forward).parameters:
        options["logits_to_keep"] = 1
    logits: Tensor = hf(tokens, **options).logits[:, -1]
    return logits


def _plain_logits(model: Model, tokens: Tensor) -> Tensor:
    """The model without any circuit, sublayer after sublayer. [1, column] -> [1, vocabulary]"""
    width = tokens.shape[1]
    layout = Layout(torch.tensor([width], device=tokens.device), width, 0, model.dtype)
    x = model.embed(tokens, layout.positions()).sum(dim=0)
    layers = zip(model.sublayers[::2], model.sublayers[1::2], strict=True)
    for attention, mlp in layers:
        assert isinstance(attention, Attention)
        assert isinstance(mlp, Pointwise)
        heads = _heads(attention, x, layout)
        x = x + heads + _inner(mlp, x if model.graph.parallel else x + heads)
    return model.unembed(x[:, -1])


def _heads(attention: Attention, x: Tensor, layout: Layout) -> Tensor:
    q, k, v = (attention.project(kind, x[None], layout) for kind in KINDS)
    gathered = attention.attend(q, attention.per_head(k), attention.per_head(v), layout, None)
    return _with_bias(attention.write_sum(gathered), attention.bias)


def _inner(mlp: Pointwise, x: Tensor) -> Tensor:
    blocks = [mlp(block[None])[0] for block in x.split(_BLOCK, dim=-2)]
    return _with_bias(torch.cat(blocks, dim=-2), mlp.bias)


def _with_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


def _check_rotary_lengths(model: Model, longest: int) -> None:
    """Refuse prompts beyond the length from which on a rotary embedding depends on the longest prompt of a batch."""
    for kind, most in _changing_rotaries(model.hf.config):
        if longest > most:
            raise GatewiseError(
                f"a prompt has {longest} tokens, and beyond {most} the rotary embedding of {model.name} ({kind}) "
                f"depends on the longest prompt that shares its batch, so that no prompt has logits of its own. Use "
                f"prompts of at most {most} tokens."
            )


def _changing_rotaries(config: Any) -> Iterator[tuple[str, int]]:
    """Kinds of rotary embeddings that change with the length of prompts, and up to where they do not."""
    parameters = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [value for value in parameters.values() if isinstance(value, dict)]
    for rotary in by_layer_type or [parameters]:
        kind = rotary.get("rope_type", "default")
        if kind == "longrope" or "dynamic" in kind:
            most = rotary.get("original_max_position_embeddings")
            yield kind, most or config.max_position_embeddings
