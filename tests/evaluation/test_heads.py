"""What heads look at, and what nodes write straight into the logit difference."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model

import gatewise as gw
from gatewise.engine import last_logits
from gatewise.errors import GatewiseError
from gatewise.evaluation.heads import attention, direct_contributions


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "neox"])
def test_patterns_are_hugging_faces_own(architecture: str) -> None:
    model, pairs = small_model(architecture), random_pairs(lengths=(6, 4, 6))
    model.hf.config._attn_implementation = "eager"
    found = attention(model, pairs, "a1.h2")
    for side, patterns in (("clean", found.clean), ("corrupted", found.corrupted)):
        for row, pattern in enumerate(patterns):
            tokens = getattr(pairs, side)[row, -int(pairs.lengths[row]) :]
            with torch.no_grad():
                expected = model.hf(tokens[None], output_attentions=True).attentions[1][0, 2]
            torch.testing.assert_close(pattern.weights, expected, atol=1e-5, rtol=0)
            assert len(pattern.tokens) == len(tokens)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma3"])
def test_contributions_of_all_nodes_are_the_logit_difference_but_for_biases(architecture: str) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs()
    found = direct_contributions(model, pairs)
    for side in ("clean", "corrupted"):
        difference = pairs.logit_diff(last_logits(model, pairs, side))
        total = (found.clean if side == "clean" else found.corrupted).sum(dim=0)
        if architecture == "gpt2":  # output biases of blocks and the norm's bias belong to no node
            assert torch.corrcoef(torch.stack([total, difference]))[0, 1] > 0.9
        else:
            torch.testing.assert_close(total, difference.double(), atol=1e-9, rtol=0)


def test_a_task_is_enough_and_the_answer_reads_as_a_verdict() -> None:
    model = gw.load_model("tiny")
    task = gw.task("ioi", model, examples=4)
    found = gw.attention(model, task, "a5.h0")
    assert len(found.clean) == len(found.corrupted) == 4
    table = found.to_frame()
    assert table.groupby(["pair", "side"])["weight"].sum().to_numpy() == pytest.approx(1, abs=1e-5)
    assert list(table[(table.pair == 0) & (table.side == "clean")].token) == list(found.clean[0].tokens)
    to_answer = found.targets["clean"]["the correct answer"]
    assert f"{to_answer:.2f} to the correct answer" in repr(found)
    one = gw.direct_contributions(model, task, "a5.h0")
    share = one.mean("a5.h0")
    assert share.low <= share.value <= share.high
    assert f"a5.h0 {share.value:+.2f}" in repr(one)
    everything = gw.direct_contributions(model, task).to_frame().set_index("node")
    assert everything.clean["a5.h0"] == pytest.approx(share.value)


def test_names_that_there_are_not() -> None:
    model = gw.load_model("tiny")
    pairs = gw.task("ioi", model, examples=2).test
    for name in ("m3", "a9.h9", "input"):
        with pytest.raises(GatewiseError, match=f"no head '{name}' in tiny"):
            attention(model, pairs, name)
    with pytest.raises(GatewiseError, match=r"no node 'a5.h99' in tiny; Did you mean 'a5.h"):
        direct_contributions(model, pairs, "a5.h99")
