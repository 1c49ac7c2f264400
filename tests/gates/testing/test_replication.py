"""Gates tested again: what is one by construction comes back, what the other pairs do not have does not."""

from __future__ import annotations

import math

import torch
from small_models import random_pairs, small_model

from gatewise.gates.testing.gate_test import test_gate
from gatewise.gates.testing.replication import replicate
from gatewise.gates.testing.search import test_gates
from gatewise.models.synthetic.gate_kinds import synthetic_receiver


def test_a_synthetic_gate_comes_back_and_turns_with_the_prompts() -> None:
    kind = synthetic_receiver("and-of-groups", examples=32)
    (found,) = test_gates(kind.model, kind.pairs[:16])
    again = replicate(kind.model, {"others": kind.pairs[16:], "swapped": kind.pairs[16:].swapped()}, [found])
    assert again.rates["others"] == again.label_rates["others"] == 1
    assert (found.label, again.repetitions["swapped"][0].repeated.label) == ("AND", "OR")
    assert again.rates["swapped"] == 0  # what both lacked is now what either brings: the interaction has the other sign
    assert "others" in repr(again)


def test_the_same_numbers_as_a_fresh_test() -> None:
    model, pairs = small_model("llama", dtype=torch.float64), random_pairs(lengths=(6, 4) * 8)
    gate = test_gate(model, pairs[:8], "a1.h2", {"K": "<k>", "V": "<v>"}, rest="clean", confirm=False)
    (one,) = replicate(model, {"rest": pairs[8:]}, [gate]).repetitions["rest"]
    expected = test_gate(model, pairs[8:], "a1.h2", {"K": "<k>", "V": "<v>"}, rest="clean", confirm=False)
    torch.testing.assert_close(one.repeated.table, expected.table)
    names, before = gate.strongest_interaction
    after = expected.intervals.interactions[names]
    assert one.replicates == (after.without_zero and after.value * before.value > 0)


def test_no_gates_have_no_rate() -> None:
    model, pairs = small_model("gpt2"), random_pairs(lengths=(6, 4) * 5)
    assert math.isnan(replicate(model, {"more": pairs}, []).rates["more"])
