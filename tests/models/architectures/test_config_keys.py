"""Every architecture with every unusual key of its config class gives transformers' logits, or an error."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from small_models import VOCABULARY
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig

from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.models.config_keys import INERT, READ, UNDECLARED
from gatewise.models.logit_check import check_prompts
from gatewise.models.transformer import adapt, supported_architectures
from gatewise.tasks.pairs import Pairs

pytestmark = pytest.mark.attack

LONG = 40  # tokens: beyond every window and every original length below
_TRANSFORMERS = Path(transformers.__file__).parent
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_GROUPED = _SIZES | {"num_key_value_heads": 2, "head_dim": 8}
_ROTARY: dict[str, Any] = {"rope_theta": 100.0}
_ORIGINAL = {"original_max_position_embeddings": 16, "factor": 4.0}
_FACTORS = {"long_factor": [4.0, 3.0], "short_factor": [1.0, 1.0], **_ORIGINAL}
_MORE_FACTORS = {"long_factor": [4.0] * 4, "short_factor": [1.0] * 4, **_ORIGINAL}  # of heads with 8 dimensions
_USUAL: dict[str, dict[str, Any]] = {
    "gpt2": {**_SIZES, "n_inner": 24},
    "gpt_neo": {**_SIZES, "attention_types": [[["global", "local"], 1]], "window_size": 3},
    "gpt_neox": _SIZES,
    "opt": {**_SIZES, "ffn_dim": 24, "word_embed_proj_dim": 16},
    "qwen2": {key: value for key, value in _GROUPED.items() if key != "head_dim"},
    "phi3": {**{key: value for key, value in _GROUPED.items() if key != "head_dim"}, **_ORIGINAL},
    "olmo2": {key: value for key, value in _GROUPED.items() if key != "head_dim"},
    **dict.fromkeys(("llama", "mistral", "qwen3", "smollm3"), _GROUPED),
    **dict.fromkeys(("gemma2", "gemma3_text"), _GROUPED | {"sliding_window": 8, "query_pre_attn_scalar": 5}),
}
_UNUSUAL: dict[str, list[Any]] = {  # values that differ from the usual, by key
    **{key: ["relu", "gelu", "gelu_new", "silu"] for key in ("hidden_act", "hidden_activation", "activation_function")},
    "rope_parameters": [
        {**_ROTARY, "rope_type": "linear", "factor": 3.0},
        {**_ROTARY, "rope_type": "dynamic", "factor": 3.0, "original_max_position_embeddings": 16},
        {**_ROTARY, "rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 16},
        {**_ROTARY, "rope_type": "longrope", **_FACTORS},
        {**_ROTARY, "rope_type": "longrope", **_MORE_FACTORS},
        {**_ROTARY, "rope_type": "default", "partial_rotary_factor": 0.5},
    ],
    "layer_types": [["full_attention", "sliding_attention"], ["sliding_attention"] * 2, ["chunked_attention"] * 2],
    "attention_types": [[[["local"], 2]], [[["global"], 2]]],
    **{key: [5] for key in ("sliding_window", "window_size", "attention_chunk_size")},
    **{key: [0.5] for key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")},
    **{key: [None, 1.5] for key in ("attn_logit_softcapping", "final_logit_softcapping")},
    "query_pre_attn_scalar": [3],
    "max_window_layers": [1],
    "no_rope_layers": [[0, 0], [1, 0]],
    "no_rope_layer_interval": [2],
    "head_dim": [6],
    "num_key_value_heads": [1],
    "word_embed_proj_dim": [8],
    "original_max_position_embeddings": [16],
    "num_kv_shared_layers": [1],
    "per_layer_config": [{0: {"num_attention_heads": 2}}],
    "is_causal": [False],
    "attn_implementation": ["eager"],
    "chunk_size_feed_forward": [3],
    "pretraining_tp": [2],
    "layerdrop": [0.9],
    "summary_type": ["mean"],
    "dtype": ["float32"],
    "problem_type": ["regression"],
    "pad_token_id": [1],
}
_UNTESTED = {  # sizes, names, and what transformers does not take from a config
    *("vocab_size", "hidden_size", "n_embd", "num_hidden_layers", "n_layer", "num_layers", "num_attention_heads"),
    *("n_head", "num_heads", "max_position_embeddings", "n_positions", "intermediate_size", "ffn_dim", "n_inner"),
    *("transformers_version", "architectures", "id2label", "label2id", "bos_token_id", "eos_token_id"),
    *("summary_activation", "quantization_config", "fusion_config", "distributed_config", "transformers_weights"),
    *("experts_implementation", "_experts_implementation", "_attn_implementation", "number_of_conv_states"),
    *("decoder", "generator", "text_encoder", "text_config", "tie_last_hidden_states", "num_mtp_layers"),
}
# Keys that act only beside another one.
_BESIDE: dict[str, dict[str, Any]] = {
    "max_window_layers": {"use_sliding_window": True, "sliding_window": 5},
    "use_sliding_window": {"sliding_window": 5, "max_window_layers": 0},
    "original_max_position_embeddings": {"rope_parameters": {**_ROTARY, "rope_type": "longrope", **_FACTORS}},
    "word_embed_proj_dim": {},
}


def configurations() -> Iterator[Any]:
    """Each architecture with each unusual value of each key that its config class declares, or that none does."""
    for model_type in _USUAL:
        declared = {field.name: field.default for field in fields(CONFIG_MAPPING[model_type])}
        for key in sorted({*declared, *UNDECLARED} - _UNTESTED):
            values = _UNUSUAL.get(key, [not declared.get(key)])
            if isinstance(declared.get(key), float) and key not in _UNUSUAL:
                values = [0.7]  # a dropout or the size of random weights
            for number, value in enumerate(values):
                yield pytest.param(model_type, key, value, id=f"{model_type}-{key}-{number}")


CONFIGURATIONS = list(configurations())


def random_module(model_type: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[model_type](**copy.deepcopy(_USUAL[model_type] | changes))  # which changes dicts in place
    hf = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.1))
    return hf.eval()


def pairs_of(length: int) -> Pairs:
    generator = torch.Generator().manual_seed(1)
    clean = torch.randint(1, VOCABULARY, (2, length), generator=generator)
    return Pairs.from_tokens(clean.tolist(), clean.roll(1, 1).tolist(), correct=[1, 2], incorrect=[3, 4])


def test_there_are_enough_configurations() -> None:
    assert len(CONFIGURATIONS) >= 60
    assert {parameters.values[0] for parameters in CONFIGURATIONS} == set(supported_architectures())


@pytest.mark.parametrize(("model_type", "key", "value"), CONFIGURATIONS)
def test_an_unusual_key_gives_transformers_logits_or_an_error(model_type: str, key: str, value: Any) -> None:
    try:
        hf = random_module(model_type, **_BESIDE.get(key, {}), **{key: value})
    except Exception:  # transformers itself refuses it
        return
    try:
        model = adapt(hf)
    except GatewiseError:
        return
    for length in (9, LONG):
        pairs = pairs_of(length)
        try:
            logits = Setting(model, pairs).last_logits("clean")
        except GatewiseError:
            continue
        with torch.no_grad():
            expected = hf(pairs.clean, use_cache=False, return_dict=True).logits[:, -1]
        torch.testing.assert_close(logits, expected, atol=1e-4 * float(expected.std()), rtol=0)


@pytest.mark.parametrize("model_type", _USUAL)
def test_usual_configs_are_taken(model_type: str) -> None:
    """Extra keys that transformers does not read are let pass, as are values that mean nothing."""
    extra = {} if "layer_types" in READ[model_type] else {"layer_types": ["full_attention"] * 2}
    model = adapt(random_module(model_type, made_by="someone", is_causal=True, **extra))
    check_prompts(model, LONG)
    assert model.compared_at == {12, LONG}


@pytest.mark.parametrize("model_type", _USUAL)
def test_a_model_that_is_not_causal_is_refused(model_type: str) -> None:
    with pytest.raises(GatewiseError, match=f"{model_type}: is_causal is False in the model's config"):
        adapt(random_module(model_type, is_causal=False))


@pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text"])
def test_a_gemma_that_looks_ahead_is_refused(model_type: str) -> None:
    with pytest.raises(GatewiseError, match="use_bidirectional_attention is True"):
        adapt(random_module(model_type, use_bidirectional_attention=True))


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_a_rotary_embedding_that_depends_on_the_batch_is_refused_beyond_its_length(kind: str) -> None:
    rotary = {**_ROTARY, "rope_type": kind, **(_FACTORS if kind == "longrope" else _ORIGINAL)}
    model = adapt(random_module("phi3" if kind == "longrope" else "llama", rope_parameters=rotary))
    Setting(model, pairs_of(16))
    with pytest.raises(GatewiseError, match=f"has 17 tokens, and beyond 16 the rotary embedding .*{kind}"):
        Setting(model, pairs_of(17))


def test_what_differs_at_long_prompts_only_is_refused_there() -> None:
    """A window that the adapter does not know: no short prompt shows it."""
    hf = random_module("mistral", sliding_window=14)
    model = adapt(hf)
    for layer in hf.model.layers:  # as a later version of transformers might do it
        layer.self_attn.config = hf.config
    hf.config.sliding_window = 6
    check_prompts(model, 12)
    with pytest.raises(GatewiseError, match="on a prompt of 40 tokens they differ by up to"):
        Setting(model, pairs_of(LONG))


def test_a_model_is_compared_once_for_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    hf = random_module("llama")
    forward = hf.forward

    def counted(tokens: Any, **options: Any) -> Any:
        lengths.append(tokens.shape[1])
        return forward(tokens, **options)

    model = adapt(hf)
    monkeypatch.setattr(hf, "forward", counted)
    for length in (9, 12, LONG, LONG, 20):
        Setting(model, pairs_of(length))
    assert lengths == [LONG]


def test_every_declared_key_was_looked_at() -> None:
    """Those of a later transformers are refused unless they have their defaults, until someone looks at them."""
    for model_type, keys in READ.items():
        declared = {field.name for field in fields(CONFIG_MAPPING[model_type])}
        assert keys <= declared, f"{model_type} declares no {keys - declared}"
        left = declared - keys - INERT
        assert left <= {"is_encoder_decoder", "is_decoder", "use_bidirectional_attention", "return_dict"}


# Attributes that are read of something called a config, and are no keys of a model's, or none that change its logits.
_NO_KEYS = {
    *("model_type", "num_labels", "output_attentions", "name_or_path", "_name_or_path", "attribute_map", "sub_configs"),
    *("head_dim",),  # sizes of weights, which the adapters take from the weights
    *("attention_layers",),  # made of attention_types
    *("rope_parameters",),  # of models with a rotary embedding, whose classes declare it
    *("_is_quantized", "summary_last_dropout", "hidden_dropout", "classifier_dropout"),
    *("vision_config", "layer_norm_eps", "image_size", "patch_size", "mm_tokens_per_image", "image_token_id"),
}


@cache
def config_reads(path: Path) -> set[str]:
    """Names of attributes that a file reads of anything called `config`."""
    names = set()

    def is_config(node: ast.expr) -> bool:
        return (node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")) == "config"

    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and is_config(node.value) and isinstance(node.ctx, ast.Load):
            names.add(node.attr)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            name = node.args[1]
            if is_config(node.args[0]) and isinstance(name, ast.Constant):
                names.add(str(name.value))
    return names


@pytest.mark.parametrize("model_type", _USUAL)
def test_no_key_that_transformers_reads_is_forgotten(model_type: str) -> None:
    """By its source: what the model, masks, rotary embeddings and caches read is declared, or refused."""
    folder = _TRANSFORMERS / "models" / model_type.removesuffix("_text")
    shared = ("masking_utils.py", "modeling_rope_utils.py", "cache_utils.py")
    read = set().union(*map(config_reads, [*folder.glob("modeling_*.py"), *(_TRANSFORMERS / name for name in shared)]))
    kind = CONFIG_MAPPING[model_type]
    methods = {name for name in dir(PreTrainedConfig) if callable(getattr(PreTrainedConfig, name, None))}
    known = {field.name for field in fields(kind)} | set(kind.attribute_map) | set(UNDECLARED) | methods | _NO_KEYS
    assert read - known == set()
