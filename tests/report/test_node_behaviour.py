"""What nodes do: attention is the model's own, and direct effects add up to its logits."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model

import gatewise as gw
from gatewise.engine.patching.node_patching import NodePatching
from gatewise.engine.runs.activations import bases
from gatewise.engine.setting import Batch, Setting
from gatewise.evaluation.prompts import token_texts
from gatewise.models.components import Norm
from gatewise.report import Report
from gatewise.report.node_behaviour import DirectEffect, _direct, measure_random_peak, shown_nodes
from gatewise.report.trust import edge_strength, strongest_nodes


@pytest.mark.parametrize("kind", ["gpt2", "neox", "llama", "gemma2"])
def test_attention_is_that_of_the_library(kind: str) -> None:
    model, pairs = small_model(kind), random_pairs(lengths=(7, 5))
    heads = [name for name in model.graph.senders if name.startswith("a")]
    found = shown_nodes(model, pairs, heads)
    model.hf.set_attn_implementation("eager")
    for row, length in enumerate(pairs.lengths.tolist()):
        for side, tokens in (("clean", pairs.clean), ("corrupted", pairs.corrupted)):
            with torch.no_grad():
                attentions = model.hf(tokens[row : row + 1, -length:], output_attentions=True).attentions
            for name in heads:
                layer, head = (int(part) for part in name[1:].split(".h"))
                rows = found.of[name][row].attention
                assert rows[0].position == length - 1
                for look in rows:
                    expected = attentions[layer][0, head, look.position]
                    shown = dict(look.weights[side])  # type: ignore[index]
                    for position, weight in shown.items():
                        assert weight == pytest.approx(float(expected[position]), abs=1e-5)
                    assert {i for i, value in enumerate(expected.tolist()) if value > 0.0101} <= set(shown)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])  # without biases of outputs and norms
def test_direct_effects_of_all_nodes_are_the_logits(kind: str) -> None:
    model, pairs = small_model(kind), random_pairs(lengths=(6, 6))
    found = shown_nodes(model, pairs, model.graph.senders)
    for row in range(len(pairs)):
        logits = gw.run_circuit(model, pairs[row : row + 1], model.graph.full())[0]
        if model.softcap is not None:
            logits = torch.atanh(logits / model.softcap) * model.softcap
        for which, answers in (("correct", pairs.correct[row]), ("incorrect", pairs.incorrect[row])):
            total = sum(getattr(shown[row].direct["clean"], which) for shown in found.of.values())
            assert total == pytest.approx(float(logits[answers[answers >= 0]].mean() - logits.mean()), abs=1e-4)


def test_effects_are_the_gradient_times_the_change() -> None:
    model, pairs = small_model("llama"), random_pairs(lengths=(6,))
    found = shown_nodes(model, pairs, ["m1", "logits"])
    assert list(found.of) == ["m1"]  # logits writes nothing
    one = found.of["m1"][0]
    assert one.attention == ()
    on = NodePatching(Setting(model, pairs), Batch(0, pairs))
    sender = model.graph.find_sender("m1")
    assert sender is not None
    expected = float((on.gradient(sender) * on.delta[sender]).sum() / on.total_effect.mean())
    assert found.effect["m1"] == pytest.approx(expected, rel=1e-5)
    assert all(position >= int(pairs.first_difference[0]) for position, _ in one.effect)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2"])
def test_tokens_are_the_largest_beyond_those_of_random_outputs(kind: str) -> None:
    """Of a node that writes at random nothing is listed; of a node that writes one token's direction, this token."""
    model, pairs = small_model(kind), random_pairs(lengths=(6,))
    norm, sender = model.final_norm, model.graph.find_sender("m1")
    assert isinstance(norm, Norm)
    assert sender is not None
    on = NodePatching(Setting(model, pairs), Batch(0, pairs))
    scale = norm.standardise(bases(model, on.runs.clean.outputs)[-1][0, -1])[1]
    peak = measure_random_peak(model)

    def listed(output: torch.Tensor) -> DirectEffect:
        on.runs.clean.outputs[sender, 0, -1] = output
        factor = norm.standardise(bases(model, on.runs.clean.outputs)[-1][0, -1])[1]
        (effect,) = _direct(on, pairs, [sender], "clean", peak)
        logits = torch.nn.functional.linear(norm.share(output, factor), model.head)
        logits -= logits.mean()
        limit = peak * float(output.norm() * factor)
        for tokens, largest in ((effect.promoted, True), (effect.suppressed, False)):
            values = logits.topk(5, largest=largest).values.tolist()
            assert [value for _, value in tokens] == pytest.approx([value for value in values if abs(value) > limit])
        return effect

    draws = torch.randn(50, model.d_model, generator=torch.Generator().manual_seed(1)) * float(scale)
    with torch.no_grad():
        counts = [len(effect.promoted + effect.suppressed) for effect in map(listed, draws)]
        assert sum(counts) / len(counts) < 1  # of the ten that could be listed
        aligned = listed(model.head[7] * norm.weight)
    assert aligned.promoted
    assert aligned.promoted[0][0] == token_texts(model, torch.tensor([7]))[0]


def test_strongest_nodes_come_first(found: Report) -> None:
    names = strongest_nodes(found.gates, 5)
    assert len(names) == 5
    assert set(names) <= set(found.graph.senders)
    strongest = max(found.gates.sound.indices, key=lambda edge: float(edge_strength(found.gates)[edge]))
    sender, _, port = found.graph.edges[strongest].partition("->")
    assert {sender, port.partition("<")[0]} & set(names)
    assert set(found.nodes.of) == set(strongest_nodes(found.gates, 100))
    assert len(found.nodes.prompts) == 3
