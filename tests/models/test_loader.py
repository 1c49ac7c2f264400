"""Loading: every kind of source, and every way to get one wrong."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from gatewise.errors import GatewiseError
from gatewise.models.loader import BUILT_IN, load_model
from gatewise.models.model import Model

TOKENS = torch.tensor([[3, 1, 4, 1, 5]])


def toy_gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=17, n_embd=16, n_layer=2, n_head=2, n_positions=32))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "toy-gpt2"
    toy_gpt2().save_pretrained(target)
    return target


def write_pickle_folder(folder: Path) -> None:
    """A folder as older tools wrote it: the weights in a .bin file."""
    weights = folder / "model.safetensors"
    torch.save(toy_gpt2().state_dict(), folder / "pytorch_model.bin")
    weights.unlink()


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "smollm2-135m"])
def test_built_in_models_have_the_listed_edges(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert model.graph.n_edges == BUILT_IN[name].edges


def test_smollm2_has_the_listed_edges(smollm2: Model) -> None:
    assert smollm2.name == "smollm2-135m"
    assert smollm2.graph.n_edges == BUILT_IN["smollm2-135m"].edges == 123_211


def test_folder(folder: Path) -> None:
    for source in (folder, str(folder)):
        model = load_model(source)
        assert model.name == "toy-gpt2"
        assert model.tokenizer is None
        assert model.dtype is torch.float32
        assert torch.equal(model.hf(TOKENS).logits, toy_gpt2().eval()(TOKENS).logits)
    assert load_model(folder, qkv="merged").graph.n_edges < model.graph.n_edges


@pytest.mark.parametrize("dtype", [torch.float64, "float64", "torch.bfloat16", torch.bfloat16])
def test_dtype(folder: Path, dtype: str | torch.dtype) -> None:
    expected = getattr(torch, str(dtype).removeprefix("torch."))
    assert load_model(folder, dtype=dtype).dtype is expected
    assert load_model(toy_gpt2(), dtype=dtype).dtype is expected


def test_loaded_model_is_shared_and_left_as_it_is() -> None:
    module = toy_gpt2().train()
    model = load_model(module)
    load_model(module, dtype="float64", device="cpu")
    assert module.training
    assert all(parameter.requires_grad and parameter.dtype is torch.float32 for parameter in module.parameters())
    assert not any(parameter.requires_grad for parameter in model.hf.parameters())
    assert model.hf.transformer.wte.weight.data_ptr() == module.transformer.wte.weight.data_ptr()
    assert model.hf.lm_head.weight is model.hf.transformer.wte.weight


def test_tokenizer_is_passed_on() -> None:
    tokenizer = object()
    assert load_model(toy_gpt2(), tokenizer=tokenizer).tokenizer is tokenizer


def test_unsupported_architecture() -> None:
    bert = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
    with pytest.raises(GatewiseError, match="'bert' is not supported; supported are .*gpt2.*llama"):
        load_model(bert)


def test_pickle_only_when_trusted(folder: Path) -> None:
    write_pickle_folder(folder)
    with pytest.raises(GatewiseError, match="pytorch_model.bin, a pickle file.*trust_pickle=True"):
        load_model(folder)
    assert load_model(folder, trust_pickle=True).graph.n_layers == 2


def test_broken_folders(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(GatewiseError, match="not a whole safetensors file"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(GatewiseError, match="no weights"):
        load_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(GatewiseError, match="no config.json"):
        load_model(folder)


def test_weights_that_are_not_there_are_not_made_up(folder: Path) -> None:
    """transformers fills missing weights with random numbers, of any amount."""
    weights = load_file(folder / "model.safetensors")
    largest = max(weights, key=lambda name: weights[name].numel())
    save_file({name: w for name, w in weights.items() if name != largest}, folder / "model.safetensors")
    with pytest.raises(GatewiseError, match="holds .* parameters, and a model of its configuration has"):
        load_model(folder)
    renamed = {("other" if name == largest else name): w for name, w in weights.items()}
    save_file(renamed, folder / "model.safetensors")
    with pytest.raises(GatewiseError, match="has no weights for"):
        load_model(folder)


@pytest.mark.parametrize(
    ("key", "value"), [("n_layer", 10**9), ("n_head", 0), ("n_embd", "many"), ("vocab_size", True)]
)
def test_sizes_that_no_model_has(folder: Path, key: str, value: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    started = time.monotonic()
    with pytest.raises(GatewiseError, match=f"{key} is .*; expected a whole number"):
        load_model(folder)
    assert time.monotonic() - started < 5


def test_broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(GatewiseError, match="could not load a tokenizer.*Pairs.from_tokens"):
        load_model(folder)


def test_wrong_sources(tmp_path: Path) -> None:
    with pytest.raises(GatewiseError, match="'./nope' is not there; expected a folder"):
        load_model("./nope")
    with pytest.raises(GatewiseError, match="not there"):
        load_model(tmp_path / "nope")
    (tmp_path / "model.bin").touch()
    with pytest.raises(GatewiseError, match="is a file; expected a folder"):
        load_model(tmp_path / "model.bin")
    with pytest.raises(GatewiseError, match="type int was given"):
        load_model(3)
    with pytest.raises(GatewiseError, match="synthetic:combined"):
        load_model("synthetic:xor")
    with pytest.raises(GatewiseError, match="made in code"):
        load_model("synthetic:and", dtype="float64")


def test_id_out_of_reach_says_so_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(GatewiseError, match="hub cannot be reached.*did you mean 'smollm2-135m'"):
        load_model("smollm2")
    assert time.monotonic() - start < 20


def test_dtype_that_a_device_does_not_compute_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    multiply = torch.mm

    def without_bfloat16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype == torch.bfloat16:
            raise RuntimeError("\"addmm\" not implemented for 'BFloat16'")
        return multiply(a, b)

    monkeypatch.setattr(torch, "mm", without_bfloat16)
    with pytest.raises(GatewiseError, match=r"device 'cpu' does not compute in bfloat16: .*Give dtype='float32'"):
        load_model(folder, dtype="bfloat16")
    with pytest.raises(GatewiseError, match="does not compute in bfloat16"):
        load_model(load_model(folder).hf, dtype="bfloat16")
    load_model(folder)


def test_wrong_options(folder: Path) -> None:
    with pytest.raises(GatewiseError, match="'int8' was given; expected one of float32, bfloat16, float64"):
        load_model(folder, dtype="int8")
    with pytest.raises(GatewiseError, match="cannot use device 'toaster'"):
        load_model(folder, device="toaster")
    if not torch.cuda.is_available():
        with pytest.raises(GatewiseError, match="cannot use device 'cuda'.*Expected 'cpu', or a device"):
            load_model(folder, device="cuda")
    with pytest.raises(GatewiseError, match="qkv"):
        load_model(folder, qkv="joined")  # type: ignore[arg-type]
