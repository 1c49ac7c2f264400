"""Roles of heads: the attention they rest on is transformers' own, and the criteria find what was synthetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_models import ARCHITECTURES, random_pairs, small_model

from gatewise.circuits.literature import PUBLISHED_GT, PUBLISHED_IOI
from gatewise.models.loader import load_model
from gatewise.tasks import task
from gatewise_paper.head_roles import (
    Criteria,
    attention_patterns,
    attention_similarity,
    is_gpt2_small,
    measure_roles,
)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_patterns_are_those_of_transformers(architecture: str) -> None:
    model = small_model(architecture)
    pairs = random_pairs(lengths=(7, 7))
    model.hf.set_attn_implementation("eager")
    expected = model.hf(pairs.clean, output_attentions=True).attentions
    for mine, theirs in zip(attention_patterns(model, pairs), expected, strict=True):
        torch.testing.assert_close(mine.transpose(0, 1), theirs, atol=1e-5, rtol=1e-4)


def test_padding_does_not_change_attention() -> None:
    model = small_model("gpt2")
    pairs = random_pairs(lengths=(7, 5))
    together = next(iter(attention_patterns(model, pairs)))[:, 1:, 2:, 2:]
    alone = next(iter(attention_patterns(model, pairs[1:2])))
    torch.testing.assert_close(together, alone)


def test_published_circuits_have_the_published_sizes() -> None:
    assert len(PUBLISHED_IOI) == 26
    assert len(PUBLISHED_GT) == 12
    assert not is_gpt2_small(load_model("tiny"))


def test_similarity_is_a_correlation() -> None:
    model = small_model("gpt2")
    similarity = attention_similarity(model, random_pairs())
    torch.testing.assert_close(similarity, similarity.T)
    torch.testing.assert_close(similarity.diagonal(), torch.ones(8, dtype=torch.float64))


def test_tiny_has_the_heads_it_was_trained_to_have() -> None:
    """Heads 0 of layers 2 and 3 look from the last word at the second name, those of 4 and 5 at the answer."""
    model = load_model("tiny")
    roles = measure_roles(model, task("ioi", model, examples=8, test_examples=2).train)
    assert {head for head, role in roles.items() if role == "S-inhibition"} == {"a2.h0", "a3.h0"}
    assert {head for head, role in roles.items() if role == "name mover"} == {"a4.h0", "a5.h0"}


def test_a_previous_token_head_is_found() -> None:
    """Attention by position alone: a head whose query at i is the key at i - 1."""
    model = small_model("gpt2")
    width = 16
    for parameter in model.hf.parameters():
        parameter.data.zero_()
    transformer = model.hf.transformer
    for norm in (transformer.h[0].ln_1, transformer.h[1].ln_1, transformer.ln_f):
        norm.weight.data.fill_(1.0)
    generator = torch.Generator().manual_seed(0)
    codes = torch.nn.functional.normalize(torch.randn(64, width, generator=generator), dim=1) * 4
    codes = codes - codes.mean(dim=1, keepdim=True)
    transformer.wpe.weight.data.copy_(codes)
    shift = torch.linalg.lstsq(codes[1:9], codes[0:8]).solution  # positions 1..8 to the one before
    attention = transformer.h[0].attn.c_attn.weight.data  # [d, 3 d]; head 0 has 4 dimensions: give it the first four
    basis = torch.linalg.svd(codes[:9] - codes[:9].mean(dim=0)).Vh[:4].T
    attention[:, :4] = 8 * shift @ basis
    attention[:, width : width + 4] = basis
    pairs = random_pairs(lengths=(9, 9))
    pattern = next(iter(attention_patterns(model, pairs)))[0, 0]
    expected = float(pattern[range(1, 9), range(8)].mean())
    ioi_like = replace(pairs, correct=pairs.clean[:, 1:2], incorrect=pairs.clean[:, 2:3])
    found = measure_roles(model, ioi_like, Criteria(attention=0.9 * expected, random_tokens=4))
    assert expected > 0.3
    assert found["a0.h0"] == "previous token"
    assert "a0.h1" not in found
