"""Small random models of every supported architecture, and random pairs for them. For tests only."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from gatewise.circuits.graph import QKV
from gatewise.engine.setting import Setting
from gatewise.methods.base import Problem
from gatewise.models.model import Model
from gatewise.models.transformer import adapt
from gatewise.tasks.pairs import Pairs

VOCABULARY = 29
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_HALF_ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
_GROUPED = {**_COMMON, "num_key_value_heads": 2, "head_dim": 6}
_WIDE_HEADS = _GROUPED | {"head_dim": 8}
_LLAMA3_ROTARY = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_GEMMA = {
    **_GROUPED,
    "query_pre_attn_scalar": 5,
    "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention"],
}

_MAKERS = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
        )
    ),
    "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_COMMON, rope_parameters=_HALF_ROTARY)),
    "neox-sequential": lambda: GPTNeoXForCausalLM(
        GPTNeoXConfig(**_COMMON, rope_parameters=_HALF_ROTARY, use_parallel_residual=False)
    ),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_GROUPED)),
    "llama3-biases": lambda: LlamaForCausalLM(
        LlamaConfig(**_GROUPED, rope_parameters=_LLAMA3_ROTARY, attention_bias=True, mlp_bias=True)
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_GROUPED, sliding_window=3)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**{k: v for k, v in _GROUPED.items() if k != "head_dim"})),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_GROUPED, attention_bias=True)),
    "smollm3": lambda: SmolLM3ForCausalLM(SmolLM3Config(**_GROUPED, no_rope_layers=[1, 0])),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**_WIDE_HEADS, rope_parameters=_HALF_ROTARY, sliding_window=3)),
    "gpt-neo": lambda: GPTNeoForCausalLM(
        GPTNeoConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_layers=2,
            num_heads=4,
            max_position_embeddings=64,
            attention_types=[[["global", "local"], 1]],
            window_size=3,
            bos_token_id=0,
            eos_token_id=0,
        )
    ),
    "opt": lambda: OPTForCausalLM(
        OPTConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            word_embed_proj_dim=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=24,
            max_position_embeddings=64,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    ),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**_GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0, attn_implementation="eager")
    ),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**_GEMMA)),
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**{k: v for k, v in _GROUPED.items() if k != "head_dim"})),
}
ARCHITECTURES = tuple(_MAKERS)
INCREMENTAL = tuple(name for name in ARCHITECTURES if name != "olmo2")  # whose edges can be changed one by one


def small_model(
    architecture: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    qkv: QKV = "split",
    layers: int = 2,
    device: str = "cpu",
) -> Model:
    """A random model whose weights are large enough that every component matters."""
    torch.manual_seed(seed)
    hf: Any = _MAKERS[architecture]()
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            spread = 0.3 if parameter.dim() > 1 else 0.1
            parameter.add_(torch.randn_like(parameter) * spread)
            if name.endswith("wte.weight") or "embed" in name:
                parameter.mul_(2)
    return adapt(hf.to(device, dtype), name=f"small-{architecture}", qkv=qkv)


def random_pairs(seed: int = 0, lengths: tuple[int, ...] = (7, 5, 7), same: tuple[int, ...] | None = None) -> Pairs:
    """Prompts of these lengths; `same`: how many first tokens agree between the two sides of each pair."""
    generator = torch.Generator().manual_seed(seed)
    same = same if same is not None else tuple(length // 2 for length in lengths)
    clean, corrupted = [], []
    for length, agree in zip(lengths, same, strict=True):
        a = torch.randint(1, VOCABULARY, (length,), generator=generator)
        b = a.clone()
        shift = torch.randint(1, VOCABULARY - 1, (length - agree,), generator=generator)
        b[agree:] = (a[agree:] - 1 + shift) % (VOCABULARY - 1) + 1
        clean.append(a.tolist())
        corrupted.append(b.tolist())
    answers = torch.randint(1, VOCABULARY, (len(lengths),), generator=generator)
    return Pairs.from_tokens(
        clean, corrupted, correct=answers.tolist(), incorrect=((answers + 1) % VOCABULARY).tolist()
    )


def half(logits: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """A user's own metric, in a module that workers can import however the tests were started."""
    return pairs.logit_diff(logits) / 2


def problem(
    model: Model,
    pairs: Pairs,
    *directions: Any,
    sizes: tuple[int, ...] = (),
    threshold: float | None = None,
    seed: int = 0,
    **setting: Any,
) -> Problem:
    """What a method is asked: the same sizes for all directions, or a threshold."""
    asked = dict.fromkeys(directions, sizes) if sizes else {}
    return Problem(Setting(model, pairs, **setting), directions, asked, threshold, seed=seed)
