"""Shapes of well-known models, so that a search can be planned without the network: no weights, no vocabulary."""

from __future__ import annotations

from typing import Any


def _llama(hidden: int, layers: int, heads: int, groups: int, inner: int, **options: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"model_type": "llama", **sizes, "num_key_value_heads": groups, "intermediate_size": inner, **options}


def _llama3(*sizes: int, **options: Any) -> dict[str, Any]:
    return _llama(*sizes, vocab_size=128_256, max_position_embeddings=131_072, **options)


def _smollm2(*sizes: int) -> dict[str, Any]:
    return _llama(*sizes, vocab_size=49_152, max_position_embeddings=8_192, tie_word_embeddings=True)


def _qwen2(*sizes: int, vocabulary: int = 151_936, tied: bool = True) -> dict[str, Any]:
    options = {"model_type": "qwen2", "vocab_size": vocabulary, "tie_word_embeddings": tied}
    return {**_llama(*sizes, max_position_embeddings=32_768), **options}


def _gpt2(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {"model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": 50_257}


def _pythia(hidden: int, layers: int, heads: int, vocabulary: int = 50_304) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    others = {"intermediate_size": 4 * hidden, "vocab_size": vocabulary, "max_position_embeddings": 2_048}
    return {"model_type": "gpt_neox", **sizes, **others, "use_parallel_residual": True, "tie_word_embeddings": False}


def _gemma3(hidden: int, layers: int, heads: int, groups: int, inner: int, size: int) -> dict[str, Any]:
    others = {"head_dim": size, "query_pre_attn_scalar": size, "vocab_size": 262_144, "tie_word_embeddings": True}
    return {**_llama(hidden, layers, heads, groups, inner), "model_type": "gemma3_text", **others}


KNOWN: dict[str, dict[str, Any]] = {
    "openai-community/gpt2": _gpt2(768, 12, 12),
    "openai-community/gpt2-medium": _gpt2(1024, 24, 16),
    "openai-community/gpt2-large": _gpt2(1280, 36, 20),
    "openai-community/gpt2-xl": _gpt2(1600, 48, 25),
    "EleutherAI/pythia-70m": _pythia(512, 6, 8),
    "EleutherAI/pythia-160m": _pythia(768, 12, 12),
    "EleutherAI/pythia-410m": _pythia(1024, 24, 16),
    "EleutherAI/pythia-1b": _pythia(2048, 16, 8),
    "EleutherAI/pythia-1.4b": _pythia(2048, 24, 16),
    "EleutherAI/pythia-2.8b": _pythia(2560, 32, 32),
    "EleutherAI/pythia-6.9b": _pythia(4096, 32, 32, 50_432),
    "EleutherAI/pythia-12b": _pythia(5120, 36, 40, 50_688),
    "HuggingFaceTB/SmolLM2-135M": _smollm2(576, 30, 9, 3, 1536),
    "HuggingFaceTB/SmolLM2-360M": _smollm2(960, 32, 15, 5, 2560),
    "HuggingFaceTB/SmolLM2-1.7B": _smollm2(2048, 24, 32, 32, 8192),
    "Qwen/Qwen2.5-0.5B": _qwen2(896, 24, 14, 2, 4864),
    "Qwen/Qwen2.5-1.5B": _qwen2(1536, 28, 12, 2, 8960),
    "Qwen/Qwen2.5-3B": _qwen2(2048, 36, 16, 2, 11_008),
    "Qwen/Qwen2.5-7B": _qwen2(3584, 28, 28, 4, 18_944, vocabulary=152_064, tied=False),
    "Qwen/Qwen2.5-14B": _qwen2(5120, 48, 40, 8, 13_824, vocabulary=152_064, tied=False),
    "google/gemma-3-270m": _gemma3(640, 18, 4, 1, 2048, 256),
    "google/gemma-3-1b-pt": _gemma3(1152, 26, 4, 1, 6912, 256),
    "meta-llama/Llama-3.2-1B": _llama3(2048, 16, 32, 8, 8192, head_dim=64, tie_word_embeddings=True),
    "meta-llama/Llama-3.2-3B": _llama3(3072, 28, 24, 8, 8192, head_dim=128, tie_word_embeddings=True),
    "meta-llama/Llama-3.1-8B": _llama3(4096, 32, 32, 8, 14_336),
    "meta-llama/Llama-3.1-70B": _llama3(8192, 80, 64, 8, 28_672),
}


def known_shape(name: str) -> tuple[str, dict[str, Any]] | None:
    """Return the full name and the configuration of a well-known model, given with or without its owner's name."""
    for full, config in KNOWN.items():
        if name.lower() in (full.lower(), full.lower().rpartition("/")[2]):
            return full, config
    return None
