"""Models and prompts made of random numbers. Needs torch and transformers alone, since peers.py uses it too."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

# With transformers' own initial weights no head has an effect worth a search. With these, attention has preferences,
# every component writes about as much as the embedding, and the output resembles a trained model's: its entropy is
# about 4 nats, some words are frequent after every prompt (the final norm's bias), and prompts are 3 nats (KL) apart.
_SPREADS = {
    "wte.weight": 0.144,
    "wpe.weight": 0.07,
    "attn.c_attn.weight": 0.04,
    "attn.c_proj.weight": 0.04,
    "mlp.c_fc.weight": 0.03,
    "mlp.c_proj.weight": 0.01,
    "ln_f.bias": 0.85,
}
_FINAL_NORM = 0.5  # its weights


def lively_gpt2(layers: int = 12, heads: int = 12, width: int = 768, vocabulary: int = 50257) -> GPT2LMHeadModel:
    """A GPT-2 of this shape whose components matter. The same weights with every version of transformers."""
    config = GPT2Config(
        n_layer=layers, n_head=heads, n_embd=width, vocab_size=vocabulary, bos_token_id=None, eos_token_id=None
    )
    hf = GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(0)
    scale = (768 / width) ** 0.5  # so that products with a row of `width` numbers stay as large
    with torch.no_grad():
        for name, parameter in sorted(hf.transformer.named_parameters()):
            for ending, spread in _SPREADS.items():
                if name.endswith(ending):
                    parameter.normal_(0.0, spread if name.startswith("wpe") else spread * scale, generator=generator)
        hf.transformer.ln_f.weight.fill_(_FINAL_NORM)
    return hf


def random_prompts(vocabulary: int, examples: int, tokens: int, same: int = 0) -> tuple[Tensor, Tensor]:
    """Prompts whose two sides agree in the first `same` tokens and differ in all others. [example, token] each"""
    generator = torch.Generator().manual_seed(0)
    clean = torch.randint(vocabulary, (examples, tokens), generator=generator)
    shift = torch.randint(1, vocabulary, (examples, tokens), generator=generator)
    shift[:, :same] = 0
    return clean, (clean + shift) % vocabulary
