"""Bridges of TransformerLens 4: the shells come off, the weights are shared, the user's bridge stays as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import gatewise as gw
from gatewise.errors import GatewiseError

PAIRS = gw.Pairs.from_tokens([[5, 6, 7]], [[5, 8, 7]], [9], [10])


class Shell(nn.Module):
    """As TransformerLens wraps a part: hooks around what was there."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.hook_in = nn.Identity()
        self._original_component = inside

    def forward(self, *arguments: Tensor, **more: Tensor) -> Tensor:
        found: Tensor = self._original_component(*arguments, **more)
        return found


class TransformerBridge(nn.Module):
    """Enough of TransformerLens' class of this name."""

    def __init__(self, module: GPT2LMHeadModel) -> None:
        super().__init__()
        for block in module.transformer.h:
            block.attn.c_attn = Shell(block.attn.c_attn)
            block.ln_1 = Shell(Shell(block.ln_1))
        module.transformer.h = nn.ModuleList([Shell(block) for block in module.transformer.h])
        module.lm_head = Shell(module.lm_head)
        self.original_model = module
        self.tokenizer = None
        self.compatibility_mode = False


def small() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2)).eval()


def test_a_bridge_is_the_model_inside_it() -> None:
    plain = gw.load_model(small())
    bridge = TransformerBridge(small())
    names = list(bridge.state_dict())
    model = gw.load_model(bridge)
    circuit = model.graph.random_circuit(40)
    assert torch.equal(gw.run_circuit(model, PAIRS, circuit), gw.run_circuit(plain, PAIRS, circuit))
    assert list(bridge.state_dict()) == names  # untouched, and its weights are used in place
    shared = {weight.data_ptr() for weight in bridge.parameters()}
    assert {weight.data_ptr() for weight in model.hf.parameters()} == shared


def test_processed_weights_are_refused() -> None:
    bridge = TransformerBridge(small())
    bridge.compatibility_mode = True
    with pytest.raises(GatewiseError, match="boot_transformers"):
        gw.load_model(bridge)


def test_the_real_bridge() -> None:
    lens = pytest.importorskip("transformer_lens", reason="the extra `lens` is not installed")
    from gatewise.models.loader import TINY_FOLDER

    module = GPT2LMHeadModel.from_pretrained(TINY_FOLDER)
    tiny = gw.load_model("tiny")
    bridge = lens.TransformerBridge.boot_transformers(
        str(TINY_FOLDER), hf_model=module, tokenizer=tiny.tokenizer, device="cpu"
    )
    model = gw.load_model(bridge)
    pairs = gw.task("ioi", model, examples=2).train
    circuit = model.graph.random_circuit(300)
    assert torch.equal(gw.run_circuit(model, pairs, circuit), gw.run_circuit(tiny, pairs, circuit))
    bridge.enable_compatibility_mode(disable_warnings=True)
    with pytest.raises(GatewiseError, match="processed"):
        gw.load_model(bridge)
