"""Adapters from outside the package, what is refused, and every architecture on the meta device, without numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_models import ARCHITECTURES, random_pairs, small_model
from transformers import BloomConfig, BloomForCausalLM, LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM

from gatewise.engine.attribution import Attribution
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.runs.activations import both_runs
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.models import load_model, register_architecture, transformer
from gatewise.models.architectures.llama import llama_parts
from gatewise.models.transformer import Parts, adapt


@pytest.fixture
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "_registered", {})


class OtherConfig(LlamaConfig):  # type: ignore[misc]
    model_type = "other"


def other_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    hf = LlamaForCausalLM(OtherConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return hf


def test_unknown_architectures_get_the_list() -> None:
    with pytest.raises(GatewiseError, match=r"'bloom' is not supported; supported are gpt2, .*own-model.md"):
        load_model(BloomForCausalLM(BloomConfig(hidden_size=16, n_layer=1, n_head=2, vocab_size=29)))


@pytest.mark.usefixtures("empty_registry")
def test_registered_adapter_is_used() -> None:
    with pytest.raises(GatewiseError, match="'other' is not supported"):
        load_model(other_model())
    register_architecture("other", llama_parts)
    assert load_model(other_model()).graph.n_heads == 4


@pytest.mark.usefixtures("empty_registry")
def test_adapter_with_other_logits_is_refused() -> None:
    def forgetful(hf: Any) -> Parts:
        """The scale of the scores left out."""
        parts = llama_parts(hf)
        return replace(parts, layers=[(replace(attention, scale=1.0), mlp) for attention, mlp in parts.layers])

    register_architecture("other", forgetful)
    with pytest.raises(GatewiseError, match=r"adapter of 'other' does not give transformers' logits for .*differ"):
        load_model(other_model())


@pytest.mark.usefixtures("empty_registry")
def test_only_functions_under_new_names_are_registered() -> None:
    with pytest.raises(GatewiseError, match="'llama' has an adapter in gatewise"):
        register_architecture("llama", llama_parts)
    with pytest.raises(GatewiseError, match="an adapter is a function"):
        register_architecture("other", "llama_parts")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_layer_norm_before": False}, "no layer norms with weights before its blocks"),
        ({"word_embed_proj_dim": 8}, "embeds tokens in 8 dimensions and computes in 16"),
    ],
)
def test_opt_of_another_make_is_refused(changes: dict[str, Any], message: str) -> None:
    sizes: dict[str, Any] = {"vocab_size": 29, "hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 24}
    config = OPTConfig(**(sizes | changes), num_hidden_layers=1, num_attention_heads=4, pad_token_id=0)
    with pytest.raises(GatewiseError, match=message):
        load_model(OPTForCausalLM(config))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_engines_make_no_tensor_on_another_device(architecture: str) -> None:
    """On the meta device an operation with a tensor from elsewhere is an error, so that every tensor is made there.

    Pairs stay on the CPU, as a user's do; the engines move what they need.
    """
    model, pairs = adapt(small_model(architecture).hf.to("meta")), random_pairs()
    assert model.device.type == "meta"
    engine = DenseEngine(model, both_runs(model, pairs).intervention(model, "ns"))
    logits = engine.logits(torch.ones(len(model.graph.ports), len(model.graph.senders), device="meta"))
    assert (logits.device.type, tuple(logits.shape)) == ("meta", (3, 29))
    setting = Setting(model, pairs)
    scores = Attribution(setting, setting.batches(gradient=True)[0]).directions(("ns", "dn"))
    assert {value.device.type for value in scores.values()} == {"meta"}
