"""The list of adapters by architecture, and how one is registered: from a Hugging Face decoder to a `Model`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gatewise.circuits.graph import QKV, Graph
from gatewise.errors import GatewiseError
from gatewise.models.components import Attention, Norm, Pointwise, Projection
from gatewise.models.config_keys import check_keys
from gatewise.models.gradient_rules import activate
from gatewise.models.logit_check import check_short_prompt
from gatewise.models.model import Model


@dataclass(frozen=True, eq=False)
class Parts:
    """What an adapter finds in a Hugging Face module."""

    embed: Callable[[Tensor, Tensor], Tensor]  # tokens, positions -> [example, column, d]
    layers: Sequence[tuple[Attention, Pointwise]]
    final_norm: Norm
    d_model: int
    parallel: bool = False  # MLP and heads of a layer read the same
    softcap: float | None = None  # of the logits
    needs_bos: bool = False  # was trained with BOS before every text, and fails without it


Adapter = Callable[[Any], Parts]  # of a transformers module

_registered: dict[str, Adapter] = {}


def register_architecture(model_type: str, adapter: Adapter) -> None:
    """Let `load_model` take another kind of model.

    Every model it makes is compared with transformers on a short prompt when it is loaded, and on the longest of
    a task.

    Args:
        model_type: The name of the architecture in a transformers config.
        adapter: A function that finds the weights in a transformers module.

    Raises:
        GatewiseError: gatewise has an adapter of this name, or what was given is no adapter.
    """
    if model_type in supported_architectures().keys() - _registered.keys():
        raise GatewiseError(f"the architecture {model_type!r} has an adapter in gatewise; register another name.")
    if not isinstance(model_type, str) or not callable(adapter):
        raise GatewiseError(
            f"an adapter is a function from a transformers module to Parts, under a config's model_type; got "
            f"{model_type!r} and {type(adapter).__name__}."
        )
    _registered[model_type] = adapter


def supported_architectures() -> dict[str, Adapter]:
    """`config.model_type` -> adapter. A new architecture is one file and one line here."""
    from gatewise.models.architectures.gemma import gemma_parts
    from gatewise.models.architectures.gpt2 import gpt2_parts
    from gatewise.models.architectures.gpt_neo import gpt_neo_parts
    from gatewise.models.architectures.llama import llama_parts
    from gatewise.models.architectures.neox import neox_parts
    from gatewise.models.architectures.olmo2 import olmo2_parts
    from gatewise.models.architectures.opt import opt_parts
    from gatewise.models.architectures.phi3 import phi3_parts

    return {
        "gpt2": gpt2_parts,
        "gpt_neo": gpt_neo_parts,
        "gpt_neox": neox_parts,
        "opt": opt_parts,
        "llama": llama_parts,
        "mistral": llama_parts,
        "qwen2": llama_parts,
        "qwen3": llama_parts,
        "smollm3": llama_parts,
        "phi3": phi3_parts,
        "gemma2": gemma_parts,
        "gemma3_text": gemma_parts,
        "olmo2": olmo2_parts,
        **_registered,
    }


def adapt(
    hf: Any, *, tokenizer: Any = None, name: str = "", qkv: QKV = "split", compared_at: Collection[int] = ()
) -> Model:
    """Make a `Model` of a loaded transformers decoder, whose weights are used in place.

    compared_at: lengths of prompts at which it is known to give transformers' logits.
    """
    kind = getattr(getattr(hf, "config", None), "model_type", type(hf).__name__)
    adapter = adapter_for(kind)
    hf.eval().requires_grad_(False)
    if kind not in _registered:
        check_keys(hf.config)
    parts = adapter(hf)
    sublayers = tuple(sublayer for layer in parts.layers for sublayer in layer)
    n_heads = parts.layers[0][0].n_heads
    model = Model(
        name=name or getattr(hf, "name_or_path", "") or kind,
        graph=Graph.transformer(len(parts.layers), n_heads, parts.d_model, parallel=parts.parallel, qkv=qkv),
        embed=lambda tokens, positions: parts.embed(tokens, positions)[None],
        sublayers=sublayers,
        final_norm=parts.final_norm,
        head=hf.get_output_embeddings().weight,
        softcap=parts.softcap,
        needs_bos=parts.needs_bos,
        vocabulary_size=hf.config.vocab_size,
        tensors=lambda: dict(hf.named_parameters()),
        tokenizer=tokenizer,
        hf=hf,
    )
    model.compared_at.update(compared_at)
    check_short_prompt(model)
    return model


def adapter_for(kind: str) -> Adapter:
    """Return the adapter of an architecture.

    Args:
        kind: The `model_type` of a config.

    Returns:
        The adapter, ours or one that was registered.

    Raises:
        GatewiseError: There is none.
    """
    adapters = supported_architectures()
    if kind not in adapters:
        raise GatewiseError(
            f"the architecture {kind!r} is not supported; supported are {', '.join(adapters)}. "
            f"docs/own-model.md shows how to register one."
        )
    return adapters[kind]


def adapter_of(hf: Any) -> Adapter | None:
    """The adapter from outside that a module needs; None if it has one of ours."""
    return _registered.get(hf.config.model_type)


def adapt_again(hf: Any, name: str, qkv: QKV, adapter: Adapter | None, compared_at: Collection[int]) -> Model:
    """A model in a worker, which knows no adapter from outside but the one that comes along."""
    if adapter is not None:
        _registered[hf.config.model_type] = adapter
    return adapt(hf, name=name, qkv=qkv, compared_at=compared_at)


def layer_norm(module: Any) -> Norm:
    return Norm(module.weight, module.bias, module.eps, center=True)


def rms_norm(module: Any) -> Norm:
    return Norm(module.weight, None, module.variance_epsilon, center=False)


def head_rows(linear: Any, heads: int) -> Projection:
    """A torch `Linear` whose rows are the heads' dimensions, one head after the other."""
    return row_projection(linear.weight, linear.bias, heads)


def row_projection(weight: Tensor, bias: Tensor | None, heads: int) -> Projection:
    """The same for a weight [head x dimension, d_model] and its bias, which may be parts of larger ones."""
    rows = weight.unflatten(0, (heads, -1)).transpose(1, 2)
    return Projection(rows, None if bias is None else bias.unflatten(0, (heads, -1)))


def head_columns(weight: Tensor, heads: int) -> Tensor:
    """The heads' output maps in a `Linear`'s weight [d_model, head x dimension] -> [head, dimension, d_model]."""
    columns: Tensor = weight.T.unflatten(0, (heads, -1))
    return columns


def activation(module: Any) -> Callable[[Tensor], Tensor]:
    """The module's own activation, with torch's fused version where it is the same function; follows gradient rules."""
    if type(module).__name__ in ("NewGELUActivation", "GELUTanh", "PytorchGELUTanh", "FastGELUActivation"):
        return partial(activate, partial(F.gelu, approximate="tanh"))
    return partial(activate, module)
