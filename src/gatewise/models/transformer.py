"""Adapters of Hugging Face decoders: which function turns which module into a `Model`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gatewise.circuits.graph import QKV, Graph
from gatewise.errors import GatewiseError
from gatewise.models.model import Model
from gatewise.models.parts import Attention, Norm, Pointwise, Projection


@dataclass(frozen=True, eq=False)
class Parts:
    """What an adapter finds in a Hugging Face module."""

    embed: Callable[[Tensor, Tensor], Tensor]  # tokens, positions -> [example, column, d]
    layers: Sequence[tuple[Attention, Pointwise]]
    final_norm: Norm
    d_model: int
    parallel: bool = False  # MLP and heads of a layer read the same
    softcap: float | None = None  # of the logits


def supported_architectures() -> dict[str, Callable[[Any], Parts]]:
    """`config.model_type` -> adapter. A new architecture is one file and one line here."""
    from gatewise.models.gemma import gemma_parts
    from gatewise.models.gpt2 import gpt2_parts
    from gatewise.models.gpt_neo import gpt_neo_parts
    from gatewise.models.llama import llama_parts
    from gatewise.models.neox import neox_parts
    from gatewise.models.olmo2 import olmo2_parts
    from gatewise.models.opt import opt_parts
    from gatewise.models.phi3 import phi3_parts

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
    }


def adapt(hf: Any, *, tokenizer: Any = None, name: str = "", qkv: QKV = "split") -> Model:
    """Make a `Model` of a loaded transformers decoder, whose weights are used in place."""
    kind = getattr(getattr(hf, "config", None), "model_type", type(hf).__name__)
    adapters = supported_architectures()
    if kind not in adapters:
        raise GatewiseError(
            f"the architecture {kind!r} is not supported; supported are {', '.join(adapters)}. "
            f"docs/own-model.md shows how to add one."
        )
    hf.eval().requires_grad_(False)
    parts = adapters[kind](hf)
    stages = tuple(stage for layer in parts.layers for stage in layer)
    n_heads = parts.layers[0][0].n_heads
    return Model(
        name=name or getattr(hf, "name_or_path", "") or kind,
        graph=Graph.transformer(len(parts.layers), n_heads, parts.d_model, parallel=parts.parallel, qkv=qkv),
        embed=lambda tokens, positions: parts.embed(tokens, positions)[None],
        stages=stages,
        final_norm=parts.final_norm,
        head=hf.get_output_embeddings().weight,
        softcap=parts.softcap,
        vocabulary_size=hf.config.vocab_size,
        tensors=lambda: dict(hf.named_parameters()),
        tokenizer=tokenizer,
        hf=hf,
    )


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
    """The module's own activation, with torch's fused version where it is the same function."""
    if type(module).__name__ in ("NewGELUActivation", "GELUTanh", "PytorchGELUTanh", "FastGELUActivation"):
        return partial(F.gelu, approximate="tanh")
    call: Callable[[Tensor], Tensor] = module
    return call
